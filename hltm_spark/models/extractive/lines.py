"""A document's text as lines: labelled (`Label: value`), spoken (`Speaker: words`), or plain."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

_LINE = re.compile(
    r"^\s*(?:\[?\d{1,2}:\d{2}(?::\d{2})?\]?\s*[-–]?\s+)?(?:[-*•·▪–]\s+|\d{1,2}[.)]\s+|#{1,6}\s+)?"
    r"(?:\*\*|__)?(?P<label>[^\W_][^:：|\n.!?。！？;；]{0,47}?)(?:\*\*|__)?\s*"
    r"(?::(?:\*\*|__)?(?=\s|$)|：(?:\*\*|__)?)\s*(?P<value>.*)$"
)
_BULLET = re.compile(r"^\s*(?:[-*•·▪–]|\d{1,2}[.)])\s+(?P<value>\S.*)$")
_SENTENCE_END = re.compile(r"[.!?…。！？]['\"”’)\]]*$")
_NO_LABEL = frozenset(
    re.findall(
        r"\w+",
        """a after also and because before but for from he her his i if in it its my no not one our
        she so that the then there these they this to we what when where which while who why with
        you your""",
    )
)
_MAX_LABEL_WORDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line.

    Attributes:
        kind: `label`, `speech` or `text`.
        label: The label or the speaker.
        text: The value, the words spoken, or the whole line.
    """

    kind: str
    text: str
    label: str = ""


def read_lines(text: str, is_declared: Callable[[str], bool]) -> list[Line]:
    """Return the lines of a text that hold something, in order.

    A bare `Label:` takes the bullets below it as its values. A label is a speaker where at least
    two such labels answer each other in this text: each stands before sentences, and comes again
    or stands next to a question. Lines without a label that follow a speaker's belong to the turn,
    up to an empty line.

    Args:
        text: A document's text.
        is_declared: Tells whether conf knows a label.
    """
    raw = [piece for line in text.splitlines() for piece in _pieces(line, is_declared)]
    speakers = _speakers([line for line in raw if line.kind == "label"])
    return list(_joined(raw, speakers))


def is_sentence(text: str) -> bool:
    """Return True for text that ends like a sentence and is more than a word or two."""
    return bool(_SENTENCE_END.search(text)) and (len(text.split()) >= 3 or not text.isascii())


def _pieces(line: str, is_declared: Callable[[str], bool]) -> Iterator[Line]:
    """Yield a line, or its parts where all of several parts between bars have a label."""
    parts = re.split(r"\s+[|｜]\s+|\s*[;；]\s+", line)
    labelled = [_labelled(part) for part in parts]
    if len(parts) > 1 and all(p and is_declared(p.label) for p in labelled):
        yield from (part for part in labelled if part)
        return
    whole = _labelled(line)
    if whole:
        yield whole
    elif bullet := _BULLET.match(line):
        yield Line(kind="bullet", text=bullet["value"].strip())
    elif not line.strip():
        yield Line(kind="empty", text="")
    else:
        yield Line(kind="text", text=line.strip().lstrip("#").strip() or line.strip())


def _labelled(line: str) -> Line | None:
    match = _LINE.match(line)
    if match is None:
        return None
    label = match["label"].strip(" *_")
    words = label.split()
    if not words or len(words) > _MAX_LABEL_WORDS or words[0].casefold() in _NO_LABEL:
        return None
    if label[0].islower() and len(words) > 3:
        return None
    return Line(kind="label", label=label, text=match["value"].strip())


def _speakers(lines: list[Line]) -> frozenset[str]:
    count: dict[str, int] = {}
    for line in lines:
        count[line.label] = count.get(line.label, 0) + 1
    found: dict[str, None] = {}
    for i, line in enumerate(lines):
        beside = [n for n in lines[max(0, i - 1) : i + 2] if n.label != line.label]
        is_asking = any(n.text.rstrip("\"'”’) ").endswith(("?", "？")) for n in (line, *beside))
        if beside and is_sentence(line.text) and (count[line.label] > 1 or is_asking):
            found[line.label] = None
    return frozenset(found) if len(found) > 1 else frozenset()


def _joined(raw: list[Line], speakers: frozenset[str]) -> Iterator[Line]:
    """Give bullets to the label above, and a speaker's further lines to the speaker."""
    held: Line | None = None
    for line in raw:
        joined = _continued(held, line)
        if joined is not None:
            if held and held.kind == "label":
                yield joined
            else:
                held = joined
            continue
        if held and held.text:
            yield held
        held = None
        if line.kind == "label":
            held = replace(line, kind="speech") if line.label in speakers else line
        elif line.kind != "empty":
            yield replace(line, kind="text")
    if held and held.text:
        yield held


def _continued(held: Line | None, line: Line) -> Line | None:
    """Return a line as part of the one above: more speech, or a value of a bare label."""
    if held is None or line.kind in {"label", "empty"}:
        return None
    if held.kind == "speech":
        return replace(held, text=f"{held.text} {line.text}".strip())
    if line.kind == "bullet" and not held.text:
        return replace(held, text=line.text)
    return None
