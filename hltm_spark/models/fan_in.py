"""Bounded fan-in: a node that is too large for one prompt, reduced in groups, pass by pass.

    while groups := split_input(node, prompts):
        results = {group.key: <views of group.node> for group in groups if not group.is_single}
        node = next_input(node, groups, results)

Every pass leaves fewer items, or smaller ones, so that it ends. What is read together depends on
the present items only (`core.groups`): one changed child writes its own group again, and the
groups and the node above it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hltm_spark.core.groups import SizedItem, assign_groups, split_document
from hltm_spark.core.prompts import item_values
from hltm_spark.core.records import MAX_SOURCES, Child, Document, FacetValue, NodeInput, Views
from hltm_spark.core.tokens import cut_to_tokens, estimate_tokens
from hltm_spark.models.requests import NodePrompts

Item = Child | Document
_MIN_PART = 16  # tokens of a part's text, where attributes take all the room


@dataclass(frozen=True, slots=True)
class Group:
    """Items of a node that are read together, as a node of their own.

    Attributes:
        key: Unique among the node's groups of one pass.
        node: The real node's identity with the group's items only.
    """

    key: str
    node: NodeInput

    @property
    def is_single(self) -> bool:
        """True for one item: it is passed on as it is, without a call."""
        return len(self.node.children) + len(self.node.documents) == 1


def split_input(node: NodeInput, prompts: NodePrompts) -> tuple[Group, ...]:
    """Return the groups of the node's items, or nothing where one prompt holds the whole node.

    Items of more than a third of the room are made smaller first, so that any three fit together.
    Nothing comes back either where no item can be made smaller and no two fit together (ids and
    attributes of the size of the budget): then the node itself is too long.
    """
    room = prompts.room(node)
    if items_tokens(item_values(node)) <= room:
        return ()
    items = [smaller for item in _items(node) for smaller in fit_item(item, room, prompts)]
    members: dict[str, list[Item]] = {}
    sized = [sized_item(item, prompts) for item in items]
    for key, item in zip(group_keys(sized, room), items, strict=True):
        members.setdefault(key, []).append(item)
    if len(members) == len(items) and tuple(items) == _items(node):
        return ()
    return tuple(Group(key, _part_of(node, found)) for key, found in members.items())


def group_keys(items: Sequence[SizedItem], room: int) -> list[str]:
    """Return the group of each item of a node that was too wide; all alone where they fit now."""
    is_enough = sum(item.tokens for item in items) <= room
    return assign_groups(items, 1 if is_enough else room)


def fit_item(item: Item, room: int, prompts: NodePrompts) -> tuple[Item, ...]:
    """Return an item in pieces of at most a third of the room; itself where it is no larger."""
    limit = room // 3
    return (item,) if item_tokens(item, prompts) <= limit else _smaller(item, limit, prompts)


def sized_item(item: Item, prompts: NodePrompts) -> SizedItem:
    """Return what decides an item's group."""
    tokens = item_tokens(item, prompts)
    if isinstance(item, Child):
        return SizedItem(item.node_id, tokens, is_document=False, is_own=item.is_own)
    name = f"{item.doc_id}\x00{item.part}" if item.part else item.doc_id
    return SizedItem(name, tokens, is_document=True)


def next_input(node: NodeInput, groups: Sequence[Group], results: Mapping[str, Views]) -> NodeInput:
    """Return the node of the next pass: each group's result in the place of its items.

    Args:
        node: The node that was split.
        groups: Its groups, in order.
        results: Views by key, of every group that is not single.

    Returns:
        Children and their groups in order, then groups of own documents, then single documents.
    """
    children: list[Child] = []
    documents: list[Document] = []
    for group in groups:
        if group.is_single:
            children += group.node.children
            documents += group.node.documents
        else:
            children.append(to_child(group, results[group.key]))
    return replace(node, children=tuple(children), documents=tuple(documents))


def to_child(group: Group, views: Views) -> Child:
    """Return a group's result as an item of the next pass."""
    node = group.node
    behind = [s for c in node.children for s in (c.sources if c.is_group else (c.node_id,))]
    behind += [document.doc_id for document in node.documents]
    return Child(
        node_id=f"{node.node_id}/~{group.key}",
        views=views,
        latest_at=node.latest_at,
        is_group=True,
        size=sum(c.size for c in node.children) + sum(d.is_start for d in node.documents),
        is_own=all(child.is_own for child in node.children),
        sources=tuple(dict.fromkeys(behind))[:MAX_SOURCES],
    )


def item_tokens(item: Item, prompts: NodePrompts) -> int:
    """Return the tokens that an item takes in a prompt, with the line end that parts it."""
    return estimate_tokens(prompts.shown(item)) + 1


def items_tokens(items: Mapping[str, str]) -> int:
    """Return the sum of `item_tokens` of a node's items: no token reaches over a line end.

    Args:
        items: Its `item_values`.
    """
    return estimate_tokens("".join(f"{text}\n" for text in items.values() if text))


def shrink_child(child: Child, limit: int, prompts: NodePrompts) -> Child:
    """Return a child of at most `limit` tokens, as far as its id allows.

    Question-answer pairs go first, from the end; then the end of a summary that takes more than a
    quarter; then facet values, those of least support first and the best value of a name last,
    since what they count is lost with them; then the rest of the summary.
    """
    if item_tokens(child, prompts) <= limit:
        return child
    pairs = child.views.question_answers
    child = _with(child, question_answers=())
    if item_tokens(child, prompts) <= limit:

        def with_pairs(count: int) -> Child:
            return _with(child, question_answers=pairs[:count])

        return _most(len(pairs), with_pairs, limit, prompts)
    child = _cut_summary(child, limit, prompts, keep=limit // 4)
    ranked = _ranked(child.views.facets)

    def with_facets(count: int) -> Child:
        best = {id(facet) for facet in ranked[:count]}
        return _with(child, facets=tuple(f for f in child.views.facets if id(f) in best))

    return _cut_summary(_most(len(ranked), with_facets, limit, prompts), limit, prompts, keep=0)


def _with(child: Child, **views: Any) -> Child:
    return replace(child, views=replace(child.views, **views))


def _cut_summary(child: Child, limit: int, prompts: NodePrompts, *, keep: int) -> Child:
    """Return the child with its summary cut until it fits or `keep` tokens of it are left."""
    excess = item_tokens(child, prompts) - limit
    tokens = estimate_tokens(child.views.summary)
    while excess > 0 and tokens > keep:
        text = cut_to_tokens(child.views.summary, max(keep, tokens - excess)).rstrip()
        child = _with(child, summary=text)
        excess = item_tokens(child, prompts) - limit
        tokens = estimate_tokens(text)
    return child


def _ranked(facets: Sequence[FacetValue]) -> list[FacetValue]:
    """Return facet values by what is kept longest: the best of each name, then by support."""
    by_support = sorted(facets, key=lambda facet: -facet.support)
    best = {id(facet) for facet in {f.name.casefold(): f for f in reversed(by_support)}.values()}
    return sorted(by_support, key=lambda facet: id(facet) not in best)


def _most(count: int, make: Callable[[int], Child], limit: int, prompts: NodePrompts) -> Child:
    """Return the child with the most things, up to `count`, that fits; or else with none."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        fits = item_tokens(make(middle), prompts) <= limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return make(low)


def _smaller(item: Item, limit: int, prompts: NodePrompts) -> tuple[Item, ...]:
    if isinstance(item, Child):
        return (shrink_child(item, limit, prompts),)
    frame = replace(item, text="", part=item.part or "start-0123abcd-99")
    by_width = sorted(frame.metadata, key=lambda name: (-len(item.metadata[name]), name))
    for widest in by_width:
        if item_tokens(frame, prompts) <= limit // 2:
            break
        frame = replace(frame, metadata={k: v for k, v in frame.metadata.items() if k != widest})
    room = max(limit - item_tokens(frame, prompts), limit // 4, _MIN_PART)
    return split_document(replace(item, metadata=frame.metadata), room)


def _items(node: NodeInput) -> tuple[Item, ...]:
    return (*node.children, *node.documents)


def _part_of(node: NodeInput, items: Sequence[Item]) -> NodeInput:
    return replace(
        node,
        children=tuple(item for item in items if isinstance(item, Child)),
        documents=tuple(item for item in items if isinstance(item, Document)),
    )
