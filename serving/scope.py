"""One subtree of one tenant: the only way in, and what every query is bound to."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import ReaderError, ScopeNotFound
from hltm_spark.core.records import Views
from hltm_spark.core.tree import to_keys, to_node_id
from hltm_spark.core.views import facet_text
from hltm_spark.models.embedders import Embedder
from hltm_spark.models.llm import LlmClient
from serving.answer import Meter, documents_of, read_query, write_answer
from serving.evidence import evidence_hits, raw_documents
from serving.results import Answer, Context, Evidence, Hit, NodeView
from serving.retrieve import (
    best_question,
    facet_hits,
    question_hit,
    question_hits,
    summary_hits,
)
from serving.shard import Floats, Shard


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
        self, query: str, *, facets: Iterable[tuple[str, str]] | None = None
    ) -> Context:
        """Return what the query recalls inside the scope.

        Args:
            query: In words; not blank.
            facets: (name, value) pairs to match; where not given, the model reads them from the
                query (one call).

        Raises:
            ReaderError: The query is blank, or has no vector in this model.
            ScopeNotFound: The node is gone in the version that is current now.
        """
        began, meter = time.perf_counter(), Meter()
        if not query.strip():
            raise ReaderError("query is blank; ask something")
        shard, span = self._bind()
        pairs = (
            list(facets)
            if facets is not None
            else read_query(self._llm(), query, self._settings, meter)
        )
        vectors = self._embed([query, *(facet_text(n, v) for n, v in pairs)])
        query_vector, facet_vectors = vectors[0], vectors[1:]
        if not len(facet_vectors):
            facet_vectors = vectors[:1]
        limits = self._settings.retrieval
        return Context(
            query=query,
            query_facets=tuple(pairs),
            facets=tuple(facet_hits(shard, span, facet_vectors, limits)),
            questions=tuple(question_hits(shard, span, query_vector, limits)),
            summaries=tuple(summary_hits(shard, span, query_vector, limits)),
            evidence=tuple(evidence_hits(shard, span, query, query_vector, limits)),
            usage=meter.usage,
            seconds=time.perf_counter() - began,
        )

    def answer(self, query: str, *, facets: Iterable[tuple[str, str]] | None = None) -> Answer:
        """Return an answer with its citation: two model calls at most, repairs aside."""
        began = time.perf_counter()
        context = self.retrieve(query, facets=facets)
        meter = Meter(
            context.usage.calls, context.usage.prompt_tokens, context.usage.completion_tokens
        )
        fields, hits = write_answer(self._llm(), context, self._settings, meter)
        citation = tuple(fields["citation"])
        return Answer(
            query=query,
            rationale=fields["rationale"],
            answer=fields["answer"],
            citation=citation,
            documents=documents_of(citation, hits, fields["answer"]),
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
        if not query.strip():
            raise ReaderError("query is blank; ask something")
        shard, span = self._bind()
        found = best_question(shard, span, self._embed([query])[0])
        limit = self._settings.retrieval.fast_threshold if threshold is None else threshold
        if found is None or found[1] < limit:
            return None
        hit = question_hit(shard, *found)
        return Answer(
            query=query,
            rationale=f"stored answer to: {hit.text}",
            answer=hit.answer,
            citation=(hit.node_id,),
            documents=hit.documents,
            usage=Meter().usage,
            seconds=time.perf_counter() - began,
            mode="fast",
            score=hit.score,
        )

    async def aretrieve(
        self, query: str, *, facets: Iterable[tuple[str, str]] | None = None
    ) -> Context:
        """Return what `retrieve` does, without blocking the event loop."""
        return await asyncio.to_thread(self.retrieve, query, facets=facets)

    async def aanswer(
        self, query: str, *, facets: Iterable[tuple[str, str]] | None = None
    ) -> Answer:
        """Return what `answer` does, without blocking the event loop."""
        return await asyncio.to_thread(self.answer, query, facets=facets)

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
        """Return unit vectors; a text without one is an error for the query, left out for facets."""
        vectors = self._embedder().embed(list(texts))
        lengths = np.linalg.norm(vectors, axis=1)
        if not np.isfinite(lengths).all() or lengths[0] < 1e-6:
            raise ReaderError(f"the embedding model has no vector for this query of {len(texts[0])} characters")
        return np.ascontiguousarray(vectors[lengths > 1e-6], np.float32)


def checked_keys(node: object) -> tuple[str, ...]:
    """Return the keys of a node id or a tuple of keys.

    Raises:
        ScopeNotFound: It is anything else, or empty.
    """
    try:
        if isinstance(node, str):
            return to_keys(node)
        if isinstance(node, tuple) and node and all(isinstance(key, str) for key in node):
            return to_keys(to_node_id(node))
    except ReaderError:
        raise
    except Exception as error:
        raise ScopeNotFound(f"not a node id: {type(error).__name__}") from None
    raise ScopeNotFound(
        f"scope takes a node id or a tuple of keys, got {type(node).__name__}; "
        "there is no scope over several tenants"
    )


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
