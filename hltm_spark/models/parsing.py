"""From a completion to validated fields: every provider is judged by these rules.

The finish reason is looked at before the text: a cut-off or filtered answer is never read. Then
the JSON object is found (`json_text`), facets are made flat (`facets`), citations are held against
the ids of the prompt (`citations`). What had to be left out is counted in `ParsedAnswer.dropped`:

unknown_source, empty, not_a_number, duplicate_key, duplicate_value, wrong_shape: see those modules.
extra_key: a response key that was not asked for. extra_object: a further JSON object.
over_limit: question-answer pairs beyond the limit.

Error messages hold kinds, key names and lengths, never text of the answer.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hltm_spark.core.errors import LlmError
from hltm_spark.core.prompts import OUTPUTS
from hltm_spark.models.citations import KnownSources
from hltm_spark.models.facets import FacetReader, clean_text, one_line, scalar_text
from hltm_spark.models.json_text import JsonObject, NoJsonError, find_object
from hltm_spark.models.llm import FILTERED, MALFORMED, REFUSED, TRUNCATED

_ENDED = frozenset({"stop", "end_turn", "eos", "stop_sequence", "completed", "end"})
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "max_length",
                  "incomplete", "model_context_window_exceeded"})  # fmt: skip
_STOPPED = frozenset({"content_filter", "content_filtered", "safety", "recitation", "blocklist",
                      "prohibited_content", "spii", "guardrail_intervened"})  # fmt: skip
_APOLOGY = re.compile(
    r"\s*(?:i['\u2019]m sorry|i am sorry|sorry\b|i apologi[sz]e|i can(?:no|['\u2019])t\b"
    r"|i['\u2019]m (?:unable|not able)|i am (?:unable|not able)|i won['\u2019]t\b|as an ai\b)",
    re.IGNORECASE,
)
_OPTIONAL = frozenset({"rationale", "citation"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAnswer:
    """A validated answer.

    Attributes:
        fields: The keys of `OUTPUTS[output]`. `facets` is [{name, value, sources}] by name, then
            position; `question_answers` is [{question, answer, sources}] in the order written;
            `citation` is a ranked list of ids; the rest is text. Sources are ids of the prompt;
            an empty list stands for all of them.
        dropped: How many things of each kind were left out; kinds that did not occur are absent.
    """

    fields: dict[str, Any]
    dropped: dict[str, int]


def parse_answer(
    text: str,
    finish_reason: str,
    *,
    output: str,
    source_ids: Sequence[str],
    max_questions: int | None = None,
) -> ParsedAnswer:
    """Return the fields of one answer.

    Args:
        text: The answer as the provider gave it.
        finish_reason: As the provider names it; damaged JSON is mended only after `stop`.
        output: Key of `OUTPUTS`.
        source_ids: Ids that the prompt showed; no other is kept.
        max_questions: Question-answer pairs beyond this are left out.

    Raises:
        LlmError: `truncated`, `filtered`, `refused` or `malformed`. A required key that is missing,
            of the wrong type, or left with nothing is malformed; `rationale` and `citation` are
            optional, and facets may be an empty object.
    """
    reason = re.sub(r"[\s-]+", "_", finish_reason.strip().lower())
    _check_finish(text, reason)
    keys = OUTPUTS[output]
    try:
        raw, others = find_object(text, keys=keys, may_repair=reason in _ENDED)
    except NoJsonError as error:
        raise _problem(text, str(error)) from None
    if missing := [key for key in keys if raw.get(key) is None and key not in _OPTIONAL]:
        raise LlmError(f"{MALFORMED}: keys {missing} are missing; wanted {list(keys)}")
    reader = _Reader(source_ids, max_questions=max_questions)
    fields = {key: reader.read(key, raw.get(key)) for key in keys}
    reader.dropped["extra_object"] += others
    reader.dropped["extra_key"] += len(raw.keys() - set(keys))
    reader.dropped["duplicate_key"] += len(raw.pairs) - len(raw)
    return ParsedAnswer(fields=fields, dropped={k: n for k, n in reader.dropped.items() if n})


def json_schema_of(output: str) -> dict[str, Any]:
    """Return the JSON schema of an output for strict structured outputs.

    Strict schemas know no free keys, so facets are a list of {name, values, sources} there.
    """
    return _closed({key: _SCHEMAS.get(key, _TEXT) for key in OUTPUTS[output]})


def _check_finish(text: str, reason: str) -> None:
    if reason in _CUT:
        raise LlmError(f"{TRUNCATED}: cut off at the output limit after {len(text)} characters")
    if reason in _STOPPED:
        raise LlmError(f"{FILTERED}: stopped by the provider's content filter")
    if reason == "refusal":
        raise LlmError(f"{REFUSED}: the model declined to answer")
    if not text.strip():
        raise LlmError(f"{MALFORMED}: empty answer with finish reason {reason[:20]!r}")


def _problem(text: str, problem: str) -> LlmError:
    if "{" not in text and _APOLOGY.match(text):
        return LlmError(f"{REFUSED}: an apology of {len(text)} characters in place of JSON")
    return LlmError(f"{MALFORMED}: {problem}")


class _Reader:
    """Reads the keys of one response."""

    def __init__(self, source_ids: Sequence[str], *, max_questions: int | None) -> None:
        self.dropped: Counter[str] = Counter()
        self._sources = KnownSources(source_ids, dropped=self.dropped)
        self._max_questions = max_questions

    def read(self, key: str, raw: Any) -> Any:
        if key == "facets":
            return self._facets(raw)
        if key == "question_answers":
            return self._question_answers(raw)
        if key == "citation":
            return self._sources.read(raw)
        return self._text(key, raw)

    def _facets(self, raw: Any) -> list[dict[str, Any]]:
        if not isinstance(raw, dict | list):
            raise LlmError(f"{MALFORMED}: facets is {type(raw).__name__}, wanted an object")
        found = FacetReader(self._sources, self.dropped).read(raw)
        if raw and not found:
            raise LlmError(f"{MALFORMED}: none of {len(raw)} facets has a name and a value")
        return found

    def _question_answers(self, raw: Any) -> list[dict[str, Any]]:
        if isinstance(raw, JsonObject):
            raw = (
                [raw] if "question" in raw else [{"question": q, "answer": a} for q, a in raw.pairs]
            )
        if not isinstance(raw, list):
            raise LlmError(f"{MALFORMED}: question_answers is {type(raw).__name__}, wanted a list")
        found = [pair for item in raw if (pair := self._pair(item))]
        if not found:
            raise LlmError(f"{MALFORMED}: none of {len(raw)} question_answers has both texts")
        kept = found[: self._max_questions]
        self.dropped["over_limit"] += len(found) - len(kept)
        return kept

    def _pair(self, item: Any) -> dict[str, Any] | None:
        if isinstance(item, str):  # "Where is it? In Oulu."
            question, mark, answer = item.partition("?")
            item = {"question": question + mark, "answer": answer}
        if not isinstance(item, dict):
            self.dropped["wrong_shape"] += 1
            return None
        question, answer = _joined(item.get("question")), _joined(item.get("answer"))
        if not question or not answer:
            self.dropped["empty"] += 1
            return None
        cited = self._sources.read(item.get("sources", item.get("source")))
        return {"question": question, "answer": answer, "sources": cited}

    def _text(self, key: str, raw: Any) -> str:
        lines = [_scalar_or_lines(item) for item in (raw if isinstance(raw, list) else [raw])]
        text = _paragraphs("\n".join(line for line in lines if line))
        if not text and key not in _OPTIONAL:
            raise LlmError(f"{MALFORMED}: {key} has no text ({type(raw).__name__})")
        return one_line(text) if key == "one_sentence_summary" else text


def _scalar_or_lines(value: Any) -> str:
    return clean_text(value) if isinstance(value, str) else scalar_text(value) or ""


def _joined(value: Any) -> str:
    """Return a question or answer on one line; several texts are joined by commas."""
    items = value if isinstance(value, list) else [value]
    return ", ".join(text for item in items if (text := scalar_text(item)))


def _paragraphs(text: str) -> str:
    """Return text with single blanks and at most one empty line between paragraphs."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_TEXT: dict[str, Any] = {"type": "string"}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "facets": {
        "type": "array",
        "items": _closed({"name": _TEXT, "values": _TEXTS, "sources": _TEXTS}),
    },
    "question_answers": {
        "type": "array",
        "items": _closed({"question": _TEXT, "answer": _TEXT, "sources": _TEXTS}),
    },
    "citation": _TEXTS,
}
