"""The views of a node from its documents alone."""

from collections.abc import Iterator, Sequence
from typing import Any

from hltm_spark.core.config import Settings
from hltm_spark.core.records import NodeInput
from hltm_spark.core.text import to_terms
from hltm_spark.models.extractive.dates import day_words
from hltm_spark.models.extractive.dialogue import Exchange
from hltm_spark.models.extractive.names import FacetNames
from hltm_spark.models.extractive.reading import Facet, Reading
from hltm_spark.models.extractive.sentences import Unit, central_units
from hltm_spark.models.extractive.wording import (
    TITLE_NAMES,
    cited,
    hinted_question,
    joined,
    key_label,
    leaf_question,
    plural,
    sentence,
    titled,
)

_MAX_SENTENCES = 8
_ONE_SENTENCE_FACETS = 6
_MAX_FACET_IN_SENTENCE = 60


def item(name: str, value: str, sources: Sequence[str]) -> dict[str, Any]:
    """Return one facet value as a response has it."""
    return {"name": name, "value": value, "sources": list(sources)}


def pair(question: str, answer: str, sources: Sequence[str]) -> dict[str, Any]:
    """Return one question-answer pair as a response has it."""
    return {"question": question, "answer": answer, "source": list(sources)}


class LeafWriter:
    """Writes a leaf's views; each method returns one response key's value."""

    def __init__(self, node: NodeInput, settings: Settings, names: FacetNames) -> None:
        """Read nothing yet: a method reads what it needs."""
        self._node, self._settings = node, settings
        self._reading = Reading(node.documents, names, author_name=settings.input.author)

    def facets(self) -> list[dict[str, Any]]:
        """Return the facets, then what each speaker tells, under the speaker's name."""
        found = [
            item(facet.name, value.value, value.sources)
            for facet in self._reading.facets
            for value in facet.values
        ]
        return found + [item(t.author, t.text, [t.doc_id]) for t in self._reading.tellings]

    def rationale(self) -> str:
        """Return how the pairs came about."""
        facets, exchanges = len(self._reading.facets), len(self._reading.exchanges)
        count = len(self._reading.documents)
        return (
            f"Read by rules from {count} {plural('document', count)}: {facets} labelled or stated "
            f"{plural('facet', facets)}, {exchanges} {plural('question', exchanges)} with a reply; "
            "where documents disagree, the newest wins."
        )

    def question_answers(self) -> list[dict[str, Any]]:
        """Return hinted questions first, then facets and exchanges by turns, then sentences."""
        views = self._settings.views
        hinted = list(self._hinted())
        asked = {p["question"].casefold() for p in hinted}
        facets = [p for p in self._facet_pairs() if p["question"].casefold() not in asked]
        room = max(0, views.max_questions - len(hinted))
        exchanges = self._exchange_pairs(room - min(len(facets), (room + 1) // 2))
        found = [*hinted, *facets[: room - len(exchanges)], *exchanges]
        if len(found) < views.min_questions:
            found += self._told(views.min_questions - len(found))
        if not found:
            text, sources = self._gist()
            found = [pair(f"What is known of {self._label}?", text, sources)]
        return found[: views.max_questions]

    def summary(self) -> str:
        """Return what is stated, then the central sentences in order, each with its id."""
        parts = [
            cited(sentence(f"{f.name}: {f.text}").rstrip("."), f.sources) + "."
            for f in self._reading.facets
            if f.name != self._settings.input.author
        ]
        parts += [cited(unit.shown, [unit.doc_id]) for unit in self._central()]
        if not parts:
            text, sources = self._gist()
            return cited(text, sources)
        return "\n".join([f"{sentence(self._headline())}", *parts])

    def one_sentence_summary(self) -> str:
        """Return the node in one sentence: what is stated of it, or its most central statement."""
        stated = [text for f in self._reading.facets if (text := self._short(f))]
        if stated:
            return sentence(f"{self._label}: {', '.join(stated[:_ONE_SENTENCE_FACETS])}")
        central = self._central(1)
        if not central:
            return sentence(self._headline())
        return sentence(f"{self._headline()}: {central[0].shown}")

    @property
    def _label(self) -> str:
        title = next(
            (f.values[0].value for f in self._reading.facets if f.name.casefold() in TITLE_NAMES),
            "",
        )
        return titled(key_label(self._node.node_id, self._node.level), title)

    def _headline(self) -> str:
        """Return who talks and when, or how many documents there are of which kind."""
        days = list(
            dict.fromkeys(filter(None, (day_words(d.event_time) for d in self._reading.documents)))
        )
        when = f" on {days[0]}" if len(days) == 1 else f", {days[0]} to {days[-1]}" if days else ""
        speakers = list(self._reading.speakers)
        if len(speakers) > 1:
            return f"{joined(speakers)} talk in {self._label}{when}"
        kinds: dict[str, int] = {}
        for document in self._reading.documents:
            kind = document.kind.replace("_", " ") or "document"
            kinds[kind] = kinds.get(kind, 0) + 1
        counts = joined([f"{n} {plural(kind, n)}" for kind, n in kinds.items()])
        return f"{self._label} has {counts or 'no documents'}{when}"

    def _short(self, facet: Facet) -> str:
        """Return a facet for the one-sentence summary; empty where it is too long or the title."""
        if facet.name.casefold() in TITLE_NAMES or facet.name == self._settings.input.author:
            return ""
        values = [v.value for v in facet.values[:3]]
        text = f"{facet.name} {joined(values)}"
        return text if len(text) <= _MAX_FACET_IN_SENTENCE else ""

    def _gist(self) -> tuple[str, tuple[str, ...]]:
        central = self._central(1)
        ids = tuple(d.doc_id for d in self._node.documents)
        if central:
            return central[0].shown, (central[0].doc_id,)
        return sentence(self._headline()), ids

    def _central(self, count: int = _MAX_SENTENCES) -> list[Unit]:
        return central_units(self._reading.units, count)

    def _facet_pairs(self) -> Iterator[dict[str, Any]]:
        titles = [f for f in self._reading.facets if f.name.casefold() in TITLE_NAMES]
        others = [f for f in self._reading.facets if f.name.casefold() not in TITLE_NAMES]
        for facet in [*others, *titles]:  # every question names the title already
            if facet in titles:
                key = key_label(self._node.node_id, self._node.level)
                question = f"What is the {facet.name} of {key}?"
            elif facet.name == self._settings.input.author:
                question = f"Who talks in {self._label}?"
            else:
                question = leaf_question(facet.name, self._label, facet.declared)
            is_speakers = facet.name == self._settings.input.author
            answer = joined([v.value for v in facet.values]) if is_speakers else _answer(facet)
            yield pair(question, answer, facet.sources)

    def _exchange_pairs(self, room: int) -> list[dict[str, Any]]:
        found = self._reading.exchanges
        best = sorted(range(len(found)), key=lambda i: (-found[i].weight, i))[: max(0, room)]
        return [
            pair(self._placed(found[i]), found[i].answer, found[i].sources) for i in sorted(best)
        ]

    def _placed(self, exchange: Exchange) -> str:
        """Return an exchange's question with the node it was asked about."""
        if not exchange.is_inside:
            return exchange.question
        return f"On {self._label}: {exchange.question}"

    def _told(self, room: int) -> list[dict[str, Any]]:
        """Return questions about what speakers tell."""
        tellings = sorted(self._reading.tellings, key=lambda t: -t.weight)
        by_author: dict[str, list[Any]] = {}
        for telling in tellings:
            by_author.setdefault(telling.author, []).append(telling)
        return [
            pair(
                f"What does {author} tell in {self._label}?",
                " ".join(sentence(t.text) for t in own[:3]),
                [t.doc_id for t in own[:3]],
            )
            for author, own in list(by_author.items())[:room]
        ]

    def _hinted(self) -> Iterator[dict[str, Any]]:
        """Yield the hinted questions that a facet, or else a sentence, answers."""
        for pattern in dict.fromkeys(self._settings.hints.questions):
            question = hinted_question(pattern, self._label, self._node.level, at="for")
            facet = asked_facet(pattern, self._reading)
            if facet:
                yield pair(question, _answer(facet), facet.sources)
                continue
            unit = _nearest(pattern, self._reading.units)
            if unit:
                yield pair(question, unit.shown, [unit.doc_id])


def asked_facet(pattern: str, reading: Reading) -> Facet | None:
    """Return the facet that a question asks for: by declared name, else by its name's terms."""
    by_name = {facet.name: facet for facet in reading.facets}
    for declared, _ in reading.names.asked(pattern):
        if declared.name in by_name:
            return by_name[declared.name]
    terms = set(to_terms(pattern))
    for facet in reading.facets:
        own = set(to_terms(facet.name))
        if own and own <= terms:
            return facet
    return None


def _nearest(pattern: str, units: Sequence[Unit]) -> Unit | None:
    """Return the sentence with most of a question's terms, at least two thirds of them."""
    terms = set(to_terms(pattern))
    best, shared = None, 0
    for unit in units:
        count = len(terms & set(to_terms(unit.text)))
        if count > shared:
            best, shared = unit, count
    return best if terms and shared * 3 >= len(terms) * 2 else None


def _answer(facet: Facet) -> str:
    """Return a facet's text; a yes or no comes with the words it was read from."""
    declared = facet.declared
    now = facet.values[0]
    if declared and (declared.positive or declared.negative) and now.said.casefold() != now.value:
        return f'{facet.text} ("{now.said}")' if len(now.said) <= 200 else facet.text
    return facet.text
