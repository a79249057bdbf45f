"""What answers cost, from the ledger and the prices in conf, by whatever stands with them."""

from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import SettingsError
from hltm_spark.models.answering import EXTRACTIVE
from hltm_spark.models.prices import cost
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import LLM_CALLS, RUNS

COLUMNS = {
    "run": "run_id",
    "tenant": "tenant_id",
    "level": "level",
    "task": "task",
    "model": "model",
    "node": "node_id",
}
"""Columns of `llm_calls` that calls can be summed by."""

MAX_LISTED = 1000
"""Groups that are listed; all are in the total."""

_SUMS = ("calls", "prompt_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """The sums of one group of calls: each paid answer is one, repairs included.

    Attributes:
        name: Run id, tenant, level, task, model or node id; `all` for the total.
        cost: In the currency of the conf's prices.
    """

    name: str
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What answers cost.

    Attributes:
        by: Key of `COLUMNS`.
        groups: The first `MAX_LISTED`, the most expensive first, then by name.
        group_count: All of them.
        total: Over all groups.
        unpriced: Models without a price in conf; their answers count as 0.
    """

    by: str
    groups: tuple[CostLine, ...]
    group_count: int
    total: CostLine
    unpriced: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """Return what the command line prints as JSON."""
        return asdict(self)


def read_costs(
    spark: SparkSession,
    settings: Settings,
    root: Root,
    *,
    by: str,
    run_id: str = "",
    last: int | None = None,
) -> Costs:
    """Return what the answers on record cost.

    Args:
        spark: Session.
        settings: The conf: today's prices, and today's discount in batch mode, whatever they were
            when the answers were paid.
        root: Storage root, with its tables.
        by: Key of `COLUMNS`.
        run_id: Only answers that this run paid.
        last: Only answers of so many latest runs in `runs`; every answer where None. A run that
            was killed is not in `runs`.

    Raises:
        SettingsError: No run has this id.
    """
    calls = LLM_CALLS.read(spark, root.path)
    runs = RUNS.read(spark, root.path)
    if run_id:
        calls = calls.where(F.col("run_id") == run_id)
        if calls.isEmpty() and runs.where(F.col("run_id") == run_id).isEmpty():
            raise SettingsError(f"no run {run_id!r} on record; see `hltm runs` for their ids")
    if last is not None:
        latest = runs.orderBy(F.desc("started_at"), F.desc("run_id")).limit(last)
        calls = calls.join(latest.select("run_id"), "run_id", "left_semi")
    groups = sum_costs(calls, settings, column=COLUMNS[by])
    rows = groups.orderBy(F.desc("cost"), "name").limit(MAX_LISTED).collect()
    models = [_line(row) for row in sum_costs(calls, settings, column="model").collect()]
    return Costs(
        by=by,
        groups=tuple(_line(row) for row in rows),
        group_count=len(rows) if len(rows) < MAX_LISTED else groups.count(),
        total=_total(models),
        unpriced=unpriced(settings, [model.name for model in models]),
    )


def sum_costs(calls: DataFrame, settings: Settings, *, column: str) -> DataFrame:
    """Return one row per value of a column: name, calls, prompt_tokens, completion_tokens, cost.

    Args:
        calls: Rows of `llm_calls`.
        settings: The prices.
        column: Of `llm_calls`.
    """
    tokens = [F.sum(name).alias(name) for name in _SUMS[1:]]
    per_model = calls.groupBy(F.col(column).alias("name"), F.col("model").alias("priced_as")).agg(
        F.count("*").alias("calls"), *tokens
    )
    priced = per_model.withColumn("cost", _cost(settings))
    sums = [F.sum(name).alias(name) for name in _SUMS]
    return priced.groupBy("name").agg(*sums, F.round(F.sum("cost"), 9).alias("cost"))


def unpriced(settings: Settings, models: list[str]) -> tuple[str, ...]:
    """Return the models that conf has no price for, in order; `extractive` needs none."""
    return tuple(sorted(set(models) - settings.prices.keys() - {EXTRACTIVE}))


def _cost(settings: Settings) -> Column:
    """Return the price of a row's tokens, as `models.prices.cost` has it."""
    terms = [
        F.when(
            F.col("priced_as") == model,
            F.col("prompt_tokens") * cost(settings, 1, 0, model=model)
            + F.col("completion_tokens") * cost(settings, 0, 1, model=model),
        ).otherwise(0.0)
        for model in settings.prices
    ]
    return reduce(add, terms, F.lit(0.0))


def _line(row: Row) -> CostLine:
    return CostLine(**row.asDict())


def _total(lines: list[CostLine]) -> CostLine:
    sums = {name: sum(getattr(line, name) for line in lines) for name in _SUMS}
    return CostLine(name="all", cost=round(sum(line.cost for line in lines), 9), **sums)
