"""The price of the next run: the run itself, with predicted answers in place of paid ones.

A plan walks the levels as a run does, and finds the same nodes, groups and requests; nothing is
written but staged rows, which are removed. Where the ledger has an answer, it is used, so what
depends on it is exact. An open request is counted and gets a predicted answer, of the size of the
node's stored memory where it has one, so that the levels above have an input of about the right
size. A predicted answer is never what is stored, so no node is cut off early: with stored
ancestors, a plan is an upper bound.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Self, cast

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.prompts import OUTPUTS, TASKS
from hltm_spark.core.records import Child, NodeInput, QuestionAnswer, Views, fingerprint
from hltm_spark.core.tokens import estimate_tokens
from hltm_spark.models.answering import EXTRACTIVE, REPAIR
from hltm_spark.models.fan_in import item_tokens
from hltm_spark.models.llm import Completion, Request
from hltm_spark.models.prices import cost
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.answers import first_requests
from hltm_spark.pipeline.calls import OPEN_REQUEST, CallSettings
from hltm_spark.pipeline.changes import NODE, changed_paths, few_paths, readable_feed
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.context import Outcome, RunContext
from hltm_spark.pipeline.files import read_rows
from hltm_spark.pipeline.index import check_cursor
from hltm_spark.pipeline.items import CHILD_FIELDS, NODE_ID, child_items, document_items
from hltm_spark.pipeline.levels import write_levels
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.requests import FOLDED, IDENTITY, INPUTS, PART, fold_items
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.runs import Run, read_cursor
from hltm_spark.pipeline.small import write_small
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
_SIZE = struct({"level": TEXT, "tokens": INTEGER, "summary": INTEGER})
_TOKENS = struct({"level": TEXT, "task": TEXT, "estimated": LONG, "reported": LONG})


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

    @classmethod
    def of_stored(cls, memory: Mapping[str, Any], prompts: NodePrompts) -> Self | None:
        """Measure a row of `memory`; None where the node was never written."""
        return cls.of(memory, prompts) if memory["summary"] else None


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

    @classmethod
    def empty(cls, settings: Settings) -> Self:
        """Return the history of a model that was never asked."""
        return cls(completions={}, sizes={}, quarter=settings.llm.max_output_tokens // 4)

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

    def _mean(self, is_wanted: Callable[[tuple[str, str]], bool]) -> float:
        found = [numbers for key, numbers in self.completions.items() if is_wanted(key)]
        answers = sum(count for count, _ in found)
        return sum(tokens for _, tokens in found) / answers if answers else 0.0


@dataclass(kw_only=True)
class PlanRun(Run):
    """A run that notes (nodes touched, answers from the ledger) at the end of each level."""

    marks: list[tuple[int, int]] = field(default_factory=list)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Note how far the counts are before the nodes of a level are put together."""
        if stage == "assemble":
            self.marks.append((self.nodes_touched, self.cached))
        with super().timed(stage):
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictingClient:
    """Stands where a run has a model: it answers with text of the size to expect.

    Attributes:
        sizes: Of stored memories by (tenant_id, node_id).
    """

    prompts: NodePrompts
    history: History
    sizes: Mapping[tuple[str, str], Size] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The model that a run would ask."""
        return self.prompts.model

    def complete(self, request: Request) -> Completion:
        """Return a predicted answer, with the estimated tokens of the prompt."""
        node = NodeInput.from_dict(request.payload)
        return self.predict(request, node, self.sizes.get((node.tenant_id, node.node_id)))

    def close(self) -> None:
        """Do nothing."""

    def predict(self, request: Request, node: NodeInput, size: Size | None) -> Completion:
        """Return an answer that makes the node's memory as large as its stored one."""
        expected = size or self.history.size(node.level, TASKS[self.prompts.layout])
        is_free = self.model == EXTRACTIVE
        return Completion(
            text=predicted_response(request.output, node, expected, self.prompts),
            finish_reason="stop",
            prompt_tokens=0 if is_free else _prompt_tokens(request),
            completion_tokens=0,
            latency_s=0.0,
        )


@dataclass(kw_only=True)
class PlanContext(RunContext):
    """A run that writes nothing outside its staging folder.

    Attributes:
        is_full: The tree is taken as empty.
        versions: Of the tables at the start, by name; a table that is not there has none.
        latest: The frame that was staged last, by the first word of its name.
        client: Predicts answers.
    """

    is_full: bool
    versions: Mapping[str, int]
    client: PredictingClient
    latest: dict[str, DataFrame] = field(default_factory=dict)

    def stage(self, rows: DataFrame, name: str) -> tuple[DataFrame, int]:
        """Stage rows, and keep the frame at hand."""
        staged = super().stage(rows, name)
        self.latest[name.partition("-")[0]] = staged[0]
        return staged

    def call_settings(self, *, slots: int) -> CallSettings:
        """Return settings with which no model is called."""
        client = self.client
        return replace(super().call_settings(slots=slots), make_client=lambda _: client)

    @property
    def journal(self) -> Path:
        """A folder that goes with the staging folder."""
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
    """Stands where a run has `Commits`: what goes to the ledger goes to the staging folder."""

    context: PlanContext | None = None

    def append(self, _table: Table, answers: DataFrame) -> None:
        """Keep predicted answers: those of a small run as they are.

        Those of a run by Spark are predicted here, to the requests that were staged last: the
        calls, which are never made, have no stored memory to go by.
        """
        context = cast("PlanContext", self.context)
        if "open" in context.latest:
            answers = _predicted(context, context.latest["open"])
        answers.write.mode("append").parquet(context.staging("predicted"))


def _predicted(context: PlanContext, waiting: DataFrame) -> DataFrame:
    """Return ledger rows for open requests, from the size of the node's stored memory."""
    client, run_id = context.client, context.run.run_id
    stored = context.stored.join(waiting.select(*NODE_ID).distinct(), NODE_ID, "left_semi")
    known = stored.select(*NODE_ID, F.struct(*CHILD_FIELDS).alias("stored"))
    rows = waiting.select(*OPEN_REQUEST.names).join(known, NODE_ID, "left")
    spread = rows.repartition(context.slots)
    return map_rows(
        spread, lambda given: predict_answers(given, client, run_id=run_id), LLM_CALLS.schema
    )


def predict_answers(
    rows: Iterable[Mapping[str, Any]], client: PredictingClient, *, run_id: str
) -> Iterator[dict[str, Any]]:
    """Yield a ledger row for each open request.

    A prompt beyond the budget has no row, as a run does not send it.

    Args:
        rows: `OPEN_REQUEST` columns, and `stored`: the node's memory, or None.
        client: Predicts the answers.
        run_id: The plan's id.
    """
    prompts = client.prompts
    for row in rows:
        payload = json.loads(row["payload"])
        node = NodeInput.from_dict(payload)
        request = prompts.request(
            node, row["task"], summary=row["summary"], is_group=bool(payload.get("group"))
        )
        size = Size.of_stored(row["stored"], prompts) if row["stored"] else None
        answer = client.predict(request, node, size)
        if answer.prompt_tokens > prompts.max_input_tokens:
            continue
        yield {
            **dict.fromkeys(LLM_CALLS.columns),
            **{name: row[name] for name in ("tenant_id", "tenant_key", "request_hash", "node_id")},
            "level": node.level,
            "task": request.task,
            "model": prompts.model,
            "is_usable": True,
            "response": answer.text,
            "prompt_tokens": answer.prompt_tokens,
            "run_id": run_id,
        }


def _prompt_tokens(request: Request) -> int:
    return estimate_tokens(request.system) + estimate_tokens(request.user)


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
    run = PlanRun.start("plan")
    tables = (DOCUMENTS, MEMORY, LLM_CALLS, RUNS)
    predictions = _Predictions()
    context = PlanContext(
        spark=spark,
        settings=settings,
        root=root,
        run=run,
        prompts=prompts,
        commits=cast("Commits", predictions),
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
    run.documents_table_id = DOCUMENTS.table_id(context.spark, context.root.path)
    run.documents_version = context.versions[DOCUMENTS.name]
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
    scale = _scale(context) if asked else Scale(by_prompt={})
    levels = tuple(_level_plans(context, outcome, asked, scale))
    prompt_tokens = sum(level.prompt_tokens for level in levels)
    completion_tokens = _completion_tokens(context, asked)
    kept_count, is_upper_bound = _kept(context, outcome)
    return Plan(
        nodes_touched=run.nodes_touched,
        calls=sum(level.calls for level in levels),
        cached=run.cached,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cost=cost(settings, prompt_tokens, completion_tokens),
        is_upper_bound=is_upper_bound,
        unchanged=before_count - kept_count - outcome.gone_count,
        removed=outcome.gone_count,
        levels=levels,
        history=scale.history,
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
    version = context.versions[MEMORY.name]
    files = MEMORY.files(context.spark, context.root.path, version=version)
    columns = list(dict.fromkeys([*NODE_ID, *CHILD_FIELDS]))
    found = {}
    for row in read_rows(files, columns, where={"node_id": ids}):
        size = Size.of_stored(row, context.prompts)
        if size is not None:
            found[row["tenant_id"], row["node_id"]] = size
    return found


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How reported tokens compare with estimated ones.

    Attributes:
        by_prompt: (answers, estimated, reported) by (level, prompt id).
    """

    by_prompt: Mapping[tuple[str, str], tuple[int, int, int]]

    @property
    def history(self) -> int:
        """The answers that count, 0 where they are too few."""
        count = sum(answers for answers, _, _ in self.by_prompt.values())
        return count if count >= MIN_HISTORY else 0

    def factor(self, level: str, prompt_id: str) -> float:
        """Return what to multiply an estimate by: from this level, or else from any prompt."""
        if not self.history:
            return 1.0 / _OVERESTIMATE
        same = [numbers for key, numbers in self.by_prompt.items() if key[1] == prompt_id]
        level_and_prompt = self.by_prompt.get((level, prompt_id))
        chosen = [level_and_prompt] if level_and_prompt else same or self.by_prompt.values()
        return sum(reported for _, _, reported in chosen) / sum(e for _, e, _ in chosen)


def _level_plans(
    context: PlanContext, outcome: Outcome, asked: Asked, scale: Scale
) -> Iterator[LevelPlan]:
    """Yield the levels from the tenant down; the run's marks are those of levels with nodes."""
    counts: dict[int, int] = {}
    if outcome.written is not None:
        rows = outcome.written.groupBy("depth").count().collect()
        counts = {row["depth"]: row["count"] for row in rows}
    marks = dict(zip(sorted(counts, reverse=True), _steps(context.run), strict=True))
    for depth, name in enumerate(context.settings.level_names):
        found = {key: numbers for key, numbers in asked.items() if key[0] == name}
        nodes, cached = marks.get(depth, (0, 0))
        yield LevelPlan(
            level=name,
            nodes=nodes,
            calls=sum(calls for calls, _ in found.values()),
            cached=cached,
            prompt_tokens=round(sum(scale.factor(*k) * tokens for k, (_, tokens) in found.items())),
        )


def _steps(run: Run) -> list[tuple[int, int]]:
    """Return what each level added to (nodes touched, answers from the ledger)."""
    marks = cast("PlanRun", run).marks
    return [
        (nodes - nodes_before, cached - cached_before)
        for (nodes_before, cached_before), (nodes, cached) in pairwise([(0, 0), *marks])
    ]


def _completion_tokens(context: PlanContext, asked: Asked) -> int:
    if context.prompts.model == EXTRACTIVE:
        return 0
    mean = context.client.history.completion_tokens
    return round(sum(calls * mean(*key) for key, (calls, _) in asked.items()))


def _scale(context: PlanContext) -> Scale:
    """Compare reported with estimated tokens.

    The ledger has reported tokens without the prompt; a stored node's prompt can be rendered again
    where its documents and children are the same as then.
    """
    if context.prompts.model == EXTRACTIVE or "sample" not in context.latest:
        return Scale(by_prompt={})
    names, prompts = context.settings.level_names, context.prompts
    due = context.latest["sample"].where(F.col("depth") < len(names))
    due = due.select(*IDENTITY, F.lit(None).cast("string").alias("stored_fingerprint"))
    items = document_items(context.documents, due).unionByName(child_items(context.stored, due))
    ordered = items.repartition(context.slots, *NODE_ID).sortWithinPartitions(*NODE_ID, "place")
    folded, _ = context.stage(
        map_rows(ordered, lambda rows: _fold_levels(rows, prompts, names), FOLDED), "rendered"
    )
    inputs = folded.where("position IS NULL AND payload IS NOT NULL").select(*INPUTS.names)
    reported = context.paid.where("is_usable AND repair_of IS NULL AND prompt_tokens > 0").select(
        "tenant_id", "request_hash", F.col("prompt_tokens").alias("reported")
    )
    asked = first_requests(inputs).join(reported, ["tenant_id", "request_hash"])
    rows = asked.join(inputs.select(*PART, "payload"), PART).select("task", "payload", "reported")
    sums = (
        map_rows(rows, lambda given: estimated_tokens(given, prompts), _TOKENS)
        .groupBy("level", "task")
        .agg(F.count("*").alias("n"), F.sum("estimated").alias("e"), F.sum("reported").alias("r"))
    )
    return Scale(
        by_prompt={
            (row["level"], row["task"]): (row["n"], row["e"], row["r"]) for row in sums.collect()
        }
    )


def _fold_levels(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts, names: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Yield what `fold_items` does, for nodes of several levels."""
    for (_, _, depth), group in groupby(rows, lambda r: (r["tenant_id"], r["node_id"], r["depth"])):
        yield from fold_items(group, prompts, level=names[depth])


def estimated_tokens(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts
) -> Iterator[dict[str, Any]]:
    """Yield the estimated tokens of requests beside those that the provider reported."""
    for row in rows:
        node = NodeInput.from_dict(json.loads(row["payload"]))
        request = prompts.request(node, row["task"])
        yield {
            "level": node.level,
            "task": request.task,
            "estimated": _prompt_tokens(request),
            "reported": row["reported"],
        }


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
