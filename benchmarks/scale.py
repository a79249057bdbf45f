"""What an update costs beside a full index, and how both grow: ratios of one run on one machine.

python -m benchmarks.scale [--part NAME ...] [--leaves N] [--json OUT]

update: 1 % of the leaves change; an update beside a full index, without any delay of the model.
latency: the same with a model that takes half a second a call, 64 calls at once.
nearline: 20 leaves change, again and again.
skew: one seat with very many projects, one of which changes.
growth: full indexes and updates of several sizes.
calls: the call stage alone beside the ideal, also with an endpoint that fails now and then.
prompts: what a leaf's prompts take beside its document, in tokens; no Spark.

The model is `benchmarks.answering`, over HTTP: at no delay it takes less time than the extractive
provider, so that the engine is what is measured. Goals stand beside and fail nothing; they are for
the default sizes on an idle machine.
"""

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from benchmarks.answering import Faults, Served
from benchmarks.calls import measure_calls
from benchmarks.hiring import change, edit, make_documents, necessary_calls
from benchmarks.measured import CONCURRENCY, CONF, Cost, job_ids, measured_memory, warm_up
from benchmarks.prompts import DOCUMENT_TOKENS, measure_prompts
from benchmarks.resident import watch_peaks
from hltm_spark.core.errors import HltmError
from hltm_spark.pipeline.session import make_session

NEARLINE_LEAVES, NEARLINE_CYCLES = 20, 3
DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the parts are."""

    leaves: int
    children: int
    latency_s: float
    seed: int
    is_large: bool


@dataclass(slots=True)
class Table:
    """The result of one part: lines for a person, and the same values by key for a program."""

    title: str
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def add(
        self, key: str, value: Any, *, shown: str = "", goal: float | None = None, note: str = ""
    ) -> None:
        """Add one line; its key in words is its label, and a goal is an upper bound."""
        if goal is not None:
            self.values.setdefault("goals", {})[key] = goal
            note = f"goal <= {goal:g}{note}"
        self.rows.append((key.replace("_", " "), shown or str(value), note))
        self.values[key] = value

    def lines(self) -> list[str]:
        """Return the table, columns aligned."""
        first, second = (max(len(row[column]) for row in self.rows) for column in (0, 1))
        body = [f"  {a:<{first}}  {b:>{second}}  {c}".rstrip() for a, b, c in self.rows]
        return [self.title, *body]


def update(spark: SparkSession, sizes: Sizes) -> Table:
    """Compare an update after 1 % changes with a full index, at no delay."""
    return _compare(spark, sizes, latency_s=0.0, goal=0.6)


def latency(spark: SparkSession, sizes: Sizes) -> Table:
    """Compare both with a model that takes its time."""
    return _compare(spark, sizes, latency_s=sizes.latency_s, goal=0.07)


def _compare(spark: SparkSession, sizes: Sizes, *, latency_s: float, goal: float) -> Table:
    documents = make_documents(sizes.leaves)
    count = max(4, sizes.leaves // 100)
    after = change(documents, count, seed=sizes.seed)
    necessary = necessary_calls(documents, after)
    with measured_memory(spark, documents, latency_s=latency_s) as memory:
        full = memory.run("index")
        ingest_s = memory.ingest(after)
        updated = memory.run("update")
    table = Table(
        f"{sizes.leaves} leaves, {count} changed (edits, inserts, deletes, moves), "
        f"{latency_s * 1000:.0f} ms a call, {CONCURRENCY} at once"
    )
    _add_cost(table, "full", full)
    table.add("ingest_seconds", round(ingest_s, 3), shown=f"{ingest_s:.1f}")
    _add_cost(table, "update", updated)
    ratio = updated.seconds / full.seconds
    table.add("update_to_full", round(ratio, 4), shown=f"{ratio:.3f}", goal=goal)
    table.add(
        "calls_necessary",
        necessary.calls,
        shown=f"{necessary.leaves} + {necessary.ancestors} = {necessary.calls}",
    )
    excess = updated.calls / necessary.calls
    table.add("calls_to_necessary", round(excess, 4), shown=f"{excess:.3f}")
    if latency_s:
        waited = full.calls * latency_s / CONCURRENCY
        table.add("full_waiting_seconds", round(waited, 3), shown=f"{waited:.1f}")
        table.add("full_calls_at_once", full.served.peak)
    return table


def nearline(spark: SparkSession, sizes: Sizes) -> Table:
    """Measure warm cycles of few changes: the median after one that is not counted."""
    documents = make_documents(sizes.leaves)
    count = min(NEARLINE_LEAVES, sizes.leaves)
    cycles: list[Cost] = []
    ingests: list[tuple[float, int]] = []
    with measured_memory(spark, documents) as memory:
        memory.run("index")
        for cycle in range(1 + NEARLINE_CYCLES):
            after = edit(memory.documents, count, seed=sizes.seed + cycle)
            before = job_ids(spark)
            seconds = memory.ingest(after)
            ingests.append((seconds, len(job_ids(spark) - before)))
            cycles.append(memory.run("update"))
    table = Table(
        f"{sizes.leaves} leaves, {count} edited a cycle, no delay; median of {NEARLINE_CYCLES} warm"
    )
    counted, ingested = cycles[1:], ingests[1:]
    seconds = statistics.median(cost.seconds for cost in counted)
    jobs = statistics.median(cost.jobs for cost in counted)
    ingest_s = statistics.median(seconds for seconds, _ in ingested)
    ingest_jobs = statistics.median(jobs for _, jobs in ingested)
    table.add("update_seconds", round(seconds, 3), shown=f"{seconds:.1f}")
    table.add("update_jobs", jobs, shown=f"{jobs:.0f}", goal=40)
    table.add("update_calls", counted[-1].calls)
    table.add("ingest_seconds", round(ingest_s, 3), shown=f"{ingest_s:.1f}")
    table.add("ingest_jobs", ingest_jobs, shown=f"{ingest_jobs:.0f}")
    table.values["cycles"] = [_of_cost(cost) for cost in cycles]
    return table


def skew(spark: SparkSession, sizes: Sizes) -> Table:
    """Change one child of a node that is too wide for one prompt, and watch the memory.

    A JVM gives little memory back: its peak is that of this part only where the part runs alone.
    """
    documents = make_documents(sizes.children, seats=1, projects=sizes.children)
    with measured_memory(spark, documents) as memory:
        with watch_peaks() as of_full:
            full = memory.run("index")
        memory.ingest(edit(documents, 1, seed=sizes.seed))
        with watch_peaks() as of_update:
            updated = memory.run("update")
        budget = memory.settings.budgets.max_input_tokens
    passes = passes_of(updated.served)
    table = Table(f"one seat of {sizes.children} projects, one edited, {budget} tokens a prompt")
    _add_cost(table, "full", full)
    _add_cost(table, "update", updated)
    goal = 2 * passes + DEPTH
    table.add("passes", passes)
    table.add("calls_for_one_change", updated.calls, goal=goal, note=" = 2 x passes + levels")
    for name, peaks in (("full", of_full), ("update", of_update)):
        for what, peak in (("jvm", peaks.jvm), ("worker", peaks.worker), ("driver", peaks.driver)):
            table.add(f"{name}_peak_{what}_mb", peak, shown=f"{peak:.0f}")
    return table


def growth(spark: SparkSession, sizes: Sizes) -> Table:
    """Index memories of several sizes, and update each after 1 % changes."""
    counts = [max(4, sizes.leaves // 10), sizes.leaves]
    counts += [sizes.leaves * 10] if sizes.is_large else []
    table = Table("full indexes, no delay: seconds for 1,000 nodes; update of 1 % / full index")
    for leaves in counts:
        documents = make_documents(leaves)
        after = change(documents, max(4, leaves // 100), seed=sizes.seed)
        with measured_memory(spark, documents) as memory:
            full = memory.run("index")
            memory.ingest(after)
            updated = memory.run("update")
        nodes = full.run.nodes_written
        each, ratio = full.seconds / nodes * 1000, updated.seconds / full.seconds
        values = {
            "nodes": nodes,
            "seconds_per_1000": round(each, 3),
            "update_to_full": round(ratio, 4),
            "calls_to_necessary": updated.calls / necessary_calls(documents, after).calls,
            "full": _of_cost(full),
            "update": _of_cost(updated),
        }
        shown = f"{each:.2f}  {ratio:.3f}  ({full.seconds:.1f} s, {updated.seconds:.1f} s)"
        table.add(f"{leaves}_leaves", values, shown=shown)
    return table


def calls(spark: SparkSession, sizes: Sizes) -> Table:
    """Compare the call stage with calls x latency / calls at once."""
    count, latency_s = max(64, sizes.leaves // 5), sizes.latency_s
    failing = Faults(limited=0.05, reset=0.01, malformed=0.01)
    table = Table(f"{count} calls of {latency_s * 1000:.0f} ms by Spark: wall / ideal")
    for at_once, faults, goal in ((64, Faults(), 1.15), (256, Faults(), 1.4), (64, failing, 1.4)):
        stage = measure_calls(spark, count, at_once=at_once, latency_s=latency_s, faults=faults)
        name = f"at_{at_once}" + ("_with_faults" if faults.limited else "")
        ideal = count * latency_s / at_once
        ratio, each_ms = stage.seconds / ideal, stage.cpu_s / stage.served.calls * 1000
        shown = f"{ratio:.2f}  ({stage.seconds:.1f} s)"
        table.add(name, round(ratio, 4), shown=shown, goal=goal)
        table.add(f"{name}_client_ms_a_call", round(each_ms, 3), shown=f"{each_ms:.2f}")
        table.add(f"{name}_failed", stage.failures)
        table.values[f"{name}_stage"] = asdict(stage)
    return table


def prompts(_: SparkSession, __: Sizes) -> Table:
    """Compare a leaf's prompts with its document, in tokens."""
    table = Table(f"prompt tokens a document token, one document of {DOCUMENT_TOKENS} tokens")
    for layout, goal in (("fused", 3), ("separate", 6)):
        counted = measure_prompts(CONF, layout=layout)
        ratio = counted.prompts / counted.document
        table.add(layout, round(ratio, 4), shown=f"{ratio:.2f}", goal=goal)
    return table


PARTS: dict[str, Callable[[SparkSession, Sizes], Table]] = {
    "update": update,
    "latency": latency,
    "nearline": nearline,
    "skew": skew,
    "growth": growth,
    "calls": calls,
    "prompts": prompts,
}


def passes_of(served: Served) -> int:
    """Return how often the seat's items were reduced: what is left of its contract's height."""
    return served.height - DEPTH


def _add_cost(table: Table, name: str, cost: Cost) -> None:
    values = _of_cost(cost)
    stages = ", ".join(f"{stage} {s:.1f}" for stage, s in cost.run.stage_seconds.items())
    table.add(f"{name}_seconds", values["seconds"], shown=f"{cost.seconds:.1f}", note=stages)
    table.add(f"{name}_jobs", cost.jobs)
    table.add(f"{name}_calls", cost.calls)
    table.values[name] = values


def _of_cost(cost: Cost) -> dict[str, Any]:
    return {
        "seconds": round(cost.seconds, 3),
        "jobs": cost.jobs,
        "calls": cost.calls,
        "nodes_written": cost.run.nodes_written,
        "nodes_removed": cost.run.nodes_removed,
        "server_cpu_s": cost.served.cpu_s,
        "stage_seconds": cost.run.stage_seconds,
    }


def run(names: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """Run the parts in one session, print each table as it is there, and return all values."""
    spark = make_session("hltm benchmarks")
    try:
        warm_up(spark)
        parts = {}
        for name in names:
            print(name, file=sys.stderr, flush=True)
            table = PARTS[name](spark, sizes)
            print("\n".join([f"{name}: {table.lines()[0]}", *table.lines()[1:], ""]), flush=True)
            parts[name] = {"title": table.title, **table.values}
        machine = {
            "cores": spark.sparkContext.defaultParallelism,
            "python": platform.python_version(),
            "spark": pyspark.__version__,
        }
    finally:
        spark.stop()
    return {"machine": machine, "parts": parts}


def main() -> None:
    """Read the arguments, run, and write the JSON where it is asked for."""
    parser = argparse.ArgumentParser(description="An update beside a full index, and their growth.")
    parser.add_argument(
        "--part", action="append", choices=[*PARTS], help="One part; may be repeated. All if none."
    )
    parser.add_argument("--leaves", type=int, default=10_000, metavar="N", help="Default 10000.")
    parser.add_argument(
        "--children", type=int, metavar="N", help="Of the seat in skew; twice the leaves if none."
    )
    parser.add_argument("--latency-ms", type=int, default=500, metavar="MS", help="Default 500.")
    parser.add_argument("--seed", type=int, default=7, help="Of the changes. Default 7.")
    parser.add_argument("--large", action="store_true", help="Growth to ten times the leaves too.")
    parser.add_argument("--json", metavar="OUT", help="Write the result to this file.")
    arguments = parser.parse_args()
    if arguments.leaves < 4:
        parser.error(f"--leaves must be at least 4, one for each change, got {arguments.leaves}")
    sizes = Sizes(
        leaves=arguments.leaves,
        children=arguments.children or 2 * arguments.leaves,
        latency_s=arguments.latency_ms / 1000,
        seed=arguments.seed,
        is_large=arguments.large,
    )
    try:
        result = run(arguments.part or [*PARTS], sizes)
    except HltmError as error:
        sys.exit(f"scale: {error}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
