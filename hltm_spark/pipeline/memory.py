"""From answers on record to rows of `memory`, and the one MERGE that makes a new tree version."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.core.prompts import TASKS
from hltm_spark.core.records import NodeInput, Views, fingerprint
from hltm_spark.core.views import assemble_views
from hltm_spark.models.parsing import parse_answer
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.changes import salted_key
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.requests import IDENTITY, PART
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import MEMORY, TEXTS, struct

WRITTEN = struct(
    {
        **{n: k for n, k in MEMORY.columns.items() if n not in ("tenant_key", "node_key")},
        "failed_tasks": TEXTS,
    }
)
"""A node as this run wrote it; `failed_tasks` are tasks without a usable answer."""


def assemble(
    inputs: DataFrame, answered: DataFrame, prompts: NodePrompts, *, run_id: str
) -> DataFrame:
    """Return the nodes as written from their answers: `WRITTEN` rows.

    Args:
        inputs: `INPUTS` rows.
        answered: Columns of `PART`, task, response of all waves.
        prompts: The layout says which tasks a complete node has.
        run_id: Recorded with every node.
    """
    rows = with_responses(inputs, answered)
    return map_rows(rows, lambda r: written_nodes(r, prompts, run_id=run_id), WRITTEN)


def with_responses(inputs: DataFrame, answered: DataFrame) -> DataFrame:
    """Return the inputs with all responses to each as [{task, response}], null where none."""
    entries = F.array_sort(F.collect_list(F.struct("task", "response")))
    responses = answered.groupBy(*PART).agg(entries.alias("responses"))
    return inputs.drop("requests").join(responses, PART, "left")


def written_nodes(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts, *, run_id: str
) -> Iterator[dict[str, Any]]:
    """Yield `WRITTEN` rows; a node with a failed task or a missing child is `partial`."""
    for row in rows:
        node = NodeInput.from_dict(json.loads(row["payload"]))
        responses = {entry["task"]: entry["response"] for entry in row["responses"] or ()}
        yield written_node(row, node, responses, prompts, run_id=run_id)


def written_node(
    row: Mapping[str, Any],
    node: NodeInput,
    responses: Mapping[str, str],
    prompts: NodePrompts,
    *,
    run_id: str,
) -> dict[str, Any]:
    """Return the `WRITTEN` row of one node.

    Args:
        row: The columns of `INPUTS` before `payload`.
        node: What the node was written from, within one prompt.
        responses: Usable responses by task.
        prompts: The layout says which tasks a complete node has.
        run_id: Recorded with the node.
    """
    views = answered_views(node, responses, prompts).to_dict()
    failed = [task for task in TASKS[prompts.layout] if task not in responses]
    return {
        **{name: row[name] for name in IDENTITY},
        **{name: row[name] for name in ("level", "sources", "latest_at", "missing")},
        **views,
        "status": "partial" if failed or row["missing"] else "complete",
        "input_fingerprint": row["input_fingerprint"],
        "memory_fingerprint": fingerprint(views, row["latest_at"], row["sources"]),
        "run_id": run_id,
        "failed_tasks": failed,
    }


def keep_previous(written: DataFrame, memory: DataFrame) -> DataFrame:
    """Replace a node that failed by its previous memory, marked `stale`, where it has one."""
    previous = memory.select("tenant_id", "node_id", F.struct("*").alias("previous"))
    rows = written.join(previous, ["tenant_id", "node_id"], "left")

    def settled(given: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in given:
            before = row.pop("previous")
            yield stale_node(row, before) if row["failed_tasks"] and before else row

    return map_rows(rows, settled, WRITTEN)


def stale_node(failed: Mapping[str, Any], previous: Mapping[str, Any]) -> dict[str, Any]:
    """Return the previous memory of a node that failed now, if there is any to keep.

    Its input fingerprint stays the old one, so that the next run tries the node again.
    """
    if not previous["summary"]:
        return dict(failed)
    kept = {name: previous[name] for name in WRITTEN.names if name in previous}
    reason = {name: failed[name] for name in ("missing", "failed_tasks")}
    return {**kept, **reason, "status": "stale"}


def memory_changes(written: DataFrame, removed: DataFrame, root: Root) -> DataFrame:
    """Return the run's nodes and removals as the source of one MERGE: a new tree is atomic.

    Args:
        written: `WRITTEN` rows of all levels, read back from staging.
        removed: tenant_id, node_id of nodes without any document left.
        root: Storage root.

    Returns:
        `memory` columns and is_removed.
    """
    hashed = {"tenant_key": salted_key("tenant_id", root), "node_key": salted_key("node_id", root)}
    rows = written.withColumns(hashed).select(*MEMORY.columns, F.lit(False).alias("is_removed"))
    gone = removed.select("tenant_id", "node_id").withColumns(hashed)
    missing = [c for c in MEMORY.columns if c not in gone.columns]
    gone = gone.withColumns({c: F.lit(None).cast(MEMORY.columns[c]) for c in missing})
    return rows.unionByName(gone.withColumn("is_removed", F.lit(True)))


def answered_views(node: NodeInput, responses: Mapping[str, str], prompts: NodePrompts) -> Views:
    """Return the views of a node from its usable responses by task; a missing one is empty."""
    fields: dict[str, Any] = {}
    for task in TASKS[prompts.layout]:
        if task in responses:
            fields |= _parse(responses[task], task, node, prompts)
    return assemble_views(node, fields)


def answered_summary(node: NodeInput, response: str, prompts: NodePrompts) -> str:
    """Return the detailed summary that the one-sentence one is written from."""
    return str(_parse(response, "summary", node, prompts)["summary"])


def _parse(response: str, task: str, node: NodeInput, prompts: NodePrompts) -> dict[str, Any]:
    """Return the fields of an answer on record, which the call stage found usable."""
    return parse_answer(
        response,
        "stop",
        output=task,
        source_ids=node.source_ids,
        max_questions=prompts.max_questions,
    ).fields
