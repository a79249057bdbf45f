"""From a validated response to the views of a node, with every item traced to documents.

A response cites the node's inputs: documents, or children. A cited child is followed to the
documents behind the same facet or question there, so that a citation at the root resolves to
documents without walking the tree.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from hltm_spark.core.records import (
    Child,
    Document,
    FacetValue,
    NodeInput,
    QuestionAnswer,
    Views,
    first_documents,
)


def assemble_views(node: NodeInput, fields: Mapping[str, Any]) -> Views:
    """Return the views of a node from the fields of its parsed responses.

    Args:
        node: What the responses were written from.
        fields: Response keys of all tasks of the node together: facets as [{name, value,
            sources}], question_answers as [{question, answer, sources}], rationale, summary,
            one_sentence_summary. Sources are ids of the node's inputs; an item without sources
            stands on all of them. A missing key leaves its view empty.
    """
    trace = _Trace(node, fields.get("facets", ()))
    facets = [trace.facet(item) for item in fields.get("facets", ())]
    pairs = [trace.question_answer(item) for item in fields.get("question_answers", ())]
    return Views(
        facets=tuple(sorted(facets, key=lambda facet: facet.name)),
        question_answers=tuple(pairs),
        rationale=fields.get("rationale", ""),
        summary=fields.get("summary", ""),
        one_sentence_summary=fields.get("one_sentence_summary", ""),
    )


class _Trace:
    """Follows cited ids of one node to documents, counts and times."""

    def __init__(self, node: NodeInput, facets: Iterable[Mapping[str, Any]]) -> None:
        self._node = node
        self._children = {child.node_id: _ChildItems(child) for child in node.children}
        self._documents = {document.doc_id: document for document in node.documents}
        self._own_names = {
            str(item["name"]).casefold()
            for item in facets
            if not self._documents.keys().isdisjoint(self._sources(item))
        }

    def facet(self, item: Mapping[str, Any]) -> FacetValue:
        name, value = str(item["name"]), str(item["value"])
        sources = self._sources(item)
        matches = [m for s in sources if (m := self._facet_of_child(s, name, value))]
        own = [self._documents[s] for s in sources if s in self._documents]
        times = [document.event_time for document in own] + [m.latest_at for m in matches]
        return FacetValue(
            name=name,
            value=value,
            sources=sources,
            documents=self._documents_behind(sources, lambda c: c.facet_documents(name, value)),
            support=max(1, sum(match.support for match in matches) + bool(own)),
            total=max(1, self._total(name)),
            latest_at=max(times, default=""),
        )

    def question_answer(self, item: Mapping[str, Any]) -> QuestionAnswer:
        sources = self._sources(item)
        question = str(item["question"])
        return QuestionAnswer(
            question=question,
            answer=str(item["answer"]),
            sources=sources,
            documents=self._documents_behind(sources, lambda c: c.question_documents(question)),
        )

    def _sources(self, item: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.get("sources") or ())) or self._node.source_ids

    def _facet_of_child(self, source: str, name: str, value: str) -> FacetValue | None:
        child = self._children.get(source)
        return child.facet(name, value) if child else None

    def _total(self, name: str) -> int:
        """Return how many nodes state any value of that name, this one's own documents as one."""
        below = sum(child.total(name) for child in self._children.values())
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
        self._facets: dict[str, list[FacetValue]] = {}
        for facet in child.views.facets:
            self._facets.setdefault(facet.name.casefold(), []).append(facet)

    def facet(self, name: str, value: str) -> FacetValue | None:
        """Return the child's own value of that name, or else its only one; None if it has none."""
        named = self._facets.get(name.casefold(), [])
        same = [facet for facet in named if facet.value.casefold() == value.casefold()]
        return same[0] if same else named[0] if len(named) == 1 else None

    def total(self, name: str) -> int:
        return max((f.total for f in self._facets.get(name.casefold(), [])), default=0)

    def facet_documents(self, name: str, value: str) -> tuple[str, ...]:
        match = self.facet(name, value)
        if match:
            return match.documents
        named = self._facets.get(name.casefold(), [])
        return first_documents(d for f in named for d in f.documents) or self.all_documents()

    def question_documents(self, question: str) -> tuple[str, ...]:
        for pair in self._child.views.question_answers:
            if pair.question.casefold() == question.casefold():
                return pair.documents
        return self.all_documents()

    def all_documents(self) -> tuple[str, ...]:
        views = self._child.views
        of_facets = [d for facet in views.facets for d in facet.documents]
        return first_documents(of_facets + [d for q in views.question_answers for d in q.documents])


def facet_text(name: str, value: str) -> str:
    """Return what is embedded for a facet (HLTM, section 3.5.2: name and value together)."""
    return f"{name}: {value}"


def document_text(document: Document) -> str:
    """Return what is embedded for a document of the evidence view."""
    return f"{document.author}: {document.text}" if document.author else document.text
