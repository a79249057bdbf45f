"""The price of the next run: the run itself, with predicted answers in place of paid ones.

A plan walks the levels as a run does, and finds the same nodes, groups and requests; nothing is
written but staged rows, which are removed. Where the ledger has an answer, it is used, so what
depends on it is exact. An open request is counted and gets a predicted answer, of the size of the
node's stored memory where it has one, so that the levels above have an input of about the right
size. A predicted answer is never what is stored, so no node is cut off early: with stored
ancestors, a plan is an upper bound.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.prompts import OUTPUTS, TASKS
from hltm_spark.core.records import Child, NodeInput, QuestionAnswer, Views, fingerprint
from hltm_spark.core.tokens import estimate_tokens
from hltm_spark.models.answering import EXTRACTIVE, REPAIR
from hltm_spark.models.fan_in import item_tokens
from hltm_spark.models.prices import cost
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.answers import first_requests
from hltm_spark.pipeline.calls import OPEN_REQUEST
from hltm_spark.pipeline.changes import NODE, changed_paths, readable_feed
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.context import RunContext
from hltm_spark.pipeline.index import check_cursor
from hltm_spark.pipeline.levels import write_levels
from hltm_spark.pipeline.requests import (
    CHILD_FIELDS,
    IDENTITY,
    INPUTS,
    NODE_ID,
    PART,
    document_items,
    gather_inputs,
    map_rows,
)
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.runs import Run, read_cursor
from hltm_spark.pipeline.tables import (
    DOCUMENTS,
    INTEGER,
    LLM_CALLS,
    LONG,
    MEMORY,
    RUNS,
    TEXT,
    Table,
    struct,
)

MIN_HISTORY = 20
"""Answers on record from which the token estimate is scaled."""

_SAMPLE = 200  # stored nodes of a level that stand for all of it
_OVERESTIMATE = 1.35  # `estimate_tokens` over true tokens, of English prompts
_SIZE = struct({"level": TEXT, "depth": INTEGER, "tokens": INTEGER, "summary": INTEGER})
_TOKENS = struct({"estimated": LONG, "reported": LONG})


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

    @classmethod
    def empty(cls, settings: Settings, **fields: Any) -> Self:
        """Return a plan that takes nothing."""
        levels = tuple(LevelPlan(level=name) for name in settings.level_names)
        return cls(**{"levels": levels, **fields})

    def summary(self) -> dict[str, Any]:
        """Return what the command line prints as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Estimated tokens of a memory as its parent's prompt shows it, and of its summary alone."""

    tokens: int
    summary: int

    @classmethod
    def of(cls, memory: Mapping[str, Any], prompts: NodePrompts) -> Self:
        """Measure a row of `memory`."""
        child = Child.from_dict(memory)
        summary = estimate_tokens(child.views.summary)
        return cls(tokens=item_tokens(child, prompts), summary=summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is on record about answers of the conf's model.

    Attributes:
        completions: (answers, completion tokens) by (level, prompt id).
        sizes: Mean size of stored memories by level.
        quarter: A quarter of the longest answer: what is assumed without a record.
    """

    completions: Mapping[tuple[str, str], tuple[int, int]]
    sizes: Mapping[str, Size]
    quarter: int

    def completion_tokens(self, level: str, prompt_id: str) -> float:
        """Return the mean of one kind of answer: of this level, else of any."""
        same_level = self._mean(lambda key: key == (level, prompt_id))
        return same_level or self._mean(lambda key: key[1] == prompt_id) or float(self.quarter)

    def size(self, level: str, tasks: Iterable[str]) -> Size:
        """Return the size to expect of a memory that is not stored."""
        if level in self.sizes:
            return self.sizes[level]
        shown = [task for task in tasks if task != "one_sentence_summary"]
        tokens = sum(self._task_mean(level, task) for task in shown)
        tokens = tokens or sum(self._task_mean("", task) for task in shown) or self.quarter
        return Size(tokens=int(tokens), summary=int(tokens) // 2)

    def _task_mean(self, level: str, task: str) -> float:
        def is_wanted(key: tuple[str, str]) -> bool:
            return key[1].endswith(f"/{task}") and level in {"", key[0]}

        return self._mean(is_wanted)

    def _mean(self, is_wanted: Any) -> float:
        found = [numbers for key, numbers in self.completions.items() if is_wanted(key)]
        answers = sum(count for count, _ in found)
        return sum(tokens for _, tokens in found) / answers if answers else 0.0


@dataclass(kw_only=True)
class PlanContext(RunContext):
    """A run that writes nothing outside its staging folder.

    Attributes:
        is_full: The tree is taken as empty.
        versions: Of the tables at the start, by name; a table that is not there has none.
        latest: The frame that was staged last, by the first word of its name.
        marks: (depth, nodes touched, requests answered from the ledger) before each level.
    """

    is_full: bool
    versions: Mapping[str, int]
    latest: dict[str, DataFrame] = field(default_factory=dict)
    marks: list[tuple[int, int, int]] = field(default_factory=list)

    def stage(self, rows: DataFrame, name: str) -> tuple[DataFrame, int]:
        """Stage rows, and note where the run is."""
        kind, _, rest = name.partition("-")
        if kind == "inputs":
            self.marks.append((int(rest), self.run.nodes_touched, self.run.cached))
        staged = super().stage(rows, name)
        self.latest[kind] = staged[0]
        return staged

    @property
    def journal(self) -> Path:
        """A folder that stays empty."""
        return Path(self.staging("journal"))

    @property
    def stored(self) -> DataFrame:
        """The tree at the start."""
        return self.pinned(MEMORY)

    @property
    def memory(self) -> DataFrame:
        """The tree that the run starts from."""
        return self.stored.limit(0) if self.is_full else self.stored

    @property
    def paid(self) -> DataFrame:
        """The answers on record, those included that a dead run left in its journal."""
        ledger = self.pinned(LLM_CALLS)
        return ledger.unionByName(self.latest["left"]) if "left" in self.latest else ledger

    @property
    def ledger(self) -> DataFrame:
        """The answers on record, and those that were predicted so far."""
        return self.paid.unionByName(self.predicted) if self.has_predicted else self.paid

    @property
    def has_predicted(self) -> bool:
        """Tell whether any request was open so far."""
        return Path(self.staging("predicted")).exists()

    @property
    def predicted(self) -> DataFrame:
        """The predicted answers, as rows of the ledger."""
        return self.staged("predicted", LLM_CALLS.schema)

    def pinned(self, table: Table) -> DataFrame:
        """Return a table as it was at the start."""
        if table.name not in self.versions:
            return self.spark.createDataFrame([], table.schema)
        return table.read(self.spark, self.root.path, version=self.versions[table.name])


@dataclass(slots=True)
class _Predictions:
    """Stands where a run has `Commits`: open requests are answered here, and no model is asked."""

    history: History
    context: PlanContext | None = None

    def append(self, _table: Table, _calls: DataFrame) -> None:
        """Predict the answers to the requests that were staged last; the calls are never made."""
        context, history = cast("PlanContext", self.context), self.history
        prompts, run_id = context.prompts, context.run.run_id
        waiting = context.latest["open"]
        stored = context.stored.join(waiting.select(*NODE_ID).distinct(), NODE_ID, "left_semi")
        known = stored.select(*NODE_ID, F.struct(*CHILD_FIELDS).alias("stored"))
        rows = waiting.select(*OPEN_REQUEST.names).join(known, NODE_ID, "left")
        answers = map_rows(
            rows.repartition(context.slots),
            lambda given: predict_answers(given, prompts, history, run_id=run_id),
            LLM_CALLS.schema,
        )
        answers.write.mode("append").parquet(context.staging("predicted"))


def predict_answers(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts, history: History, *, run_id: str
) -> Iterator[dict[str, Any]]:
    """Yield a ledger row for each open request, with the estimated tokens of its prompt.

    A prompt beyond the budget has no row, as a run does not send it.

    Args:
        rows: `OPEN_REQUEST` columns, and `stored`: the node's memory, or None.
        prompts: To render the requests.
        history: Says how long answers are.
        run_id: The plan's id.
    """
    for row in rows:
        payload = json.loads(row["payload"])
        node = NodeInput.from_dict(payload)
        request = prompts.request(
            node, row["task"], summary=row["summary"], is_group=bool(payload.get("group"))
        )
        tokens = 0
        if prompts.model != EXTRACTIVE:
            tokens = estimate_tokens(request.system) + estimate_tokens(request.user)
        if tokens > prompts.max_input_tokens:
            continue
        is_stored = row["stored"] and row["stored"]["summary"]
        size = (
            Size.of(row["stored"], prompts)
            if is_stored
            else history.size(node.level, TASKS[prompts.layout])
        )
        yield {
            **{name: row[name] for name in ("tenant_id", "tenant_key", "request_hash", "node_id")},
            "repair_of": None,
            "level": node.level,
            "task": request.task,
            "model": prompts.model,
            "prompt_fingerprint": "",
            "is_usable": True,
            "finish_reason": "stop",
            "response": predicted_response(request.output, node, size, prompts),
            "prompt_tokens": tokens,
            "completion_tokens": 0,
            "latency_s": 0.0,
            "run_id": run_id,
        }


def predicted_response(output: str, node: NodeInput, size: Size, prompts: NodePrompts) -> str:
    """Return an answer that makes the node's memory as large as it is expected to be."""
    pair = QuestionAnswer(question="plan?", answer="")
    views = Views(question_answers=(pair,), summary="")
    frame = Child(node_id=node.node_id, latest_at=node.latest_at, views=views)
    room = size.tokens - item_tokens(frame, prompts)
    summary = max(1, min(size.summary, room - 1))
    fields = {
        "facets": {},
        "rationale": "",
        "question_answers": [{"question": pair.question, "answer": _filler(room - summary)}],
        "summary": _filler(summary),
        "one_sentence_summary": "plan",
    }
    return json.dumps({key: fields[key] for key in OUTPUTS[output]})


def _filler(tokens: int) -> str:
    return " ".join(["plan"] * max(1, tokens))


def plan_run(spark: SparkSession, settings: Settings, root: Root, *, is_full: bool) -> Plan:
    """Return what the next update will take, or a rebuild from an empty root.

    Args:
        spark: Session.
        settings: The conf.
        root: Storage root; another run may be at work on it.
        is_full: Plan a rebuild that starts without memory, but with the answers on record.

    Raises:
        DataError: The change feed cannot be read.
    """
    prompts = NodePrompts.load(settings)
    if not DOCUMENTS.exists(root.path):
        return Plan.empty(settings)
    run = Run.start("plan")
    tables = (DOCUMENTS, MEMORY, LLM_CALLS, RUNS)
    predictions = _Predictions(History(completions={}, sizes={}, quarter=1))
    context = PlanContext(
        spark=spark,
        settings=settings,
        root=root,
        run=run,
        prompts=prompts,
        commits=cast("Commits", predictions),
        is_full=is_full,
        versions={t.name: t.version(root.path) for t in tables if t.exists(root.path)},
    )
    predictions.context = context
    try:
        return _plan(context, predictions)
    finally:
        root.clear_staging(run.run_id)


def _plan(context: PlanContext, predictions: _Predictions) -> Plan:
    run, settings = context.run, context.settings
    run.documents_table_id = DOCUMENTS.table_id(context.spark, context.root.path)
    run.documents_version = context.versions[DOCUMENTS.name]
    run.settings_fingerprint = fingerprint(context.prompts.fingerprint, settings.level_names)
    run.documents = context.documents.count()
    stored_count = 0 if context.is_full else context.stored.count()
    paths, considered = _paths(context)
    facts: dict[str, Any] = {"considered": considered, "documents": run.documents}
    if paths is None:
        return Plan.empty(settings, unchanged=stored_count, **facts)
    _read_journals(context)
    predictions.history, deepest = _read_history(context)
    outcome = write_levels(context, paths)
    candidates = context.latest["candidates"]
    fresh_count = candidates.where("is_alive AND NOT is_stored").count()
    asked = _asked(context)
    scale, answer_count = _scale(context, deepest) if asked else (1.0, 0)
    levels = tuple(_level_plans(context, asked, scale))
    prompt_tokens = sum(level.prompt_tokens for level in levels)
    completion_tokens = _completion_tokens(context, asked, predictions.history)
    return Plan(
        nodes_touched=run.nodes_touched,
        calls=sum(level.calls for level in levels),
        cached=run.cached,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cost=cost(settings, prompt_tokens, completion_tokens),
        is_upper_bound=_is_upper_bound(context, candidates),
        unchanged=stored_count - (run.nodes_touched - fresh_count) - outcome.gone_count,
        removed=outcome.gone_count,
        levels=levels,
        history=answer_count,
        **facts,
    )


def _paths(context: PlanContext) -> tuple[DataFrame | None, str]:
    """Return the nodes that something happened to, None where there is none; and why these."""
    run = context.run
    documents, memory = context.documents.select(*NODE), context.memory.select(*NODE)
    cursor = read_cursor(context.pinned(RUNS))
    if context.is_full:
        paths, why = documents, "every node, as if nothing were stored"
    elif cursor is None:
        paths, why = documents.unionByName(memory), "every node, since no run has finished yet"
    elif cursor.settings_fingerprint != run.settings_fingerprint:
        paths = documents.unionByName(memory)
        why = "every node, since prompts, model or levels changed after the last run"
    else:
        check_cursor(cursor, run)
        why = f"what changed after version {cursor.version} of the documents"
        paths = context.memory.where("status != 'complete'").select(*NODE)
        if cursor.version < run.documents_version:
            window = {"start": cursor.version + 1, "end": run.documents_version}
            with readable_feed(**window):
                feed = changed_paths(context.spark, context.root, **window)
                staged, count = context.stage(feed.unionByName(paths).distinct(), "paths")
                return (staged if count else None), why
    staged, count = context.stage(paths.distinct(), "paths")
    return (staged if count else None), why


def _read_journals(context: PlanContext) -> None:
    """Stage the answers that a dead run paid for, which the next run brings into the ledger."""
    files = [str(f) for f in sorted(context.root.journal().rglob("*.jsonl")) if f.stat().st_size]
    if files:
        lines = context.spark.read.option("ignoreMissingFiles", "true").schema(LLM_CALLS.schema)
        whole = lines.json(files).where("request_hash IS NOT NULL AND run_id IS NOT NULL")
        context.stage(whole, "left")


def _read_history(context: PlanContext) -> tuple[History, int]:
    """Return what is on record, and the depth of the deepest stored nodes, -1 without any."""
    prompts, key = context.prompts, ["level", "task"]
    usable = context.paid.where("is_usable").where(
        (F.col("model") == prompts.model) & (F.col("task") != REPAIR)
    )
    sums = usable.groupBy(*key).agg(F.count("*").alias("n"), F.sum("completion_tokens").alias("t"))
    completions = {(row["level"], row["task"]): (row["n"], row["t"]) for row in sums.collect()}
    sizes: dict[str, Size] = {}
    deepest = -1
    for row in _mean_sizes(context).collect():
        sizes[row["level"]] = Size(tokens=int(row["tokens"]), summary=int(row["summary"]))
        deepest = max(deepest, row["depth"])
    quarter = context.settings.llm.max_output_tokens // 4
    return History(completions=completions, sizes=sizes, quarter=quarter), deepest


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
            yield {"level": row["level"], "depth": row["depth"], **asdict(Size.of(row, prompts))}

    means = [F.avg(name).alias(name) for name in ("tokens", "summary")]
    return map_rows(sample, sizes, _SIZE).groupBy("level", "depth").agg(*means)


Asked = Mapping[tuple[str, str], tuple[int, int]]
"""(calls, estimated prompt tokens) by (level, prompt id)."""


def _asked(context: PlanContext) -> Asked:
    if not context.has_predicted:
        return {}
    sums = context.predicted.groupBy("level", "task").agg(
        F.count("*").alias("n"), F.sum("prompt_tokens").alias("t")
    )
    return {(row["level"], row["task"]): (row["n"], row["t"]) for row in sums.collect()}


def _level_plans(context: PlanContext, asked: Asked, scale: float) -> Iterator[LevelPlan]:
    """Yield the levels from the tenant down: what a level took is what the next mark has more."""
    ends = [*context.marks[1:], (-1, context.run.nodes_touched, context.run.cached)]
    spans = zip(context.marks, ends, strict=True)
    for (depth, nodes, cached), (_, nodes_after, cached_after) in sorted(spans):
        name = context.settings.level_names[depth]
        found = [numbers for (level, _), numbers in asked.items() if level == name]
        yield LevelPlan(
            level=name,
            nodes=nodes_after - nodes,
            calls=sum(calls for calls, _ in found),
            cached=cached_after - cached,
            prompt_tokens=round(scale * sum(tokens for _, tokens in found)),
        )


def _completion_tokens(context: PlanContext, asked: Asked, history: History) -> int:
    if context.prompts.model == EXTRACTIVE:
        return 0
    means = {key: history.completion_tokens(*key) for key in asked}
    return round(sum(calls * means[key] for key, (calls, _) in asked.items()))


def _scale(context: PlanContext, depth: int) -> tuple[float, int]:
    """Return what to multiply estimated prompt tokens by, and the answers that say so, 0 if few.

    The ledger has reported tokens without the prompt; a stored node's prompt can be rendered again
    where its documents are the same as then.
    """
    if context.prompts.model == EXTRACTIVE:
        return 1.0, 0
    unknown = 1.0 / _OVERESTIMATE, 0
    if depth < 0 or depth >= len(context.settings.level_names):
        return unknown
    due = context.latest["sample"].where(F.col("depth") == depth)
    due = due.select(*IDENTITY, F.lit(None).cast("string").alias("stored_fingerprint"))
    level, prompts = context.settings.level_names[depth], context.prompts
    items = document_items(context.documents, due)
    folded, _ = context.stage(
        gather_inputs(items, prompts, level=level, slots=context.slots), "rendered"
    )
    inputs = folded.where("position IS NULL AND payload IS NOT NULL").select(*INPUTS.names)
    reported = context.paid.where("is_usable AND repair_of IS NULL AND prompt_tokens > 0").select(
        "tenant_id", "request_hash", F.col("prompt_tokens").alias("reported")
    )
    asked = first_requests(inputs).join(reported, ["tenant_id", "request_hash"])
    rows = asked.join(inputs.select(*PART, "payload"), PART).select("task", "payload", "reported")
    sums = (
        map_rows(rows, lambda given: estimated_tokens(given, prompts), _TOKENS)
        .agg(F.count("*").alias("n"), F.sum("estimated").alias("e"), F.sum("reported").alias("r"))
        .collect()[0]
    )
    return (sums["r"] / sums["e"], sums["n"]) if sums["n"] >= MIN_HISTORY else unknown


def estimated_tokens(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts
) -> Iterator[dict[str, Any]]:
    """Yield the estimated tokens of requests beside those that the provider reported."""
    for row in rows:
        request = prompts.request(NodeInput.from_dict(json.loads(row["payload"])), row["task"])
        estimated = estimate_tokens(request.system) + estimate_tokens(request.user)
        yield {"estimated": estimated, "reported": row["reported"]}


def _is_upper_bound(context: PlanContext, candidates: DataFrame) -> bool:
    """Tell whether a node that is up to now complete stands above one with a predicted answer."""
    if context.is_full or not context.has_predicted:
        return False
    asked = context.predicted.select(*NODE_ID).distinct()
    above = candidates.join(asked, NODE_ID, "left_semi").select(
        "tenant_id", F.col("parent_id").alias("node_id")
    )
    complete = candidates.where("stored_fingerprint IS NOT NULL")
    return not complete.join(above, NODE_ID, "left_semi").isEmpty()
