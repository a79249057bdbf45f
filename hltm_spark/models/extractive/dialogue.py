"""Who said what: turns, the exchanges of a question and its reply, and what speakers tell.

A turn is a speaker's line inside a document. Where nearly all documents of a node are one
unlabelled paragraph with an author, and there are several authors, each of them is a turn. A reply
is the next turn of another speaker in the same document, or, between such documents, within a day.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from hltm_spark.core.records import Document
from hltm_spark.core.text import to_terms
from hltm_spark.models.extractive.dates import day_words, meant_date
from hltm_spark.models.extractive.lines import Line
from hltm_spark.models.extractive.sentences import split_sentences

_MAX_TURN = 1500
_MAX_REPLY = 320
_ROLES = frozenset(
    {"recruiter", "candidate", "interviewer", "manager", "agent", "customer", "assistant", "user"}
)
_YOU: tuple[tuple[str, str], ...] = (
    (r"\bdo you\b", "does {n}"),
    (r"\bare you\b", "is {n}"),
    (r"\bwere you\b", "was {n}"),
    (r"\bhave you\b", "has {n}"),
    (r"\byou(?:'|’)re\b|\byou are\b", "{n} is"),
    (r"\byou(?:'|’)ve\b|\byou have\b", "{n} has"),
    (r"\byou(?:'|’)ll\b", "{n} will"),
    (r"\byourself\b", "{n}"),
    (r"\byours?\b", "{n}'s"),
    (r"\byou(?: guys| two| all)?\b", "{n}"),
)
_ME: tuple[tuple[str, str], ...] = (
    (r"\bam I\b", "is {n}"),
    (r"\bdo I\b", "does {n}"),
    (r"\bI(?:'|’)m\b|\bI am\b", "{n} is"),
    (r"\bI(?:'|’)ve\b|\bI have\b", "{n} has"),
    (r"\bmy\b|\bmine\b", "{n}'s"),
    (r"\bme\b|\bI\b", "{n}"),
)
_LEANING = re.compile(
    r"\b(?:[Ii]t(?:['’]s)?|[Tt]hey|[Tt]hem|[Tt]heirs?|[Hh]e|[Ss]he|[Hh]im|[Hh]ers?|[Hh]is)\b"
    r"|\b(?:[Tt]his|[Tt]hat|[Tt]hese|[Tt]hose)(?:['’]s|\s+ones?)?"
    r"(?=\s*(?:[?？.!,;]|$)|\s+(?:is|was|are|were|will|would|can|could|should|has|had|does|did"
    r"|stay\w*|look\w*|mean\w*|sound\w*|feel\w*|work\w*|go\w*|went|ma[dk]es?|help\w*|all)\b)"
)
"""Words that stand for something said before: a question with one does not explain itself."""
_OPENING = re.compile(
    r"^(?:(?:so|and|but|well|oh|wow|hey|hi|ok|okay|yeah|yes|right|thanks|cool|great|nice|also|anyway"
    r"|by the way)\b[,!.…\s]*)+",
    re.IGNORECASE,
)
_TELLING = re.compile(
    r"^(?:(?:and|so|but|well|yeah|yes|oh|actually|also|lately|recently|yesterday"
    r"|last \w+|today),?\s+)*(?:I|I['’](?:m|ve|d|ll)|We|We['’](?:re|ve|d|ll)|My|Our)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one speaker said without a break; `is_document` where it is a document of its own."""

    author: str
    text: str
    doc_id: str
    time: str
    is_document: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A question somebody asked and what the other said to it.

    Attributes:
        weight: Content words of both.
        is_inside: True where both stand in one document; the question then needs its node's name.
    """

    question: str
    answer: str
    sources: tuple[str, ...]
    weight: int
    is_inside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """Something a speaker tells in the first person, with the day it means."""

    author: str
    text: str
    doc_id: str
    weight: int


def read_turns(documents: Sequence[Document], lines: Mapping[str, Sequence[Line]]) -> list[Turn]:
    """Return all turns in order."""
    plain = [d for d in documents if _is_plain(d, lines[d.doc_id])]
    is_dialogue = len({d.author for d in plain}) > 1 and 4 * len(plain) >= 3 * len(documents)
    return [
        turn
        for document in documents
        for turn in _turns(document, lines[document.doc_id], is_turn=is_dialogue)
    ]


def read_exchanges(turns: Sequence[Turn]) -> list[Exchange]:
    """Return the exchanges in order; a question of fewer than two content words is small talk."""
    found = []
    for asking, replying in pairwise(turns):
        if asking.author.casefold() == replying.author.casefold() or not _is_reply(
            asking, replying
        ):
            continue
        question = _question(asking, replying)
        answer = _reply(replying) if question else ""
        if question and answer:
            found.append(
                Exchange(
                    question=question,
                    answer=answer,
                    sources=tuple(dict.fromkeys((asking.doc_id, replying.doc_id))),
                    weight=_weight(question, answer),
                    is_inside=not replying.is_document,
                )
            )
    return found


def read_tellings(turns: Sequence[Turn]) -> list[Telling]:
    """Return what speakers tell in the first person, in order; for documents that are turns."""
    documents = [turn for turn in turns if turn.is_document]
    if len({turn.author for turn in documents}) < 2:
        return []
    return [telling for turn in documents for telling in _tellings(turn)]


def speaker_name(label: str) -> str:
    """Return who a speaker's label names: `Recruiter (Ada Lind)` is Ada Lind."""
    match = re.search(r"[(（]([^()（）]+)[)）]\s*$", label)
    return match[1].strip() if match else label


def _is_plain(document: Document, lines: Sequence[Line]) -> bool:
    is_short = len(document.text) <= _MAX_TURN and "\n\n" not in document.text.strip()
    return bool(document.author and lines) and is_short and all(n.kind == "text" for n in lines)


def _turns(document: Document, lines: Sequence[Line], *, is_turn: bool) -> Iterator[Turn]:
    for line in lines:
        if line.kind == "speech":
            yield Turn(
                author=speaker_name(line.label),
                text=line.text,
                doc_id=document.doc_id,
                time=document.event_time,
                is_document=False,
            )
    if is_turn and _is_plain(document, lines):
        yield Turn(
            author=document.author,
            text=" ".join(line.text for line in lines),
            doc_id=document.doc_id,
            time=document.event_time,
            is_document=True,
        )


def _is_reply(asking: Turn, replying: Turn) -> bool:
    if asking.doc_id == replying.doc_id:
        return True
    if not (asking.is_document and replying.is_document):
        return False
    try:
        gap = datetime.fromisoformat(replying.time) - datetime.fromisoformat(asking.time)
    except (ValueError, TypeError):
        return not asking.time and not replying.time
    return gap <= timedelta(days=1)


def _weight(question: str, answer: str) -> int:
    return len(set(to_terms(question))) + min(6, len(set(to_terms(answer))))


def _question(asking: Turn, replying: Turn) -> str:
    """Return the turn's weightiest question that explains itself, with names for I and you."""
    best, weight = "", 1
    for sentence in split_sentences(asking.text):
        found = len(set(to_terms(sentence)))
        if sentence.endswith(("?", "？")) and found > weight and not _LEANING.search(sentence):
            best = _named(sentence, asker=asking.author, other=replying.author)
            weight = found
    return best


def _named(question: str, *, asker: str, other: str) -> str:
    text = _OPENING.sub("", question) or question
    text = (
        re.sub(rf"(?:^|,\s+){re.escape(other)}\s*(?:,\s*|(?=[?!]))", "", text, flags=re.I) or text
    )
    for pairs, name in ((_YOU, _role(other)), (_ME, _role(asker))):
        for pattern, written in pairs:
            named = written.format(n=name)
            text = re.sub(pattern, lambda _, named=named: named, text, flags=re.I)  # type: ignore[misc]
    text = text[:1].upper() + text[1:]
    is_named = any(_role(n).casefold() in text.casefold() for n in (asker, other))
    return text if is_named else f"{asker} to {other}: {text}"


def _role(name: str) -> str:
    """Return a name as it stands in a sentence: `the hiring manager`, but `Caroline`."""
    words = name.split()
    if words and words[-1].casefold() in _ROLES:
        return f"the {name.lower()}"
    return name


def _reply(turn: Turn) -> str:
    """Return what the turn says, small talk and counter-questions left out, with name and day."""
    said = ""
    for sentence in split_sentences(turn.text):
        if sentence.endswith(("?", "？")) or not to_terms(_OPENING.sub("", sentence)):
            continue
        if said and len(said) + len(sentence) > _MAX_REPLY:
            break
        said = f"{said} {sentence}".strip()
    return f"{turn.author}{_when(said, turn.time)}: {said}" if said else ""


def _when(text: str, time: str) -> str:
    (phrase, meant), day = meant_date(text, time), day_words(time)
    if meant and meant != day:
        return f" ({day}; {phrase} is {meant})"
    return f" ({day})" if day else ""


def _tellings(turn: Turn) -> Iterator[Telling]:
    for sentence in split_sentences(turn.text):
        weight = len(set(to_terms(sentence)))
        if sentence.endswith("?") or not _TELLING.match(sentence) or weight < 3:
            continue
        _, meant = meant_date(sentence, turn.time)
        text = _OPENING.sub("", sentence).rstrip(".! ") or sentence
        yield Telling(
            author=turn.author,
            text=text[:1].upper() + text[1:] + (f" ({meant})" if meant else ""),
            doc_id=turn.doc_id,
            weight=min(weight, 12) + (3 if meant else 0),
        )
