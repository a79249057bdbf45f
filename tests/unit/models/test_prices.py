from typing import Any

import pytest

from hltm_spark.models.prices import cost
from tests.builders import settings


def priced(**llm: Any) -> float:
    chosen = settings(
        llm={"provider": "openai", "model": "m", **llm},
        prices={"m": {"prompt": 2.0, "completion": 8.0}},
    )
    return cost(chosen, 1_000_000, 500_000)


def test_a_batch_costs_less_by_the_discount_of_conf() -> None:
    assert priced() == pytest.approx(6.0)
    assert priced(batch_discount=0.9) == pytest.approx(6.0)
    assert priced(execution="batch") == pytest.approx(3.0)
    assert priced(execution="batch", batch_discount=0.25) == pytest.approx(4.5)
