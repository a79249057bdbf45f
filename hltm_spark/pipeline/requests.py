"""One level's node inputs and their requests, from documents and from the children's memories."""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from hltm_spark.core.records import Child, Document, NodeInput, canonical_json, fingerprint
from hltm_spark.models.fan_in import Item, item_tokens
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.items import NODE_ID
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.tables import INTEGER, TEXT, TEXTS, struct

IDENTITY = {
    "tenant_id": TEXT,
    "node_id": TEXT,
    "parent_id": TEXT,
    "keys": TEXTS,
    "depth": INTEGER,
}
REQUEST = struct({"task": TEXT, "request_hash": TEXT})
INPUTS = struct(
    {
        **IDENTITY,
        "part": TEXT,
        "level": TEXT,
        "latest_at": TEXT,
        "sources": TEXTS,
        "missing": TEXTS,
        "input_fingerprint": TEXT,
        "payload": TEXT,
        "requests": t.ArrayType(REQUEST),
    }
)
"""One row per node whose input changed: its payload and the requests that need no other answer."""

FOLDED = struct(
    {**{field.name: field.dataType for field in INPUTS}, "position": INTEGER, "item": TEXT}
)
"""`INPUTS` rows where position is null; else one item of a node too wide for one prompt."""

PART = [*NODE_ID, "part"]
"""A node, part '', or one group of the items of a node that is too wide for one prompt."""


def gather_inputs(items: DataFrame, prompts: NodePrompts, *, level: str, slots: int) -> DataFrame:
    """Return the inputs of the nodes whose input differs from what their memory was written from.

    Items are sorted inside the partition and folded by a generator, so that a node's input is
    never held by the JVM as one value, and its bytes do not depend on partitioning.

    Args:
        items: Rows of `document_items` and `child_items`, all of one level.
        prompts: Decide the fingerprints and requests.
        level: The level's name in conf.
        slots: Partitions to spread the nodes over.

    Returns:
        `FOLDED` rows, in no order.
    """
    columns = [*IDENTITY, "stored_fingerprint"]
    columns += ["item_id", "item_fingerprint", "item_status", "item"]
    return map_rows(
        items.repartition(slots, *NODE_ID).sortWithinPartitions(*NODE_ID, "place").select(*columns),
        lambda rows: fold_items(rows, prompts, level=level),
        FOLDED,
    )


def fold_items(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts, *, level: str
) -> Iterator[dict[str, Any]]:
    """Yield the inputs of nodes from their items, which stand together, in order.

    A node beyond the token budget is never held as a whole: its items come first, as they are,
    then the node without payload and requests. The items of a node that did not change may come
    without it.

    Args:
        rows: Items sorted by (tenant_id, node_id, place).
        prompts: As for `gather_inputs`.
        level: As for `gather_inputs`.

    Yields:
        `FOLDED` rows.
    """
    for _, group in groupby(rows, lambda r: (r["tenant_id"], r["node_id"])):
        yield from _Fold(prompts, level).fold(group)


class InputRecord:
    """What is recorded of a node's input while its items are looked at, in order."""

    def __init__(self) -> None:
        self._prints: list[tuple[str, str, bool]] = []
        self._sources: list[str] = []
        self._missing: list[str] = []
        self._latest_at, self._has_children = "", False

    def note(self, item: Mapping[str, Any], value: Item) -> bool:
        """Record one item; return False for a child that was never written and says nothing."""
        status, item_id = item["item_status"], item["item_id"]
        self._prints.append((item_id, item["item_fingerprint"], status == "partial"))
        if status != "complete":
            self._missing.append(item_id)
        is_child = isinstance(value, Child)
        if isinstance(value, Child) and not (value.views.summary or value.views.facets):
            return False
        self._has_children |= is_child
        self._sources.append(item_id)
        time = value.latest_at if isinstance(value, Child) else value.event_time
        self._latest_at = max(self._latest_at, time)
        return True

    def columns(self, prompts: NodePrompts, *, is_wide: bool) -> dict[str, Any]:
        """Return the columns of `INPUTS` that the items decide, whatever the prompts show."""
        # the groups of a leaf's documents are brought together by the parent prompts
        is_leaf = not self._has_children
        kind = prompts.fingerprint if is_wide else prompts.fingerprint_of(is_leaf=is_leaf)
        return {
            "latest_at": self._latest_at,
            "sources": self._sources,
            "missing": self._missing,
            "input_fingerprint": fingerprint(kind, self._prints),
        }


class _Fold:
    """Folds the items of one node."""

    def __init__(self, prompts: NodePrompts, level: str) -> None:
        self._prompts, self._level = prompts, level
        self._identity: dict[str, Any] = {}
        self._record = InputRecord()
        self._held: list[Item] = []
        self._bound, self._tokens = 0, -1
        self._count = self._room = 0

    def fold(self, items: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        stored = None
        for item in items:
            if not self._identity:
                stored = item["stored_fingerprint"]
                self._identity = {name: item[name] for name in IDENTITY}
                self._room = self._prompts.room(self._node([]))
            yield from self._take(item)
        columns = self._record.columns(self._prompts, is_wide=self._is_wide)
        if columns["input_fingerprint"] == stored:
            return
        node = None if self._is_wide else self._node(self._held)
        yield {
            **self._identity,
            "part": "",
            "level": self._level,
            **columns,
            **(input_columns(node, self._prompts) if node else {"requests": []}),
        }

    @property
    def _is_wide(self) -> bool:
        return self._tokens > self._room

    def _take(self, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Note one item; yield it, and those held back, once the node is beyond the budget."""
        value = to_item(json.loads(item["item"]))
        if not self._record.note(item, value):
            return
        was_wide = self._is_wide
        self._held.append(value)
        self._measure(item["item"], value)
        if self._is_wide:
            new = self._held[-1:] if was_wide else self._held
            for held in new:
                yield {
                    **self._identity,
                    "level": self._level,
                    "position": self._count,
                    "item": canonical_json(held.to_dict()),
                }
                self._count += 1
            self._held = []

    def _measure(self, text: str, value: Item) -> None:
        """Add an item's tokens; nothing is counted while an upper bound of all is within."""
        if self._tokens < 0:
            escaped = sum(text.count(character) for character in '<&"')
            self._bound += len(text.encode()) + 4 * escaped + 64
            if self._bound > self._room:
                self._tokens = sum(item_tokens(held, self._prompts) for held in self._held)
        else:
            self._tokens += item_tokens(value, self._prompts)

    def _node(self, items: Iterable[Item]) -> NodeInput:
        tenant_id, node_id = self._identity["tenant_id"], self._identity["node_id"]
        return to_node_input(items, tenant_id=tenant_id, node_id=node_id, level=self._level)


def input_columns(
    node: NodeInput, prompts: NodePrompts, *, is_group: bool = False
) -> dict[str, Any]:
    """Return payload and requests of a node, or of a group of its items, that one prompt holds."""
    requests = prompts.first_requests(node, is_group=is_group) if node.source_ids else ()
    return {
        "payload": payload_of(node, is_group=is_group),
        "requests": [
            {"task": task, "request_hash": prompts.request_hash(r, tenant_id=node.tenant_id)}
            for task, r in requests
        ],
    }


def payload_of(node: NodeInput, *, is_group: bool) -> str:
    """Return what a worker needs to render the requests of a node, or of a group of its items."""
    return canonical_json(node.to_dict() | ({"group": True} if is_group else {}))


def to_node_input(items: Iterable[Item], *, tenant_id: str, node_id: str, level: str) -> NodeInput:
    """Return the input of a node from its items, in order."""
    items = tuple(items)
    return NodeInput(
        tenant_id=tenant_id,
        node_id=node_id,
        level=level,
        documents=tuple(item for item in items if isinstance(item, Document)),
        children=tuple(item for item in items if isinstance(item, Child)),
    )


def to_item(body: Mapping[str, Any]) -> Item:
    """Return one item from its JSON form."""
    return Document.from_dict(body) if "doc_id" in body else Child.from_dict(body)
