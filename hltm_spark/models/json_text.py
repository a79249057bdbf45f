"""Finding the JSON object in what a model wrote around it.

Fences, prose, a byte order mark, a block of visible thinking and small damage (trailing commas,
single quotes) are taken away. An object that never closes is never closed for the model: half an
answer must not pass as a whole one. Messages give lengths, never text.
"""

import json
import math
import re
from collections.abc import Collection, Iterator
from typing import Any

from json_repair import repair_json

_THINKING = re.compile(r"\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_THINKING_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_BRACE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_OPENS_OBJECT = re.compile(r"\{\s*[\"'}]")
_MAX_STARTS = 32


class JsonObject(dict[str, Any]):
    """A JSON object that still knows repeated keys.

    Attributes:
        pairs: Every (key, value) in the order written; the dict itself keeps the last of a key.
    """

    pairs: list[tuple[str, Any]]

    @classmethod
    def from_pairs(cls, pairs: list[tuple[str, Any]]) -> "JsonObject":
        """Build from the pairs as written."""
        made = cls(pairs)
        made.pairs = pairs
        return made


class NoJsonError(ValueError):
    """Raised when a text holds no readable, closed JSON object."""


def find_object(text: str, *, keys: Collection[str], may_repair: bool) -> tuple[JsonObject, int]:
    """Return the JSON object that answers, and how many others stood beside it.

    Args:
        text: The whole answer.
        keys: Wanted keys; `questionAnswers` and `Question Answers` are `question_answers`. Of
            several objects the one with most of them is taken, of equal ones the last: a draft or
            an example comes before the answer.
        may_repair: Damaged but closed JSON is mended; only for an answer that ended by itself.

    Raises:
        NoJsonError: Nothing that could be read.
    """
    names = {_squeeze(key): key for key in keys}
    found: list[JsonObject] = []
    damaged = 0
    for piece in _closed_objects(_without_thinking(text)):
        read = _read(piece, may_repair=may_repair)
        damaged += read is None
        renamed = (
            [(names.get(_squeeze(key), key), value) for key, value in read.pairs] if read else []
        )
        if any(key in keys for key, _ in renamed):
            found.append(JsonObject.from_pairs(renamed))
    if not found:
        problem = "damaged JSON" if damaged else "no JSON object with a wanted key"
        raise NoJsonError(f"{problem} in {len(text)} characters")
    best = max(range(len(found)), key=lambda i: (len(found[i].keys() & set(keys)), i))
    return found[best], len(found) - 1


def _squeeze(key: str) -> str:
    return re.sub(r"[\W_]", "", key).lower()


def _without_thinking(text: str) -> str:
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    while block := _THINKING.match(text):
        text = text[block.end() :]
    if not text.lstrip().startswith(("{", "[", "```")) and (end := _THINKING_END.search(text)):
        return text[end.end() :]  # some chat templates swallow the opening tag
    return text


def _closed_objects(text: str) -> Iterator[str]:
    """Yield each outermost {...}; stop at one that looks like JSON and never closes."""
    start = text.find("{")
    for _ in range(_MAX_STARTS):
        if start < 0:
            return
        end = _closing(text, start)
        if end:
            yield text[start:end]
        elif _OPENS_OBJECT.match(text, start):
            raise NoJsonError(f"a JSON object that never closes in {len(text)} characters")
        start = text.find("{", end or start + 1)


def _closing(text: str, start: int) -> int:
    depth = 0
    for token in _BRACE.finditer(text, start):
        if token[0] in {"{", "}"}:
            depth += 1 if token[0] == "{" else -1
            if depth == 0:
                return token.end()
    return 0


def _read(piece: str, *, may_repair: bool) -> JsonObject | None:
    attempts = (piece, _STRING_OR_COMMA.sub(lambda m: m[0] if m[0] != "," else "", piece))
    for attempt in attempts if may_repair else attempts[:1]:
        try:
            read = json.loads(
                attempt,
                strict=False,  # models put bare line ends into strings
                object_pairs_hook=JsonObject.from_pairs,
                parse_constant=lambda _: math.nan,
            )
        except (ValueError, RecursionError):
            continue
        return read if isinstance(read, JsonObject) else None
    return _repaired(piece) if may_repair else None


def _repaired(piece: str) -> JsonObject | None:
    try:
        made = _with_pairs(repair_json(piece, return_objects=True, skip_json_loads=True))
    except (ValueError, RecursionError):
        return None
    return made if isinstance(made, JsonObject) else None


def _with_pairs(value: Any) -> Any:
    if isinstance(value, dict):
        return JsonObject.from_pairs([(str(k), _with_pairs(v)) for k, v in value.items()])
    return [_with_pairs(item) for item in value] if isinstance(value, list) else value
