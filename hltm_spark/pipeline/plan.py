"""The price of the next run: the run itself, with predicted answers in place of paid ones.

A plan walks the levels as a run does, and finds the same nodes, groups and requests; nothing is
written but staged rows, which are removed. Where the ledger has an answer, it is used, so what
depends on it is exact. An open request is counted and gets a predicted answer, of the size of the
node's stored memory where it has one, so that the levels above have an input of about the right
size. A predicted answer is never what is stored, so no node is cut off early: with stored
ancestors, a plan is an upper bound.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.records import fingerprint
from hltm_spark.models.answering import EXTRACTIVE, REPAIR
from hltm_spark.models.budgets import Budget, Spent
from hltm_spark.models.prices import cost
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.budget import Meter
from hltm_spark.pipeline.changes import few_paths
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.considered import considered_paths
from hltm_spark.pipeline.context import Outcome
from hltm_spark.pipeline.files import read_rows
from hltm_spark.pipeline.items import CHILD_FIELDS, NODE_ID
from hltm_spark.pipeline.journal_fold import left_answers
from hltm_spark.pipeline.journal_place import left_journals
from hltm_spark.pipeline.journal_store import FolderStore
from hltm_spark.pipeline.levels import write_levels
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.plan_context import PlanContext, PlanRun, Predictions
from hltm_spark.pipeline.predict import History, PredictingClient, Size
from hltm_spark.pipeline.requests import IDENTITY
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.runs import read_cursor
from hltm_spark.pipeline.small import write_small
from hltm_spark.pipeline.tables import (
    DOCUMENTS,
    INTEGER,
    LLM_CALLS,
    MEMORY,
    RUNS,
    TEXT,
    struct,
)
from hltm_spark.pipeline.token_scale import Scale, read_scale

_SAMPLE = 200  # stored nodes of a level that stand for all of it
_SIZE = struct({"level": TEXT, "tokens": INTEGER, "summary": INTEGER})


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelPlan:
    """What a run will take on one level; fields as in `Plan`."""

    level: str
    nodes: int = 0
    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the next run will take.

    Attributes:
        nodes_touched: Nodes that will be written.
        calls: Requests without an answer on record, those of groups included; no repairs.
        cached: Requests that are answered from the ledger.
        cost: In the currency of the conf's prices.
        is_upper_bound: True where a node may turn out the same and stop the run below its
            ancestors.
        documents: Documents in the snapshot.
        unchanged: Stored nodes that stay as they are.
        removed: Stored nodes without any document left.
        levels: From the tenant down.
        considered: Which nodes were looked at, in words.
        history: Answers on record that token figures are scaled by; 0 where there are too few.
        beyond: Budgets of conf that the run would go beyond, such as `budgets.max_calls 10`.
    """

    nodes_touched: int = 0
    calls: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    is_upper_bound: bool = False
    documents: int = 0
    unchanged: int = 0
    removed: int = 0
    levels: tuple[LevelPlan, ...] = ()
    considered: str = "no documents"
    history: int = 0
    beyond: tuple[str, ...] = ()

    @classmethod
    def empty(cls, settings: Settings, **fields: Any) -> Self:
        """Return a plan that takes nothing."""
        levels = tuple(LevelPlan(level=name) for name in settings.level_names)
        return cls(**{"levels": levels, **fields})

    def summary(self) -> dict[str, Any]:
        """Return what the command line prints as JSON."""
        return asdict(self)


def plan_run(spark: SparkSession, settings: Settings, root: Root, *, is_full: bool) -> Plan:
    """Return what the next update will take, or a rebuild from an empty root.

    Args:
        spark: Session.
        settings: The conf.
        root: Storage root; another run may be at work on it.
        is_full: Plan a rebuild that starts without memory, but with the answers on record.

    Raises:
        DataError: The change feed cannot be read.
        SettingsError: A cost is limited without a price.
        EnvironmentProblem: The journal cannot be reached.
    """
    Budget.of(settings)
    prompts = NodePrompts.load(settings)
    if not DOCUMENTS.exists(root.path):
        return Plan.empty(settings)
    run = PlanRun.start("plan")
    tables = (DOCUMENTS, MEMORY, LLM_CALLS, RUNS)
    predictions = Predictions()
    context = PlanContext(
        spark=spark,
        settings=settings,
        root=root,
        run=run,
        prompts=prompts,
        commits=cast("Commits", predictions),
        meter=Meter(journal=FolderStore(root.staging(run.run_id) / "journal")),
        is_full=is_full,
        versions={t.name: t.version(root.path) for t in tables if t.exists(root.path)},
        client=PredictingClient(prompts=prompts, history=History.empty(settings)),
    )
    predictions.context = context
    try:
        return _plan(context)
    finally:
        root.clear_staging(run.run_id)


def _plan(context: PlanContext) -> Plan:
    run, settings = context.run, context.settings
    run.documents_table_id = DOCUMENTS.table_id(context.root.path)
    run.documents_version = context.versions[DOCUMENTS.name]
    if MEMORY.name in context.versions:
        run.memory_table_id = MEMORY.table_id(context.root.path)
    run.settings_fingerprint = fingerprint(context.prompts.fingerprint, settings.level_names)
    run.documents = context.documents.count()
    stored_count = context.stored.count()
    before_count = 0 if context.is_full else stored_count
    paths, considered = _paths(context)
    facts: dict[str, Any] = {"considered": considered, "documents": run.documents}
    if paths is None:
        return Plan.empty(settings, unchanged=before_count, **facts)
    _read_journals(context)
    history = _read_history(context, has_stored=stored_count > 0)
    context.client = replace(context.client, history=history)
    outcome = _write(context, paths, is_as_stored=before_count == stored_count)
    asked = _asked(context)
    scale = read_scale(context) if asked else Scale(by_prompt={})
    levels = tuple(_level_plans(context, asked, scale))
    prompt_tokens = sum(level.prompt_tokens for level in levels)
    completion_tokens = _completion_tokens(context, asked)
    kept_count, is_upper_bound = _kept(context, outcome)
    calls = sum(level.calls for level in levels)
    return Plan(
        nodes_touched=run.nodes_touched,
        calls=calls,
        cached=run.cached,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cost=cost(settings, prompt_tokens, completion_tokens),
        is_upper_bound=is_upper_bound,
        unchanged=before_count - kept_count - outcome.gone_count,
        removed=outcome.gone_count,
        levels=levels,
        history=scale.history,
        beyond=Budget.of(settings).exceeded(Spent(calls, prompt_tokens, completion_tokens)),
        **facts,
    )


def _write(context: PlanContext, paths: DataFrame, *, is_as_stored: bool) -> Outcome:
    """Write the nodes as a run does: in this process where they are few and the tables are all."""
    is_whole = {MEMORY.name, LLM_CALLS.name} <= context.versions.keys()
    if is_as_stored and is_whole and "left" not in context.latest:
        few = few_paths(paths, limit=context.settings.budgets.small_run_nodes)
        if few is not None:
            context.client = replace(context.client, sizes=_stored_sizes(context, few))
            outcome = write_small(context, few)
            if outcome is not None:
                return outcome
    return write_levels(context, paths)


def _stored_sizes(context: PlanContext, paths: Iterable[Row]) -> dict[tuple[str, str], Size]:
    """Return the sizes of the stored memories on a few paths."""
    ids = {row["node_id"].rsplit("/", n)[0] for row in paths for n in range(len(row["keys"]))}
    files = context.pinned_files(MEMORY)
    columns = list(dict.fromkeys([*NODE_ID, *CHILD_FIELDS]))
    found = {}
    for row in read_rows(files, columns, where={"node_id": ids}):
        size = Size.of_stored(row, context.prompts)
        if size is not None:
            found[row["tenant_id"], row["node_id"]] = size
    return found


def _paths(context: PlanContext) -> tuple[DataFrame | None, str]:
    """Return the nodes that something happened to, None where there is none; and why these."""
    every = "every node, as if nothing were stored" if context.is_full else ""
    cursor = read_cursor(context.pinned_files(RUNS))
    with considered_paths(context, cursor, every=every) as (paths, why):
        staged, count = context.stage(paths, "paths")
    return (staged if count else None), why


def _read_journals(context: PlanContext) -> None:
    """Stage the answers that a dead run paid for, which the next run brings into the ledger."""
    places = left_journals(context.settings, context.root)
    files = left_answers(places, Path(context.staging("journal-copies")))
    if files:
        lines = context.spark.read.option("ignoreMissingFiles", "true").schema(LLM_CALLS.schema)
        whole = lines.json(files).where("request_hash IS NOT NULL AND run_id IS NOT NULL")
        context.stage(whole, "left")


def _read_history(context: PlanContext, *, has_stored: bool) -> History:
    """Return what is on record about answers of this model, and about stored memories."""
    model = context.prompts.model
    usable = context.paid.where("is_usable").where(
        (F.col("model") == model) & (F.col("task") != REPAIR)
    )
    sums = usable.groupBy("level", "task").agg(
        F.count("*").alias("n"), F.sum("completion_tokens").alias("t")
    )
    means = _mean_sizes(context).collect() if has_stored else []
    return replace(
        History.empty(context.settings),
        completions={(row["level"], row["task"]): (row["n"], row["t"]) for row in sums.collect()},
        sizes={
            row["level"]: Size(tokens=int(row["tokens"]), summary=int(row["summary"]))
            for row in means
        },
    )


def _mean_sizes(context: PlanContext) -> DataFrame:
    """Stage a sample of the stored nodes, and return one row per level with their mean size."""
    prompts, complete = context.prompts, context.stored.where("status = 'complete'")
    # the salted hash is as good as a throw of dice
    rank = F.row_number().over(Window.partitionBy("level").orderBy("node_key"))
    chosen = complete.select("level", "node_key", *NODE_ID, rank.alias("rank"))
    chosen = chosen.where(F.col("rank") <= _SAMPLE).select(*NODE_ID)
    columns = dict.fromkeys([*IDENTITY, "level", *CHILD_FIELDS])
    sample, _ = context.stage(
        complete.join(chosen, NODE_ID, "left_semi").select(*columns), "sample"
    )

    def sizes(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            yield {"level": row["level"], **asdict(Size.of(row, prompts))}

    means = [F.avg(name).alias(name) for name in ("tokens", "summary")]
    return map_rows(sample, sizes, _SIZE).groupBy("level").agg(*means)


Asked = Mapping[tuple[str, str], tuple[int, int]]
"""(calls, estimated prompt tokens) by (level, prompt id)."""


def _asked(context: PlanContext) -> Asked:
    if not context.has_predicted:
        return {}
    sums = context.predicted.groupBy("level", "task").agg(
        F.count("*").alias("n"), F.sum("prompt_tokens").alias("t")
    )
    return {(row["level"], row["task"]): (row["n"], row["t"]) for row in sums.collect()}


def _level_plans(context: PlanContext, asked: Asked, scale: Scale) -> Iterator[LevelPlan]:
    """Yield the levels from the tenant down."""
    counts = cast("PlanRun", context.run).levels
    for name in context.settings.level_names:
        found = {key: numbers for key, numbers in asked.items() if key[0] == name}
        nodes, cached = counts.get(name, (0, 0))
        yield LevelPlan(
            level=name,
            nodes=nodes,
            calls=sum(calls for calls, _ in found.values()),
            cached=cached,
            prompt_tokens=round(sum(scale.factor(*k) * tokens for k, (_, tokens) in found.items())),
        )


def _completion_tokens(context: PlanContext, asked: Asked) -> int:
    if context.prompts.model == EXTRACTIVE:
        return 0
    mean = context.client.history.completion_tokens
    return round(sum(calls * mean(*key) for key, (calls, _) in asked.items()))


def _kept(context: PlanContext, outcome: Outcome) -> tuple[int, bool]:
    """Return how many written nodes are stored, and whether the plan is an upper bound.

    It is where a node that is complete now stands above one with a predicted answer: that answer
    may turn out to be what is stored.
    """
    if context.is_full or outcome.written is None:
        return 0, False
    written = outcome.written.select(*NODE_ID, "parent_id")
    stored = context.stored.join(written.select(*NODE_ID), NODE_ID, "left_semi")
    stored = stored.select(*NODE_ID, "status")
    if not context.has_predicted:
        return stored.count(), False
    asked = context.predicted.select(*NODE_ID).distinct()
    above = written.join(asked, NODE_ID, "left_semi").select(
        "tenant_id", F.col("parent_id").alias("node_id"), F.lit(True).alias("is_above")
    )
    rows = stored.join(above.distinct(), NODE_ID, "left").agg(
        F.count("*").alias("n"),
        F.count(F.expr("CASE WHEN is_above AND status = 'complete' THEN 1 END")).alias("above"),
    )
    found = rows.collect()[0]
    return found["n"], found["above"] > 0
