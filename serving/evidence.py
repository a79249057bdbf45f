"""Raw documents as a signal of their own: lexical and vector scores, joined by weights.

The lexical statistics (document frequencies, mean length) come from the scope's own rows, so that
no sibling changes a ranking. Every signal is normalised within the scope before it is weighted:
equal rank fusion would lower a good lexical signal.
"""

from collections.abc import Sequence

import numpy as np

from hltm_spark.core.config import Retrieval
from hltm_spark.core.text import to_terms
from serving.results import Evidence, Hit
from serving.retrieve import best
from serving.shard import Floats, Postings, Shard

K1, B = 1.2, 0.75
"""The usual constants of BM25."""


def evidence_hits(
    shard: Shard, span: tuple[int, int], query: str, vector: Floats, limits: Retrieval
) -> list[Hit]:
    """Return the k_evidence best documents of a span of nodes."""
    view = shard.view("evidence")
    low, high = view.rows_of(*span)
    if high == low or shard.postings is None:
        return []
    signals = evidence_signals(shard, (low, high), query, vector)
    weights = limits.evidence.model_dump()
    total = sum(weights[name] * values for name, values in signals.items())
    return [
        _hit(shard, low + i, float(total[i]), {n: float(v[i]) for n, v in signals.items()})
        for i in best(total, limits.k_evidence)
    ]


def evidence_signals(
    shard: Shard, rows: tuple[int, int], query: str, vector: Floats
) -> dict[str, Floats]:
    """Return every signal of the documents [low, high), each normalised within them.

    lexical: BM25 of the document and its neighbours' decayed terms. vector: cosine. parent: BM25
    of the document's node as one text. metadata: 1 where the query names the author.
    """
    low, high = rows
    view, postings = shard.view("evidence"), shard.postings
    count = high - low
    cosines = np.zeros(count, np.float32)
    with_vector, scored = view.scored(vector[np.newaxis, :], low, high)
    cosines[with_vector - low] = scored[:, 0]
    terms = list(dict.fromkeys(to_terms(query)))
    frequencies = _frequencies(postings, terms, low, high) if postings else {}
    lengths = postings.lengths[low:high] if postings else np.ones(count, np.float32)
    owner = np.unique(view.node[low:high], return_inverse=True)[1]
    by_node = {t: np.bincount(owner, f).astype(np.float32) for t, f in frequencies.items()}
    node_scores = bm25(by_node, np.bincount(owner, lengths).astype(np.float32))
    return {
        "lexical": _standard(bm25(frequencies, lengths)),
        "vector": _standard(cosines),
        "parent": _standard(node_scores)[owner],
        "metadata": _named_author(shard, rows, terms),
    }


def bm25(frequencies: dict[str, Floats], lengths: Floats) -> Floats:
    """Return the BM25 score of every row.

    Args:
        frequencies: Weight of each query term in each row.
        lengths: Sum of weights of each row.

    Source: Robertson and Zaragoza 2009, with the idf that is never negative.
    """
    scores = np.zeros(len(lengths), np.float32)
    mean = float(lengths.mean()) or 1.0
    norm = K1 * (1 - B + B * lengths / mean)
    for weights in frequencies.values():
        rows = float(np.count_nonzero(weights))
        if rows:
            idf = np.log(1 + (len(lengths) - rows + 0.5) / (rows + 0.5))
            scores += idf * weights * (K1 + 1) / (weights + norm)
    return scores


def raw_documents(shard: Shard, rows: Sequence[int]) -> list[Evidence]:
    """Return documents by their evidence rows."""
    import json  # noqa: PLC0415 - only here

    view = shard.view("evidence")
    found = []
    for row in rows:
        item = view.row(row)
        found.append(
            Evidence(
                node_id=shard.node_id(int(view.node[row])),
                doc_id=item["doc_id"],
                kind=item["kind"] or "",
                event_time=item["event_time"] or "",
                author=item["author"] or "",
                metadata=json.loads(item["metadata"] or "{}"),
                text=item["text"] or "",
            )
        )
    return found


def _frequencies(
    postings: Postings, terms: Sequence[str], low: int, high: int
) -> dict[str, Floats]:
    """Return the weights of the terms in the rows [low, high)."""
    found = {}
    for term in terms:
        term_id = postings.ids.get(term)
        if term_id is None:
            continue
        begin = int(postings.ends[term_id - 1]) if term_id else 0
        rows = postings.rows[begin : int(postings.ends[term_id])]
        first, end = np.searchsorted(rows, [low, high])
        if first < end:
            weights = np.zeros(high - low, np.float32)
            weights[rows[first:end] - low] = postings.weights[begin + first : begin + end]
            found[term] = weights
    return found


def _named_author(shard: Shard, rows: tuple[int, int], terms: Sequence[str]) -> Floats:
    low, high = rows
    column = shard.view("evidence").table.column("author").slice(low, high - low)
    codes = column.combine_chunks().dictionary_encode()
    named = [
        bool(author) and not set(to_terms(author)).isdisjoint(terms)
        for author in codes.dictionary.to_pylist()
    ]
    if not any(named):
        return np.zeros(high - low, np.float32)
    flags = np.asarray([*named, False], np.float32)
    indices = codes.indices.fill_null(len(named)).to_numpy(zero_copy_only=False)
    return flags[indices.astype(np.int64)]


def _standard(values: Floats) -> Floats:
    """Return values with mean 0 and deviation 1; all 0 where they do not differ."""
    deviation = float(values.std())
    if deviation < 1e-9:
        return np.zeros_like(values)
    return ((values - values.mean()) / deviation).astype(np.float32)


def _hit(shard: Shard, row: int, score: float, scores: dict[str, float]) -> Hit:
    document = raw_documents(shard, [row])[0]
    node = int(shard.view("evidence").node[row])
    return Hit(
        node_id=document.node_id,
        level=shard.level(node),
        view="evidence",
        score=score,
        text=document.text,
        name=document.author,
        documents=(document.doc_id,),
        latest_at=document.event_time,
        scores=scores,
    )
