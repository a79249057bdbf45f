"""Budgets of a run and the cost of its answers, over real HTTP to a scripted server."""

import json
from typing import Any

import pytest

from hltm_spark.cli.app import run_command
from hltm_spark.core.errors import BudgetReachedError, SettingsError
from hltm_spark.pipeline import budget as budget_module
from hltm_spark.pipeline.costs import Costs, read_costs
from hltm_spark.pipeline.plan import plan_run
from hltm_spark.pipeline.tables import LLM_CALLS, MEMORY, RUNS
from hltm_spark.pipeline.verify import verify
from tests.builders import raw_document
from tests.builders import settings as make_settings
from tests.llm_server import (
    Call,
    LlmServer,
    Reply,
    content_filter_error,
    delayed,
    right_answer,
    serve_llm,
)
from tests.spark.conftest import MakeMemory, Memory

PRICES = {"scripted": {"prompt": 2.0, "completion": 8.0}}
BY_SPARK = {"small_run_nodes": 0}
BOTH_WAYS = pytest.mark.parametrize(
    "way", [{}, pytest.param(BY_SPARK, marks=pytest.mark.soak)], ids=["small", "spark"]
)


def sections(server: LlmServer, **budgets: Any) -> dict[str, Any]:
    llm = {"provider": "openai", "model": "scripted", "base_url": server.base_url}
    return {"llm": {**llm, "max_concurrency": 4}, "prices": PRICES, "budgets": budgets}


def roles(count: int) -> list[dict[str, Any]]:
    return [
        raw_document(f"d{n}", project=f"p{n:02}", text=f"Location: Turku\nRole: number {n}.")
        for n in range(count)
    ]


def limit(memory: Memory, server: LlmServer, **budgets: Any) -> None:
    memory.settings = make_settings(**sections(server, **budgets))


def last_run(memory: Memory) -> dict[str, Any]:
    rows = memory.read(RUNS).orderBy("started_at").collect()
    return dict(rows[-1].asDict())


@BOTH_WAYS
def test_runs_within_max_calls_write_the_tree_of_one_run_and_pay_no_request_twice(
    make_memory: MakeMemory, way: dict[str, int]
) -> None:
    with serve_llm() as server:
        whole = make_memory(**sections(server, **way))
        limited = make_memory(**sections(server, **way, max_calls=5), like=whole)
        for memory in (whole, limited):
            memory.ingest(*roles(8))
        whole.run()
        alone = len(server.chats)

        planned = plan_run(limited.spark, limited.settings, limited.root, is_full=False)
        with pytest.raises(BudgetReachedError, match=r"budgets\.max_calls 5 is reached: .* 5 call"):
            limited.run()
        stopped, first = last_run(limited), len(server.chats) - alone
        kept = (limited.read(LLM_CALLS).count(), limited.read(MEMORY).count())
        again = limited.run("update")

    assert alone == 10
    assert (planned.calls, planned.beyond) == (10, ("budgets.max_calls 5",))
    assert first == 5
    assert kept == (5, 0)
    assert (stopped["status"], stopped["calls"]) == ("stopped", 5)
    assert "run it again to go on" in stopped["message"]
    assert (again.status, again.calls, again.cached) == ("done", 5, 5), "exactly what was left"
    assert len(server.chats) == 2 * alone
    assert limited.content() == whole.content()
    assert not list(limited.root.journal().rglob("*"))


@BOTH_WAYS
@pytest.mark.parametrize(
    "budget", [{"max_tokens": 2000}, pytest.param({"max_cost": 0.005}, marks=pytest.mark.soak)]
)
def test_every_answer_of_a_run_stopped_by_tokens_or_cost_is_kept(
    make_memory: MakeMemory,
    monkeypatch: pytest.MonkeyPatch,
    way: dict[str, int],
    budget: dict[str, Any],
) -> None:
    monkeypatch.setattr(budget_module, "POLL_S", 0.01)
    with serve_llm(lambda _call: delayed(0.05)) as server:
        memory = make_memory(**sections(server, **way, **budget))
        memory.ingest(*roles(30))

        with pytest.raises(BudgetReachedError):
            memory.run()
        paid, stopped = memory.read(LLM_CALLS).count(), last_run(memory)
        answered = [call for call in server.chats if call.status == 200]
        tree = memory.read(MEMORY).count()
        limit(memory, server, **way)
        rest = memory.run()

    used = stopped["prompt_tokens"] + stopped["completion_tokens"]
    assert used >= budget.get("max_tokens", 0)
    assert stopped["cost"] >= budget.get("max_cost", 0)
    assert stopped["calls"] == paid == len(answered) < 32
    assert tree == 0
    assert (rest.status, rest.calls) == ("done", 32 - paid)
    assert len(server.chats) == 32


@pytest.mark.soak
def test_requests_that_fail_unpaid_leave_their_calls_to_others(make_memory: MakeMemory) -> None:
    def script(call: Call) -> Reply | None:
        is_refused = any(f"number {n}." in call.prompt for n in (0, 1))
        return content_filter_error() if is_refused else None

    with serve_llm(script) as server:
        memory = make_memory(**sections(server, **BY_SPARK, max_calls=4))
        memory.ingest(*roles(8))

        with pytest.raises(BudgetReachedError):
            memory.run()

    assert memory.read(LLM_CALLS).count() == 4
    assert len(server.chats) == 6


@pytest.mark.soak
def test_a_rebuild_that_a_budget_stops_compares_nothing_and_keeps_its_answers(
    make_memory: MakeMemory,
) -> None:
    with serve_llm() as server:
        memory = make_memory(**sections(server))
        memory.ingest(*roles(3))
        memory.run(is_publishing=True)
        memory.spark.sql(f"DELETE FROM {LLM_CALLS.sql_name(memory.root.path)}")

        limit(memory, server, max_calls=2)
        with pytest.raises(BudgetReachedError, match=r"nothing was compared: .*max_calls 2"):
            verify(memory.spark, memory.settings, memory.root)
        kept = memory.read(LLM_CALLS).count()
        limit(memory, server)
        found = verify(memory.spark, memory.settings, memory.root)

    assert kept == 2
    assert (found.calls, found.equal) == (3, True)


def test_costs_are_what_the_server_counted(make_memory: MakeMemory) -> None:
    with serve_llm() as server:
        memory = make_memory(**sections(server))
        memory.ingest(*roles(3))
        first = memory.run()
        memory.ingest(raw_document("d9", project="p01", text="Location: Oulu"))
        second = memory.run("update")
        chats = server.chats

    def costs(**asked: Any) -> Costs:
        return read_costs(memory.settings, memory.root, **asked)

    prompt = sum(len(call.prompt) // 4 for call in chats)
    completion = sum(len(right_answer(call)) // 4 for call in chats)
    price = (prompt * 2.0 + completion * 8.0) / 1e6
    for by in ("level", "node"):
        found = costs(by=by)
        total = found.total
        assert (total.calls, total.prompt_tokens) == (len(chats), prompt)
        assert total.completion_tokens == completion
        assert total.cost == pytest.approx(price)
        assert sum(group.cost for group in found.groups) == pytest.approx(price)
        assert sum(group.calls for group in found.groups) == total.calls
        assert [*found.groups] == sorted(found.groups, key=lambda g: (-g.cost, g.name))
    by_node = {group.name: group.calls for group in costs(by="node").groups}
    assert by_node == {
        "acme": 2,
        "acme/s1": 2,
        "acme/s1/p00": 1,
        "acme/s1/p01": 2,
        "acme/s1/p02": 1,
    }
    assert costs(by="run", last=1).total.cost == pytest.approx(second.cost)
    assert costs(by="level", run_id=first.run_id).total.cost == pytest.approx(first.cost)
    with pytest.raises(SettingsError, match="no run 'x' on record"):
        costs(by="run", run_id="x")
    memory.settings = make_settings()
    assert (costs(by="run").total.cost, costs(by="run").unpriced) == (0.0, ("scripted",))


def test_a_stopped_run_ends_the_command_line_with_3_and_its_json(
    make_memory: MakeMemory, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_llm() as server:
        memory = make_memory(**sections(server))
        memory.ingest(*roles(3))
        llm = {"provider": "openai", "model": "scripted", "base_url": server.base_url}
        common = ["--root", memory.root.path, "--json", "--set", "prices.scripted.prompt=1.5"]
        for key, value in llm.items():
            common += ["--set", f"llm.{key}={value}"]

        stopped = run_command(["index", *common, "--max-calls", "2", "--no-publish"])
        run = capsys.readouterr()
        asked = run_command(["runs", "--cost", "--by", "level", *common])
        costs = capsys.readouterr()

    values = json.loads(run.out.splitlines()[-1])
    assert (stopped, values["status"], values["calls"], len(server.chats)) == (3, "stopped", 2, 2)
    assert "hltm: budgets.max_calls 2 is reached" in run.err
    found = json.loads(costs.out.splitlines()[-1])
    assert (asked, found["by"]) == (0, "level")
    assert [(group["name"], group["calls"]) for group in found["groups"]] == [("project", 2)]
    assert found["total"]["cost"] == pytest.approx(values["cost"])
