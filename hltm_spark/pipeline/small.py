"""A small run: its nodes are written level by level in this process, not by Spark jobs.

The engine's cost is jobs and commits, not rows: below some hundred nodes a frame a step costs
seconds and the work itself next to nothing. The tables are read once, the levels are walked over
plain lists with the same functions that `levels` maps over partitions, and the rows go back to
Spark for the one MERGE. Both ways write the same rows.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Row

from hltm_spark.core.tree import salted_hash, to_node_id
from hltm_spark.models.requests import WAVES
from hltm_spark.pipeline.asked import Asked, Key
from hltm_spark.pipeline.batch_run import answer_rows, is_batched
from hltm_spark.pipeline.calls import Caller
from hltm_spark.pipeline.context import Outcome, RunContext
from hltm_spark.pipeline.files import local_rows, read_rows, read_sizes, write_rows
from hltm_spark.pipeline.items import NODE_ID, child_item, document_item, place_order
from hltm_spark.pipeline.memory import WRITTEN, stale_node
from hltm_spark.pipeline.progress import counting
from hltm_spark.pipeline.tables import DOCUMENTS, LLM_CALLS, MEMORY, TEXT, struct

logger = logging.getLogger("hltm_spark")

MAX_BYTES = 64_000_000
"""Text of one small run, about: documents of its nodes, and memories of their children."""
_CHILD_BYTES = 6_000

_GONE = struct({"tenant_id": TEXT, "node_id": TEXT})
_DOCUMENT_COLUMNS = [n for n in DOCUMENTS.columns if n not in ("tenant_key", "node_key", "keys")]
_MEMORY_COLUMNS = [name for name in WRITTEN.names if name != "failed_tasks"]
_ANSWER_COLUMNS = ("tenant_id", "request_hash", "repair_of", "is_usable", "response")

Node = tuple[str, str]
"""tenant_id, node_id."""


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
    with context.run.timed("gather"):
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
    """Walks the affected part of the tree from its deepest level to the tenants."""

    def __init__(self, context: RunContext, tree: _Tree) -> None:
        self._context, self._tree = context, tree
        self._written: list[dict[str, Any]] = []
        self._gone: list[Node] = []
        self._paid: list[dict[str, Any]] = []
        self._answers: dict[Key, str] = {}  # paid in this run, so not in the files of the ledger
        self._open = ExitStack()
        self._caller: Caller | None = None  # one for all levels: clients hold sockets
        self._ledger = LLM_CALLS.files(context.root.path)

    def write(self) -> Outcome:
        names = self._context.settings.level_names
        try:
            with self._open:
                for depth in reversed(range(len(names))):
                    self._write_level(depth, names[depth])
        finally:
            self._settle()
        return self._outcome()

    def _write_level(self, depth: int, level: str) -> None:
        run, prompts = self._context.run, self._context.prompts
        with run.timed("gather"):
            inputs = list(self._inputs(depth, level))
        run.nodes_touched += len(inputs)
        if not inputs:
            return
        logger.info("level %s: %d nodes to write", level, len(inputs))
        with run.timed("calls"):
            self._reduce(inputs)
            self._answer([one for one in inputs if not one.is_failed])
        with run.timed("assemble"):
            for one in inputs:
                row = self._with_previous(one.written(prompts, run_id=run.run_id))
                self._written.append(row)
                node, parent = (
                    (row["tenant_id"], row["node_id"]),
                    (row["tenant_id"], row["parent_id"]),
                )
                self._tree.children.setdefault(parent, {})[node] = child_item(row)

    def _inputs(self, depth: int, level: str) -> Iterator[Asked]:
        """Yield the inputs of one level's nodes that changed; note those that are gone."""
        tree = self._tree
        for node in sorted(n for n, columns in tree.nodes.items() if columns["depth"] == depth):
            columns = tree.nodes[node]
            stored = tree.stored.get(node)
            children = tree.children.get(node, {}).values()
            items = sorted([*children, *tree.documents.get(node, ())], key=place_order)
            if not items:
                tree.children.get((node[0], columns["parent_id"]), {}).pop(node, None)
                if stored:
                    self._gone.append(node)
                continue
            is_complete = stored is not None and stored["status"] == "complete"
            before = stored["input_fingerprint"] if stored and is_complete else None
            asked = Asked.of_items(columns, items, self._context.prompts, level=level)
            if asked.row["input_fingerprint"] != before:
                yield asked

    def _reduce(self, asked: Sequence[Asked]) -> None:
        """Reduce the inputs beyond the budget in groups, pass by pass, to one prompt each."""
        prompts = self._context.prompts
        wide = list(asked)
        while wide := [one for one in wide if not one.is_failed and one.split(prompts)]:
            groups = [one.ask_group(group) for one in wide for group in one.groups]
            self._answer([group for group in groups if group is not None])
            for one in wide:
                one.take_groups(prompts)

    def _answer(self, asked: Sequence[Asked]) -> None:
        """Bring every request of the given inputs its response, from the ledger or the model."""
        for tasks in WAVES[self._context.prompts.layout]:
            requests = [
                {**request, "tenant_key": salted_hash(one.tenant_id, salt=self._context.root.salt)}
                for one in asked
                for request in one.requests(tasks, self._context.prompts)
            ]
            if not requests:
                continue
            responses = self._look_up(requests)
            waiting = {_key(r): r for r in requests if _key(r) not in responses}
            self._context.run.cached += len(requests) - len(waiting)
            responses |= self._call(list(waiting.values()))
            for one in asked:
                one.take(responses)

    def _look_up(self, requests: Sequence[Mapping[str, Any]]) -> dict[Key, str]:
        keys = {_key(request) for request in requests}
        hashes = {request_hash for _, request_hash in keys}
        found = {key: self._answers[key] for key in keys & self._answers.keys()}
        for column in ("request_hash", "repair_of"):
            for row in read_rows(self._ledger, _ANSWER_COLUMNS, where={column: hashes}):
                key = (row["tenant_id"], row["repair_of"] or row["request_hash"])
                if row["is_usable"] and key in keys:
                    found[key] = max(found.get(key, ""), row["response"])
        return found

    def _call(self, waiting: Sequence[Mapping[str, Any]]) -> dict[Key, str]:
        if not waiting:
            return {}
        if is_batched(self._context):
            return self._call_in_batches(waiting)
        if self._caller is None:
            self._caller = self._open.enter_context(Caller(self._context.call_settings(slots=1)))
        meter = self._context.meter
        before = meter.answered()
        paid: list[dict[str, Any]] = []
        with counting("calls", total=len(waiting), count=lambda: meter.answered() - before):
            for part in meter.portions(len(waiting)):
                with meter.watching():
                    paid += self._caller.answers(waiting[part.start : part.stop])
        self._paid += paid
        if self._context.is_stopped:
            self._settle()
            self._context.raise_if_stopped()
        return self._usable(paid)

    def _call_in_batches(self, waiting: Sequence[Mapping[str, Any]]) -> dict[Key, str]:
        answers: dict[Key, str] = {}
        for part in self._context.meter.portions(len(waiting)):
            answers |= self._usable(answer_rows(self._context, waiting[part.start : part.stop]))
        self._context.raise_if_stopped()
        return answers

    def _usable(self, paid: Iterable[Mapping[str, Any]]) -> dict[Key, str]:
        """Return the usable ones of paid answers, and keep them for later requests."""
        answers = {
            (r["tenant_id"], r["repair_of"] or r["request_hash"]): r["response"]
            for r in paid
            if r["is_usable"]
        }
        self._answers |= answers
        return answers

    def _with_previous(self, written: dict[str, Any]) -> dict[str, Any]:
        """Return the row of a node, one that failed as its previous memory where it has one."""
        before = self._tree.stored.get((written["tenant_id"], written["node_id"]))
        return stale_node(written, before) if before and written["failed_tasks"] else written

    def _settle(self) -> None:
        """Bring what was paid into the ledger; until then it is in the journal."""
        if self._paid:
            path = self._context.staging("paid")
            write_rows(self._paid, LLM_CALLS.schema, path)
            self._paid = []
            rows = self._context.spark.read.schema(LLM_CALLS.schema).parquet(path)
            self._context.commits.append(LLM_CALLS, rows)

    def _outcome(self) -> Outcome:
        context = self._context
        written = gone = None
        keys = {(row["tenant_id"], row["node_id"]) for row in self._written}
        if self._written:
            path = context.staging("written")
            write_rows(self._written, WRITTEN, path)
            written = context.spark.read.schema(WRITTEN).parquet(path)
        if self._gone:
            rows = [dict(zip(NODE_ID, node, strict=True)) for node in self._gone]
            gone = local_rows(context.spark, rows, _GONE)
        return Outcome(
            written=written,
            gone=gone,
            written_count=len(self._written),
            gone_count=len(self._gone),
            failed_count=sum(row["status"] != "complete" for row in self._written),
            is_all_new=not self._gone and self._tree.stored.keys().isdisjoint(keys),
        )


def _key(request: Mapping[str, Any]) -> Key:
    return request["tenant_id"], request["request_hash"]
