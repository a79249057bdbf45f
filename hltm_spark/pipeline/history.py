"""What runs did, read from the data files of the tables: no Spark session."""

from typing import Any

from hltm_spark.pipeline.files import read_rows
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import FAILURES, MEMORY, RUNS


def latest_runs(root: Root, *, last: int) -> list[dict[str, Any]]:
    """Return rows of `runs`, the latest first; times are UTC, `stage_seconds` is a mapping."""
    rows = read_rows(RUNS.files_if_any(root.path), list(RUNS.columns))
    rows.sort(key=lambda row: (row["started_at"], row["run_id"]), reverse=True)
    return [{**row, "stage_seconds": dict(row["stage_seconds"])} for row in rows[:last]]


def written_nodes(root: Root, *, run_id: str) -> list[str]:
    """Return the ids of the nodes that a run wrote and no later one did, in the tree's order."""
    columns = ["tenant_id", "node_id", "keys"]
    rows = read_rows(MEMORY.files_if_any(root.path), columns, where={"run_id": [run_id]})
    return [row["node_id"] for row in sorted(rows, key=lambda r: (r["tenant_id"], r["keys"]))]


def open_failures(root: Root) -> list[dict[str, Any]]:
    """Return rows of `failures` by tenant, node and task."""
    rows = read_rows(FAILURES.files_if_any(root.path), list(FAILURES.columns))
    return sorted(rows, key=lambda row: (row["tenant_id"], row["node_id"], row["task"]))
