"""Plain systems that retrieval is measured beside: BM25, cosine, and both by rank."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hltm_spark.models.embedders import Embedder

K1, B = 1.5, 0.75
RRF_K = 60

Scores = npt.NDArray[np.float64]
Ranker = Callable[[str], Sequence[str]]
"""Gives the distinct documents that a query finds, best first."""


def baselines(ids: Sequence[str], texts: Sequence[str], embedder: Embedder) -> dict[str, Ranker]:
    """Return the plain systems over one corpus.

    Args:
        ids: Of the documents.
        texts: Of the documents, in the same order; none blank.
        embedder: Of texts and queries.
    """
    bm25 = Bm25(texts)
    vectors = embedder.embed(texts).astype(np.float64)

    def lexical(query: str) -> list[int]:
        return ranking(bm25.scores(query))

    def semantic(query: str) -> list[int]:
        cosines = vectors @ embedder.embed([query])[0].astype(np.float64)
        return ranking(cosines + 1)  # every document is ranked

    def fused(query: str) -> list[int]:
        return ranking(fuse([lexical(query), semantic(query)], len(texts)))

    def named(rank: Callable[[str], list[int]]) -> Ranker:
        return lambda query: [ids[row] for row in rank(query)]

    return {"bm25": named(lexical), "vector": named(semantic), "bm25+vector": named(fused)}


class Bm25:
    """Plain Okapi BM25 over texts in lower case, no stemming, no stop words.

    Source: Robertson and Zaragoza 2009, with the idf that is never negative.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(words(text)) for text in texts]
        lengths = np.array([count.total() for count in counts], np.float64)
        self._norm = K1 * (1 - B + B * lengths / (lengths.mean() or 1.0))
        self._postings: dict[str, tuple[list[int], list[int]]] = {}
        for row, count in enumerate(counts):
            for word, times in count.items():
                rows, frequencies = self._postings.setdefault(word, ([], []))
                rows.append(row)
                frequencies.append(times)

    def scores(self, query: str) -> Scores:
        """Return the score of every text; 0 where no word is shared."""
        scores = np.zeros(len(self._norm))
        for word in words(query):
            rows, frequencies = self._postings.get(word, ([], []))
            idf = np.log(1 + (len(scores) - len(rows) + 0.5) / (len(rows) + 0.5))
            tf = np.array(frequencies, np.float64)
            scores[rows] += idf * tf * (K1 + 1) / (tf + self._norm[rows])
        return scores


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall(r"\w+", text.lower())


def ranking(scores: Scores) -> list[int]:
    """Return rows best first, equal scores in row order, rows that score 0 or less left out."""
    return [int(row) for row in np.argsort(-scores, kind="stable") if scores[row] > 0]


def fuse(rankings: Sequence[Sequence[int]], count: int) -> Scores:
    """Return the sum of 1 / (60 + rank) over the rankings, shape (count,); ranks begin at 1.

    Source: Cormack, Clarke and Buettcher 2009.
    """
    scores = np.zeros(count)
    for ranked in rankings:
        scores[list(ranked)] += 1 / (RRF_K + np.arange(1, len(ranked) + 1))
    return scores
