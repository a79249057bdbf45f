"""Declared facet names: found by label, in a sentence, or in a question."""

import re
import threading
from collections.abc import Sequence
from functools import lru_cache

import Stemmer

from hltm_spark.core.config import DeclaredFacet, Settings
from hltm_spark.core.text import to_terms

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_stemmers = threading.local()


@lru_cache(maxsize=8192)
def word_stems(text: str) -> tuple[str, ...]:
    """Return every word of a short text, case-folded and stemmed, stopwords kept."""
    stemmer = getattr(_stemmers, "english", None)
    if stemmer is None:
        stemmer = _stemmers.english = Stemmer.Stemmer("english")
    return tuple(stemmer.stemWords(_WORD.findall(text.casefold().replace("’", "'"))))


def contains(words: Sequence[str], phrase: Sequence[str]) -> bool:
    """Return True where the phrase stands in the words, unbroken."""
    size = len(phrase)
    return bool(size) and any(
        tuple(words[i : i + size]) == tuple(phrase) for i in range(len(words) - size + 1)
    )


class FacetNames:
    """The facets that conf declares or hints at, by name and alias."""

    def __init__(self, settings: Settings) -> None:
        """Read names in conf's order; a hinted name that conf does not declare comes last."""
        declared = list(settings.facets)
        known = {word_stems(facet.name) for facet in declared}
        declared += [
            DeclaredFacet(name=name)
            for name in dict.fromkeys(settings.hints.facets)
            if word_stems(name) not in known
        ]
        self.declared = tuple(declared)
        self._rank = {facet.name: rank for rank, facet in enumerate(declared)}
        self._by_label: dict[tuple[str, ...], DeclaredFacet] = {}
        for phrases in ([[f.name] for f in declared], [f.aliases for f in declared]):
            for facet, written in zip(declared, phrases, strict=True):
                for phrase in written:
                    self._by_label.setdefault(word_stems(phrase) or (phrase,), facet)
        self._phrases = [
            (word_stems(phrase), frozenset(to_terms(phrase)), facet)
            for facet in declared
            for phrase in (facet.name, *facet.aliases)
        ]
        self._by_first_word: dict[str, list[tuple[tuple[str, ...], DeclaredFacet]]] = {}
        for stems, _, facet in self._phrases:
            for first in stems[:1]:
                self._by_first_word.setdefault(first, []).append((stems, facet))

    def of_label(self, label: str) -> DeclaredFacet | None:
        """Return the facet that a label names: its name or alias, whatever case or number."""
        return self._by_label.get(word_stems(label) or (label,))

    def is_declared_name(self, label: str) -> bool:
        """Return True where a label is a declared facet's name itself, not an alias."""
        facet = self.of_label(label)
        return facet is not None and word_stems(facet.name) == word_stems(label)

    def rank(self, name: str) -> int:
        """Return the position of a name in conf; an undeclared one comes after all."""
        return self._rank.get(name, len(self._rank))

    def canonical(self, label: str) -> str:
        """Return the declared name, or the label in lower case unless it is an abbreviation."""
        facet = self.of_label(label)
        if facet:
            return facet.name
        return " ".join(w if w.isupper() and len(w) > 1 else w.lower() for w in label.split())

    def mentioned(self, text: str) -> list[tuple[DeclaredFacet, tuple[str, ...]]]:
        """Return the facets whose name or alias stands in a text, unbroken, with that phrase."""
        words = word_stems(text)
        found: dict[str, tuple[DeclaredFacet, tuple[str, ...]]] = {}
        for i, word in enumerate(words):
            for phrase, facet in self._by_first_word.get(word, ()):
                known = found.get(facet.name)
                is_longer = known is None or len(phrase) > len(known[1])
                if is_longer and words[i : i + len(phrase)] == phrase:
                    found[facet.name] = (facet, phrase)
        return list(found.values())

    def asked(self, query: str) -> list[tuple[DeclaredFacet, frozenset[str]]]:
        """Return the facets that a question is about, best first, with the terms that say so.

        A longer phrase goes before a shorter one; a facet whose terms another one's phrase holds
        already is left out (`nice-to-have skills` is not `must-have skills`).
        """
        words, terms = word_stems(query), frozenset(to_terms(query))
        best: dict[str, tuple[tuple[int, int, int], DeclaredFacet, frozenset[str]]] = {}
        for phrase, content, facet in self._phrases:
            is_whole = contains(words, phrase)
            if not is_whole and not (content and content <= terms):
                continue
            score = (is_whole, len(content), len(phrase))
            if facet.name not in best or score > best[facet.name][0]:
                best[facet.name] = (score, facet, content or frozenset(phrase))
        ranked = sorted(best.values(), key=lambda item: (-item[0][1], -item[0][0], -item[0][2]))
        kept: list[tuple[DeclaredFacet, frozenset[str]]] = []
        for _, facet, content in ranked:
            if not any(content <= taken for _, taken in kept):
                kept.append((facet, content))
        return kept


def polarity(text: str, facet: DeclaredFacet) -> str:
    """Return "yes" or "no" where a value says so in the facet's words, else an empty string.

    The longest phrase decides, then the earlier one; of equal ones the negative.
    """
    words = word_stems(text)
    found: list[tuple[int, int, int, str]] = []
    for rank, (answer, phrases) in enumerate((("no", facet.negative), ("yes", facet.positive))):
        for phrase in map(word_stems, phrases):
            at = _position(words, phrase)
            if at >= 0:
                found.append((-len(phrase), at, rank, answer))
    return min(found)[-1] if found else ""


def _position(words: Sequence[str], phrase: Sequence[str]) -> int:
    size = len(phrase)
    for i in range(len(words) - size + 1) if size else ():
        if tuple(words[i : i + size]) == tuple(phrase):
            return i
    return -1
