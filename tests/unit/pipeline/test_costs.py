"""What the ledger's files sum up to, without Spark."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from hltm_spark.models.prices import cost
from hltm_spark.pipeline.costs import Costs, read_costs, sum_tokens
from hltm_spark.pipeline.root import Root, open_root
from hltm_spark.pipeline.tables import LLM_CALLS, arrow
from tests.builders import settings as make_settings

PRICES = {"dear": {"prompt": 10.0, "completion": 20.0}, "cheap": {"prompt": 1.0, "completion": 2.0}}


def call(level: str, model: str, prompt: int, completion: int, run_id: str = "r1") -> Any:
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion}
    found = dict.fromkeys(LLM_CALLS.columns) | tokens
    return found | {"level": level, "model": model, "run_id": run_id}


FIRST = [call("seat", "dear", 1000, 500), call("project", "cheap", 3000, 0)]
SECOND = [call("project", "dear", 200, 100, "r2"), call("project", "cheap", 1000, 1000, "r2")]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Return a root whose ledger has two data files."""
    made = open_root(str(tmp_path / "root"))
    for rows in (FIRST, SECOND):
        table = pa.Table.from_pylist(rows, schema=arrow(LLM_CALLS.schema))
        write_deltalake(LLM_CALLS.path(made.path), table, mode="append")
    return made


@pytest.fixture
def ask(root: Root) -> Any:
    """Return a function that asks for costs."""

    def costs(*, sections: Mapping[str, Any] | None = None, **asked: Any) -> Costs:
        return read_costs(make_settings(**{"prices": PRICES, **(sections or {})}), root, **asked)

    return costs


def test_tokens_are_summed_over_files_by_value_and_model(root: Root) -> None:
    files = LLM_CALLS.files(root.path)

    sums = sum_tokens(files, column="level", runs=None)

    assert len(files) == 2
    assert {key: (s.calls, s.prompt_tokens, s.completion_tokens) for key, s in sums.items()} == {
        ("seat", "dear"): (1, 1000, 500),
        ("project", "cheap"): (2, 4000, 1000),
        ("project", "dear"): (1, 200, 100),
    }


def test_a_group_has_the_prices_of_its_models_and_the_dearest_is_first(ask: Any) -> None:
    found = ask(by="level")

    by_level = {line.name: line.cost for line in found.groups}
    assert by_level == pytest.approx({"seat": 0.02, "project": 0.01})
    assert [*by_level] == ["seat", "project"]
    assert (found.total.name, found.total.calls) == ("all", 4)
    assert found.total.cost == pytest.approx(0.03)


def test_one_run_is_asked_for_by_its_id_also_where_it_was_killed(ask: Any) -> None:
    assert [(line.name, line.calls) for line in ask(by="run", run_id="r2").groups] == [("r2", 2)]


def test_a_model_without_a_price_is_named_and_costs_nothing(ask: Any) -> None:
    found = ask(by="model", sections={"prices": {"cheap": PRICES["cheap"]}})

    assert found.unpriced == ("dear",)
    assert {line.name: line.cost for line in found.groups} == {"cheap": 0.006, "dear": 0.0}


def test_in_batch_mode_every_sum_is_less_by_the_discount(ask: Any) -> None:
    llm = {"provider": "openai", "model": "dear", "execution": "batch"}
    chosen = make_settings(llm=llm, prices=PRICES)

    by_level = {line.name: line.cost for line in ask(by="level", sections={"llm": llm}).groups}

    assert by_level["seat"] == pytest.approx(cost(chosen, 1000, 500, model="dear"))
    assert by_level["seat"] == pytest.approx(0.01)


def test_a_root_without_a_ledger_costs_nothing(tmp_path: Path) -> None:
    root = open_root(str(tmp_path / "root"))

    found = read_costs(make_settings(), root, by="tenant")

    assert (found.groups, found.total.calls, found.total.cost) == ((), 0, 0.0)
