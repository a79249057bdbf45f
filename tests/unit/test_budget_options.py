"""Budgets and costs on the command line."""

from typing import Any

import click
import pytest

from hltm_spark.cli.app import hltm, run_command
from hltm_spark.cli.costs import cost_lines
from hltm_spark.cli.options import Call, budget_options, common_options
from hltm_spark.cli.plan import plan_lines
from hltm_spark.core.config import Budgets
from hltm_spark.pipeline.costs import CostLine, Costs
from hltm_spark.pipeline.plan import Plan
from tests.builders import settings


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Budgets]:
    """Add a verb `look` with the budget options, and return the budgets that it got."""
    got: list[Budgets] = []

    @click.command()
    @budget_options
    @common_options
    def look(call: Call) -> None:
        got.append(call.settings.budgets)

    monkeypatch.setitem(hltm.commands, "look", look)
    return got


def test_the_options_are_set_over_conf_and_overrides(seen: list[Budgets]) -> None:
    set_ones = ["--set", "budgets.max_calls=5", "--set", "budgets.max_tokens=7"]

    assert run_command(["look"]) == 0
    assert run_command(["look", *set_ones]) == 0
    assert run_command(["look", *set_ones, "--max-calls", "0", "--max-cost", "0.00001"]) == 0

    limits = [(b.max_calls, b.max_tokens, b.max_cost) for b in seen]
    assert limits == [(None, None, None), (5, 7, None), (0, 7, 0.00001)]


@pytest.mark.parametrize("given", ["--max-calls=-1", "--max-calls=x", "--max-cost=nan"])
def test_a_wrong_budget_ends_with_2(seen: list[Budgets], given: str) -> None:
    assert run_command(["look", given]) == 2
    assert not seen


@pytest.mark.parametrize("verb", ["index", "update"])
def test_a_run_takes_the_options(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([verb, "--help"]) == 0

    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--max-calls", "--max-tokens", "--max-cost"))


@pytest.mark.parametrize(
    "arguments", [["--by", "node"], ["--run", "x"], ["--cost", "--failures"], ["--cost", "--nodes"]]
)
def test_options_about_costs_go_together(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["runs", *arguments]) == 2
    assert "--cost" in capsys.readouterr().err


@pytest.mark.parametrize(("is_upper_bound", "word"), [(True, "may"), (False, "will")])
def test_a_plan_says_that_a_budget_stops_the_run(*, is_upper_bound: bool, word: str) -> None:
    limits = ("budgets.max_calls 2", "budgets.max_cost 0.1")
    planned = Plan.empty(settings(), calls=3, is_upper_bound=is_upper_bound, beyond=limits)

    last = plan_lines(planned, settings())[-1]

    assert last.startswith(f"the run {word} stop at budgets.max_calls 2, budgets.max_cost 0.1")


def test_costs_in_words_end_with_the_total() -> None:
    sums: dict[str, Any] = {"calls": 2, "prompt_tokens": 30, "completion_tokens": 4}
    groups = (
        CostLine(name="acme/s1/p1", cost=2.5, **sums),
        CostLine(name="acme/s1", cost=1.0, **sums),
    )
    total = CostLine(name="all", calls=9, cost=7.0)

    lines = cost_lines(Costs(by="node", groups=groups, group_count=5, total=total, unpriced=("m",)))

    assert [line.split()[0] for line in lines] == [
        "node", "acme/s1/p1", "acme/s1", "and", "all", "no",
    ]  # fmt: skip
    assert lines[1].split() == ["acme/s1/p1", "2", "30", "4", "2.5000"]
    assert len({len(line) for line in lines[:3] + lines[4:5]}) == 1
    assert lines[3] == "and 3 more"
