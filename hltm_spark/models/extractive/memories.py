"""What a search found, as things that can answer: facets, stored answers, lines, documents."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hltm_spark.core.text import to_terms
from hltm_spark.core.tree import to_keys
from hltm_spark.models.extractive.dates import day_words, meant_date
from hltm_spark.models.extractive.sentences import split_sentences

_LABELLED = re.compile(r"^(?P<name>[^:：]{1,40})[:：]\s+(?P<text>.+)$")
_CITATION = re.compile(r"\s*\[[^\[\]]*\](?=\.?$)")
_DATED = re.compile(r"\s*\((?P<day>[^()]*\d[^()]*)\)$")
_MAX_VALUES = 12
_TOLD = re.compile(r"^(?:(?:I|We)(?:['’]\w+)?|My|Our)\s+\w+\s")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One thing that can answer.

    Views: `facet` with all its values, `statement` (a value that somebody tells), `question` with
    its stored answer, `summary` (one line of it), `evidence`.

    Attributes:
        name: Facet name (also of a summary's labelled line), or a document's author.
        text: The question of a pair, or the text.
        stored: The answer of a pair.
        values: A facet's values with their counts, in order.
    """

    node_id: str
    view: str
    name: str = ""
    text: str = ""
    stored: str = ""
    latest_at: str = ""
    values: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """Depth of the node."""
        return self.node_id.count("/")

    @cached_property
    def key_terms(self) -> list[str]:
        """Terms of the node's last key."""
        return to_terms(to_keys(self.node_id)[-1]) if self.node_id else []

    @cached_property
    def terms(self) -> frozenset[str]:
        """Terms that it holds."""
        values = " ".join(value for value, _, _ in self.values)
        return frozenset(to_terms(f"{self.name} {self.text} {self.stored} {values}"))

    def kin(self, other: "Memory") -> bool:
        """Return True where both are about the same: one facet's name, or texts of any view."""
        return self.name == other.name if other.view == self.view == "facet" else True

    def answer(self, query: str) -> str:
        """Return the answer to a question in this memory's own words."""
        if self.view == "question":
            return self.stored
        if self.view == "facet":
            return ", ".join(_counted(*value) for value in self.values[:_MAX_VALUES])
        if self.view == "summary":
            return self.text
        if self.view == "statement":
            return self._said(self.text, query)
        return self._said(_best_sentence(self.text, query), query)

    def _said(self, sentence: str, query: str) -> str:
        """Return a sentence of a document with its author; the day first where it is asked for."""
        said = f"{self.name}: {sentence}" if self.name else sentence
        if query.casefold().lstrip().startswith(("when ", "on which", "what date", "what day")):
            dated = _DATED.search(sentence)
            meant = dated["day"] if dated else meant_date(sentence, self.latest_at)[1]
            day = meant or day_words(self.latest_at)
            return f"{day} ({said})" if day else said
        return said


def read_memories(context: Iterable[Mapping[str, Any]]) -> list[Memory]:
    """Return the context as memories, in its order; a node's short values of one facet are one."""
    found: list[Memory] = []
    facets: dict[tuple[str, str], Memory] = {}
    for raw in context:
        node_id, view, name = (str(raw.get(k) or "") for k in ("node_id", "view", "name"))
        text = str(raw.get("text") or "")
        if view == "facet" and _TOLD.search(text):
            found.append(Memory(node_id=node_id, view="statement", name=name, text=text))
            continue
        if view == "facet":
            known = facets.get((node_id, name))
            if known is None:
                known = facets[node_id, name] = Memory(node_id=node_id, view=view, name=name)
                found.append(known)
            known.values.append((text, int(raw.get("support") or 1), int(raw.get("total") or 1)))
            continue
        if view == "summary":
            found.extend(_lines(node_id, text))
            continue
        found.append(
            Memory(
                node_id=node_id,
                view=view,
                name=name,
                text=text,
                stored=str(raw.get("answer") or ""),
                latest_at=str(raw.get("latest_at") or ""),
            )
        )
    for memory in facets.values():
        memory.values.sort(key=lambda value: -value[1])
    return found


def _lines(node_id: str, summary: str) -> Iterable[Memory]:
    """Yield a summary line by line, ids and a facet's name taken off the text."""
    for line in summary.splitlines():
        text = _CITATION.sub("", line.strip())
        labelled = _LABELLED.match(text)
        if labelled:
            name = labelled["name"][:1].lower() + labelled["name"][1:]
            yield Memory(
                node_id=node_id, view="summary", name=name, text=labelled["text"].rstrip(".")
            )
        elif text:
            yield Memory(node_id=node_id, view="summary", text=text)


def _counted(value: str, support: int, total: int) -> str:
    return f"{value} ({support} of {total})" if total > 1 else value


def _best_sentence(text: str, query: str) -> str:
    """Return the sentence that shares most terms with the question; the first of equals."""
    sentences: Sequence[str] = split_sentences(text)
    terms = set(to_terms(query))
    if not sentences:
        return text.strip()
    return max(sentences, key=lambda s: (len(terms & set(to_terms(s))), -sentences.index(s)))
