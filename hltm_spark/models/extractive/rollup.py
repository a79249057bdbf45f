"""Facets of a parent: values counted over its children, with what its own documents say.

Values of one name are counted together whatever their case. Support is the number of nodes with
documents of their own that state a value. A value below `views.min_support` is dropped, unless
nothing reaches it and fewer than twice that many nodes state any: then the best one stays. What
the parent's own documents say always stays. A group of a large parent's children keeps its most
supported values whatever their support: they may be frequent in the whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from hltm_spark.core.config import DeclaredFacet
from hltm_spark.core.records import Child, FacetValue
from hltm_spark.models.extractive.grouped import MAX_VALUES
from hltm_spark.models.extractive.names import FacetNames
from hltm_spark.models.extractive.reading import Facet

_CHANGE_SHARE = 0.6


@dataclass(slots=True, kw_only=True)
class Counted:
    """One value over all children.

    Attributes:
        support: Nodes below with documents of their own that state it, leaves and others.
        leaves: The leaves among them, as far as the children tell.
        children: Ids of the children that state it, in order.
        own: Ids of the parent's own documents that state it.
        latest: Time of the newest document behind it.
    """

    value: str
    support: int = 0
    leaves: int = 0
    children: list[str] = field(default_factory=list)
    own: tuple[str, ...] = ()
    latest: str = ""

    @property
    def sources(self) -> list[str]:
        """Children, then own documents."""
        return [*self.children, *self.own]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A newest value that is not the most frequent one; `is_lasting` where it holds since then."""

    counted: Counted
    since: str
    is_lasting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """One facet of a parent.

    Attributes:
        values: Those kept, the most supported first, then the newest.
        others: Those dropped, in the same order.
        total: Leaves that state any value.
        own: The facet as the parent's own documents have it.
        change: What the newest children say instead.
    """

    name: str
    declared: DeclaredFacet | None
    values: tuple[Counted, ...]
    others: tuple[Counted, ...]
    total: int
    is_list: bool
    own: Facet | None = None
    change: Change | None = None

    @property
    def own_is_newest(self) -> bool:
        """True where the parent's own documents are not older than what the children say."""
        if self.own is None:
            return False
        newest = max((v.latest for v in (*self.values, *self.others) if v.children), default="")
        return max(v.latest for v in self.own.values) >= newest


def roll_up(
    children: Sequence[Child],
    own: Sequence[Facet],
    names: FacetNames,
    *,
    min_support: int,
    leaf_depth: int,
    is_group: bool = False,
) -> list[Rolled]:
    """Return the facets of a parent: declared ones in conf's order, then by how many state them.

    Args:
        children: In key order, groups of own documents left out.
        own: Facets of the parent's own documents.
        names: Declared names.
        min_support: Fewest nodes that a kept value needs.
        leaf_depth: Number of keys of a leaf's id.
        is_group: True where the children are some of a larger parent's.
    """
    gathered: dict[str, _Gathered] = {}
    canonical: dict[str, str] = {}
    for child in children:
        is_leaf = not child.is_group and child.node_id.count("/") + 1 >= leaf_depth
        has_own = not (is_leaf or child.is_group)
        stated_itself = set(_stated_by_own_documents(child)) if has_own else set()
        for facet in child.views.facets:
            name = canonical.get(facet.name, "")
            if not name:
                name = canonical[facet.name] = names.canonical(facet.name)
            if name not in gathered:
                gathered[name] = _Gathered(name)
            leaves = facet.total - (facet.name in stated_itself)
            gathered[name].add(child, facet, is_leaf=is_leaf, leaves=leaves)
    own_by_name = {facet.name: facet for facet in own}
    for stated in own:
        gathered.setdefault(stated.name, _Gathered(stated.name)).add_own(stated)
    keep = _keep_most if is_group else partial(_keep_supported, min_support=min_support)
    rolled = [
        _rolled(found, names.of_label(name), own_by_name.get(name), keep)
        for name, found in gathered.items()
    ]
    return sorted(rolled, key=lambda r: (names.rank(r.name), -r.total, r.name))


def _stated_by_own_documents(child: Child) -> Iterator[str]:
    """Yield the names of the facets that a child's own documents state."""
    return (facet.name for facet in child.views.facets if _is_own(child, facet))


def _is_own(child: Child, facet: FacetValue) -> bool:
    return any(not source.startswith(f"{child.node_id}/") for source in facet.sources)


class _Gathered:
    """All values of one facet name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counted: dict[str, Counted] = {}
        self.entries: list[tuple[str, int, str]] = []
        self.has_lists = False
        self.is_of_leaves = True
        self._totals: dict[str, int] = {}
        self._stated: dict[str, int] = {}

    def add(self, child: Child, facet: FacetValue, *, is_leaf: bool, leaves: int) -> None:
        """Take one value of a child, of whose leaves so many state any value of that name."""
        key = facet.value.casefold()
        self.is_of_leaves &= is_leaf
        counted = self.counted.setdefault(key, Counted(value=facet.value))
        has_own = not (is_leaf or child.is_group) and _is_own(child, facet)
        if child.is_group:
            stated = self._stated[child.node_id] = (
                self._stated.get(child.node_id, 0) + facet.support
            )
            self.has_lists |= stated > facet.total
        if is_leaf and self.entries and child.node_id in self._totals:
            self.has_lists = True
        if not counted.children or counted.children[-1] != child.node_id:
            counted.children.append(child.node_id)
        counted.support += facet.support
        counted.leaves += facet.support - has_own
        counted.latest = max(counted.latest, facet.latest_at)
        self._totals[child.node_id] = max(self._totals.get(child.node_id, 0), leaves)
        self.entries.append((facet.latest_at, len(self.entries), key))

    def add_own(self, facet: Facet) -> None:
        for stated in facet.values:
            counted = self.counted.setdefault(stated.value.casefold(), Counted(value=stated.value))
            counted.own = stated.sources
            counted.support += 1
            counted.latest = max(counted.latest, stated.latest)

    @property
    def total(self) -> int:
        return sum(self._totals.values())


_Keep = Callable[["_Gathered", list[Counted]], list[Counted]]


def _keep_supported(found: _Gathered, ranked: list[Counted], *, min_support: int) -> list[Counted]:
    kept = [c for c in ranked if c.support >= min_support or c.own]
    if not any(c.children for c in kept) and found.total < 2 * min_support:
        kept += [c for c in ranked if c not in kept][:1]
    return kept


def _keep_most(_: _Gathered, ranked: list[Counted]) -> list[Counted]:
    return [*ranked[:MAX_VALUES], *(c for c in ranked[MAX_VALUES:] if c.own)]


def _rolled(
    found: _Gathered, declared: DeclaredFacet | None, own: Facet | None, keep: _Keep
) -> Rolled:
    ranked = sorted(found.counted.values(), key=lambda c: c.value)
    ranked.sort(key=lambda c: c.latest, reverse=True)
    ranked.sort(key=lambda c: c.support, reverse=True)
    kept = keep(found, ranked)
    is_list = declared.multiple if declared else found.has_lists
    return Rolled(
        name=found.name,
        declared=declared,
        values=tuple(kept),
        others=tuple(c for c in ranked if c not in kept),
        total=found.total,
        is_list=is_list,
        own=own,
        change=None if is_list else _change(found, kept),
    )


def _change(found: _Gathered, kept: Sequence[Counted]) -> Change | None:
    """Return what the newest children say where that is not the most frequent value.

    Only leaves have times that compare; it is lasting where at least two of the newest say it, none
    said it before, and most said the most frequent value until then.
    """
    top = next((c for c in kept if c.children), None)
    dated = sorted(entry for entry in found.entries if entry[0])
    if top is None or not dated or len(found.entries) < 2 or not found.is_of_leaves:
        return None
    newest = dated[-1][2]
    if newest == top.value.casefold():
        return None
    run = list(_run(dated, newest))
    before = dated[: len(dated) - len(run)]
    is_new = all(key != newest for _, _, key in before)
    share = sum(key == top.value.casefold() for _, _, key in before) / max(1, len(before))
    is_lasting = is_new and len(run) > 1 and share >= _CHANGE_SHARE
    return Change(counted=found.counted[newest], since=run[0][0], is_lasting=is_lasting)


def _run(dated: Sequence[tuple[str, int, str]], key: str) -> Iterator[tuple[str, int, str]]:
    """Yield the unbroken run of a value at the end, oldest first."""
    first = len(dated)
    while first and dated[first - 1][2] == key:
        first -= 1
    yield from dated[first:]
