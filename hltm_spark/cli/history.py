"""The verb that reads the record of runs: data files alone, no Spark session."""

from collections.abc import Mapping
from typing import Any

import click

from hltm_spark.cli.costs import CostQuestion, cost_lines, cost_options
from hltm_spark.cli.options import Call, common_options

MAX_LISTED = 1000
"""Nodes and failures that are listed."""


@click.command()
@click.option(
    "--last",
    type=click.IntRange(min=1),
    help="How many runs; 20 unless given, with --cost every answer on record.",
)
@click.option("--nodes", is_flag=True, help="The nodes that the latest run wrote.")
@click.option("--failures", is_flag=True, help="What failed and was not written since, and why.")
@cost_options
@common_options
def runs(
    call: Call, *, last: int | None, nodes: bool, failures: bool, costs: CostQuestion | None
) -> None:
    """Print what each run read, did and cost."""
    root = call.open_root()
    from hltm_spark.pipeline import history  # noqa: PLC0415 - without PySpark, the root says so

    if costs is not None:
        from hltm_spark.pipeline.costs import read_costs  # noqa: PLC0415

        found = read_costs(call.settings, root, by=costs.by, run_id=costs.run_id, last=last)
        call.report(found.summary(), cost_lines(found))
        return
    rows = history.latest_runs(root, last=last or 20)
    values: dict[str, Any] = {"runs": rows}
    lines = [_run_line(row) for row in rows] or ["no run yet"]
    if nodes:
        written = history.written_nodes(root, run_id=rows[0]["run_id"]) if rows else []
        head = f"nodes that {rows[0]['run_id']} wrote:" if rows else "no run yet"
        values["nodes"] = written[:MAX_LISTED]
        lines = [head, *_listed([f"  {node}" for node in written])]
    if failures:
        failed = history.open_failures(root)
        values["failures"] = failed[:MAX_LISTED]
        lines = _listed([_failure_line(row) for row in failed]) or ["nothing failed"]
    call.report(values, lines)


def _listed(lines: list[str]) -> list[str]:
    left = len(lines) - MAX_LISTED
    return [*lines[:MAX_LISTED], f"and {left} more"] if left > 0 else lines


def _failure_line(row: Mapping[str, Any]) -> str:
    return f"{row['node_id']}  {row['task']}  {row['reason']} ({row['run_id']})"


def _run_line(row: Mapping[str, Any]) -> str:
    return (
        f"{row['started_at']:%Y-%m-%d %H:%M:%S}  {row['kind']:7}  {row['status']:7}  "
        f"version {row['documents_version']}, {row['documents']} documents, "
        f"{row['nodes_touched']} touched, {row['nodes_written']} written, "
        f"{row['nodes_removed']} removed, {row['calls']} calls, {row['failed']} failed, "
        f"cost {row['cost']:.4f}, {row['seconds']:.1f} s"
    )
