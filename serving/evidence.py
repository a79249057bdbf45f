"""Raw documents as a signal of their own: lexical and vector scores, joined by weights.

A document's terms are its own and, at half the weight for every place, those of its neighbours in
the same node: a reply rarely repeats what it replies to. The lexical statistics (document
frequencies, mean length) come from the scope's own rows only, so that no sibling changes a ranking.
Every signal is normalised within the scope before it is weighted: equal rank fusion would lower a
good lexical signal.
"""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hltm_spark.core.config import Settings
from hltm_spark.core.text import to_terms
from serving.results import Evidence, Hit
from serving.retrieve import best
from serving.shard import Floats, Postings, Rows, Shard

K1, B = 1.2, 0.75
"""The usual constants of BM25."""
DECAY = 0.5
"""Weight of a neighbour's terms, for every place between."""


def evidence_hits(
    shard: Shard, span: tuple[int, int], query: str, vector: Floats, settings: Settings
) -> list[Hit]:
    """Return the k_evidence best documents of a span of nodes; none where the view is off."""
    view = shard.view("evidence")
    low, high = view.rows_of(*span)
    if high == low or shard.postings is None:
        return []
    window = settings.views.evidence.context_window
    signals = evidence_signals(shard, (low, high), query, vector, window=window)
    weights = settings.retrieval.evidence.model_dump()
    total = np.zeros(high - low, np.float32)
    for name, values in signals.items():
        total += weights[name] * values
    chosen = best(total, settings.retrieval.k_evidence)
    documents = raw_documents(shard, [low + i for i in chosen])
    return [
        Hit(
            node_id=document.node_id,
            level=shard.level(int(view.node[low + i])),
            view="evidence",
            score=float(total[i]),
            text=document.text,
            name=document.author,
            documents=(document.doc_id,),
            latest_at=document.event_time,
            scores={name: float(values[i]) for name, values in signals.items()},
        )
        for i, document in zip(chosen, documents, strict=True)
    ]


def evidence_signals(
    shard: Shard, rows: tuple[int, int], query: str, vector: Floats, *, window: int
) -> dict[str, Floats]:
    """Return every signal of the documents [low, high), each normalised within them.

    lexical: BM25 of the document and its neighbours' decayed terms. vector: cosine. parent: BM25
    of the document's node as one text. metadata: 1 where the query names the author.

    Args:
        shard: The opened version.
        rows: Evidence rows of whole nodes.
        query: In words.
        vector: Of the query, shape (dimension,), unit length.
        window: Places up to which a neighbour counts.
    """
    low, high = rows
    view, count = shard.view("evidence"), high - low
    cosines = np.zeros(count, np.float32)
    with_vector, scored = view.scored(vector[np.newaxis, :], low, high)
    cosines[with_vector - low] = scored[:, 0]
    terms = list(dict.fromkeys(to_terms(query)))
    owner = _owners(view.node[low:high])
    own = of_node = np.zeros(count, np.float32)
    if shard.postings is not None:
        own, of_node = _lexical(shard.postings, terms, rows, owner, window=window)
    return {
        "lexical": _standard(own),
        "vector": _standard(cosines),
        "parent": of_node,
        "metadata": _named_author(shard, rows, terms),
    }


def neighbour_weights(owner: Rows, *, window: int) -> list[Floats]:
    """Return, for every distance up to the window, what a document that far back counts.

    Args:
        owner: Node of every document of the scope, ascending, shape (n,).
        window: Places up to which a neighbour counts.

    Returns:
        For distance d the weight of document i for document i + d, and the other way round, shape
        (n - d,): 0 where they are of different nodes.
    """
    reach = min(window, len(owner) - 1)
    return [
        np.float32(DECAY**distance) * (owner[distance:] == owner[:-distance])
        for distance in range(1, reach + 1)
    ]


def spread(values: Floats, weights: Sequence[Floats]) -> Floats:
    """Return the values of all documents, each with its neighbours' decayed ones."""
    total = values.copy()
    for distance, weight in enumerate(weights, start=1):
        total[distance:] += weight * values[:-distance]
        total[:-distance] += weight * values[distance:]
    return total


def bm25(frequencies: Sequence[Floats], lengths: Floats) -> Floats:
    """Return the BM25 score of every row.

    Args:
        frequencies: Weight of one query term in each row.
        lengths: Sum of weights of each row.

    Source: Robertson and Zaragoza 2009, with the idf that is never negative.
    """
    scores = np.zeros(len(lengths), np.float32)
    norm = K1 * (1 - B + B * lengths / (float(lengths.mean()) or 1.0))
    for weights in frequencies:
        rows = np.flatnonzero(weights)
        found = weights[rows]
        idf = np.log(1 + (len(lengths) - len(rows) + 0.5) / (len(rows) + 0.5))
        scores[rows] += np.float32(idf * (K1 + 1)) * found / (found + norm[rows])
    return scores


def raw_documents(shard: Shard, rows: Sequence[int]) -> list[Evidence]:
    """Return documents by their evidence rows."""
    view = shard.view("evidence")
    return [
        Evidence(
            node_id=shard.node_id(item["node"]),
            doc_id=item["doc_id"],
            kind=item["kind"] or "",
            event_time=item["event_time"] or "",
            author=item["author"] or "",
            metadata=json.loads(item["metadata"] or "{}"),
            text=item["text"] or "",
        )
        for item in view.take(rows)
    ]


def _lexical(
    postings: Postings, terms: Sequence[str], rows: tuple[int, int], owner: Rows, *, window: int
) -> tuple[Floats, Floats]:
    """Return BM25 of every document, and of its node, normalised over the scope's nodes."""
    low, high = rows
    lengths, node_count = postings.lengths[low:high], int(owner[-1]) + 1
    weights = neighbour_weights(owner, window=window)
    of_documents, of_nodes = [], []
    for term in terms:
        found, counts = postings.of_term(term, low, high)
        if len(found):
            own = np.zeros(high - low, np.float32)
            own[found] = counts
            of_documents.append(spread(own, weights))
            of_nodes.append(_sums(owner[found], counts, node_count))
    documents = bm25(of_documents, spread(lengths, weights))
    nodes = bm25(of_nodes, _sums(owner, lengths, node_count))
    return documents, _standard(nodes)[owner]


def _owners(nodes: Rows) -> Rows:
    """Return the node of every document, counted from 0; nodes ascend."""
    begins = np.diff(nodes, prepend=nodes[:1]) != 0
    owners: Rows = np.cumsum(begins)
    return owners


def _sums(groups: Rows, values: Floats, count: int) -> Floats:
    sums: Floats = np.bincount(groups, values, minlength=count).astype(np.float32)
    return sums


def _named_author(shard: Shard, rows: tuple[int, int], terms: Sequence[str]) -> Floats:
    """Return 1 for the documents whose author the query names, else 0."""
    authors, codes = shard.authors
    asked = set(terms)
    named = np.asarray([not asked.isdisjoint(to_terms(author)) for author in authors], np.float32)
    flags: Floats = named[codes[rows[0] : rows[1]]]
    return flags


def _standard(values: Floats) -> Floats:
    """Return values with mean 0 and deviation 1; all 0 where they do not differ."""
    deviation = float(values.std())
    if deviation < 1e-9:
        return np.zeros_like(values)
    standard: npt.NDArray[np.float32] = (values - values.mean()) / np.float32(deviation)
    return standard
