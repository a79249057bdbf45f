"""The verb that says what the next run will take, before it starts."""

from typing import TYPE_CHECKING

import click

from hltm_spark.cli.options import Call, common_options
from hltm_spark.cli.run import start_spark
from hltm_spark.core.config import Settings

if TYPE_CHECKING:
    from hltm_spark.pipeline.plan import Plan


@click.command()
@click.option(
    "--full", "is_full", is_flag=True, help="Plan a rebuild from an empty root, ledger reused."
)
@common_options
def plan(call: Call, *, is_full: bool) -> None:
    """Print calls, tokens and cost of the next run; nothing is called or written."""
    root = call.open_root()
    spark = start_spark("hltm plan")
    from hltm_spark.pipeline.plan import plan_run  # noqa: PLC0415

    planned = plan_run(spark, call.settings, root, is_full=is_full)
    call.report(planned.summary(), plan_lines(planned, call.settings))


def plan_lines(planned: "Plan", settings: Settings) -> list[str]:
    """Return a plan in words: one line a level, then what it means."""
    counts = [
        (level.level, level.nodes, level.calls, level.cached, level.prompt_tokens)
        for level in planned.levels
    ]
    totals = (planned.nodes_touched, planned.calls, planned.cached, planned.prompt_tokens)
    width = max(len("level"), *(len(level.level) for level in planned.levels))
    table = [f"{'level':{width}}      nodes      calls     cached  prompt tokens"]
    table += [
        f"{name:{width}}  {nodes:9}  {calls:9}  {cached:9}  {tokens:13}"
        for name, nodes, calls, cached, tokens in [*counts, ("all", *totals)]
    ]
    return [
        *table,
        f"considered: {planned.considered} ({planned.documents} documents); "
        f"{planned.unchanged} nodes stay as they are, {planned.removed} are removed",
        f"{planned.completion_tokens} completion tokens; {_cost_text(planned, settings)}",
        f"calls are {_bound_text(planned)}; {_token_text(planned, settings)}",
        *_budget_lines(planned),
    ]


def _budget_lines(planned: "Plan") -> list[str]:
    """Return a line where a budget of conf will stop the run, else none."""
    if not planned.beyond:
        return []
    may = "may" if planned.is_upper_bound else "will"
    return [f"the run {may} stop at {', '.join(planned.beyond)}; further runs go on from there"]


def _cost_text(planned: "Plan", settings: Settings) -> str:
    name = settings.llm.model_name
    if settings.llm.provider == "extractive" or name in settings.prices:
        return f"cost {planned.cost:.4f}"
    return f"no cost: conf has no [prices] for model {name!r}"


def _bound_text(planned: "Plan") -> str:
    if planned.is_upper_bound:
        return "an upper bound: a node that comes out as it was stops the run below its ancestors"
    return "what the run will take, repairs of answers left out"


def _token_text(planned: "Plan", settings: Settings) -> str:
    if settings.llm.provider == "extractive":
        return "extractive takes no tokens"
    if not planned.calls:
        return "no tokens to estimate"
    if planned.history:
        return f"tokens are scaled by {planned.history} answers on record"
    return "tokens are estimates without history of this model"
