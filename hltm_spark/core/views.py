"""From a validated response to the views of a node, with every item traced to documents.

A response cites the node's inputs: documents, or children. A cited child is followed to the
documents behind the same facet or question there, or behind the facets that an answer states, so
that a citation at the root resolves to documents without walking the tree. A cited group of inputs
is replaced by the inputs themselves: a node's views do not show whether it was written at once or
in groups.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hltm_spark.core.citing import GroupIds
from hltm_spark.core.records import (
    MAX_SOURCES,
    Child,
    FacetValue,
    NodeInput,
    QuestionAnswer,
    Views,
    first_documents,
)
from hltm_spark.core.text import to_terms

_COUNT = re.compile(r"\s*\(\d+ of \d+\)$")  # as a prompt shows a group's facet


def assemble_views(node: NodeInput, fields: Mapping[str, Any]) -> Views:
    """Return the views of a node from the fields of its parsed responses.

    Args:
        node: What the responses were written from.
        fields: Response keys of all tasks of the node together: facets as [{name, value,
            sources}], question_answers as [{question, answer, sources}], rationale, summary,
            one_sentence_summary. Sources are ids of the node's inputs; an item without sources
            stands on all of them. A missing key leaves its view empty.

    Returns:
        Views whose sources are ids of children and documents, at most `MAX_SOURCES` an item where
        groups were among the inputs.
    """
    trace = _Trace(node, fields.get("facets", ()))
    text_of = trace.groups.replace_in
    facets = [trace.facet(item) for item in fields.get("facets", ())]
    pairs = [trace.question_answer(item) for item in fields.get("question_answers", ())]
    return Views(
        facets=tuple(sorted(facets, key=lambda facet: facet.name)),
        question_answers=tuple(pairs),
        rationale=text_of(fields.get("rationale", "")),
        summary=text_of(fields.get("summary", "")),
        one_sentence_summary=text_of(fields.get("one_sentence_summary", "")),
    )


class _Trace:
    """Follows cited ids of one node to real ids, documents, counts and times."""

    def __init__(self, node: NodeInput, facets: Iterable[Mapping[str, Any]]) -> None:
        self.groups = GroupIds(node)
        self._node = node
        self._children = {child.node_id: _ChildItems(child) for child in node.children}
        self._has_groups = any(child.is_group for child in node.children)
        own = [d.doc_id for d in node.documents] + [c.node_id for c in node.children if c.is_own]
        self._own = frozenset(own)
        self._documents = {document.doc_id: document for document in node.documents}
        self._own_names = {
            str(item["name"]).casefold()
            for item in facets
            if not self._own.isdisjoint(self._cited(item))
        }

    def facet(self, item: Mapping[str, Any]) -> FacetValue:
        name, value = self._text(item["name"]), self._value(item["value"])
        cited = self._cited(item)
        below = [m for s in cited if s not in self._own and (m := self._match(s, name, value))]
        own = [m for s in cited if s in self._own and (m := self._match(s, name, value))]
        times = [self._documents[s].event_time for s in cited if s in self._documents]
        times += [match.latest_at for match in (*below, *own)]
        is_own = not self._own.isdisjoint(cited)
        return FacetValue(
            name=name,
            value=value,
            sources=self._sources(cited, lambda c: c.facet_sources(name, value)),
            documents=self._documents_behind(cited, lambda c: c.facet_documents(name, value)),
            support=max(1, sum(match.support for match in below) + is_own),
            total=max(1, self._total(name)),
            latest_at=max(times, default=""),
        )

    def question_answer(self, item: Mapping[str, Any]) -> QuestionAnswer:
        cited = self._cited(item)
        question, answer = str(item["question"]), str(item["answer"])
        return QuestionAnswer(
            question=self._text(question),
            answer=self._text(answer),
            sources=self._sources(cited, lambda c: c.question_sources(question)),
            documents=self._documents_behind(cited, lambda c: c.answer_documents(question, answer)),
        )

    def _text(self, raw: Any) -> str:
        return self.groups.replace_in(str(raw))

    def _value(self, raw: Any) -> str:
        text = self._text(raw)
        return (_COUNT.sub("", text) or text) if self._has_groups else text

    def _cited(self, item: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.get("sources") or ())) or self._node.source_ids

    def _sources(self, cited: Iterable[str], of_group: Any) -> tuple[str, ...]:
        """Return the real ids behind what was cited; where there are many, own ones stay."""
        below: list[str] = []
        own: list[str] = []
        for source in cited:
            child = self._children.get(source)
            found = of_group(child) if child and child.is_group else (source,)
            (own if source in self._own else below).extend(found)
        ids, own_ids = tuple(dict.fromkeys(below)), tuple(dict.fromkeys(own))
        if not self._has_groups:
            return tuple(dict.fromkeys(cited))
        return (*ids[: MAX_SOURCES - bool(own_ids)], *own_ids)[:MAX_SOURCES]

    def _match(self, source: str, name: str, value: str) -> FacetValue | None:
        child = self._children.get(source)
        return child.facet(name, value) if child else None

    def _total(self, name: str) -> int:
        """Return how many nodes state any value of that name, this one's own documents as one."""
        below = sum(c.total(name) for s, c in self._children.items() if s not in self._own)
        return below + (name.casefold() in self._own_names)

    def _documents_behind(self, sources: Iterable[str], of_child: Any) -> tuple[str, ...]:
        found: list[str] = []
        for source in sources:
            if source in self._children:
                found.extend(of_child(self._children[source]))
            else:
                found.append(source)
        return first_documents(found)


class _ChildItems:
    """One child's facets and questions by what names them."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.is_group = child.is_group
        self._facets: dict[str, list[FacetValue]] = {}
        for facet in child.views.facets:
            self._facets.setdefault(facet.name.casefold(), []).append(facet)

    def facet(self, name: str, value: str) -> FacetValue | None:
        """Return the child's own value of that name, or else its only one; None if it has none."""
        named = self._facets.get(name.casefold(), [])
        same = [facet for facet in named if facet.value.casefold() == value.casefold()]
        return same[0] if same else named[0] if len(named) == 1 else None

    def facet_sources(self, name: str, value: str) -> tuple[str, ...]:
        match = self.facet(name, value)
        return match.sources if match else self._child.sources

    def question_sources(self, question: str) -> tuple[str, ...]:
        for pair in self._child.views.question_answers:
            if pair.question.casefold() == question.casefold():
                return pair.sources
        return self._child.sources

    def total(self, name: str) -> int:
        return max((f.total for f in self._facets.get(name.casefold(), [])), default=0)

    def facet_documents(self, name: str, value: str) -> tuple[str, ...]:
        match = self.facet(name, value)
        if match:
            return match.documents
        named = self._facets.get(name.casefold(), [])
        return first_documents(d for f in named for d in f.documents) or self.all_documents()

    def answer_documents(self, question: str, answer: str) -> tuple[str, ...]:
        """Return the documents behind the same question, or the facets that the answer states."""
        for pair in self._child.views.question_answers:
            if pair.question.casefold() == question.casefold():
                return pair.documents
        asked, said = set(to_terms(question)), answer.casefold()
        stated = [facet for facet in self._child.views.facets if _says(said, facet.value)]
        named = [facet for facet in stated if set(to_terms(facet.name)) <= asked]
        found = first_documents(d for facet in named or stated for d in facet.documents)
        return found or self.all_documents()

    def all_documents(self) -> tuple[str, ...]:
        views = self._child.views
        of_facets = [d for facet in views.facets for d in facet.documents]
        of_questions = [d for q in views.question_answers for d in q.documents]
        own = self._child.sources if self._child.is_own else ()
        return first_documents([*of_facets, *of_questions, *own])


def _says(text: str, value: str) -> bool:
    """Return whether a value stands in a casefolded text as whole words."""
    said = value.casefold().strip()
    return bool(said) and said in text and bool(re.search(rf"(?<!\w){re.escape(said)}(?!\w)", text))


def facet_text(name: str, value: str) -> str:
    """Return what is embedded for a facet (HLTM, section 3.5.2: name and value together)."""
    return f"{name}: {value}"
