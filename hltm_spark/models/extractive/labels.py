"""What one document states as facets: labelled lines, metadata, and a few plain sentences.

| written | stated |
|---|---|
| `Office: Oulu` | the declared facet with that name or alias; else one named as the label |
| metadata `location=Oulu` | the same, for declared names; no aliases (`role` is the author's) |
| `Reason: ...` beside a decision | `rejected because` or `accepted because` |
| "The work mode is now on-site." | a declared name of two words or more, then a verb of being |
| "We no longer sponsor visas." | yes or no, for a facet with positive and negative words |

Sentences are read for precision: questions, wishes and conditions state nothing.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hltm_spark.core.config import DeclaredFacet
from hltm_spark.core.records import Document
from hltm_spark.models.extractive.lines import Line, is_sentence
from hltm_spark.models.extractive.names import FacetNames, polarity, word_stems
from hltm_spark.models.extractive.sentences import split_sentences

ACCEPTED = frozenset(
    word_stems("accepted accept hired hire approved selected offer passed advance")
)
REJECTED = frozenset(word_stems("rejected reject declined failed no-hire refused"))
_DECISION_LABELS = frozenset({"decision", "outcome", "verdict", "result", "status"})
_REASON_LABELS = frozenset({"reason", "reasons", "because", "why", "rationale"})
_MAX_FREE_VALUE = 100
_SPLIT = re.compile(r"\s*(?:[,;、，；]|\s+and\s+|\s+&\s+)\s*(?![^()（）]*[)）])", re.IGNORECASE)
_UNSURE = re.compile(
    r"[?？]|\b(?:if|whether|unless|would|could|might|may|maybe|perhaps|should|asks?|asked|wonders?"
    r"|hopes?|wants?|wishes|prefers?|needs?|requires?|until|candidates? (?:says?|said))\b",
    re.IGNORECASE,
)
_BEING = (
    r"(?:\s+(?:for|of|at|in)\s+(?:the|this|that|our|all)\s+[\w-]+(?:\s+[\w-]+)?)?\s+"
    r"(?:(?:is|are|was|were)\s+(?:now\s+|still\s+|again\s+)?(?:changed\s+(?:from\s+[^.]{1,40}?\s+)?to\s+"
    r"|set\s+to\s+|raised\s+to\s+|lowered\s+to\s+|moved\s+to\s+)?|(?:will\s+be|becomes|became|changes\s+to"
    r"|changed\s+to|moves\s+to|moved\s+to|has\s+(?:changed|moved)\s+to)\s+(?:now\s+)?)"
    r"(?P<value>[^,.;:()。，]{1,60})"
)
_VALUE_END = re.compile(
    r"\s+(?:since|from|as of|because|but|instead|rather|until|so|which)\b.*$", re.I
)
_NO_VALUE = re.compile(
    r"^(?:not|no longer|being|open|clear|unclear|under|still|a problem|the)\b", re.I
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One document says one value of one facet.

    Attributes:
        value: The clean value.
        said: The words it was read from.
        order: Position of the document in its node, for statements of the same time.
    """

    name: str
    value: str
    said: str
    doc_id: str
    time: str
    order: int


def read_statements(
    document: Document, lines: Sequence[Line], names: FacetNames, *, order: int
) -> list[Statement]:
    """Return what a document states, in reading order, metadata last."""
    labels = [(line.label, line.text) for line in lines if line.kind == "label"]
    labels += sorted(
        (str(k), str(v)) for k, v in document.metadata.items() if names.is_declared_name(str(k))
    )
    decision = _decision([*labels, *document.metadata.items()])
    found: list[tuple[str, str, str]] = []
    for label, text in labels:
        found.extend(_labelled(label, text, names, decision))
    stated = {name for name, _, _ in found}
    for line in lines:
        if line.kind != "label":
            found.extend(s for s in _spoken(line.text, names) if s[0] not in stated)
    return [
        Statement(
            name=name,
            value=value,
            said=said,
            doc_id=document.doc_id,
            time=document.event_time,
            order=order,
        )
        for name, value, said in dict.fromkeys(found)
    ]


def clean_value(text: str) -> str:
    """Return a value on one line, without markup, quotes around it or a full stop."""
    value = " ".join(text.split()).strip('*_`"“”「」 ')
    return value.rstrip(".。;；,，、 ") or value


def _labelled(
    label: str, text: str, names: FacetNames, decision: str
) -> Iterator[tuple[str, str, str]]:
    facet = names.of_label(label)
    value = clean_value(text)
    if not value:
        return
    if label.casefold() in _REASON_LABELS and decision:
        yield f"{decision} because", value, value
    elif facet is None:
        is_prose = is_sentence(text) and len(text.split()) > 5
        if len(value) <= _MAX_FREE_VALUE and not is_prose:
            yield names.canonical(label), value, value
    else:
        for part in _values(value, facet):
            yield facet.name, part, value


def _values(value: str, facet: DeclaredFacet) -> Iterator[str]:
    if facet.positive or facet.negative:
        yield polarity(value, facet) or value
    elif facet.split:
        yield from (part for piece in _SPLIT.split(value) if (part := clean_value(piece)))
    elif facet.multiple:
        yield value
    else:
        first = split_sentences(value)[0] if len(value) > 30 else value
        yield clean_value(first)


def _decision(labels: Sequence[tuple[str, str]]) -> str:
    """Return `accepted` or `rejected` where a document says that of somebody, else nothing."""
    for label, value in labels:
        if str(label).casefold() in _DECISION_LABELS:
            words = frozenset(word_stems(str(value)))
            if words & REJECTED:
                return "rejected"
            if words & ACCEPTED:
                return "accepted"
    return ""


def _spoken(text: str, names: FacetNames) -> Iterator[tuple[str, str, str]]:
    """Yield what plain sentences state of declared facets."""
    if not names.declared:
        return
    for sentence in split_sentences(text):
        if _UNSURE.search(sentence):
            continue
        for facet, phrase in names.mentioned(sentence):
            value = ""
            if facet.positive or facet.negative:
                value = polarity(sentence, facet)
            elif len(phrase) > 1 and not facet.multiple:
                value = _being(sentence, facet)
            if value:
                yield facet.name, value, sentence


def _being(sentence: str, facet: DeclaredFacet) -> str:
    """Return the value in "<name> is <value>"; empty where the sentence has another form."""
    phrases = [p for p in (facet.name, *facet.aliases) if len(p.split()) > 1]
    named = "|".join(re.escape(p).replace(r"\ ", r"[\s-]+") for p in phrases)
    match = re.search(rf"\b(?:{named})\b{_BEING}", sentence, re.IGNORECASE) if named else None
    if match is None:
        return ""
    value = clean_value(_VALUE_END.sub("", match["value"]))
    is_short = 0 < len(value.split()) <= 5
    return value if is_short and not _NO_VALUE.match(value) else ""
