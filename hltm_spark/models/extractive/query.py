"""Reading a question, and answering it from what a search found, without a language model.

Each memory is scored by the share of the question's content words that it holds, rare words
counting more, words that no memory holds most, and words that most nodes hold least. A facet that
the question names by name or alias counts as holding those words, and then what else is known of
its node counts in part. What matches only by its node's title counts half. Stored answers go before
facet sets, facet sets before sentences; among equals the node that the question names, then the one
nearest to the scope, wins. Where several nodes tie on a facet, the question means none of them: the
node above them answers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from hltm_spark.core.config import DeclaredFacet
from hltm_spark.core.text import STOPWORDS, to_terms
from hltm_spark.models.extractive.memories import Memory, read_memories
from hltm_spark.models.extractive.names import FacetNames
from hltm_spark.models.extractive.wording import TITLE_NAMES

NOT_IN_MEMORY = "not in memory"
"""The answer where nothing in the context matches the question's content words."""

_ENOUGH = 0.34
_MAX_CITED = 5
_NEAR = 0.75
_MAX_QUERY_FACETS = 4
_WEAK = frozenset(
    to_terms(
        """typical typically usual usually common commonly frequent frequently general generally
        average normal normally need needs require required requires ask asks say says tell offer
        offered have having give given name list want wants look looking hire hires people person
        make makes there currently current today recent recently main often kind type"""
    )
)
_VIEW_BONUS = {"question": 0.12, "facet": 0.08, "statement": 0.06, "summary": 0.0, "evidence": 0.04}
_NAMED_BONUS = 0.35
_NODE_CREDIT = 0.6
_COMMON_CREDIT = 0.2
_MEASURE = re.compile(
    r"\bhow\s+(?!do|does|did|is|are|was|were|can|could|should|will|would)\w+", re.I
)
_HIRAGANA = re.compile(r"[\u3040-\u309f]")  # particles and endings; content is kanji or katakana
_WORD = re.compile(r"[^\W_]+(?:[-'’.][^\W_]+)*")


def read_facets(query: str, names: FacetNames) -> list[dict[str, Any]]:
    """Return a question as facets: declared names it asks for, people it names, or a topic.

    The value is the question's own content words, without those that name the facet.
    """
    words = [w for w in _WORD.findall(query) if w.casefold() not in STOPWORDS]
    asked = _asked(query, names)[:_MAX_QUERY_FACETS]
    found = []
    for facet, terms in asked:
        rest = [w for w in words if not set(to_terms(w)) <= terms]
        found.append((facet.name, " ".join(rest) or facet.name))
    people = _proper_names(query)
    for person in [] if asked else people[:2]:
        rest = [w for w in words if w != person and not w.startswith(f"{person}'")]
        found.append((person, " ".join(rest) or person))
    if not found:
        found.append(("topic", " ".join(words) or query.strip()))
    return [{"name": name, "value": value, "sources": []} for name, value in found if value.strip()]


def answer_query(
    payload: Mapping[str, Any], names: FacetNames, level_names: Sequence[str]
) -> dict[str, Any]:
    """Return rationale, answer and citation for a question and its ranked context."""
    query = str(payload.get("query", ""))
    memories = read_memories(payload.get("context") or ())
    question = _Question.read(query, memories, names, level_names)
    scored = sorted(
        ((question.score(memory), -i, memory) for i, memory in enumerate(memories)),
        key=lambda item: (-item[0].total, -item[1]),
    )
    usable = [(score, memory) for score, _, memory in scored if score.share >= _ENOUGH]
    if not usable:
        return {
            "rationale": f"None of {len(memories)} memories holds the question's content words.",
            "answer": NOT_IN_MEMORY,
            "citation": [],
        }
    top, best = _widest(usable)
    near = [
        m.node_id
        for s, m in usable
        if s.share >= _NEAR * top.share and s.is_named == top.is_named and m.kin(best)
    ]
    citation = list(dict.fromkeys([best.node_id, *near]))[:_MAX_CITED]
    return {"rationale": _rationale(best, top), "answer": best.answer(query), "citation": citation}


def _asked(query: str, names: FacetNames) -> list[tuple[DeclaredFacet, frozenset[str]]]:
    """Return the declared facets that a question names by more than a word like "hire"."""
    return [(facet, terms) for facet, terms in names.asked(query) if not terms <= _WEAK]


@dataclass(frozen=True, slots=True)
class _Score:
    share: float
    total: float
    held: tuple[str, ...]
    is_named: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A question's content words with their weights, and what it names."""

    weights: Mapping[str, float]
    asked: Mapping[str, frozenset[str]]
    names: FacetNames
    nodes: Mapping[str, frozenset[str]]
    titles: Mapping[str, frozenset[str]]
    named_nodes: frozenset[str]
    depths: tuple[int, int]

    @classmethod
    def read(
        cls, query: str, memories: Sequence[Memory], names: FacetNames, level_names: Sequence[str]
    ) -> "_Question":
        terms = list(dict.fromkeys(to_terms(_MEASURE.sub("how", query))))
        nodes = _by_node(memories)
        keys = {memory.node_id: frozenset(memory.key_terms) for memory in memories}
        named = frozenset(node for node, key in keys.items() if key and key <= set(terms))
        levels = {t for name in level_names for t in to_terms(name)}
        asked = {facet.name: content for facet, content in _asked(query, names)}
        kept = frozenset(t for content in asked.values() for t in content)
        places = {t for key in keys.values() for t in key} | levels
        strong = [t for t in terms if t in kept or not (_is_weak(t) or t in places)]
        strong = strong or [t for t in terms if t not in places] or terms
        found = [memory.terms for memory in memories]
        weights = {
            t: (log((len(found) + 1) / (sum(t in f for f in found) + 0.5)) + 0.2)
            * (_COMMON_CREDIT if t not in kept and _is_common(t, nodes) else 1.0)
            for t in strong
        }
        depths = [memory.depth for memory in memories] or [0]
        return cls(
            weights=weights,
            asked=asked,
            names=names,
            nodes=nodes,
            titles=_by_node([m for m in memories if m.name.casefold() in TITLE_NAMES]),
            named_nodes=named,
            depths=(min(depths), max(depths)),
        )

    def score(self, memory: Memory) -> _Score:
        """Return how much of the question a memory holds, and its place among others."""
        named = self._named_by(memory)
        held = memory.terms | named
        total = sum(self.weights.values())
        own = [t for t in self.weights if t in held]
        share = sum(self.weights[t] for t in own)
        if named:
            around = self.nodes[memory.node_id] - held
            share += _NODE_CREDIT * sum(w for t, w in self.weights.items() if t in around)
        elif set(own) <= self.titles.get(memory.node_id, frozenset()) and memory.view != "facet":
            share /= 2
        share = share / total if total else 0.0
        low, high = self.depths
        nearness = (high - memory.depth) / (high - low) if high > low else 0.0
        bonus = _VIEW_BONUS.get(memory.view, 0.0) + 0.1 * nearness
        if named:
            weight = sum(self.weights.get(t, 0.0) for t in named)
            share = max(share, _ENOUGH)
            bonus += _NAMED_BONUS * weight / total + 0.02 * (memory.view == "summary")
        if self.named_nodes:
            bonus += 0.3 * (memory.node_id in self.named_nodes)
        return _Score(round(share, 9), round(share + bonus, 9), tuple(own), bool(named))

    def _named_by(self, memory: Memory) -> frozenset[str]:
        """Return the question's words that name the facet which the memory is about."""
        if not self.asked:
            return frozenset()
        if memory.view in {"facet", "statement", "summary"}:
            return self.asked.get(memory.name, frozenset())
        if memory.view != "question":
            return frozenset()
        about = [facet for facet, _ in self.names.asked(memory.text)]
        return frozenset(t for facet in about for t in self.asked.get(facet.name, frozenset()))


def _widest(usable: Sequence[tuple[_Score, Memory]]) -> tuple[_Score, Memory]:
    """Return the best memory; where several nodes tie on a named facet, that of the one above."""
    top, best = usable[0]
    tied = {m.node_id for s, m in usable if s.is_named and s.total == top.total}
    if not top.is_named or len(tied) < 2:
        return top, best
    for score, memory in usable:
        is_above = all(node.startswith(f"{memory.node_id}/") for node in tied)
        if score.is_named and is_above:
            return score, memory
    return top, best


def _by_node(memories: Sequence[Memory]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for memory in memories:
        found.setdefault(memory.node_id, set()).update(memory.terms)
    return {node: frozenset(terms) for node, terms in found.items()}


def _is_common(term: str, nodes: Mapping[str, frozenset[str]]) -> bool:
    return len(nodes) > 2 and 2 * sum(term in terms for terms in nodes.values()) > len(nodes)


def _is_weak(term: str) -> bool:
    return term in _WEAK or bool(_HIRAGANA.search(term))


def _proper_names(query: str) -> list[str]:
    """Return capitalised words that do not start the question, possessives without their ending."""
    words = _WORD.findall(query)
    found = [
        re.sub(r"['’]s$", "", word)
        for i, word in enumerate(words)
        if word[:1].isupper() and not word.isupper() and word.casefold() not in STOPWORDS and i
    ]
    return list(dict.fromkeys(found))


def _rationale(best: Memory, score: _Score) -> str:
    kinds = {
        "facet": f"the facet {best.name!r}",
        "statement": f"the facet {best.name!r}",
        "question": "a stored question",
        "summary": "the summary's line on it" if best.name else "the summary",
        "evidence": "a document",
    }
    held = ", ".join(score.held) or "the named facet"
    return (
        f"Taken from {kinds.get(best.view, best.view)} of {best.node_id}; it holds "
        f"{round(100 * score.share)} % of the question's content words by weight ({held})."
    )
