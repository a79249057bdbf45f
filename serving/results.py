"""What the reader returns: frozen values, with node ids and the documents under them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hltm_spark.core.records import Views


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One thing that a query recalled.

    Attributes:
        view: `facet`, `question`, `summary` or `evidence`.
        score: What its list is ordered by; scores of different views do not compare.
        text: Facet value, question, detailed summary, or the document's text.
        name: Facet name, or a document's author.
        answer: The stored answer, for a question.
        documents: Ids of the documents behind it.
        scores: The score's parts by signal.
    """

    node_id: str
    level: str
    view: str
    score: float
    text: str
    name: str = ""
    answer: str = ""
    documents: tuple[str, ...] = ()
    support: int = 0
    total: int = 0
    latest_at: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Model calls of one query."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What one query recalled: a list for every view, each best first.

    Attributes:
        query_facets: (name, value) pairs that the query was read as.
        facets: Whole facet sets of the best nodes, node by node.
        questions: The best question-answer pairs.
        summaries: Detailed summaries of the best nodes.
        evidence: The best raw documents, where the evidence view is on.
    """

    query: str
    query_facets: tuple[tuple[str, str], ...]
    facets: tuple[Hit, ...]
    questions: tuple[Hit, ...]
    summaries: tuple[Hit, ...]
    evidence: tuple[Hit, ...]
    usage: Usage
    seconds: float

    @property
    def hits(self) -> tuple[Hit, ...]:
        """All lists after one another."""
        return (*self.facets, *self.questions, *self.summaries, *self.evidence)

    @property
    def documents(self) -> tuple[str, ...]:
        """Ids of all documents behind the hits, in order of the hits."""
        return tuple(dict.fromkeys(d for hit in self.hits for d in hit.documents))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer with its citation.

    Attributes:
        citation: Node ids that the answer stands on, best first; all inside the scope.
        cited_documents: Ids of the documents behind each cited node's hits, by node id.
        context: What the answer was written from; None for a stored answer.
        mode: `collapsed` or `fast`.
        score: Cosine of the stored question, for `fast`.
    """

    query: str
    rationale: str
    answer: str
    citation: tuple[str, ...]
    cited_documents: Mapping[str, tuple[str, ...]]
    usage: Usage
    seconds: float
    mode: str
    context: Context | None = None
    score: float = 0.0

    @property
    def documents(self) -> tuple[str, ...]:
        """Ids of all documents behind the citation, in its order."""
        return tuple(dict.fromkeys(d for ids in self.cited_documents.values() for d in ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One raw document; `text` is empty where shards do not ship it."""

    node_id: str
    doc_id: str
    kind: str
    event_time: str
    author: str
    metadata: Mapping[str, str]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node of the scope, for looking at.

    Attributes:
        node_count: Nodes in its subtree, itself included.
        document_count: Documents at or under it.
    """

    node_id: str
    level: str
    depth: int
    status: str
    latest_at: str
    node_count: int
    document_count: int
    views: Views
