"""What a run may spend, and when it is spent."""

import math
from typing import Any

import pytest

from hltm_spark.core.errors import SettingsError
from hltm_spark.models.budgets import Budget, Spent
from tests.builders import settings

OPENAI = {"provider": "openai", "model": "m"}
PRICES = {"m": {"prompt": 2.0, "completion": 8.0}}


def budget(llm: Any = OPENAI, prices: Any = PRICES, **limits: Any) -> Budget:
    return Budget.of(settings(llm=llm, prices=prices, budgets=limits))


@pytest.mark.parametrize(
    ("limits", "spent", "reached"),
    [
        ({}, Spent(10**9, 10**12, 10**12), ""),
        ({"max_calls": 10}, Spent(9, 10**9), ""),
        ({"max_calls": 10}, Spent(10), "budgets.max_calls 10"),
        ({"max_calls": 0}, Spent(), "budgets.max_calls 0"),
        ({"max_tokens": 1000}, Spent(3, 900, 99), ""),
        ({"max_tokens": 1000}, Spent(3, 900, 100), "budgets.max_tokens 1000"),
        ({"max_cost": 0.5}, Spent(1, 249_999, 0), ""),
        ({"max_cost": 0.5}, Spent(1, 250_000, 0), "budgets.max_cost 0.5"),
        ({"max_cost": 0.5, "max_calls": 2}, Spent(1, 0, 62_500), "budgets.max_cost 0.5"),
    ],
)
def test_a_budget_is_reached_where_nothing_of_it_is_left(
    limits: dict[str, Any], spent: Spent, reached: str
) -> None:
    assert budget(**limits).reached(spent) == reached
    assert budget(**limits).is_limited == bool(limits)


def test_calls_are_handed_out_as_far_as_they_are_left() -> None:
    assert budget(max_calls=10).calls_left(Spent(7), wanted=5) == 3
    assert budget(max_calls=10).calls_left(Spent(7), wanted=2) == 2
    assert budget(max_calls=10).calls_left(Spent(12), wanted=2) == 0
    assert budget(max_tokens=1).calls_left(Spent(12), wanted=2) == 2
    assert Budget().calls_left(Spent(12), wanted=2) == 2


def test_what_takes_exactly_the_budget_does_not_exceed_it() -> None:
    limited = budget(max_calls=3, max_tokens=100)

    assert limited.exceeded(Spent(3, 60, 40)) == ()
    assert limited.exceeded(Spent(4, 60, 41)) == ("budgets.max_calls 3", "budgets.max_tokens 100")


def test_the_extractive_provider_is_limited_by_calls_alone() -> None:
    free = budget(llm={"provider": "extractive"}, prices={}, max_tokens=0, max_cost=0.0)

    assert not free.is_limited
    assert budget(llm={"provider": "extractive"}, max_calls=1).reached(Spent(1))


def test_a_limited_cost_needs_a_price() -> None:
    with pytest.raises(SettingsError, match=r"budgets\.max_cost 1\.0 needs the price of model 'm'"):
        budget(prices={"other": {}}, max_cost=1.0)


@pytest.mark.parametrize(
    "limits", [{"max_calls": -1}, {"max_tokens": 1.5}, {"max_cost": math.nan}, {"max_cost": -0.1}]
)
def test_a_budget_that_is_no_number_of_its_kind_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"budgets\.max_"):
        settings(budgets=limits)
