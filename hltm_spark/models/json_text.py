"""Finding the JSON object in what a model wrote around it.

Fences, prose, a byte order mark, visible thinking and small damage (`lenient_json`) are taken away.
An object that never closes is never closed for the model: half an answer must not pass as a whole
one, whatever the finish reason says. So nothing is read of thinking that never ends, nor of an
object that goes on behind its end, because a quote in a text was not escaped or a brace is one too
many. What cannot be known is that a whole object, such as a draft, was to be followed by another
that was not begun. Messages give lengths, never text.
"""

import json
import math
import re
from collections.abc import Collection, Iterator
from typing import Any

from hltm_spark.models.lenient_json import to_json

_THOUGHT = r"(?:think(?:ing)?|thoughts?|reasoning)"
_THINKING = re.compile(rf"<{_THOUGHT}>|\[THINK\]", re.IGNORECASE)
_THINKING_END = re.compile(rf"</{_THOUGHT}>|\[/THINK\]", re.IGNORECASE)
_STRING = r'"(?:[^"\\]|\\.)*+"'
_BRACE = re.compile(rf"{_STRING}|[{{}}\"]", re.DOTALL)
# between single quotes, an apostrophe between two letters ends nothing
_BRACE_OF_QUOTED = re.compile(rf"'(?:[^'\\]|\\.|(?<=\w)'(?=\w))*+'|{_STRING}|[{{}}\"']", re.DOTALL)
_FIRST_QUOTE = re.compile(r"[^\"'}]*(['\"])")
_OPENS_OBJECT = re.compile(r"\{\s*(?:[\"'}/]|\w+\s*:|\Z)")
_OPENS_QUOTED = re.compile(r"\{\s*[\"']")
_GOES_ON = re.compile(r"\s*,?\s*([\"'])|[^{}]*\}")
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
            an example comes before the answer. So none is taken with damaged JSON behind it.
        may_repair: Damaged but closed JSON is mended; only for an answer that ended by itself.

    Raises:
        NoJsonError: Nothing that could be read.
    """
    names = {_squeeze(key): key for key in keys}
    found: list[JsonObject] = []
    is_damaged = is_followed = False
    text = _without_thinking(text)
    for start, end in _closed_objects(text):
        read = _read(text[start:end], may_repair=may_repair)
        is_damaged |= read is None
        is_followed |= read is None and bool(_OPENS_QUOTED.match(text, start))
        renamed = (
            [(names.get(_squeeze(key), key), value) for key, value in read.pairs] if read else []
        )
        if any(key in keys for key, _ in renamed):
            _check_end(text, start, end)
            found.append(JsonObject.from_pairs(renamed))
            is_followed = False
    if not found or is_followed:
        problem = "damaged JSON" if is_damaged else "no JSON object with a wanted key"
        raise NoJsonError(f"{problem} in {len(text)} characters")
    best = max(range(len(found)), key=lambda i: (len(found[i].keys() & set(keys)), i))
    return found[best], len(found) - 1


def _squeeze(key: str) -> str:
    return re.sub(r"[\W_]", "", key).lower()


def _without_thinking(text: str) -> str:
    """Return what stands behind the thinking, which is only looked for before the first brace."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    at, brace = 0, text.find("{")
    while begin := _THINKING.search(text, at, brace if brace >= 0 else len(text)):
        end = _THINKING_END.search(text, begin.end())
        if end is None:
            raise NoJsonError(f"thinking that never ends in {len(text)} characters")
        at = end.end()
        if 0 <= brace < at:
            brace = text.find("{", at)
    text = text[at:]
    if not text.lstrip().startswith(("{", "[", "```")) and (end := _THINKING_END.search(text)):
        return text[end.end() :]  # some chat templates swallow the opening tag
    return text


def _closed_objects(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each outermost {...}; stop at what looks like JSON and never closes."""
    start = text.find("{")
    for _ in range(_MAX_STARTS):
        if start < 0:
            return
        end = _closing(text, start)
        if end:
            yield start, end
        elif _OPENS_OBJECT.match(text, start):
            raise NoJsonError(f"a JSON object that never closes in {len(text)} characters")
        start = text.find("{", end or start + 1)
    if start >= 0:
        raise NoJsonError(f"more than {_MAX_STARTS} opening braces in {len(text)} characters")


def _closing(text: str, start: int) -> int:
    """Return where the object that starts there ends; 0 where it, or a text in it, never does."""
    quote = _FIRST_QUOTE.match(text, start)
    pattern = _BRACE_OF_QUOTED if quote and quote[1] == "'" else _BRACE
    depth = 0
    for token in pattern.finditer(text, start):
        if token[0] in {'"', "'"}:
            return 0
        if token[0] in {"{", "}"}:
            depth += 1 if token[0] == "{" else -1
            if depth == 0:
                return token.end()
    return 0


def _check_end(text: str, start: int, end: int) -> None:
    """Raise where an object's text goes on behind it: a quote or a brace is one too many."""
    goes_on = _GOES_ON.match(text, end)
    is_quoted_whole = goes_on and goes_on[1] and text[:start].rstrip().endswith(goes_on[1])
    if goes_on and not is_quoted_whole:
        raise NoJsonError(f"a JSON object that goes on behind its end in {len(text)} characters")


def _read(piece: str, *, may_repair: bool) -> JsonObject | None:
    read = _loaded(piece)
    if read is None and may_repair and (mended := to_json(piece)):
        return _loaded(mended)
    return read


def _loaded(piece: str) -> JsonObject | None:
    try:
        read = json.loads(
            piece,
            strict=False,  # models put bare line ends into strings
            object_pairs_hook=JsonObject.from_pairs,
            parse_constant=lambda _: math.nan,
        )
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, JsonObject) else None
