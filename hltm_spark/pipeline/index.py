"""The order of one run: changed nodes, level by level to the root, one MERGE, then shards.

A run holds the root's lease from its first look at the tables to its final row in `runs`. Which
nodes it looks at comes from `changes`; their levels are written by `small` in this process, or by
`levels` with Spark where they are many. Both leave staged rows, which one MERGE brings into
`memory`; then every tenant whose shard is behind is published.
"""

import logging
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import (
    BudgetReachedError,
    DataError,
    HltmError,
    LeaseLostError,
    StoppedError,
    TooManyFailuresError,
)
from hltm_spark.core.records import fingerprint
from hltm_spark.models.budgets import Budget
from hltm_spark.models.providers import make_llm
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.batch_run import close_batches, open_batches
from hltm_spark.pipeline.budget import Meter
from hltm_spark.pipeline.changes import few_paths, salted_key
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.considered import considered_paths
from hltm_spark.pipeline.context import Outcome, RunContext
from hltm_spark.pipeline.files import local_rows, row_count
from hltm_spark.pipeline.journal_fold import FAILED, fold_journals, read_failures
from hltm_spark.pipeline.journal_place import check_journals, left_journals, open_journals
from hltm_spark.pipeline.lease import hold_lease
from hltm_spark.pipeline.levels import write_levels
from hltm_spark.pipeline.memory import WRITTEN, memory_changes
from hltm_spark.pipeline.publish import publish
from hltm_spark.pipeline.publish_context import PublishContext
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.runs import (
    FINISHED,
    Cursor,
    Run,
    open_tables,
    read_cursor,
    record_run,
)
from hltm_spark.pipeline.small import write_small
from hltm_spark.pipeline.tables import (
    DOCUMENTS,
    FAILURES,
    MEMORY,
    RUNS,
)

logger = logging.getLogger("hltm_spark")


def run_pipeline(
    spark: SparkSession,
    settings: Settings,
    root: Root,
    *,
    kind: str,
    is_publishing: bool = True,
    wait_s: float | None = None,
) -> Run:
    """Bring the memory tree up to the latest documents, and publish what changed.

    Args:
        spark: Session.
        settings: The conf.
        root: Storage root.
        kind: `index` considers every node, `update` those that the change feed names.
        is_publishing: Write shards at the end.
        wait_s: Seconds to wait for another run on the root; the lease's own limit where None.

    Returns:
        The run as recorded in `runs`.

    Raises:
        LeaseHeldError: Another run on this root did not end in time.
        LeaseLostError: This run was suspended so long that another took over.
        DataError: The change feed cannot be read.
        LlmStopError: The model refuses every further request.
        BudgetReachedError: A budget of conf is used up; the next run goes on from there.
        EnvironmentProblem: The journal cannot be kept where the conf says.
    """
    run, budget = Run.start(kind), Budget.of(settings)
    prompts = NodePrompts.load(settings)
    make_llm(settings).close()
    check_journals(settings, root)
    ttl_s = settings.storage.lease_ttl_s
    with hold_lease(root, verb=kind, run_id=run.run_id, ttl_s=ttl_s, wait_s=wait_s) as lease:
        root.clear_dead_staging()
        open_tables(spark, root.path)
        context = RunContext(
            spark=spark,
            settings=settings,
            root=root,
            run=run,
            prompts=prompts,
            commits=Commits(spark, root.path, lease),
            meter=Meter(budget, open_journals(settings, root).within(run.run_id)),
        )
        _run(context, is_publishing=is_publishing)
    return run


def publish_only(spark: SparkSession, settings: Settings, root: Root) -> Run:
    """Publish every tenant whose shard is behind its memory, without looking for changes.

    Raises:
        DataError: The memory table is another one than the last run wrote.
    """
    run = Run.start("publish")
    ttl_s = settings.storage.lease_ttl_s
    with hold_lease(root, verb="publish", run_id=run.run_id, ttl_s=ttl_s) as lease:
        open_tables(spark, root.path)
        commits = Commits(spark, root.path, lease)
        cursor = read_cursor(RUNS.files(root.path))
        try:
            if cursor is not None:
                _check_memory(cursor, root)
                run.documents_version = cursor.version
                with run.timed("publish"):
                    publishing = PublishContext(
                        spark=spark,
                        settings=settings,
                        root=root,
                        commits=commits,
                        run_id=run.run_id,
                        documents_version=cursor.version,
                    )
                    run.tenants_published = publish(publishing, is_checking=True)
            run.finish("done")
        finally:
            root.clear_staging(run.run_id)
        record_run(spark, commits, run)
    return run


def _check_memory(cursor: Cursor, root: Root) -> None:
    if cursor.memory_table_id != MEMORY.table_id(root.path):
        raise DataError(
            "the memory table is not the one that the last run wrote (renamed, or made anew), so "
            "shards made from it would lack what that one has; put that table back, or run "
            "`hltm index`, which writes the memory again from the answers on record"
        )


def _run(context: RunContext, *, is_publishing: bool) -> None:
    run, root = context.run, context.root
    try:
        with run.timed("prepare"):
            fold_journals(
                context.spark,
                root,
                context.commits,
                places=left_journals(context.settings, root),
                scratch=Path(context.staging("journals")),
            )
        open_batches(context)
        with run.timed("prepare"):
            _pin(context)
        with run.timed("changes"):
            paths, few = _paths(context)
        outcome = write_small(context, few) if few is not None else None
        _merge(context, outcome or write_levels(context, paths))
        if is_publishing:
            _publish(context)
        run.finish("partial" if run.failed else "done")
    except HltmError as error:
        run.finish("stopped" if isinstance(error, StoppedError) else "failed", str(error))
        if isinstance(error, BudgetReachedError):
            error.summary = run.summary()
        raise
    except BaseException as error:
        is_asked = isinstance(error, KeyboardInterrupt)
        run.finish("stopped" if is_asked else "failed", type(error).__name__)
        raise
    finally:
        close_batches(context)
        _record(context)


def _record(context: RunContext) -> None:
    """Append the run's row, which moves the cursor of a finished run, and clear up behind it."""
    run = context.run
    try:
        record_run(context.spark, context.commits, run)
    except LeaseLostError:
        if run.status in FINISHED:
            raise
        logger.warning("run %s is not recorded: its lease was lost", run.run_id)
    context.root.clear_staging(run.run_id)
    if run.status in FINISHED:
        context.journal.clear()


def _pin(context: RunContext) -> None:
    run, root = context.run, context.root
    run.documents_table_id = DOCUMENTS.table_id(root.path)
    run.documents_version = DOCUMENTS.version(root.path)
    run.memory_table_id = MEMORY.table_id(root.path)
    run.settings_fingerprint = fingerprint(
        context.prompts.fingerprint, context.settings.level_names
    )
    run.documents = row_count(DOCUMENTS.files(root.path, version=run.documents_version))


def _paths(context: RunContext) -> tuple[DataFrame, list[Row] | None]:
    """Return the nodes that something happened to, as a frame, and as rows where they are few."""
    run, limit = context.run, context.settings.budgets.small_run_nodes
    cursor = read_cursor(RUNS.files(context.root.path))
    oldest = DOCUMENTS.committed_at(context.root.path, cursor.version + 1 if cursor else 1)
    if oldest is not None:
        run.freshness_s = round(max(0.0, (run.started_at - oldest).total_seconds()), 3)
    every = "every node, as `index` does" if run.kind == "index" else ""
    with considered_paths(context, cursor, every=every) as (paths, why):
        few = few_paths(paths, limit=limit)
    logger.info("considered: %s", why)
    return paths, few


def _merge(context: RunContext, outcome: Outcome) -> None:
    run, spark = context.run, context.spark
    context.close_calls()
    with run.timed("merge"):
        run.nodes_written, run.nodes_removed = outcome.written_count, outcome.gone_count
        run.failed = outcome.failed_count
        if run.nodes_written or run.nodes_removed:
            written = outcome.written or local_rows(spark, [], WRITTEN)
            gone = outcome.gone or written.select("tenant_id", "node_id").limit(0)
            changes = memory_changes(written, gone, context.root)
            if outcome.is_all_new:
                context.commits.append(MEMORY, changes)  # nothing to match: cheaper than a MERGE
            else:
                context.commits.merge(MEMORY, changes, delete_when="s.is_removed")
            _record_failures(context, written, gone)


def _record_failures(context: RunContext, written: DataFrame, gone: DataFrame) -> None:
    """Bring `failures` up to date: what failed in this run, without what has now succeeded."""
    spark, root = context.spark, context.root
    node = ["tenant_id", "node_id"]
    failed = _failed(context)
    if failed is None and not FAILURES.files(root.path):
        return
    stored = FAILURES.read(spark, root.path)
    fresh = (spark.createDataFrame([], FAILED) if failed is None else failed).withColumn(
        "node_key", salted_key("node_id", root)
    )
    fresh = fresh.dropDuplicates([*node, "task"]).select(*FAILURES.columns)
    settled = written.select(*node).unionByName(gone.select(*node)).distinct()
    past = stored.join(settled, node, "left_semi").join(
        fresh.select(*node, "task"), [*node, "task"], "left_anti"
    )
    changes = fresh.withColumn("is_settled", F.lit(False)).unionByName(
        past.withColumn("is_settled", F.lit(True))
    )
    rows, count = context.stage(changes, "failures")
    if not count:
        return
    context.commits.merge(FAILURES, rows, delete_when="s.is_settled")


def _failed(context: RunContext) -> DataFrame | None:
    return read_failures(context.spark, context.journal, Path(context.staging("failed")))


def _main_reason(context: RunContext) -> str:
    """Return the most frequent reason of this run's failures, in words."""
    failed = _failed(context)
    if failed is None:
        return ""
    counted = failed.groupBy("reason").count().orderBy(F.desc("count"), "reason").first()
    return f" (mostly: {counted['reason']})" if counted else ""


def _publish(context: RunContext) -> None:
    run, limit = context.run, context.settings.budgets.max_failure_ratio
    total = context.memory.count() if run.failed else 0
    if total and run.failed / total > limit:
        raise TooManyFailuresError(
            f"{run.failed} of {total} nodes are not complete, more than "
            f"budgets.max_failure_ratio {limit}{_main_reason(context)}; shards stay as they were. "
            "See `hltm runs --failures`, then run again"
        )
    with run.timed("publish"):
        publishing = PublishContext(
            spark=context.spark,
            settings=context.settings,
            root=context.root,
            commits=context.commits,
            run_id=run.run_id,
            documents_version=run.documents_version,
        )
        run.tenants_published = publish(publishing, is_checking=run.kind == "index")
