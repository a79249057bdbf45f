"""Collapsed multi-signal retrieval inside one subtree (HLTM, section 3.5.2).

    facets     score of a node = 1 / (k_match |F_q|) * sum over query facets of the k_match best
               cosines with the node's facets; the divisor stays where a node has fewer
    questions  best cosine of the query with a question
    summaries  cosine of the query with the one-sentence summary

Three lists come back, not one sum. Equal scores stand in tree order.
"""

from collections.abc import Sequence

import numpy as np

from hltm_spark.core.config import Retrieval
from serving.results import Hit
from serving.shard import Floats, Rows, Shard, View


def facet_hits(shard: Shard, span: tuple[int, int], queries: Floats, limits: Retrieval) -> list[Hit]:
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
    hits = []
    for index in best(scores, limits.k_facet):
        node, score = int(nodes[index]), float(scores[index])
        for item in view.items(*view.rows_of(node, node + 1)):
            hits.append(_facet_hit(shard, node, item, score))
    return hits


def question_hits(shard: Shard, span: tuple[int, int], query: Floats, limits: Retrieval) -> list[Hit]:
    """Return the k_qa best question-answer pairs of a span of nodes."""
    view = shard.view("questions")
    rows, scores = _single(view, span, query)
    return [
        question_hit(shard, int(rows[i]), float(scores[i])) for i in best(scores, limits.k_qa)
    ]


def summary_hits(shard: Shard, span: tuple[int, int], query: Floats, limits: Retrieval) -> list[Hit]:
    """Return the detailed summaries of the k_summary best nodes of a span."""
    view = shard.view("summaries")
    rows, scores = _single(view, span, query)
    return [
        _summary_hit(shard, view, int(rows[i]), float(scores[i]))
        for i in best(scores, limits.k_summary)
    ]


def question_hit(shard: Shard, row: int, score: float) -> Hit:
    """Return the hit of one question row."""
    view = shard.view("questions")
    item, node = view.row(row), int(view.node[row])
    return Hit(
        node_id=shard.node_id(node),
        level=shard.level(node),
        view="question",
        score=score,
        text=item["question"],
        answer=item["answer"],
        documents=tuple(item["documents"] or ()),
        scores={"question": score},
    )


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
    if not len(nodes):
        return nodes, np.zeros(0, np.float32)
    distinct, starts = np.unique(nodes, return_index=True)
    totals = np.zeros(len(distinct), np.float64)
    group = np.searchsorted(distinct, nodes)
    for column in cosines.T:
        order = np.lexsort((-column, nodes))
        rank = np.arange(len(nodes)) - starts[group]
        totals += np.bincount(
            group, np.where(rank < k_match, column[order], 0.0), minlength=len(distinct)
        )
    return distinct, (totals / (k_match * cosines.shape[1])).astype(np.float32)


def best(scores: Sequence[float] | Floats, count: int) -> list[int]:
    """Return the positions of the `count` highest scores, best first, ties in order."""
    order = np.argsort(-np.asarray(scores), kind="stable")
    return [int(i) for i in order[:count]]


def best_question(shard: Shard, span: tuple[int, int], query: Floats) -> tuple[int, float] | None:
    """Return row and cosine of the stored question nearest to the query; None without any."""
    rows, scores = _single(shard.view("questions"), span, query)
    if not len(rows):
        return None
    index = int(np.argmax(scores))
    return int(rows[index]), float(scores[index])


def _single(view: View, span: tuple[int, int], query: Floats) -> tuple[Rows, Floats]:
    rows, cosines = view.scored(query[np.newaxis, :], *view.rows_of(*span))
    return rows, cosines[:, 0]


def _facet_hit(shard: Shard, node: int, item: dict[str, object], score: float) -> Hit:
    documents = item["documents"]
    return Hit(
        node_id=shard.node_id(node),
        level=shard.level(node),
        view="facet",
        score=score,
        text=str(item["value"]),
        name=str(item["name"]),
        documents=tuple(documents) if isinstance(documents, list) else (),
        support=int(str(item["support"])),
        total=int(str(item["total"])),
        latest_at=str(item["latest_at"] or ""),
        scores={"facet": score},
    )


def _summary_hit(shard: Shard, view: View, row: int, score: float) -> Hit:
    item, node = view.row(row), int(view.node[row])
    return Hit(
        node_id=shard.node_id(node),
        level=shard.level(node),
        view="summary",
        score=score,
        text=item["summary"] or item["one_sentence_summary"],
        documents=documents_under(shard, node),
        scores={"summary": score},
    )


def documents_under(shard: Shard, node: int, *, limit: int = 32) -> tuple[str, ...]:
    """Return ids of the first documents at or under a node, in tree order."""
    view = shard.view("evidence")
    low, high = view.rows_of(node, int(shard.subtree_end[node]))
    return tuple(view.table.column("doc_id").slice(low, min(high - low, limit)).to_pylist())
