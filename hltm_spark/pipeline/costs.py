"""What answers cost, from the ledger and the prices in conf, by whatever stands with them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import SettingsError
from hltm_spark.models.answering import EXTRACTIVE
from hltm_spark.models.budgets import Spent
from hltm_spark.models.prices import cost
from hltm_spark.pipeline.files import row_count
from hltm_spark.pipeline.history import latest_runs
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
    settings: Settings, root: Root, *, by: str, run_id: str = "", last: int | None = None
) -> Costs:
    """Return what the answers on record cost.

    Args:
        settings: The conf: today's prices, and today's discount in batch mode, whatever they were
            when the answers were paid.
        root: Storage root.
        by: Key of `COLUMNS`.
        run_id: Only answers that this run paid.
        last: Only answers of so many latest runs in `runs`; every answer where None. A run that
            was killed is not in `runs`.

    Raises:
        SettingsError: No run has this id.
    """
    runs = {run_id} if run_id else None
    if last is not None:
        latest = {row["run_id"] for row in latest_runs(root, last=last)}
        runs = latest if runs is None else runs & latest
    files = LLM_CALLS.files_if_any(root.path)
    if run_id and not _has_run(root, files, run_id):
        raise SettingsError(f"no run {run_id!r} on record; see `hltm runs` for their ids")
    sums = sum_tokens(files, column=COLUMNS[by], runs=runs)
    groups: dict[str, CostLine] = {}
    for (name, model), tokens in sums.items():
        before, line = groups.get(name, CostLine(name=name)), _priced(name, tokens, model, settings)
        groups[name] = _total([before, line], name=name)
    ordered = sorted(groups.values(), key=lambda line: (-line.cost, line.name))
    return Costs(
        by=by,
        groups=tuple(ordered[:MAX_LISTED]),
        group_count=len(ordered),
        total=_total(ordered, name="all"),
        unpriced=unpriced(settings, [model for _, model in sums]),
    )


def sum_tokens(
    files: Sequence[str], *, column: str, runs: Collection[str] | None
) -> dict[tuple[str, str], Spent]:
    """Return the sums by (value of a column, model), read file by file.

    Args:
        files: Data files of `llm_calls`.
        column: Of `llm_calls`.
        runs: Run ids; every one where None.
    """
    names = {name: pc.field(name) for name in ("model", "prompt_tokens", "completion_tokens")}
    where = None if runs is None else pc.field("run_id").isin(pa.array(sorted(runs), pa.string()))
    found: dict[tuple[str, str], Spent] = {}
    for file in files:
        rows = dataset(file, format="parquet").to_table(
            {"name": pc.field(column), **names}, filter=where
        )
        sums = rows.group_by(["name", "model"]).aggregate(
            [("prompt_tokens", "sum"), ("completion_tokens", "sum"), ([], "count_all")]
        )
        for row in sums.to_pylist():
            spent = found.setdefault((row["name"], row["model"]), Spent())
            spent.calls += row["count_all"]
            spent.prompt_tokens += row["prompt_tokens_sum"]
            spent.completion_tokens += row["completion_tokens_sum"]
    return found


def _has_run(root: Root, files: Sequence[str], run_id: str) -> bool:
    """Tell whether a run paid an answer, also one that was killed, or is in `runs`."""
    is_run = pc.field("run_id") == run_id
    return any(row_count(found, is_run) for found in (files, RUNS.files_if_any(root.path)))


def unpriced(settings: Settings, models: list[str]) -> tuple[str, ...]:
    """Return the models that conf has no price for, in order; `extractive` needs none."""
    return tuple(sorted(set(models) - settings.prices.keys() - {EXTRACTIVE}))


def _priced(name: str, spent: Spent, model: str, settings: Settings) -> CostLine:
    return CostLine(
        name=name,
        calls=spent.calls,
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        cost=cost(settings, spent.prompt_tokens, spent.completion_tokens, model=model),
    )


def _total(lines: Iterable[CostLine], *, name: str) -> CostLine:
    listed = list(lines)
    sums = {column: sum(getattr(line, column) for line in listed) for column in _SUMS}
    return CostLine(name=name, cost=round(sum(line.cost for line in listed), 9), **sums)
