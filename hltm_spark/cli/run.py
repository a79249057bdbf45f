"""Verbs that run the pipeline: ingest, index, update, publish, verify."""

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hltm_spark.cli.options import Call, budget_options, common_options
from hltm_spark.core.errors import BudgetReachedError, FollowStoppedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hltm_spark.pipeline.runs import Run
    from hltm_spark.pipeline.verify import Verification

logger = logging.getLogger("hltm_spark")


@click.command()
@click.option(
    "--input",
    "inputs",
    multiple=True,
    required=True,
    metavar="PATH",
    help="Delta table, Parquet, JSONL or CSV file, or a folder of them. May be repeated.",
)
@click.option(
    "--mode",
    type=click.Choice(["upsert", "snapshot"]),
    default="upsert",
    show_default=True,
    help="snapshot deletes what a tenant of the input no longer has.",
)
@common_options
def ingest(call: Call, inputs: tuple[str, ...], mode: str) -> None:
    """Bring raw documents into the documents table; unchanged rows write nothing."""
    root = call.open_root(must_exist=False)
    spark = start_spark("hltm ingest")
    from hltm_spark.pipeline.ingest import ingest as ingest_rows  # noqa: PLC0415
    from hltm_spark.pipeline.inputs import read_input  # noqa: PLC0415

    report = ingest_rows(read_input(spark, inputs), call.settings, root, mode=mode)
    values = asdict(report)
    lines = [
        f"{report.taken} rows taken: {report.added} added, {report.changed} changed, "
        f"{report.unchanged} unchanged; {report.deleted} documents deleted; "
        f"{report.rejected} rows rejected (documents version {report.version})"
    ]
    if report.rejected:
        lines.append(f"the rejected rows and their reasons are in {root.path}/tables/rejects")
    call.report(values, lines)


@click.command()
@click.option("--publish/--no-publish", "is_publishing", default=True, help="Write shards.")
@budget_options
@common_options
def index(call: Call, *, is_publishing: bool) -> None:
    """Bring the memory tree up to the latest documents, with every node as a candidate.

    A run that reaches a budget ends with exit code 3; what it paid is kept, the next one goes on.
    """
    _run(call, kind="index", is_publishing=is_publishing)


@click.command()
@click.option("--publish/--no-publish", "is_publishing", default=True, help="Write shards.")
@click.option("--follow", is_flag=True, help="Keep going, one update after the other.")
@click.option(
    "--every",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="From the start of one update to the next with --follow: 90, 60s, 5m, 1h.",
)
@budget_options
@common_options
def update(call: Call, *, is_publishing: bool, follow: bool, every: str) -> None:
    """Bring the memory tree up to the latest documents, from what the change feed names.

    With --follow it goes on until SIGTERM or Ctrl-C: the cycle that is at work ends first. A cycle
    that fails is tried again later; ten in a row end it. A budget holds for each cycle: one that
    reaches it ends there, the next goes on. Without --follow it ends with exit code 3.
    """
    if not follow:
        _run(call, kind="update", is_publishing=is_publishing)
        return
    from hltm_spark.pipeline.follow import follow as keep_going  # noqa: PLC0415
    from hltm_spark.pipeline.follow import parse_duration, stop_on_signals  # noqa: PLC0415

    every_s = parse_duration(every)
    call.open_root()
    spark = start_spark("hltm update")
    with stop_on_signals() as stop:
        keep_going(
            lambda: _run(call, kind="update", is_publishing=is_publishing, spark=spark),
            every_s=every_s,
            stop=stop,
        )
    raise FollowStoppedError("update --follow was stopped by a signal, between two cycles")


@click.command()
@click.option("--cold", is_flag=True, help="Reuse no answer on record: costs a full index.")
@common_options
def verify(call: Call, *, cold: bool) -> None:
    """Rebuild the memory beside the one that is there and compare both; exit 1 on a difference."""
    root = call.open_root()
    spark = start_spark("hltm verify")
    from hltm_spark.pipeline.verify import verify as compare  # noqa: PLC0415

    found = compare(spark, call.settings, root, is_cold=cold)
    call.report(asdict(found), verification_lines(found))
    if not found.equal:
        click.get_current_context().exit(1)


@click.command()
@common_options
def publish(call: Call) -> None:
    """Publish the shards of every tenant whose memory is newer than its shard."""
    root = call.open_root()
    spark = start_spark("hltm publish")
    from hltm_spark.pipeline.index import publish_only  # noqa: PLC0415

    run = publish_only(spark, call.settings, root)
    values = {**run.summary(), "tenants": run.tenants_published, "version": run.documents_version}
    call.report(values, [f"{run.tenants_published} tenants published in {run.seconds:.1f} s"])


def _run(
    call: Call, *, kind: str, is_publishing: bool, spark: "SparkSession | None" = None
) -> None:
    root = call.open_root()
    spark = spark or start_spark(f"hltm {kind}")
    from hltm_spark.pipeline.index import run_pipeline  # noqa: PLC0415

    try:
        run = run_pipeline(spark, call.settings, root, kind=kind, is_publishing=is_publishing)
    except BudgetReachedError as error:
        call.report(error.summary, [])  # the error itself says the rest
        raise
    call.report(run.summary(), run_lines(run))


def start_spark(app_name: str) -> "SparkSession":
    """Return a session; the pipeline is imported here, so that the reader's verbs need no Spark."""
    from hltm_spark.pipeline.session import make_session  # noqa: PLC0415

    logger.info("%s: starting Spark", app_name)
    return make_session(app_name)


def run_lines(run: "Run") -> list[str]:
    """Return a run in words."""
    stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run.stage_seconds.items())
    return [
        f"{run.kind} {run.status}: {run.documents} documents, {run.nodes_touched} nodes touched, "
        f"{run.nodes_written} written, {run.nodes_removed} removed",
        f"{run.calls} calls paid, {run.cached} answers from the ledger, {run.failed} nodes failed; "
        f"{run.prompt_tokens} prompt and {run.completion_tokens} completion tokens, "
        f"cost {run.cost:.4f}",
        f"{run.tenants_published} tenants published; {run.seconds:.1f} s ({stages})",
    ]


def verification_lines(found: "Verification") -> list[str]:
    """Return a verification in words, one line a difference."""
    verdict = "equal to a rebuild" if found.equal else f"{found.difference_count} differences"
    lines = [
        f"{found.nodes} nodes: {verdict}; {found.calls} answers were not on record "
        f"({found.seconds:.1f} s)"
    ]
    if found.incomplete:
        lines.append(f"{found.incomplete} stale or partial nodes were left aside")
    if found.pending:
        lines.append(
            f"{found.pending} versions of documents are not applied yet; run `hltm update`"
        )
    lines += [f"  {difference.node_id}: {difference.what}" for difference in found.differences]
    left = found.difference_count - len(found.differences)
    return [*lines, f"  and {left} more"] if left > 0 else lines
