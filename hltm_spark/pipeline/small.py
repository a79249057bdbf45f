"""A small run: its nodes are written from the leaves up in this process, not by Spark jobs.

The engine's cost is jobs and commits, not rows: below some hundred nodes a frame a step costs
seconds and the work itself next to nothing. The tables are read once, the nodes are written with
the same functions that `levels` maps over partitions, and the rows go back to Spark for the one
MERGE. Both ways write the same rows.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Row

from hltm_spark.core.tree import salted_hash, to_node_id
from hltm_spark.models.requests import WAVES
from hltm_spark.pipeline.asked import Asked
from hltm_spark.pipeline.collector import without_collector
from hltm_spark.pipeline.context import Outcome, RunContext
from hltm_spark.pipeline.files import local_rows, read_rows, read_sizes, write_rows
from hltm_spark.pipeline.flow import Flow, Node, Steps
from hltm_spark.pipeline.items import NODE_ID, child_item, document_item, place_order
from hltm_spark.pipeline.memory import WRITTEN, stale_node
from hltm_spark.pipeline.progress import counting
from hltm_spark.pipeline.small_answers import SmallAnswers
from hltm_spark.pipeline.tables import DOCUMENTS, MEMORY, TEXT, struct

logger = logging.getLogger("hltm_spark")

MAX_BYTES = 64_000_000
"""Text of one small run, about: documents of its nodes, and memories of their children."""
_CHILD_BYTES = 6_000

_GONE = struct({"tenant_id": TEXT, "node_id": TEXT})
_DOCUMENT_COLUMNS = [n for n in DOCUMENTS.columns if n not in ("tenant_key", "node_key", "keys")]
_MEMORY_COLUMNS = [name for name in WRITTEN.names if name != "failed_tasks"]


@dataclass(slots=True)
class _Tree:
    """The part of the tree that a small run works on.

    Attributes:
        nodes: Identity columns of every affected node: those that changed, and their ancestors.
        documents: Own documents of affected nodes, as items.
        children: Memories of the children of affected nodes, as items by child; this run's
            writing replaces them as it goes up.
        stored: Rows of `memory` of the affected nodes that have one.
    """

    nodes: dict[Node, dict[str, Any]]
    documents: dict[Node, list[dict[str, Any]]] = field(default_factory=dict)
    children: dict[Node, dict[Node, dict[str, Any]]] = field(default_factory=dict)
    stored: dict[Node, dict[str, Any]] = field(default_factory=dict)


def write_small(context: RunContext, paths: Sequence[Row]) -> Outcome | None:
    """Write the nodes that changed and their ancestors, or return None where they are too many.

    Args:
        context: The run.
        paths: One row per node that something happened to: tenant_id, node_id, keys.
    """
    nodes = affected_nodes((row["tenant_id"], row["keys"]) for row in paths)
    if len(nodes) > context.settings.budgets.small_run_nodes:
        return None
    if not nodes:
        return Outcome(written=None, gone=None, written_count=0, gone_count=0)
    with context.run.timed("gather"), without_collector():
        tree = _load(context, nodes)
    return None if tree is None else _SmallRun(context, tree).write()


def affected_nodes(paths: Iterable[tuple[str, Sequence[str]]]) -> dict[Node, dict[str, Any]]:
    """Return the identity columns of the nodes on some paths, from (tenant_id, keys)."""
    nodes: dict[Node, dict[str, Any]] = {}
    for tenant_id, keys in paths:
        parent_id = None
        for length in range(1, len(keys) + 1):
            node_id = to_node_id(keys[:length])
            nodes[tenant_id, node_id] = {
                "tenant_id": tenant_id,
                "node_id": node_id,
                "parent_id": parent_id,
                "keys": list(keys[:length]),
                "depth": length - 1,
            }
            parent_id = node_id
    return nodes


def _load(context: RunContext, nodes: dict[Node, dict[str, Any]]) -> _Tree | None:
    """Read what the nodes are written from, or return None where it is too much."""
    root, ids = context.root.path, {node_id for _, node_id in nodes}
    texts = DOCUMENTS.files(root, version=context.run.documents_version)
    memories = MEMORY.files(root)
    places = read_rows(memories, [*NODE_ID, "parent_id"], where={"parent_id": ids})
    sizes = read_sizes(texts, "text", where={"node_id": ids})
    if sizes + len(places) * _CHILD_BYTES > MAX_BYTES:
        return None
    tree = _Tree(nodes)
    for row in read_rows(texts, _DOCUMENT_COLUMNS, where={"node_id": ids}):
        node = (row["tenant_id"], row["node_id"])
        if node in nodes:
            tree.documents.setdefault(node, []).append(document_item(row))
    wanted = ids | {row["node_id"] for row in places}
    for row in read_rows(memories, _MEMORY_COLUMNS, where={"node_id": wanted}):
        node, parent = (row["tenant_id"], row["node_id"]), (row["tenant_id"], row["parent_id"])
        if node in nodes:
            tree.stored[node] = row
        if parent in nodes:
            tree.children.setdefault(parent, {})[node] = child_item(row)
    return tree


class _SmallRun:
    """Writes the affected part of the tree, every node once its children are written."""

    def __init__(self, context: RunContext, tree: _Tree) -> None:
        self._context, self._tree = context, tree
        self._written: dict[Node, dict[str, Any]] = {}
        self._gone: list[Node] = []

    def write(self) -> Outcome:
        context, nodes = self._context, self._tree.nodes
        flow = Flow({node: _parent(node, nodes[node]) for node in nodes}, self._steps)
        logger.info("%d nodes to look at", len(nodes))
        tenants = {tenant_id for tenant_id, _ in nodes}
        with (
            counting("nodes", total=len(nodes), count=lambda: flow.ended),
            SmallAnswers(context, tenants=tenants) as answers,
        ):
            answers.answer(flow)
        return self._outcome()

    def _steps(self, node: Node) -> Steps:
        """Write one node, unless it is gone or has the input that it was written from."""
        run, prompts = self._context.run, self._context.prompts
        with run.timed("gather"):
            asked = self._input(node)
        if asked is None:
            return
        run.count(asked.node.level, touched=1)
        while not asked.is_failed and asked.split(prompts):  # pass by pass to one prompt
            groups = [asked.ask_group(group) for group in asked.groups]
            yield from self._ask([group for group in groups if group is not None])
            asked.take_groups(prompts)
        if not asked.is_failed:
            yield from self._ask([asked])
        with run.timed("assemble"):
            row = self._with_previous(asked.written(prompts, run_id=run.run_id))
            self._written[node] = row
            self._children(node)[node] = child_item(row)

    def _children(self, node: Node) -> dict[Node, dict[str, Any]]:
        """Return the items of the children that a node's parent has."""
        parent_id = self._tree.nodes[node]["parent_id"]
        return self._tree.children.setdefault((node[0], parent_id), {})

    def _input(self, node: Node) -> Asked | None:
        """Return what a node is to be written from; None, and a note, where it is gone."""
        tree, context = self._tree, self._context
        columns, stored = tree.nodes[node], tree.stored.get(node)
        children = tree.children.get(node, {}).values()
        items = sorted([*children, *tree.documents.get(node, ())], key=place_order)
        if not items:
            self._children(node).pop(node, None)
            if stored:
                self._gone.append(node)
            return None
        level = context.settings.level_names[columns["depth"]]
        asked = Asked.of_items(columns, items, context.prompts, level=level)
        is_complete = stored is not None and stored["status"] == "complete"
        before = stored["input_fingerprint"] if stored and is_complete else None
        return None if asked.row["input_fingerprint"] == before else asked

    def _ask(self, asked: Sequence[Asked]) -> Steps:
        """Bring every request of some inputs its response, wave by wave."""
        prompts, salt = self._context.prompts, self._context.root.salt
        for tasks in WAVES[prompts.layout]:
            with self._context.run.timed("gather"):
                requests = [
                    {**request, "tenant_key": salted_hash(one.tenant_id, salt=salt)}
                    for one in asked
                    for request in one.requests(tasks, prompts)
                ]
            if requests:
                responses = yield requests
                for one in asked:
                    one.take(responses)

    def _with_previous(self, written: dict[str, Any]) -> dict[str, Any]:
        """Return the row of a node, one that failed as its previous memory where it has one."""
        before = self._tree.stored.get((written["tenant_id"], written["node_id"]))
        return stale_node(written, before) if before and written["failed_tasks"] else written

    def _outcome(self) -> Outcome:
        context = self._context
        written = gone = None
        rows = [self._written[node] for node in sorted(self._written)]
        if rows:
            path = context.staging("written")
            write_rows(rows, WRITTEN, path)
            written = context.spark.read.schema(WRITTEN).parquet(path)
        if self._gone:
            ids = [dict(zip(NODE_ID, node, strict=True)) for node in sorted(self._gone)]
            gone = local_rows(context.spark, ids, _GONE)
        return Outcome(
            written=written,
            gone=gone,
            written_count=len(rows),
            gone_count=len(self._gone),
            failed_count=sum(row["status"] != "complete" for row in rows),
            is_all_new=not self._gone and self._tree.stored.keys().isdisjoint(self._written),
        )


def _parent(node: Node, columns: Mapping[str, Any]) -> Node | None:
    parent_id = columns["parent_id"]
    return None if parent_id is None else (node[0], parent_id)
