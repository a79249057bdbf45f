"""The order of one run: changed nodes, level by level to the root, one MERGE, then shards.

The loop over levels, from the deepest up to the tenant:
  1. gather the inputs of the candidates, and drop those whose memory was written from the same;
  2. look their requests up in the ledger, and call the model for the open ones;
  3. append the paid answers to the ledger;
  4. assemble the nodes from answers on record, and stage them durably;
  5. their staged memories are what the next level up is written from.
"""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import DataError, HltmError, LlmStopError
from hltm_spark.core.records import fingerprint
from hltm_spark.models.prices import cost
from hltm_spark.models.providers import make_llm
from hltm_spark.models.requests import WAVES, NodePrompts
from hltm_spark.pipeline.calls import (
    FAILED,
    CallSettings,
    call_model,
    find_answers,
    fold_journals,
    journalled_count,
    open_requests,
    read_failures,
    read_spent,
)
from hltm_spark.pipeline.changes import (
    NODE,
    changed_paths,
    mark_candidates,
    salted_key,
    unreadable_feed,
)
from hltm_spark.pipeline.memory import (
    WRITTEN,
    assemble,
    first_requests,
    keep_previous,
    merge_memory,
    second_requests,
)
from hltm_spark.pipeline.progress import counting
from hltm_spark.pipeline.publish import publish, task_slots
from hltm_spark.pipeline.requests import child_items, document_items, gather_inputs
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.runs import FINISHED, Cursor, Run, read_cursor, record_run
from hltm_spark.pipeline.tables import (
    DOCUMENTS,
    FAILURES,
    LLM_CALLS,
    MEMORY,
    RUNS,
    create_tables,
    row_count,
)

logger = logging.getLogger("hltm_spark")


@dataclass(slots=True)
class RunContext:
    """What every step of one run shares."""

    spark: SparkSession
    settings: Settings
    root: Root
    run: Run
    prompts: NodePrompts

    def stage(self, rows: DataFrame, name: str) -> tuple[DataFrame, int]:
        """Write rows once to the run's staging folder; return them read back, and a count."""
        path = str(self.root.staging(self.run.run_id) / name)
        schema = rows.schema
        rows.write.parquet(path)
        return self.spark.read.schema(schema).parquet(path), row_count(path)

    @property
    def journal(self) -> Path:
        """Folder of this run's journal."""
        return self.root.journal() / self.run.run_id

    @property
    def documents(self) -> DataFrame:
        """The pinned snapshot."""
        return DOCUMENTS.read(self.spark, self.root.path, version=self.run.documents_version)

    @property
    def memory(self) -> DataFrame:
        """The tree before this run."""
        return MEMORY.read(self.spark, self.root.path)


def run_pipeline(
    spark: SparkSession,
    settings: Settings,
    root: Root,
    *,
    kind: str,
    is_publishing: bool = True,
) -> Run:
    """Bring the memory tree up to the latest documents, and publish what changed.

    Args:
        spark: Session.
        settings: The conf.
        root: Storage root.
        kind: `index` considers every node, `update` those that the change feed names.
        is_publishing: Write shards at the end.

    Returns:
        The run as recorded in `runs`.
    """
    run = Run.start(kind)
    prompts = NodePrompts.load(settings)
    make_llm(settings).close()
    create_tables(spark, root.path)
    context = RunContext(spark, settings, root, run, prompts)
    try:
        with run.timed("prepare"):
            fold_journals(spark, root)
        _pin(context)
        candidates = _find_candidates(context)
        _write_levels(context, candidates)
        if is_publishing:
            _publish(context)
        run.finish("partial" if run.failed else "done")
    except HltmError as error:
        run.finish("stopped" if isinstance(error, LlmStopError) else "failed", str(error))
        raise
    except BaseException as error:
        run.finish("failed", type(error).__name__)
        raise
    finally:
        record_run(spark, root, run)
        root.clear_staging(run.run_id)
        if run.status in FINISHED:
            shutil.rmtree(context.journal, ignore_errors=True)
    return run


def publish_only(spark: SparkSession, settings: Settings, root: Root) -> Run:
    """Publish every tenant whose shard is behind its memory, without looking for changes."""
    run = Run.start("publish")
    create_tables(spark, root.path)
    try:
        with run.timed("publish"):
            run.tenants_published = publish(spark, settings, root, run_id=run.run_id)
        run.documents_version = DOCUMENTS.version(spark, root.path)
        run.finish("done")
    finally:
        root.clear_staging(run.run_id)
    record_run(spark, root, run)
    return run


def _pin(context: RunContext) -> None:
    run, root, spark = context.run, context.root, context.spark
    run.documents_table_id = DOCUMENTS.table_id(spark, root.path)
    run.documents_version = DOCUMENTS.version(spark, root.path)
    run.settings_fingerprint = fingerprint(
        context.prompts.fingerprint, context.settings.level_names
    )
    run.documents = context.documents.count()


def _find_candidates(context: RunContext) -> DataFrame:
    """Return the staged candidates of the run."""
    run = context.run
    with context.run.timed("changes"):
        cursor = read_cursor(RUNS.read(context.spark, context.root.path))
        paths = _paths(context, cursor)
        marked = mark_candidates(paths, context.documents, context.memory)
        try:
            return context.stage(marked, "candidates")[0]
        except PySparkException as error:
            if run.kind == "update" and cursor is not None:
                raise unreadable_feed(
                    error, start=cursor.version + 1, end=run.documents_version
                ) from error
            raise


def _paths(context: RunContext, cursor: Cursor | None) -> DataFrame:
    run = context.run
    every = context.documents.select(*NODE).unionByName(context.memory.select(*NODE)).distinct()
    if run.kind == "index" or cursor is None:
        return every
    if cursor.table_id != run.documents_table_id or cursor.version > run.documents_version:
        raise DataError(
            "the documents table was made anew since the last run, so its change feed does not "
            "continue; run `hltm index`, which compares every node and loses nothing"
        )
    if cursor.settings_fingerprint != run.settings_fingerprint:
        logger.info("prompts, model or levels changed since the last run: every node is considered")
        return every
    unfinished = context.memory.where("status != 'complete'").select(*NODE)
    if cursor.version == run.documents_version:
        return unfinished
    feed = changed_paths(
        context.spark, context.root, start=cursor.version + 1, end=run.documents_version
    )
    return feed.unionByName(unfinished).distinct()


def _write_levels(context: RunContext, candidates: DataFrame) -> None:
    run = context.run
    gone = candidates.where("NOT is_alive AND is_stored")
    written: DataFrame | None = None
    for depth in reversed(range(len(context.settings.levels))):
        at_depth = _write_level(context, candidates, written, depth=depth)
        if at_depth is not None:
            written = at_depth if written is None else written.unionByName(at_depth)
    _close_calls(context)
    with run.timed("merge"):
        run.nodes_removed = gone.count()
        run.nodes_written = run.nodes_touched
        if run.nodes_written or run.nodes_removed:
            rows = context.spark.createDataFrame([], WRITTEN) if written is None else written
            merge_memory(rows, gone, context.root)
            _record_failures(context, rows, gone)
        run.failed = context.memory.where("status != 'complete'").count()


def _write_level(
    context: RunContext, candidates: DataFrame, written: DataFrame | None, *, depth: int
) -> DataFrame | None:
    """Write the candidates of one level; return its staged rows, or None if nothing changed."""
    run, level = context.run, context.settings.level_names[depth]
    with run.timed("gather"):
        due = candidates.where((F.col("depth") == depth) & F.col("is_alive"))
        due = due.drop("is_alive", "is_stored")
        items = document_items(context.documents, due)
        if depth + 1 < len(context.settings.levels):
            children = _children(context, candidates, written, depth=depth + 1)
            items = items.unionByName(child_items(children, due))
        gathered = gather_inputs(
            items, context.prompts, level=level, slots=task_slots(context.spark)
        )
        inputs, touched = context.stage(gathered, f"inputs-{depth}")
    run.nodes_touched += touched
    logger.info("level %s: %d nodes to write", level, touched)
    if not touched:
        return None
    with run.timed("calls"):
        answered = _answer(context, inputs, nodes=touched, depth=depth)
    with run.timed("assemble"):
        nodes = assemble(inputs, answered, context.prompts, run_id=run.run_id)
        rows, _ = context.stage(nodes, f"written-{depth}")
        if read_failures(context.spark, context.journal) is None:
            return rows
        return context.stage(keep_previous(rows, context.memory), f"kept-{depth}")[0]


def _children(
    context: RunContext, candidates: DataFrame, written: DataFrame | None, *, depth: int
) -> DataFrame:
    """Return the level's memories as they will be: the stored ones with this run's over them."""
    key = ["tenant_id", "node_id"]
    stored = context.memory.where(F.col("depth") == depth)
    columns = [name for name in WRITTEN.names if name != "failed_tasks"]
    replaced = candidates.where((F.col("depth") == depth) & ~F.col("is_alive")).select(*key)
    if written is None:
        return stored.join(replaced, key, "left_anti").select(*columns)
    fresh = written.where(F.col("depth") == depth)
    replaced = replaced.unionByName(fresh.select(*key))
    kept = stored.join(replaced, key, "left_anti").select(*columns)
    return kept.unionByName(fresh.select(*columns))


def _answer(context: RunContext, inputs: DataFrame, *, nodes: int, depth: int) -> DataFrame:
    """Return tenant_id, node_id, task, response for every request that has an answer now."""
    waves = WAVES[context.prompts.layout]
    first = first_requests(inputs)
    answered = _answer_wave(
        context, inputs, first, count=nodes * len(waves[0]), name=f"open-{depth}-0"
    )
    if len(waves) == 1:
        return answered
    second, count = context.stage(
        second_requests(inputs, answered, context.prompts), f"requests-{depth}-1"
    )
    later = _answer_wave(context, inputs, second, count=count, name=f"open-{depth}-1")
    return answered.unionByName(later)


def _answer_wave(
    context: RunContext, inputs: DataFrame, requests: DataFrame, *, count: int, name: str
) -> DataFrame:
    """Answer what the ledger cannot, and return all answers of these requests from the ledger."""
    run, root, spark = context.run, context.root, context.spark
    key = ["tenant_id", "node_id"]
    payloads = inputs.select(*key, "level", "payload").withColumn(
        "tenant_key", salted_key("tenant_id", root)
    )
    ledger = LLM_CALLS.read(spark, root.path)
    waiting, open_count = context.stage(open_requests(requests.join(payloads, key), ledger), name)
    run.cached += max(0, count - open_count)
    if open_count:
        _call(context, waiting, count=open_count)
        ledger = LLM_CALLS.read(spark, root.path)
    return find_answers(requests, ledger).select("tenant_id", "node_id", "task", "response")


def _call(context: RunContext, waiting: DataFrame, *, count: int) -> None:
    """Call the model for the open requests; the answers are in the ledger when this returns."""
    settings, journal = context.settings, context.journal
    slots = min(task_slots(context.spark), count)
    call = CallSettings(
        settings=settings,
        prompts=context.prompts,
        journal=str(journal),
        window=max(1, settings.llm.max_concurrency // slots),
        run_id=context.run.run_id,
        make_client=make_llm,
    )
    before = journalled_count(journal)
    with counting("calls", total=count, count=lambda: journalled_count(journal) - before):
        LLM_CALLS.append(call_model(waiting, call, slots=slots), context.root.path)
    stop = journal / "STOP"
    if stop.exists():
        message = stop.read_text(encoding="utf-8")
        _close_calls(context)
        shutil.rmtree(journal)
        raise LlmStopError(message)


def _close_calls(context: RunContext) -> None:
    """Count what was paid, and remove the journal: its answers are in the ledger."""
    run, spent = context.run, read_spent(context.journal)
    run.calls, run.prompt_tokens = spent.calls, spent.prompt_tokens
    run.completion_tokens = spent.completion_tokens
    run.cost = cost(context.settings, spent.prompt_tokens, spent.completion_tokens)
    for file in context.journal.glob("*.jsonl"):
        file.unlink()


def _record_failures(context: RunContext, written: DataFrame, gone: DataFrame) -> None:
    """Bring `failures` up to date: what failed in this run, without what has now succeeded."""
    spark, root = context.spark, context.root
    node = ["tenant_id", "node_id"]
    stored = FAILURES.read(spark, root.path)
    failed = read_failures(spark, context.journal)
    if failed is None and stored.isEmpty():
        return
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
    FAILURES.merge(rows, root.path, delete_when="s.is_settled")


def _publish(context: RunContext) -> None:
    run, limit = context.run, context.settings.budgets.max_failure_ratio
    total = context.memory.count()
    if total and run.failed / total > limit:
        raise DataError(
            f"{run.failed} of {total} nodes are not complete, more than "
            f"budgets.max_failure_ratio {limit}; shards stay as they were. "
            "See `hltm runs --failures`, then run again"
        )
    with run.timed("publish"):
        run.tenants_published = publish(
            context.spark, context.settings, context.root, run_id=run.run_id
        )
