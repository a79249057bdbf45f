"""The views of a node that has children, and perhaps documents of its own."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from hltm_spark.core.config import Settings
from hltm_spark.core.records import MAX_DOCUMENTS, Child, NodeInput, QuestionAnswer
from hltm_spark.core.text import to_terms
from hltm_spark.models.extractive.counts import counted_text, short_text
from hltm_spark.models.extractive.grouped import gist_line, own_facets, own_lines
from hltm_spark.models.extractive.leaf import item, pair
from hltm_spark.models.extractive.names import FacetNames
from hltm_spark.models.extractive.reading import Facet, Reading
from hltm_spark.models.extractive.rollup import Rolled, roll_up
from hltm_spark.models.extractive.sentences import Unit, central_units
from hltm_spark.models.extractive.wording import (
    TITLE_NAMES,
    cited,
    hinted_question,
    joined,
    key_label,
    leaf_question,
    parent_question,
    plural,
    sentence,
    titled,
)

_MAX_FACETS_IN_SUMMARY = 16
_MAX_CHILDREN_IN_SUMMARY = 6
_MAX_CHILDREN_NAMED = 10
_ONE_SENTENCE_FACETS = 5
_MAX_SHORT = 90
_OWN_FACETS = 3
_ABOUT_THE_CHILD = ("What is known of ", "What do the documents of ", "Which ", "Who talks ")


class ParentWriter:
    """Writes a parent's views; each method returns one response key's value."""

    def __init__(
        self, node: NodeInput, settings: Settings, names: FacetNames, *, is_group: bool = False
    ) -> None:
        """Read nothing yet: a method reads what it needs; `is_group`: a part of a larger node."""
        self._node, self._settings, self._names = node, settings, names
        self._is_group = is_group
        self._children = tuple(child for child in node.children if not child.is_own)
        self._own_groups = tuple(child for child in node.children if child.is_own)
        self._count = sum(child.size for child in self._children)
        self._own = Reading(node.documents, names, author_name=settings.input.author)
        levels = settings.level_names
        self._noun = levels[-1]
        at = levels.index(node.level) if node.level in levels else len(levels) - 1
        self._child_noun = levels[min(at + 1, len(levels) - 1)]

    def facets(self) -> list[dict[str, Any]]:
        """Return the values that are kept, each with the children and own documents behind it."""
        return [
            item(rolled.name, value.value, value.sources)
            for rolled in self._rolled
            for value in rolled.values
        ]

    def rationale(self) -> str:
        """Return how the pairs came about."""
        count, own = self._count, self._own_count
        over = [f"{count} {plural(self._child_noun, count)}"] if self._children else []
        over += [f"{own} {plural('document', own)} of its own"] if own else []
        return (
            f"Counted by rules over {' and '.join(over)}: equal "
            f"values add up, those below a support of {self._settings.views.min_support} are left "
            "out, and a change in the newest ones is named."
        )

    def question_answers(self) -> list[dict[str, Any]]:
        """Return hinted questions, facets, what own documents say, and some pairs of children."""
        limit = self._settings.views.max_questions
        hinted = list(self._hinted())
        taken = {p["question"].casefold() for p in hinted}
        facets = [p for p in self._facet_pairs() if p["question"].casefold() not in taken]
        own = list(self._own_pairs())
        room = max(0, limit - len(hinted) - len(own) - 1)
        lifted = self._child_pairs(room - len(facets))
        members = [self._members_pair()] if self._children else []
        found = [*hinted, *facets[: room - len(lifted)], *own, *members, *lifted]
        if not found:
            ids = [group.node_id for group in self._own_groups]
            found = [pair(f"What is known of {self._label}?", self._headline(), ids)]
        return found[:limit]

    def summary(self) -> str:
        """Return members, counts, own documents and the newest children, each with ids."""
        parts = [sentence(self._headline(named=True))]
        parts += [
            cited(sentence(f"{r.name}: {self._text(r)}").rstrip("."), self._real_sources(r)) + "."
            for r in self._telling
        ][:_MAX_FACETS_IN_SUMMARY]
        parts += [cited(unit.shown, [self._real_id(unit)]) for unit in self._own_units()]
        parts += [_cited_gist(child) for child in self._newest(_MAX_CHILDREN_IN_SUMMARY)]
        return "\n".join(part for part in parts if part)

    def one_sentence_summary(self) -> str:
        """Return the node in one sentence: its size and what is typical of it."""
        texts = [short_text(r) for r in self._telling if r.values]
        typical = [text for text in texts if len(text) <= _MAX_SHORT][:_ONE_SENTENCE_FACETS]
        if not typical:
            newest = [*self._newest(1), *self._own_groups][:1]
            typical = [_gist(child).rstrip(".") for child in newest]
        return sentence(f"{self._headline()}: {', '.join(t for t in typical if t)}".rstrip(": "))

    @cached_property
    def _rolled(self) -> list[Rolled]:
        return roll_up(
            self._children,
            self._own_facets,
            self._names,
            min_support=self._settings.views.min_support,
            leaf_depth=len(self._settings.levels),
            is_group=self._is_group,
        )

    @cached_property
    def _own_facets(self) -> list[Facet]:
        return own_facets(self._own.facets, self._own_groups, self._names)

    @property
    def _own_count(self) -> int:
        return len(self._own.documents) + sum(group.size for group in self._own_groups)

    @property
    def _telling(self) -> list[Rolled]:
        """Facets worth words: kept ones, and declared ones that vary; no titles of single nodes."""
        return [
            r
            for r in self._rolled
            if (r.values or (r.declared and not r.is_list))
            and not (self._is_title(r) and not r.values)
        ]

    def _is_title(self, rolled: Rolled) -> bool:
        return rolled.name.casefold() in TITLE_NAMES

    @cached_property
    def _label(self) -> str:
        label = key_label(self._node.node_id, self._node.level)
        titles = (f for f in self._own_facets if f.name.casefold() in TITLE_NAMES)
        return titled(label, next((f.values[0].value for f in titles), ""))

    def _text(self, rolled: Rolled) -> str:
        return counted_text(rolled, noun=self._noun, level=self._node.level, count=self._leaf_count)

    def _headline(self, *, named: bool = False) -> str:
        count = self._count
        if not self._children:
            return f"{self._label} has {self._own_count} {plural('document', self._own_count)}"
        head = f"{self._label} has {count} {plural(self._child_noun, count)}"
        leaves = self._leaf_count
        if self._noun != self._child_noun and leaves > count:
            head += f" with {leaves} {plural(self._noun, leaves)}"
        return f"{head}: {self._members()}" if named else head

    @cached_property
    def _leaf_count(self) -> int:
        return max((r.total for r in self._rolled), default=0)

    def _members(self) -> str:
        named = [
            label
            for child in self._children[:_MAX_CHILDREN_NAMED]
            for label in _labels(child, self._child_noun)
        ]
        shown = named[:_MAX_CHILDREN_NAMED]
        more = self._count - len(shown)
        return joined([*shown, f"{more} more"] if more else shown)

    def _members_pair(self) -> dict[str, Any]:
        count = self._count
        noun = plural(self._child_noun, 2)
        ids = [child.node_id for child in self._children[:_MAX_CHILDREN_NAMED]]
        return pair(
            f"Which {noun} does {self._label} have, and how many?",
            f"{count}: {self._members()}",
            ids,
        )

    def _facet_pairs(self) -> Iterator[dict[str, Any]]:
        """Yield what only the parent's own documents state, at most a few, then the rest."""
        alone = [r for r in self._telling if not r.total][:_OWN_FACETS]
        for rolled in [*alone, *(r for r in self._telling if r not in alone)]:
            if rolled.name == self._settings.input.author:
                question = f"Who talks at {self._label}?"
            elif not rolled.total:
                question = leaf_question(rolled.name, self._label, rolled.declared)
            else:
                question = parent_question(rolled.name, self._label, rolled.declared)
            yield pair(question, self._text(rolled), _sources(rolled))

    def _own_units(self) -> list[Unit]:
        return central_units([*self._own_lines, *self._own.units], 4)

    @cached_property
    def _own_lines(self) -> dict[Unit, str]:
        """Sentences of groups of own documents, with the document that each names."""
        return own_lines(self._own_groups)

    def _real_sources(self, rolled: Rolled) -> list[str]:
        """Return what a facet's text stands on, with the inputs in the place of their groups."""
        groups = {child.node_id: child for child in self._node.children if child.is_group}
        values = {v.value.casefold() for v in (rolled.values or rolled.others)}
        found: list[str] = []
        for source in _sources(rolled):
            if source not in groups:
                found.append(source)
                continue
            for facet in groups[source].views.facets:
                is_same = self._names.canonical(facet.name) == rolled.name
                if is_same and facet.value.casefold() in values:
                    found.extend(facet.sources)
        return found

    def _real_id(self, unit: Unit) -> str:
        return self._own_lines.get(unit, unit.doc_id)

    def _own_pairs(self) -> Iterator[dict[str, Any]]:
        units = self._own_units()
        if units:
            yield pair(
                f"What do the documents of {self._label} itself say?",
                " ".join(sentence(unit.shown) for unit in units[:3]),
                [unit.doc_id for unit in units[:3]],
            )

    def _newest(self, count: int) -> list[Child]:
        """Return the newest children, newest first; those of the same time in key order."""
        return sorted(self._children, key=lambda c: c.latest_at, reverse=True)[:count]

    def _child_pairs(self, room: int) -> list[dict[str, Any]]:
        """Return pairs of the newest children on matters that no facet of the parent covers."""
        covered = {r.name for r in self._rolled}
        found: list[dict[str, Any]] = []
        for child in self._newest(len(self._children)):
            if len(found) >= max(0, room):
                break
            own = next((q for q in child.views.question_answers if self._is_new(q, covered)), None)
            if own and all(own.question != p["question"] for p in found):
                found.append(pair(own.question, own.answer, [child.node_id]))
        return found

    def _is_new(self, asked: QuestionAnswer, covered: set[str]) -> bool:
        if asked.question.startswith(_ABOUT_THE_CHILD):
            return False
        terms = set(to_terms(asked.question))
        own = (set(to_terms(name)) for name in covered)
        return not any(name and name <= terms for name in own)

    def _hinted(self) -> Iterator[dict[str, Any]]:
        by_name = {r.name: r for r in self._telling}
        for pattern in dict.fromkeys(self._settings.hints.questions):
            rolled = self._asked(pattern, by_name)
            if rolled:
                question = hinted_question(pattern, self._label, self._node.level, at="at")
                yield pair(question, self._text(rolled), _sources(rolled))

    def _asked(self, pattern: str, by_name: dict[str, Rolled]) -> Rolled | None:
        for declared, _ in self._names.asked(pattern):
            if declared.name in by_name:
                return by_name[declared.name]
        terms = set(to_terms(pattern))
        for name, rolled in by_name.items():
            own = set(to_terms(name))
            if own and own <= terms:
                return rolled
        return None


def _sources(rolled: Rolled) -> list[str]:
    """Return what a facet's text stands on: own documents, then children, the top values' first."""
    values = [*rolled.values, *(() if rolled.values else rolled.others)]
    if rolled.change:
        values.append(rolled.change.counted)
    own = rolled.own.sources if rolled.own else ()
    ids = [*own, *(child for value in values for child in value.children)]
    return list(dict.fromkeys(ids))[:MAX_DOCUMENTS]


def _labels(child: Child, noun: str) -> list[str]:
    """Return the name of a child, or those of the children behind a group, as far as known."""
    if child.is_group:
        return [key_label(source, noun) for source in child.sources]
    return [_child_label(child, noun)]


def _cited_gist(child: Child) -> str:
    if child.is_group:
        return gist_line(child)
    return cited(sentence(_gist(child)), [child.node_id]) if _gist(child) else ""


def _child_label(child: Child, noun: str) -> str:
    titles = (f.value for f in child.views.facets if f.name.casefold() in TITLE_NAMES)
    title = next(titles, "") if child.views.facets else ""
    has_own_title = sum(f.name.casefold() in TITLE_NAMES for f in child.views.facets) == 1
    return titled(key_label(child.node_id, noun), title if has_own_title else "")


def _gist(child: Child) -> str:
    return child.views.one_sentence_summary or _first_line(child.views.summary)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]
