"""From answers on record to rows of `memory`, and the one MERGE that makes a new tree version."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.core.prompts import TASKS
from hltm_spark.core.records import NodeInput, fingerprint
from hltm_spark.core.views import assemble_views
from hltm_spark.models.parsing import parse_answer
from hltm_spark.models.requests import WAVES, NodePrompts
from hltm_spark.pipeline.changes import salted_key
from hltm_spark.pipeline.requests import IDENTITY, map_rows
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import MEMORY, TEXT, TEXTS, struct

CONTENT = ("facets", "question_answers", "rationale", "summary", "one_sentence_summary")
WRITTEN = struct(
    {
        **{n: k for n, k in MEMORY.columns.items() if n not in ("tenant_key", "node_key")},
        "failed_tasks": TEXTS,
    }
)
"""A node as this run wrote it; `failed_tasks` are tasks without a usable answer."""

SUMMARY_REQUESTS = struct(
    {"tenant_id": TEXT, "node_id": TEXT, "task": TEXT, "request_hash": TEXT, "summary": TEXT}
)


def first_requests(inputs: DataFrame) -> DataFrame:
    """Return one row per request of the first wave: tenant_id, node_id, task, request_hash."""
    return inputs.select("tenant_id", "node_id", F.explode("requests").alias("r")).select(
        "tenant_id",
        "node_id",
        "r.task",
        "r.request_hash",
        F.lit(None).cast("string").alias("summary"),
    )


def second_requests(inputs: DataFrame, answered: DataFrame, prompts: NodePrompts) -> DataFrame:
    """Return the requests that need the detailed summary, for nodes that have one.

    Args:
        inputs: `INPUTS` rows.
        answered: tenant_id, node_id, task, response of the first wave.
        prompts: To render and hash the requests.
    """
    summaries = answered.where("task = 'summary'").select("tenant_id", "node_id", "response")
    rows = inputs.select("tenant_id", "node_id", "payload").join(
        summaries, ["tenant_id", "node_id"]
    )

    def requests(given: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in given:
            node = NodeInput.from_dict(json.loads(row["payload"]))
            summary = _parse(row["response"], "summary", node, prompts)["summary"]
            for task in WAVES[prompts.layout][1]:
                request = prompts.request(node, task, summary=summary)
                yield {
                    "tenant_id": row["tenant_id"],
                    "node_id": row["node_id"],
                    "task": task,
                    "request_hash": prompts.request_hash(request, tenant_id=node.tenant_id),
                    "summary": summary,
                }

    return map_rows(rows, requests, SUMMARY_REQUESTS)


def assemble(
    inputs: DataFrame, answered: DataFrame, prompts: NodePrompts, *, run_id: str
) -> DataFrame:
    """Return the nodes as written from their answers: `WRITTEN` rows.

    Args:
        inputs: `INPUTS` rows.
        answered: tenant_id, node_id, task, response of all waves.
        prompts: The layout says which tasks a complete node has.
        run_id: Recorded with every node.
    """
    entries = F.array_sort(F.collect_list(F.struct("task", "response")))
    responses = answered.groupBy("tenant_id", "node_id").agg(entries.alias("responses"))
    rows = inputs.drop("requests").join(responses, ["tenant_id", "node_id"], "left")
    return map_rows(rows, lambda r: written_nodes(r, prompts, run_id=run_id), WRITTEN)


def written_nodes(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts, *, run_id: str
) -> Iterator[dict[str, Any]]:
    """Yield `WRITTEN` rows; a node with a failed task or a missing child is `partial`."""
    tasks = TASKS[prompts.layout]
    for row in rows:
        node = NodeInput.from_dict(json.loads(row["payload"]))
        responses = {entry["task"]: entry["response"] for entry in row["responses"] or ()}
        fields: dict[str, Any] = {}
        for task in tasks:
            if task in responses:
                fields |= _parse(responses[task], task, node, prompts)
        views = assemble_views(node, fields).to_dict()
        failed = [task for task in tasks if task not in responses]
        yield {
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
    """Replace a node that failed by its previous memory, marked `stale`, where it has one.

    Its input fingerprint stays the old one, so that the next run tries it again.
    """
    key = ["tenant_id", "node_id"]
    failed = F.size("failed_tasks") > 0
    previous = memory.where("summary != ''").withColumn("status", F.lit("stale"))
    fallen = written.where(failed)
    reasons = fallen.select(*key, "missing", "failed_tasks")
    stale = previous.drop("missing").join(reasons, key).select(*WRITTEN.names)
    fresh = fallen.join(stale.select(*key), key, "left_anti").select(*WRITTEN.names)
    return written.where(~failed).select(*WRITTEN.names).unionByName(stale).unionByName(fresh)


def merge_memory(written: DataFrame, removed: DataFrame, root: Root) -> None:
    """Write the run's nodes and removals in one commit: a new version of the tree is atomic.

    Args:
        written: `WRITTEN` rows of all levels, read back from staging.
        removed: tenant_id, node_id of nodes without any document left.
        root: Storage root.
    """
    hashed = {"tenant_key": salted_key("tenant_id", root), "node_key": salted_key("node_id", root)}
    rows = written.withColumns(hashed).select(*MEMORY.columns, F.lit(False).alias("is_removed"))
    gone = removed.select("tenant_id", "node_id").withColumns(hashed)
    missing = [c for c in MEMORY.columns if c not in gone.columns]
    gone = gone.withColumns({c: F.lit(None).cast(MEMORY.columns[c]) for c in missing})
    source = rows.unionByName(gone.withColumn("is_removed", F.lit(True)))
    MEMORY.merge(source, root.path, delete_when="s.is_removed")


def _parse(response: str, task: str, node: NodeInput, prompts: NodePrompts) -> dict[str, Any]:
    """Return the fields of an answer on record, which the call stage found usable."""
    return parse_answer(
        response,
        "stop",
        output=task,
        source_ids=node.source_ids,
        max_questions=prompts.max_questions,
    ).fields
