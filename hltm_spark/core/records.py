"""What a node is made from and what it holds, as plain values.

The same shapes travel as JSON in requests, as rows in the `memory` table and as shard rows.
Times are ISO 8601 strings in UTC (`2026-03-04T09:00:00Z`), empty where unknown: strings sort and
hash the same everywhere.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

MAX_DOCUMENTS = 32
"""Documents kept with one facet value or answer: the first in document order."""

FIRST_PART = "start-"

MAX_SOURCES = 64
"""Ids kept with one item of a node that was written from groups: the first, own documents last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One raw document as a node's input, or one part of a long one.

    Attributes:
        author: The metadata value that conf names.
        part: Label of the part, as the prompt shows it; empty for a whole document. The first
            part's starts with `FIRST_PART`.
    """

    doc_id: str
    text: str
    kind: str = ""
    event_time: str = ""
    author: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    part: str = ""

    @property
    def is_start(self) -> bool:
        """True for a whole document and for the first part of one: what counts as a document."""
        return not self.part or self.part.startswith(FIRST_PART)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Build from its JSON form; absent fields take their defaults."""
        known = {name: raw[name] for name in cls.__slots__ if raw.get(name) is not None}
        return cls(**known)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; `part` only where there is one."""
        raw = {
            "doc_id": self.doc_id,
            "text": self.text,
            "kind": self.kind,
            "event_time": self.event_time,
            "author": self.author,
            "metadata": dict(self.metadata),
        }
        return {**raw, "part": self.part} if self.part else raw


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetValue:
    """One value of one facet of a node; a facet with several values is several of these.

    Attributes:
        name: Facet name, as declared in conf where it is declared.
        value: One flat value, as text.
        sources: Ids of the node's inputs (documents or children) that it stands on.
        documents: Ids of the documents behind those sources, at most `MAX_DOCUMENTS`.
        support: Nodes with documents of their own (projects, sessions) that state the value.
        total: Nodes with documents of their own that state any value for this facet.
        latest_at: Time of the newest document behind it.
    """

    name: str
    value: str
    sources: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    support: int = 1
    total: int = 1
    latest_at: str = ""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Build from its JSON or row form."""
        return cls(
            name=raw["name"],
            value=raw["value"],
            sources=tuple(raw.get("sources") or ()),
            documents=tuple(raw.get("documents") or ()),
            support=int(raw.get("support") or 1),
            total=int(raw.get("total") or 1),
            latest_at=raw.get("latest_at") or "",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "value": self.value,
            "sources": list(self.sources),
            "documents": list(self.documents),
            "support": self.support,
            "total": self.total,
            "latest_at": self.latest_at,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswer:
    """One self-contained question and its answer; `sources` and `documents` as in FacetValue."""

    question: str
    answer: str
    sources: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Build from its JSON or row form."""
        return cls(
            question=raw["question"],
            answer=raw["answer"],
            sources=tuple(raw.get("sources") or ()),
            documents=tuple(raw.get("documents") or ()),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "question": self.question,
            "answer": self.answer,
            "sources": list(self.sources),
            "documents": list(self.documents),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """The views of one node: what an LLM (or the extractive provider) wrote of its inputs.

    Attributes:
        facets: Ordered by (name, position in the response).
        question_answers: In the order of the response.
        rationale: One reasoning for all question-answer pairs.
        summary: Detailed summary; it names the ids it stands on.
        one_sentence_summary: The summary in one sentence; the part that is embedded.
    """

    facets: tuple[FacetValue, ...] = ()
    question_answers: tuple[QuestionAnswer, ...] = ()
    rationale: str = ""
    summary: str = ""
    one_sentence_summary: str = ""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Build from its JSON or row form; a missing view is empty."""
        return cls(
            facets=tuple(FacetValue.from_dict(item) for item in raw.get("facets") or ()),
            question_answers=tuple(
                QuestionAnswer.from_dict(item) for item in raw.get("question_answers") or ()
            ),
            rationale=raw.get("rationale") or "",
            summary=raw.get("summary") or "",
            one_sentence_summary=raw.get("one_sentence_summary") or "",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; tuples become lists."""
        return {
            "facets": [facet.to_dict() for facet in self.facets],
            "question_answers": [pair.to_dict() for pair in self.question_answers],
            "rationale": self.rationale,
            "summary": self.summary,
            "one_sentence_summary": self.one_sentence_summary,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A child node as its parent's input, or a group of the parent's inputs written as one.

    Attributes:
        node_id: The child's id; of a group `<node_id>/~<key>`, which no view may keep.
        latest_at: Time of the newest document in or under it.
        is_group: True for a group of children or of own documents.
        size: Real children, or own documents, that it stands for.
        is_own: True for a group written from the node's own documents.
        sources: Ids of the real inputs behind a group, the first `MAX_SOURCES`; else empty.
    """

    node_id: str
    views: Views
    latest_at: str = ""
    is_group: bool = False
    size: int = 1
    is_own: bool = False
    sources: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Build from its JSON form: the views' keys stand beside `node_id`."""
        return cls(
            node_id=raw["node_id"],
            views=Views.from_dict(raw),
            latest_at=raw.get("latest_at") or "",
            is_group=bool(raw.get("is_group")),
            size=int(raw.get("size", 1)),
            is_own=bool(raw.get("is_own")),
            sources=tuple(raw.get("sources") or ()),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that `from_dict` takes; a group's fields only where it is one."""
        raw = {"node_id": self.node_id, "latest_at": self.latest_at, **self.views.to_dict()}
        if self.is_group:
            raw |= {"is_group": True, "size": self.size, "sources": list(self.sources)}
        return raw | ({"is_own": True} if self.is_own else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInput:
    """Everything that one node is written from, in prompt order.

    Attributes:
        tenant_id: Tenant's key; nothing of another tenant is in here.
        node_id: The node to write.
        level: Its level's name in conf.
        documents: Its own documents by (event_time, doc_id); an undated one comes last.
        children: Its children by key.
    """

    tenant_id: str
    node_id: str
    level: str
    documents: tuple[Document, ...] = ()
    children: tuple[Child, ...] = ()

    @property
    def is_leaf(self) -> bool:
        """True where the node is written from documents alone (leaf prompts)."""
        return not self.children

    @property
    def source_ids(self) -> tuple[str, ...]:
        """Ids that a response may cite, in prompt order: children first, then documents."""
        ids = (*(c.node_id for c in self.children), *(d.doc_id for d in self.documents))
        return tuple(dict.fromkeys(ids))  # parts of one document share its id

    @property
    def latest_at(self) -> str:
        """Time of the newest document in or under this node; empty when none is dated."""
        times = [d.event_time for d in self.documents] + [c.latest_at for c in self.children]
        return max(times, default="")

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Build from its JSON form."""
        return cls(
            tenant_id=raw["tenant_id"],
            node_id=raw["node_id"],
            level=raw["level"],
            documents=tuple(Document.from_dict(item) for item in raw.get("documents") or ()),
            children=tuple(Child.from_dict(item) for item in raw.get("children") or ()),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that `from_dict` takes."""
        return {
            "tenant_id": self.tenant_id,
            "node_id": self.node_id,
            "level": self.level,
            "documents": [document.to_dict() for document in self.documents],
            "children": [child.to_dict() for child in self.children],
        }


def canonical_json(value: Any) -> str:
    """Return JSON text that is the same for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )


def fingerprint(*parts: Any) -> str:
    """Return the SHA-256 of the canonical JSON of the parts, as 64 hex digits."""
    return hashlib.sha256(canonical_json(parts).encode("utf-8", "surrogatepass")).hexdigest()


def first_documents(ids: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct ids in the order given, at most `MAX_DOCUMENTS`."""
    return tuple(dict.fromkeys(ids))[:MAX_DOCUMENTS]
