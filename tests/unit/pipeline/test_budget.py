"""The driver's part of a budget: what it hands out, and when it says stop."""

import json
from pathlib import Path
from typing import Any

import pytest

from hltm_spark.models.budgets import Budget, Spent
from hltm_spark.pipeline import budget as budget_module
from hltm_spark.pipeline.budget import Meter
from hltm_spark.pipeline.journal import Journal
from hltm_spark.pipeline.journal_stop import (
    BUDGET,
    LLM,
    Stop,
    note_skipped,
    read_stop,
    write_stop,
)
from hltm_spark.pipeline.journal_store import FolderStore
from hltm_spark.pipeline.journal_sums import Spending, read_spent
from tests.builders import settings

ANSWER = {"prompt_tokens": 100, "completion_tokens": 10}


def meter(folder: Path, **limits: Any) -> Meter:
    llm = {"provider": "openai", "model": "m"}
    return Meter(Budget.of(settings(llm=llm, budgets=limits)), FolderStore(folder))


def pay(journal: Journal, count: int) -> None:
    for _ in range(count):
        journal.append(ANSWER)


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    opened = Journal.start(FolderStore(tmp_path), stage="one", worker=0)
    yield opened
    opened.close()


def test_without_a_budget_all_is_handed_out_at_once(tmp_path: Path) -> None:
    assert list(Meter().portions(7)) == [range(7)]
    assert list(meter(tmp_path).portions(7)) == [range(7)]
    assert list(meter(tmp_path, max_calls=7).portions(0)) == []


def test_no_more_is_handed_out_than_the_calls_that_are_left(
    tmp_path: Path, journal: Journal
) -> None:
    pay(journal, 2)
    handed = []

    for part in meter(tmp_path, max_calls=10).portions(20):
        handed.append(part)
        pay(journal, len(part))

    assert handed == [range(8)]
    assert read_stop(FolderStore(tmp_path)) == Stop(BUDGET, "budgets.max_calls 10 is reached")


def test_requests_that_failed_unpaid_leave_calls_for_others(
    tmp_path: Path, journal: Journal
) -> None:
    handed = []

    for part in meter(tmp_path, max_calls=10).portions(20):
        handed.append(part)
        pay(journal, len(part) // 2 or 1)

    assert handed == [range(10), range(10, 15), range(15, 18), range(18, 20)]
    assert read_stop(FolderStore(tmp_path)) is None, "all were handed out, and nine were paid"


def test_a_run_that_takes_exactly_its_budget_is_not_stopped(
    tmp_path: Path, journal: Journal
) -> None:
    limited = meter(tmp_path, max_calls=5)

    for part in limited.portions(5):
        pay(journal, len(part))
    write_stop(FolderStore(tmp_path), "budgets.max_calls 5 is reached", kind=BUDGET)

    assert journal.stopped()
    assert read_stop(FolderStore(tmp_path)) is None
    assert list(limited.portions(1)) == []
    assert read_stop(FolderStore(tmp_path)) is not None


def test_calls_in_flight_count_for_those_that_are_made(tmp_path: Path, journal: Journal) -> None:
    limited = meter(tmp_path, max_calls=10)
    pay(journal, 2)

    assert limited.allowed([0] * 20, in_flight=[]) == 8
    assert limited.allowed([0] * 20, in_flight=[0] * 5) == 3
    assert limited.allowed([0] * 2, in_flight=[0] * 5) == 2
    assert limited.allowed([0] * 20, in_flight=[0] * 8) == 0
    assert read_stop(FolderStore(tmp_path)) is None, "some of those in flight may fail unpaid"
    pay(journal, 8)
    assert limited.allowed([0] * 20, in_flight=[0]) == 0
    assert read_stop(FolderStore(tmp_path)) is None
    assert limited.allowed([0] * 20, in_flight=[]) == 0
    assert read_stop(FolderStore(tmp_path)) == Stop(BUDGET, "budgets.max_calls 10 is reached")


def test_no_more_goes_out_than_may_use_up_the_tokens(tmp_path: Path, journal: Journal) -> None:
    limited = meter(tmp_path, max_tokens=1000)

    assert limited.allowed([100] * 20, in_flight=[]) == 1, "its answer may have 2,048 tokens"
    assert limited.allowed([100] * 20, in_flight=[100]) == 0
    pay(journal, 2)  # 110 tokens each
    assert limited.allowed([100] * 20, in_flight=[]) == 8
    assert limited.allowed([100] * 20, in_flight=[100] * 5) == 3
    assert limited.allowed([2000] * 20, in_flight=[]) == 1
    assert limited.allowed([100], in_flight=[]) == 1


def test_no_more_goes_out_than_may_use_up_the_money(tmp_path: Path, journal: Journal) -> None:
    chosen = settings(
        llm={"provider": "openai", "model": "m"},
        budgets={"max_cost": 0.01},
        prices={"m": {"prompt": 10.0, "completion": 100.0}},
    )
    limited = Meter(Budget.of(chosen), FolderStore(tmp_path))
    pay(journal, 1)  # .002

    assert limited.allowed([100] * 20, in_flight=[]) == 4
    assert limited.allowed([100] * 20, in_flight=[100] * 3) == 1


def test_without_a_budget_every_call_is_allowed(tmp_path: Path) -> None:
    assert Meter().allowed([9] * 7, in_flight=[9] * 100) == 7
    assert meter(tmp_path).allowed([9] * 7, in_flight=[]) == 7


def test_nothing_is_handed_out_after_another_stop(tmp_path: Path, journal: Journal) -> None:
    limited = meter(tmp_path, max_calls=5)
    parts = limited.portions(10)

    next(parts)
    journal.stop("the key is refused")

    assert list(parts) == []
    assert read_stop(FolderStore(tmp_path)) == Stop(LLM, "the key is refused")


def test_workers_are_stopped_while_calls_go_on(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_module, "POLL_S", 0.001)

    with meter(tmp_path, max_tokens=1000).watching():
        while not journal.stopped():
            pay(journal, 1)
    note_skipped(FolderStore(tmp_path))

    assert read_spent(FolderStore(tmp_path)).tokens >= 1000
    assert read_stop(FolderStore(tmp_path)) == Stop(BUDGET, "budgets.max_tokens 1000 is reached")


def test_a_model_that_takes_no_request_weighs_more_than_a_budget(
    tmp_path: Path, journal: Journal
) -> None:
    write_stop(FolderStore(tmp_path), "reached", kind=BUDGET)
    journal.stop("the key is refused")
    write_stop(FolderStore(tmp_path), "reached", kind=BUDGET)

    assert read_stop(FolderStore(tmp_path)) == Stop(LLM, "the key is refused")


def test_a_growing_journal_is_summed_line_by_line(tmp_path: Path) -> None:
    spending, file = Spending(FolderStore(tmp_path)), tmp_path / "one.jsonl"
    line = json.dumps(ANSWER | {"response": "東京"}, ensure_ascii=False) + "\n"

    assert spending.read() == Spent()
    file.write_text(line + line[:20], encoding="utf-8")
    first = spending.read()
    file.write_text(line + line, encoding="utf-8")
    (tmp_path / "two.jsonl").write_text(line, encoding="utf-8")

    assert first == Spent(1, 100, 10)
    assert (
        spending.read() == spending.read() == read_spent(FolderStore(tmp_path)) == Spent(3, 300, 30)
    )
