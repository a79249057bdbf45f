"""`hltm runs --cost`: what answers cost, in words."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from hltm_spark.pipeline.costs import CostLine, Costs

GROUPS = ("run", "tenant", "level", "task", "model", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostQuestion:
    """What is asked about costs; `by` is one of `GROUPS`, `run_id` may be empty for every run."""

    by: str
    run_id: str


def cost_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `runs` the options about costs; it gets them as `costs`, None where not asked."""

    @click.option("--cost", "is_cost", is_flag=True, help="What the answers on record cost.")
    @click.option(
        "--by", type=click.Choice(GROUPS), help="With --cost: sums by what, by run unless given."
    )
    @click.option("--run", "run_id", metavar="ID", help="With --cost: of one run.")
    @functools.wraps(verb)
    def with_costs(
        *args: Any, is_cost: bool, by: str | None, run_id: str | None, **values: Any
    ) -> None:
        if not is_cost and (by or run_id):
            raise click.UsageError("--by and --run go with --cost; add --cost")
        if is_cost and (values["nodes"] or values["failures"]):
            raise click.UsageError("--cost goes without --nodes and --failures; ask one at a time")
        question = CostQuestion(by=by or "run", run_id=run_id or "") if is_cost else None
        verb(*args, costs=question, **values)

    return with_costs


def cost_lines(costs: "Costs") -> list[str]:
    """Return costs as a table, the total last."""
    width = max(len(line.name) for line in (*costs.groups, costs.total))
    width = max(width, len(costs.by))
    head = f"{costs.by:{width}}      calls  prompt tokens  completion tokens          cost"
    lines = [head, *(_row(line, width) for line in costs.groups)]
    left = costs.group_count - len(costs.groups)
    lines += [f"and {left} more"] if left > 0 else []
    lines.append(_row(costs.total, width))
    lines += [f"no cost: conf has no [prices] for model {name!r}" for name in costs.unpriced]
    return lines


def _row(line: "CostLine", width: int) -> str:
    return (
        f"{line.name:{width}}  {line.calls:9}  {line.prompt_tokens:13}  "
        f"{line.completion_tokens:17}  {line.cost:12.4f}"
    )
