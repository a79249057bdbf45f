"""Sentences of a text, and the few that say most: central to the whole, unlike each other."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hltm_spark.core.text import to_terms

_BREAK = re.compile(r"(?<=[.!?…])([\"'”’)\]]*)\s+(?=[^\sa-z])|(?<=[。！？])(?=[^」』）\s])")
_ABBREVIATED = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|No|vs|approx|incl|e\.g|i\.e|[A-Z]))\.$")
_MAX_UNITS = 300
_RELEVANCE = 0.65
_FULL_SENTENCE = 7  # distinct terms from which a sentence is not held back for its shortness


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One sentence and where it stands. `shown` is how a summary writes it."""

    text: str
    doc_id: str
    time: str = ""
    author: str = ""

    @property
    def shown(self) -> str:
        """The sentence with its speaker."""
        return f"{self.author}: {self.text}" if self.author else self.text


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text in order; an abbreviation's full stop ends none."""
    found: list[str] = []
    for line in text.splitlines():
        start = 0
        for match in _BREAK.finditer(line):
            piece = line[start : match.end(1) if match.group(1) else match.start()]
            if not _ABBREVIATED.search(piece):
                found.append(piece.strip())
                start = match.end()
        found.append(line[start:].strip())
    return [sentence for sentence in found if sentence]


def central_units(units: Sequence[Unit], count: int) -> list[Unit]:
    """Return at most `count` units in their order: central ones first chosen, unlike each other.

    Maximal marginal relevance over TF-IDF of stems: nearness to the centre of all units, less
    nearness to a unit chosen before. Short units count less; one of fewer than three terms is
    taken only where nothing else is left. Rounded before they are compared, so that every machine
    chooses alike.
    """
    if len(units) > _MAX_UNITS:
        step = len(units) / _MAX_UNITS
        units = [units[int(i * step)] for i in range(_MAX_UNITS)]
    terms = [to_terms(unit.text) for unit in units]
    full = [i for i, found in enumerate(terms) if len(found) >= 3]
    usable = full or [i for i, found in enumerate(terms) if found] or list(range(len(units)))
    weights = _tfidf([terms[i] for i in usable])
    sizes = np.array([len(set(terms[i])) for i in usable])
    chosen = _diverse(weights, np.minimum(1.0, sizes / _FULL_SENTENCE), count)
    return [units[usable[i]] for i in sorted(chosen)]


def _tfidf(terms: Sequence[Sequence[str]]) -> npt.NDArray[np.float64]:
    """Return unit rows, one a unit."""
    known: dict[str, int] = {}
    for found in terms:
        for term in found:
            known.setdefault(term, len(known))
    weights = np.zeros((len(terms), max(1, len(known))))
    for row, found in enumerate(terms):
        for term in found:
            weights[row, known[term]] += 1.0
    weights = np.log1p(weights)
    seen = np.count_nonzero(weights, axis=0)
    weights *= np.log((1.0 + len(terms)) / (1.0 + seen)) + 1.0
    norms = np.linalg.norm(weights, axis=1, keepdims=True)
    unit_rows: npt.NDArray[np.float64] = weights / np.where(norms == 0.0, 1.0, norms)
    return unit_rows


def _diverse(
    weights: npt.NDArray[np.float64], fullness: npt.NDArray[np.float64], count: int
) -> list[int]:
    if not len(weights):
        return []
    centre = weights.sum(axis=0)
    central = fullness * (weights @ (centre / max(float(np.linalg.norm(centre)), 1e-12)))
    nearest = np.zeros(len(weights))
    chosen: list[int] = []
    while len(chosen) < min(count, len(weights)):
        gain = np.round(_RELEVANCE * central - (1 - _RELEVANCE) * nearest, 9)
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        if chosen and nearest[best] > 0.95:  # says what an earlier one says
            remaining = [i for i in range(len(weights)) if nearest[i] <= 0.95 and i not in chosen]
            if not remaining:
                break
            best = max(remaining, key=lambda i: (gain[i], -i))
        chosen.append(best)
        nearest = np.maximum(nearest, weights @ weights[best])
    return chosen
