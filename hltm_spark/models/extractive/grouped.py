"""What a parent reads from groups of its inputs: own facets, own sentences, gists of children.

A node that is too large for one prompt is written from groups. A group of own documents counts as
own documents do: all of them together are one node that states a value, and the newest wins.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hltm_spark.core.config import DeclaredFacet
from hltm_spark.core.records import Child
from hltm_spark.models.extractive.labels import Statement
from hltm_spark.models.extractive.names import FacetNames
from hltm_spark.models.extractive.reading import Facet, Stated, settle
from hltm_spark.models.extractive.sentences import Unit

MAX_VALUES = 12
"""Values of one facet that a group, or a list read from groups, keeps."""

_CITED = re.compile(r"^(?P<text>.+) \[(?P<id>[^\[\]]+)\]$")


def own_facets(read: Sequence[Facet], groups: Sequence[Child], names: FacetNames) -> list[Facet]:
    """Return the facets of a node's own documents, those read and those in groups together.

    Args:
        read: Facets of the documents that are not in a group.
        groups: Groups of own documents; their facets stand on the group's id.
        names: Declared names.
    """
    if not groups:
        return list(read)
    said: dict[str, list[Statement]] = {}
    lists: set[str] = set()
    for statement in _statements(read, groups, names):
        said.setdefault(statement.name, []).append(statement)
    for group in groups:
        own = [names.canonical(facet.name) for facet in group.views.facets]
        lists.update(name for name in own if own.count(name) > 1)
    lists.update(facet.name for facet in read if len(facet.values) > 1)
    return [
        _settled(name, found, names.of_label(name), is_list=name in lists)
        for name, found in said.items()
    ]


def own_lines(groups: Sequence[Child]) -> dict[Unit, str]:
    """Return sentences of own documents that the groups' summaries hold, with the id they name."""
    return {
        Unit(text=text, doc_id=group.node_id, time=group.latest_at): real_id
        for group in groups
        for text, real_id in _lines(group)
    }


def gist_line(group: Child) -> str:
    """Return what a group's summary says of its newest child, with that child's id."""
    return next((f"{text} [{real_id}]" for text, real_id in _lines(group)), "")


def _lines(group: Child) -> Iterator[tuple[str, str]]:
    """Yield the lines of a group's summary that end with a citation: no counts, no headline."""
    for raw in group.views.summary.splitlines():
        match = _CITED.match(raw)
        if match:
            yield match["text"], match["id"]


def _statements(
    read: Sequence[Facet], groups: Sequence[Child], names: FacetNames
) -> Iterator[Statement]:
    for group in groups:
        for facet in group.views.facets:
            name = names.canonical(facet.name)
            yield _statement(name, facet.value, group.node_id, facet.latest_at)
    for own in read:
        for value in (*own.values, *own.earlier):
            for source in value.sources:
                yield _statement(own.name, value.value, source, value.latest, said=value.said)


def _statement(name: str, value: str, source: str, time: str, *, said: str = "") -> Statement:
    return Statement(name=name, value=value, said=said or value, doc_id=source, time=time, order=0)


def _settled(
    name: str, said: Sequence[Statement], declared: DeclaredFacet | None, *, is_list: bool
) -> Facet:
    said = [replace(statement, order=order) for order, statement in enumerate(said)]
    if not is_list or (declared is not None and not declared.multiple):
        facet = settle(name, said, declared)
    else:
        as_list = declared or DeclaredFacet(name=name, multiple=True)
        facet = replace(settle(name, said, as_list), declared=declared)
    values: tuple[Stated, ...] = facet.values[:MAX_VALUES]
    return replace(facet, values=values, earlier=facet.earlier[:MAX_VALUES])
