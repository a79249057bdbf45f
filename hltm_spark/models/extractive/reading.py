"""Everything that a node's own documents say, read once: facets, turns, sentences.

Where documents disagree on a facet with one value, the newest statement wins: by time, an undated
document before all dated ones, then by order. An older value stays as `earlier`. A facet with
several values keeps them all, the most frequent first, then the first stated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hltm_spark.core.config import DeclaredFacet
from hltm_spark.core.records import Document
from hltm_spark.models.extractive.dates import day_words
from hltm_spark.models.extractive.dialogue import (
    Exchange,
    Telling,
    Turn,
    read_exchanges,
    read_tellings,
    read_turns,
    speaker_name,
)
from hltm_spark.models.extractive.labels import Statement, read_statements
from hltm_spark.models.extractive.lines import Line, read_lines
from hltm_spark.models.extractive.names import FacetNames
from hltm_spark.models.extractive.sentences import Unit, split_sentences

MAX_TELLINGS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """One value that documents state.

    Attributes:
        sources: Documents that state it, in node order.
        since: Time from which it holds: the first of its latest unbroken run.
        latest: Time of its newest statement.
        said: The words of its newest statement.
    """

    value: str
    sources: tuple[str, ...]
    since: str = ""
    latest: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """One facet as a node's own documents have it: values that hold, and those that did before."""

    name: str
    declared: DeclaredFacet | None
    values: tuple[Stated, ...]
    earlier: tuple[Stated, ...] = ()

    @property
    def is_list(self) -> bool:
        """True where several values may hold together."""
        return (self.declared is not None and self.declared.multiple) or len(self.values) > 1

    @property
    def text(self) -> str:
        """The value in words: `hybrid, since 4 March 2026 (earlier: on-site)`."""
        if self.is_list:
            return _listed(self.values, is_split=self.declared is not None and self.declared.split)
        now = self.values[0]
        if not self.earlier:
            return now.value
        since = f", since {day_words(now.since)}" if day_words(now.since) else ""
        return f"{now.value}{since} (earlier: {', '.join(v.value for v in self.earlier)})"

    @property
    def sources(self) -> tuple[str, ...]:
        """Documents behind the values, then those behind earlier ones."""
        return tuple(dict.fromkeys(s for v in (*self.values, *self.earlier) for s in v.sources))


class Reading:
    """A node's own documents, read; each part when it is first asked for."""

    def __init__(
        self, documents: Sequence[Document], names: FacetNames, *, author_name: str
    ) -> None:
        """Take the documents in node order; `author_name` is the facet of who speaks."""
        self.documents = tuple(_join_parts(documents))
        self.names = names
        self._author_name = author_name

    @cached_property
    def lines(self) -> dict[str, list[Line]]:
        """Lines of each document."""
        return {
            d.doc_id: read_lines(d.text, lambda label: self.names.of_label(label) is not None)
            for d in self.documents
        }

    @cached_property
    def facets(self) -> list[Facet]:
        """Facets, the declared ones first in conf's order, then the others as they appear."""
        statements = [
            statement
            for order, document in enumerate(self.documents)
            for statement in read_statements(
                document, self.lines[document.doc_id], self.names, order=order
            )
        ]
        by_name: dict[str, list[Statement]] = {}
        for statement in statements:
            by_name.setdefault(statement.name, []).append(statement)
        found = [settle(name, said, self.names.of_label(name)) for name, said in by_name.items()]
        return sorted([*found, *self._speakers()], key=lambda f: self.names.rank(f.name))

    @cached_property
    def turns(self) -> list[Turn]:
        """Turns of all dialogues."""
        return read_turns(self.documents, self.lines)

    @cached_property
    def exchanges(self) -> list[Exchange]:
        """Questions with their replies."""
        return read_exchanges(self.turns)

    @cached_property
    def tellings(self) -> list[Telling]:
        """What speakers tell of themselves: the weightiest few of each, in order."""
        kept: list[Telling] = []
        found = read_tellings(self.turns)
        for author in dict.fromkeys(t.author for t in found):
            own = [t for t in found if t.author == author]
            best = sorted(range(len(own)), key=lambda i: (-own[i].weight, i))[:MAX_TELLINGS]
            kept.extend(own[i] for i in sorted(best))
        return kept

    @cached_property
    def units(self) -> list[Unit]:
        """Sentences that are not labelled facts, in order; questions of a dialogue left out."""
        found = []
        for document in self.documents:
            lines = self.lines[document.doc_id]
            for line in lines:
                author = speaker_name(line.label) if line.kind == "speech" else ""
                author = author or (document.author if self.is_turn(document) else "")
                is_heading = line.text.endswith((":", "："))
                is_fact = line.kind == "label" and not _is_prose(line.text)
                text = "" if is_heading or is_fact else line.text
                for sentence in split_sentences(text):
                    if author and (sentence.endswith(("?", "？")) or sentence.startswith("[")):
                        continue
                    found.append(
                        Unit(
                            text=sentence,
                            doc_id=document.doc_id,
                            time=document.event_time,
                            author=author,
                        )
                    )
        return found

    @cached_property
    def _turn_documents(self) -> frozenset[str]:
        return frozenset(turn.doc_id for turn in self.turns if turn.is_document)

    def is_turn(self, document: Document) -> bool:
        """Return True where the whole document is one turn of a dialogue of several speakers."""
        return document.doc_id in self._turn_documents and len(self.speakers) > 1

    @cached_property
    def speakers(self) -> dict[str, tuple[str, ...]]:
        """Documents of each speaker whose documents are turns, in order of appearance."""
        found: dict[str, list[str]] = {}
        for turn in self.turns:
            if turn.is_document:
                found.setdefault(turn.author, []).append(turn.doc_id)
        return {author: tuple(ids) for author, ids in found.items()}

    def _speakers(self) -> list[Facet]:
        if len(self.speakers) < 2:
            return []
        values = [Stated(value=author, sources=ids) for author, ids in self.speakers.items()]
        return [Facet(name=self._author_name, declared=None, values=tuple(values))]


def _join_parts(documents: Sequence[Document]) -> list[Document]:
    """Return the documents with neighbouring parts of one document joined again."""
    found: list[Document] = []
    for document in documents:
        if found and document.part and found[-1].doc_id == document.doc_id:
            found[-1] = replace(found[-1], text=f"{found[-1].text}\n\n{document.text}")
        else:
            found.append(document)
    return found


def _listed(values: Sequence[Stated], *, is_split: bool) -> str:
    """Return values as a list; those that are no parts of one line with how many say them."""
    if is_split:
        return ", ".join(v.value for v in values)
    texts = [
        f"{v.value} ({len(v.sources)} documents)" if len(v.sources) > 1 else v.value for v in values
    ]
    return ("; " if any("," in v.value for v in values) else ", ").join(texts)


def settle(name: str, said: Sequence[Statement], declared: DeclaredFacet | None) -> Facet:
    """Return one facet from all statements of it."""
    in_time = sorted(said, key=lambda s: (s.time, s.order))
    groups: dict[str, list[Statement]] = {}
    for statement in said:
        groups.setdefault(_fold(statement.value), []).append(statement)
    stated = {key: _stated(group, in_time) for key, group in groups.items()}
    if declared is not None and declared.multiple:
        keys = sorted(groups, key=lambda k: -len({s.doc_id for s in groups[k]}))
        return Facet(name=name, declared=declared, values=tuple(stated[k] for k in keys))
    newest = _fold(in_time[-1].value)
    earlier = dict.fromkeys(_fold(s.value) for s in reversed(in_time) if _fold(s.value) != newest)
    return Facet(
        name=name,
        declared=declared,
        values=(stated[newest],),
        earlier=tuple(stated[k] for k in earlier),
    )


def _stated(group: Sequence[Statement], in_time: Sequence[Statement]) -> Stated:
    key = _fold(group[0].value)
    last = max(i for i, s in enumerate(in_time) if _fold(s.value) == key)
    first = last
    while first and _fold(in_time[first - 1].value) == key:
        first -= 1
    forms: dict[str, int] = {}
    for statement in group:
        forms[statement.value] = forms.get(statement.value, 0) + 1
    return Stated(
        value=max(forms, key=lambda form: forms[form]),
        sources=tuple(dict.fromkeys(s.doc_id for s in sorted(group, key=lambda s: s.order))),
        since=in_time[first].time,
        latest=in_time[last].time,
        said=in_time[last].said,
    )


def _fold(value: str) -> str:
    return value.casefold()


def _is_prose(text: str) -> bool:
    return len(text.split()) > 8 or (not text.isascii() and len(text) > 30)
