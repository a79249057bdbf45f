"""Collapsed multi-signal retrieval inside one subtree (HLTM, section 3.5.2).

    facets     score of a node = 1 / (k_match |F_q|) * sum over query facets of the k_match best
               cosines with the node's facets; the divisor stays where a node has fewer
    questions  best cosine of the query with a question
    summaries  cosine of the query with the one-sentence summary

Three lists come back, not one sum. Equal scores stand in tree order.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hltm_spark.core.config import Retrieval
from hltm_spark.core.records import MAX_DOCUMENTS
from serving.results import Hit
from serving.shard import Floats, Rows, Shard, View


def facet_hits(
    shard: Shard, span: tuple[int, int], queries: Floats, limits: Retrieval
) -> list[Hit]:
    """Return the whole facet sets of the k_facet best nodes of a span of nodes.

    Args:
        shard: The opened version.
        span: Node rows [first, end).
        queries: Query facets, shape (count, dimension), unit rows.
        limits: k_match and k_facet.
    """
    view = shard.view("facets")
    rows, cosines = view.scored(queries, *view.rows_of(*span))
    nodes, scores = node_scores(view.node[rows], cosines, k_match=limits.k_match)
    hits: list[Hit] = []
    for index in best(scores, limits.k_facet):
        node, score = int(nodes[index]), float(scores[index])
        items = view.items(*view.rows_of(node, node + 1))
        hits += [_facet_hit(shard, node, item, score) for item in items]
    return hits


def question_hits(
    shard: Shard, span: tuple[int, int], query: Floats, limits: Retrieval
) -> list[Hit]:
    """Return the k_qa best question-answer pairs of a span of nodes."""
    rows, scores = _single(shard.view("questions"), span, query)
    return _question_hits(shard, rows, scores, count=limits.k_qa)


def fast_hit(shard: Shard, span: tuple[int, int], query: Floats) -> Hit | None:
    """Return the stored pair whose question is nearest to the query; None without any."""
    rows, scores = _single(shard.view("questions"), span, query)
    return next(iter(_question_hits(shard, rows, scores, count=1)), None)


def summary_hits(
    shard: Shard, span: tuple[int, int], query: Floats, limits: Retrieval
) -> list[Hit]:
    """Return the detailed summaries of the k_summary best nodes of a span."""
    view = shard.view("summaries")
    rows, scores = _single(view, span, query)
    chosen = best(scores, limits.k_summary)
    return [
        Hit(
            node_id=shard.node_id(item["node"]),
            level=shard.level(item["node"]),
            view="summary",
            score=float(scores[i]),
            text=item["summary"] or item["one_sentence_summary"],
            documents=documents_under(shard, item["node"]),
            scores={"summary": float(scores[i])},
        )
        for i, item in zip(chosen, view.take(rows[chosen]), strict=True)
    ]


def node_scores(nodes: Rows, cosines: Floats, *, k_match: int) -> tuple[Rows, Floats]:
    """Return the facet score of every node that has a facet.

    Args:
        nodes: Node row of each facet, ascending, shape (n,).
        cosines: Shape (n, query facets).
        k_match: Facets of a node that count for one query facet.

    Returns:
        Node rows, ascending, and their scores.

    Source: HLTM, section 3.5.2: the mean over query facets of the k_match best cosines.
    """
    starts = np.flatnonzero(np.diff(nodes, prepend=-1))
    sizes = np.diff(starts, append=len(nodes))
    totals = np.zeros(len(starts), np.float64)
    for size in np.unique(sizes):  # nodes with equally many facets at once: few distinct sizes
        alike = np.flatnonzero(sizes == size)
        block = cosines[starts[alike][:, np.newaxis] + np.arange(size)]
        if size > k_match:
            block = np.partition(block, size - k_match, axis=1)[:, size - k_match :]
        totals[alike] = block.sum(axis=(1, 2), dtype=np.float64)
    return nodes[starts], (totals / (k_match * cosines.shape[1])).astype(np.float32)


def best(scores: Floats, count: int) -> list[int]:
    """Return the positions of the `count` highest scores, best first, ties in order."""
    candidates = np.arange(len(scores))
    if 0 < count < len(scores):
        limit = np.partition(scores, len(scores) - count)[len(scores) - count]
        candidates = np.flatnonzero(scores >= limit)
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    return [int(i) for i in order[:count]]


def documents_under(shard: Shard, node: int) -> tuple[str, ...]:
    """Return ids of the first documents at or under a node, in tree order."""
    view = shard.view("evidence")
    low, high = view.rows_of(node, int(shard.subtree_end[node]))
    shown = min(high - low, MAX_DOCUMENTS)
    return tuple(view.table.column("doc_id").slice(low, shown).to_pylist())


def _single(view: View, span: tuple[int, int], query: Floats) -> tuple[Rows, Floats]:
    rows, cosines = view.scored(query[np.newaxis, :], *view.rows_of(*span))
    return rows, cosines[:, 0]


def _question_hits(shard: Shard, rows: Rows, scores: Floats, *, count: int) -> list[Hit]:
    view, chosen = shard.view("questions"), best(scores, count)
    return [
        Hit(
            node_id=shard.node_id(item["node"]),
            level=shard.level(item["node"]),
            view="question",
            score=float(scores[i]),
            text=item["question"],
            answer=item["answer"],
            documents=tuple(item["documents"] or ()),
            scores={"question": float(scores[i])},
        )
        for i, item in zip(chosen, view.take(rows[chosen]), strict=True)
    ]


def _facet_hit(shard: Shard, node: int, item: Mapping[str, Any], score: float) -> Hit:
    return Hit(
        node_id=shard.node_id(node),
        level=shard.level(node),
        view="facet",
        score=score,
        text=item["value"],
        name=item["name"],
        documents=tuple(item["documents"] or ()),
        support=item["support"] or 0,
        total=item["total"] or 0,
        latest_at=item["latest_at"] or "",
        scores={"facet": score},
    )
