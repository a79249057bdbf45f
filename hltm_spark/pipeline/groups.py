"""Nodes that are too wide for one prompt, reduced in groups of items, pass by pass.

The rules are those of `models.fan_in`, which sees a node as a whole; here a node's items are
spread over partitions, and only the ids and sizes of its items ever stand together:
  1. make items that take more than their share smaller, and size all;
  2. assign the items to groups, from ids and sizes;
  3. fold each group to an input of its own, wherever it stands;
  4. answer the groups, and put each group's memory in the place of its items;
  5. fold again: what fits one prompt now is done, the rest takes another pass.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import count, groupby
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.core.groups import SizedItem
from hltm_spark.core.prompts import TASKS
from hltm_spark.core.records import Child, Document, NodeInput, canonical_json
from hltm_spark.models.fan_in import Group, fit_item, group_keys, item_tokens, sized_item, to_child
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.answers import answer_inputs
from hltm_spark.pipeline.context import RunContext
from hltm_spark.pipeline.items import NODE_ID
from hltm_spark.pipeline.memory import answered_views, with_responses
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.requests import (
    IDENTITY,
    INPUTS,
    PART,
    input_columns,
    to_item,
    to_node_input,
)
from hltm_spark.pipeline.tables import BOOLEAN, INTEGER, TEXT, struct

_NODE = {**IDENTITY, "level": TEXT}
_PLACE = {"is_document": BOOLEAN, "position": INTEGER, "piece": INTEGER}
SIZED = struct(
    {
        **_NODE,
        **_PLACE,
        "item": TEXT,
        "item_id": TEXT,
        "tokens": INTEGER,
        "is_own": BOOLEAN,
        "is_smaller": BOOLEAN,
    }
)
"""One item of a wide node with its size in the prompt; `piece` counts the parts of a document."""

ASSIGNED = struct(
    {**dict.fromkeys(PART, TEXT), **_PLACE, "is_single": BOOLEAN, "is_stuck": BOOLEAN}
)
"""One item's group, as `part`; `is_stuck` where the node cannot be made smaller any more."""

GROUPED = struct(
    {
        **_NODE,
        **_PLACE,
        "part": TEXT,
        "item": TEXT,
        "is_stuck": BOOLEAN,
        **{name: INPUTS[name].dataType for name in ("payload", "requests")},
    }
)
"""One group as an input (with payload), or one item that is passed on as it is (with item)."""


def reduce_wide(context: RunContext, folded: DataFrame, *, depth: int) -> DataFrame:
    """Return the inputs of one level, each within the token budget.

    Args:
        context: The run.
        folded: Staged `FOLDED` rows of the level.
        depth: Its depth, for the names of staged frames.

    Returns:
        `INPUTS` rows of every node of the level that changed.
    """
    nodes = folded.where("position IS NULL").select(*INPUTS.names)
    wide = nodes.where("payload IS NULL").drop("payload", "requests")
    items = folded.where("position IS NOT NULL").join(wide.select(*NODE_ID), NODE_ID, "left_semi")
    items = items.select(*_NODE, "position", "item")
    done: list[DataFrame] = []
    level = context.settings.level_names[depth]
    for number in count(1):  # every pass leaves fewer items, by about half
        refolded, is_more = _reduce_once(context, items, level=level, name=f"{depth}-pass-{number}")
        finished = refolded.where("payload IS NOT NULL").select(*NODE_ID, "payload", "requests")
        done.append(finished)
        if not is_more:
            break
        items = refolded.where("payload IS NULL").join(finished, NODE_ID, "left_anti")
        items = items.select(*_NODE, "position", "item")
    reduced = wide.join(reduce(DataFrame.unionByName, done), NODE_ID).select(*INPUTS.names)
    return nodes.where("payload IS NOT NULL").unionByName(reduced)


def _reduce_once(
    context: RunContext, items: DataFrame, *, level: str, name: str
) -> tuple[DataFrame, bool]:
    """Return `GROUPED` rows of one pass: nodes done, or items for another; and whether any is."""
    prompts, slots = context.prompts, context.slots
    with context.run.timed("gather"):
        sized, _ = context.stage(
            map_rows(items.repartition(slots), lambda rows: size_items(rows, prompts), SIZED),
            f"sized-{name}",
        )
        place = F.struct(*_PLACE, "item_id", "tokens", "is_own", "is_smaller")
        listed = sized.groupBy(*_NODE).agg(F.array_sort(F.collect_list(place)).alias("items"))
        assigned = map_rows(listed, lambda rows: assign_items(rows, prompts), ASSIGNED)
        by_group = (
            sized.join(assigned, [*NODE_ID, *_PLACE])
            .repartition(slots, *PART)
            .sortWithinPartitions(*PART, *_PLACE)
        )
        grouped, _ = context.stage(
            map_rows(by_group, lambda rows: fold_groups(rows, prompts), GROUPED), f"groups-{name}"
        )
        groups = context.staged_count(f"groups-{name}", pc.field("payload").is_valid())
    asked = grouped.where("payload IS NOT NULL")
    answered = answer_inputs(context, asked, level=level, nodes=groups, name=name)
    with context.run.timed("gather"):
        results = map_rows(
            with_responses(asked, answered), lambda rows: group_items(rows, prompts), GROUPED
        )
        again = results.unionByName(grouped.where("payload IS NULL"))
        ordered = again.repartition(slots, *NODE_ID).sortWithinPartitions(*NODE_ID, *_PLACE)
        refolded, total = context.stage(
            map_rows(ordered, lambda rows: refold_items(rows, prompts), GROUPED), f"again-{name}"
        )
    return refolded, total > context.staged_count(f"again-{name}", pc.field("payload").is_valid())


def size_items(rows: Iterable[Mapping[str, Any]], prompts: NodePrompts) -> Iterator[dict[str, Any]]:
    """Yield `SIZED` rows: an item that takes more than its share in pieces, or made smaller."""
    for row in rows:
        node, item = _empty(row), to_item(json.loads(row["item"]))
        for piece, fitted in enumerate(fit_item(item, prompts.room(node), prompts)):
            sized = sized_item(fitted, prompts)
            yield {
                **{name: row[name] for name in _NODE},
                "is_document": sized.is_document,
                "position": row["position"],
                "piece": piece,
                "item": _to_json(fitted),
                "item_id": sized.item_id,
                "tokens": sized.tokens,
                "is_own": sized.is_own,
                "is_smaller": fitted is not item,
            }


def assign_items(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts
) -> Iterator[dict[str, Any]]:
    """Yield `ASSIGNED` rows from one row per node that lists its items in order."""
    names = ("item_id", "tokens", "is_document", "is_own")
    for row in rows:
        sized = [SizedItem(**{name: item[name] for name in names}) for item in row["items"]]
        keys = group_keys(sized, prompts.room(_empty(row)))
        sizes = Counter(keys)
        is_stuck = len(sizes) == len(keys) and not any(i["is_smaller"] for i in row["items"])
        for item, key in zip(row["items"], keys, strict=True):
            yield {
                **{name: row[name] for name in NODE_ID},
                **{name: item[name] for name in _PLACE},
                "part": key,
                "is_single": sizes[key] == 1,
                "is_stuck": is_stuck,
            }


def fold_groups(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts
) -> Iterator[dict[str, Any]]:
    """Yield `GROUPED` rows from items that stand together by group, in order."""
    for _, members in groupby(rows, lambda row: tuple(row[name] for name in PART)):
        group = list(members)
        first = {name: group[0][name] for name in (*_NODE, *_PLACE, "part", "is_stuck")}
        if group[0]["is_single"]:
            yield {**first, "item": group[0]["item"]}
            continue
        node = _node(group[0], (row["item"] for row in group))
        yield {**first, **input_columns(node, prompts, is_group=True)}


def group_items(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts
) -> Iterator[dict[str, Any]]:
    """Yield each answered group as an item of the next pass; without item where it failed."""
    for row in rows:
        node = NodeInput.from_dict(json.loads(row["payload"]))
        responses = {entry["task"]: entry["response"] for entry in row["responses"] or ()}
        item = None
        if responses.keys() == set(TASKS[prompts.layout]):
            child = to_child(Group(row["part"], node), answered_views(node, responses, prompts))
            item = _to_json(child)
        place = {name: row[name] for name in (*_NODE, *_PLACE, "part")}
        yield {**place, "is_document": False, "item": item}


def refold_items(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts
) -> Iterator[dict[str, Any]]:
    """Yield a node with its payload where one prompt holds it now, or its items again.

    A node with a group that failed is done too, without any request: it fails.
    """
    for _, members in groupby(rows, lambda row: tuple(row[name] for name in NODE_ID)):
        yield from _refold(members, prompts)


def _refold(rows: Iterable[Mapping[str, Any]], prompts: NodePrompts) -> Iterator[dict[str, Any]]:
    held: list[dict[str, Any]] = []
    first: Mapping[str, Any] = {}
    position, tokens, room, is_failed = 0, 0, 0, False
    for row in rows:
        first = first or row
        room = room or prompts.room(_empty(row))
        is_failed |= row["item"] is None
        if is_failed:
            continue
        item = to_item(json.loads(row["item"]))
        tokens += 0 if row["is_stuck"] else item_tokens(item, prompts)
        held.append({**{n: row[n] for n in _NODE}, "position": position, "item": row["item"]})
        position += 1
        if tokens > room:
            yield from held
            held = []
    if is_failed:
        yield {**{n: first[n] for n in _NODE}, **input_columns(_empty(first), prompts)}
    elif held and tokens <= room:
        node = _node(first, (row["item"] for row in held))
        yield {**{n: first[n] for n in _NODE}, **input_columns(node, prompts)}


def _node(row: Mapping[str, Any], items: Iterable[str]) -> NodeInput:
    """Return the input of a node from its items as JSON, in order."""
    identity = {name: row[name] for name in ("tenant_id", "node_id", "level")}
    return to_node_input((to_item(json.loads(item)) for item in items), **identity)


def _empty(row: Mapping[str, Any]) -> NodeInput:
    return _node(row, ())


def _to_json(item: Child | Document) -> str:
    return canonical_json(item.to_dict())
