"""LoCoMo's published file as documents for conf/conversation.toml.

One turn is one document: user = sample_id, session = `session_01` (padded, so that tree order is
time order), doc_id = dia_id. A turn has no time of its own; turn n is put n seconds after its
session's start, which keeps their order. An image is there only as its caption.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hltm_spark.core.errors import DataError

_SESSION = re.compile(r"^session_(\d+)$")
_TIME = "%I:%M %p on %d %B, %Y"


def read_locomo(path: str) -> list[dict[str, Any]]:
    """Return the file's samples.

    Raises:
        DataError: The file is missing or is not LoCoMo's JSON.
    """
    try:
        samples = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path!r}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path!r} is not JSON; pass LoCoMo's published file") from error
    if not isinstance(samples, list) or not all(
        isinstance(sample, dict) and {"sample_id", "conversation"} <= sample.keys()
        for sample in samples
    ):
        raise DataError(
            f"{path!r} is not LoCoMo's file: a list of samples with a conversation each"
        )
    return samples


def locomo_documents(sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the turns of one conversation in order, as documents."""
    conversation = sample["conversation"]
    numbers = sorted(int(m[1]) for name in conversation if (m := _SESSION.match(name)))
    for number in numbers:
        began = _session_time(conversation.get(f"session_{number}_date_time"))
        for position, turn in enumerate(conversation[f"session_{number}"] or ()):
            time = began + timedelta(seconds=position) if began else None
            yield {
                "user": str(sample["sample_id"]),
                "session": f"session_{number:02d}",
                "doc_id": str(turn["dia_id"]),
                "text": turn_text(turn),
                "kind": "turn",
                "event_time": time.strftime("%Y-%m-%dT%H:%M:%SZ") if time else None,
                "metadata": {"speaker": str(turn["speaker"]), "dia_id": str(turn["dia_id"])},
            }


def turn_text(turn: Mapping[str, Any]) -> str:
    """Return what was said, with the caption of a shared image."""
    text = str(turn.get("text") or "").strip()
    caption = str(turn.get("blip_caption") or "").strip()
    return f"{text} [shared an image: {caption}]".strip() if caption else text


def write_documents(path: str, documents: Iterator[Mapping[str, Any]]) -> int:
    """Write documents as JSONL; return how many.

    Raises:
        DataError: The file cannot be written.
    """
    count = 0
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            for document in documents:
                file.write(json.dumps(document, ensure_ascii=False) + "\n")
                count += 1
    except OSError as error:
        raise DataError(f"cannot write {path!r}: {error.strerror}; name another file") from error
    return count


def _session_time(text: str | None) -> datetime | None:
    """Return a session's start; `1:56 pm on 8 May, 2023` is how the file writes it."""
    if not text:
        return None
    try:
        return datetime.strptime(text.strip(), _TIME).replace(tzinfo=UTC)
    except ValueError as error:
        raise DataError(f"session time {text!r} is not like '1:56 pm on 8 May, 2023'") from error
