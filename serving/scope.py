"""One subtree of one tenant: the only way in, and what every query is bound to."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

import numpy as np

from hltm_spark.core.config import Retrieval, Settings
from hltm_spark.core.errors import DataError, ReaderError, ScopeNotFound
from hltm_spark.core.records import Views
from hltm_spark.core.tree import to_keys, to_node_id
from hltm_spark.core.views import facet_text
from hltm_spark.models.embedders import Embedder
from hltm_spark.models.llm import LlmClient
from serving.answer import Meter, cited_documents, read_query, write_answer
from serving.evidence import evidence_hits, raw_documents
from serving.results import Answer, Context, Evidence, Hit, NodeView
from serving.retrieve import facet_hits, fast_hit, question_hits, summary_hits
from serving.shard import Floats, Shard

Facets = Iterable[tuple[str, str]]
"""What a query asks about, as (name, value) pairs."""


_SMALLEST_NORM = 1e-6


class Limits(TypedDict, total=False):
    """How much of each list comes back, over what `[retrieval]` says; 0 leaves a list out."""

    k_match: int
    k_facet: int
    k_qa: int
    k_summary: int
    k_evidence: int


class Scope:
    """A node's subtree. Made by `MemoryReader.scope`; safe to share between threads."""

    def __init__(
        self,
        keys: tuple[str, ...],
        *,
        settings: Settings,
        open_shard: Callable[[], Shard],
        embedder: Callable[[], Embedder],
        llm: Callable[[], LlmClient],
    ) -> None:
        self._keys, self._settings = keys, settings
        self._open_shard, self._embedder, self._llm = open_shard, embedder, llm
        self._bind()

    @property
    def node_id(self) -> str:
        """Id of the scope's node."""
        return to_node_id(self._keys)

    def retrieve(
        self, query: str, *, facets: Facets | None = None, **limits: Unpack[Limits]
    ) -> Context:
        """Return what the query recalls inside the scope.

        Args:
            query: In words; not blank.
            facets: (name, value) pairs to match; where not given, the model reads them from the
                query (one call).
            limits: k_match, k_facet, k_qa, k_summary, k_evidence, over the settings' own.

        Raises:
            ReaderError: The query is blank, or has no vector in this model.
            ScopeNotFound: The node is gone in the version that is current now.
        """
        began, meter = time.perf_counter(), Meter()
        settings = _limited(self._settings, limits)
        _check_query(query)
        shard, span = self._bind()
        if facets is None:
            facets = read_query(self._llm(), query, settings, meter)
        pairs = tuple((str(name), str(value)) for name, value in facets)
        vectors = self._embed([query, *(facet_text(*pair) for pair in pairs)])
        query_vector, facet_vectors = vectors[0], vectors[1:]
        if not len(facet_vectors):
            facet_vectors = vectors[:1]
        retrieval = settings.retrieval
        return Context(
            query=query,
            query_facets=pairs,
            facets=tuple(facet_hits(shard, span, facet_vectors, retrieval)),
            questions=tuple(question_hits(shard, span, query_vector, retrieval)),
            summaries=tuple(summary_hits(shard, span, query_vector, retrieval)),
            evidence=tuple(evidence_hits(shard, span, query, query_vector, settings)),
            usage=meter.usage,
            seconds=time.perf_counter() - began,
        )

    def answer(
        self, query: str, *, facets: Facets | None = None, **limits: Unpack[Limits]
    ) -> Answer:
        """Return an answer with its citation: two model calls at most, repairs aside."""
        began = time.perf_counter()
        context = self.retrieve(query, facets=facets, **limits)
        usage = context.usage
        meter = Meter(usage.calls, usage.prompt_tokens, usage.completion_tokens)
        fields, hits = write_answer(self._llm(), context, self._settings, meter)
        citation = tuple(fields["citation"])
        return Answer(
            query=query,
            rationale=fields["rationale"],
            answer=fields["answer"],
            citation=citation,
            cited_documents=cited_documents(citation, hits, fields["answer"]),
            usage=meter.usage,
            seconds=time.perf_counter() - began,
            mode="collapsed",
            context=replace(context, usage=meter.usage),
        )

    def think_fast(self, query: str, *, threshold: float | None = None) -> Answer | None:
        """Return the stored answer of a question near enough to the query, or None; no call.

        Args:
            query: In words; not blank.
            threshold: Cosine from which the answer counts; retrieval.fast_threshold unless given.
        """
        began = time.perf_counter()
        _check_query(query)
        shard, span = self._bind()
        hit = fast_hit(shard, span, self._embed([query])[0])
        limit = self._settings.retrieval.fast_threshold if threshold is None else threshold
        if hit is None or hit.score < limit:
            return None
        return Answer(
            query=query,
            rationale=f"stored answer to: {hit.text}",
            answer=hit.answer,
            citation=(hit.node_id,),
            cited_documents={hit.node_id: hit.documents},
            usage=Meter().usage,
            seconds=time.perf_counter() - began,
            mode="fast",
            score=hit.score,
        )

    async def aretrieve(
        self, query: str, *, facets: Facets | None = None, **limits: Unpack[Limits]
    ) -> Context:
        """Return what `retrieve` does, without blocking the event loop."""
        return await asyncio.to_thread(self.retrieve, query, facets=facets, **limits)

    async def aanswer(
        self, query: str, *, facets: Facets | None = None, **limits: Unpack[Limits]
    ) -> Answer:
        """Return what `answer` does, without blocking the event loop."""
        return await asyncio.to_thread(self.answer, query, facets=facets, **limits)

    def evidence(self, what: str | Hit | Answer) -> list[Evidence]:
        """Return raw documents: all under a node, or those that a hit or an answer stands on.

        Args:
            what: A node id inside the scope, a Hit, or an Answer.
        """
        shard, (first, end) = self._bind()
        view = shard.view("evidence")
        low, high = view.rows_of(first, end)
        if isinstance(what, str):
            row = self._row_inside(shard, what)
            return raw_documents(shard, range(*view.rows_of(row, int(shard.subtree_end[row]))))
        known = shard.document_rows
        rows = [known[d] for d in what.documents if d in known]
        return raw_documents(shard, [row for row in rows if low <= row < high])

    def show(self) -> NodeView:
        """Return the scope's node with its views."""
        shard, (row, end) = self._bind()
        return _node_view(shard, row, end)

    def children(self) -> list["Scope"]:
        """Return the scopes of the node's children, in tree order."""
        shard, (row, end) = self._bind()
        rows = row + 1 + np.flatnonzero(shard.parent[row + 1 : end] == row)
        return [self._at(to_keys(shard.node_id(int(child)))) for child in rows]

    def _at(self, keys: tuple[str, ...]) -> "Scope":
        return Scope(
            keys,
            settings=self._settings,
            open_shard=self._open_shard,
            embedder=self._embedder,
            llm=self._llm,
        )

    def _bind(self) -> tuple[Shard, tuple[int, int]]:
        """Return the current version and the scope's node rows in it."""
        shard = self._open_shard()
        row = shard.find(self._keys)
        return shard, (row, int(shard.subtree_end[row]))

    def _row_inside(self, shard: Shard, node_id: str) -> int:
        keys = checked_keys(node_id)
        if keys[: len(self._keys)] != self._keys:
            raise ScopeNotFound("this node is not inside the scope")
        return shard.find(keys)

    def _embed(self, texts: Sequence[str]) -> Floats:
        """Return unit vectors; a facet without one is left out, a query without one an error."""
        vectors = self._embedder().embed(list(texts))
        lengths = np.linalg.norm(vectors, axis=1)
        if not np.isfinite(lengths).all() or lengths[0] < _SMALLEST_NORM:
            raise ReaderError(
                f"the embedding model has no vector for this query of {len(texts[0])} characters; "
                "ask it in other words"
            )
        return np.ascontiguousarray(vectors[lengths >= _SMALLEST_NORM], np.float32)


def checked_keys(node: object) -> tuple[str, ...]:
    """Return the keys of a node id or a tuple of keys.

    Raises:
        ScopeNotFound: It is anything else, or empty.
    """
    try:
        if isinstance(node, str):
            return _encodable(to_keys(node))
        if isinstance(node, tuple) and all(isinstance(key, str) for key in node):
            return _encodable(to_keys(to_node_id(node)))
    except (DataError, UnicodeError):
        raise ScopeNotFound(
            "this is no node id; join the encoded keys from the tenant down with '/', "
            "or pass the keys as a tuple"
        ) from None
    raise ScopeNotFound(
        f"scope takes a node id or a tuple of keys, got {type(node).__name__}; "
        "there is no scope over several tenants"
    )


def _encodable(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys; raise UnicodeError where one is no text (half of a surrogate pair)."""
    "".join(keys).encode()
    return keys


def _check_query(query: str) -> None:
    if not query.strip():
        raise ReaderError("query is blank; ask something")


def _limited(settings: Settings, limits: Limits) -> Settings:
    """Return settings with other list lengths."""
    given = {str(name): value for name, value in limits.items()}
    if not given:
        return settings
    if unknown := given.keys() - Limits.__annotations__.keys():
        raise ReaderError(
            f"unknown limit(s) {sorted(unknown)}; known: {list(Limits.__annotations__)}"
        )
    for name, value in given.items():
        if not isinstance(value, int) or value < (name == "k_match"):
            raise ReaderError(f"{name} must be a whole number and not negative, got {value!r}")
    retrieval: Retrieval = settings.retrieval.model_copy(update=given)
    return settings.model_copy(update={"retrieval": retrieval})


def _node_view(shard: Shard, row: int, end: int) -> NodeView:
    node = shard.nodes.slice(row, 1).to_pylist()[0]
    low, high = shard.view("evidence").rows_of(row, end)
    parts = {
        name: shard.view(name).items(*shard.view(name).rows_of(row, row + 1))
        for name in ("facets", "questions", "summaries")
    }
    summary = parts["summaries"][0] if parts["summaries"] else {}
    return NodeView(
        node_id=node["node_id"],
        level=node["level"],
        depth=node["depth"],
        status=node["status"],
        latest_at=node["latest_at"] or "",
        node_count=end - row,
        document_count=high - low,
        views=Views.from_dict(
            {"facets": parts["facets"], "question_answers": parts["questions"], **summary}
        ),
    )
