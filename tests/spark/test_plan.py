"""A plan against the run that it is about, over real HTTP to a scripted server."""

from dataclasses import replace

import pytest

from hltm_spark.pipeline.plan import Plan, plan_run
from hltm_spark.pipeline.tables import LLM_CALLS, MEMORY, RUNS
from tests.builders import raw_document
from tests.builders import settings as make_settings
from tests.llm_server import serve_llm
from tests.spark.conftest import MakeMemory, Memory

ROLES = ("welder", "nurse", "teacher", "pilot", "baker", "painter", "driver")
WRITTEN_TABLES = (MEMORY, LLM_CALLS, RUNS)


def role(number: int, note: str = "") -> dict[str, object]:
    name = ROLES[number % len(ROLES)]
    text = f"Location: City {number % 5}\nRole: {name} {number}{note}\n"
    text += f"The team of project {number} seeks a {name} who likes boats. " * 4
    return raw_document(f"d{number}", project=f"p{number:03}", text=text)


def openai(base_url: str, **sections: object) -> dict[str, object]:
    llm = {"provider": "openai", "model": "scripted", "base_url": base_url}
    return {"llm": llm, "prices": {"scripted": {"prompt": 1.0}}, **sections}


def plan(memory: Memory, *, is_full: bool = False) -> Plan:
    """Plan, and check that nothing is left behind."""
    versions = [table.version(memory.root.path) for table in WRITTEN_TABLES]
    found = plan_run(memory.spark, memory.settings, memory.root, is_full=is_full)
    assert versions == [table.version(memory.root.path) for table in WRITTEN_TABLES]
    assert not list(memory.root.folder().glob("staging/*"))
    assert not list(memory.root.journal().rglob("*.jsonl"))
    return found


def test_a_plan_says_what_an_index_and_an_update_will_take(make_memory: MakeMemory) -> None:
    with serve_llm() as server:
        memory = make_memory(**openai(server.base_url))
        memory.ingest(*(role(n) for n in range(24)))

        fresh = plan(memory)
        assert not server.calls
        indexed = memory.run()
        nothing = plan(memory)
        memory.ingest(*(role(n, " now") for n in (3, 17)), role(90))
        changed = plan(memory)
        updated = memory.run("update")

    assert (fresh.nodes_touched, fresh.calls) == (indexed.nodes_touched, indexed.calls) == (26, 26)
    assert (fresh.is_upper_bound, fresh.history, fresh.unchanged) == (False, 0, 0)
    assert (nothing.nodes_touched, nothing.calls, nothing.unchanged) == (0, 0, 26)
    assert (
        (changed.nodes_touched, changed.calls) == (updated.nodes_touched, updated.calls) == (5, 5)
    )
    assert changed.prompt_tokens == pytest.approx(updated.prompt_tokens, rel=0.1)
    assert changed.cost == pytest.approx(changed.prompt_tokens / 1e6)
    assert (changed.is_upper_bound, changed.unchanged, changed.documents) == (True, 22, 25)
    assert [(level.nodes, level.calls) for level in changed.levels] == [(1, 1), (1, 1), (3, 3)]


def test_the_groups_of_a_wide_parent_are_planned(make_memory: MakeMemory) -> None:
    with serve_llm() as server:
        memory = make_memory(**openai(server.base_url, budgets={"max_input_tokens": 2635}))
        memory.ingest(*(role(n) for n in range(40)))
        memory.run()
        memory.ingest(*(role(n, " now") for n in (3, 17)))

        changed = plan(memory)
        updated = memory.run("update")

    seat = changed.levels[1]
    assert seat.calls > 2
    assert seat.cached > 0  # groups that hold no changed child
    assert changed.cached == updated.cached
    assert changed.calls == pytest.approx(updated.calls, rel=0.1)
    assert changed.prompt_tokens == pytest.approx(updated.prompt_tokens, rel=0.1)


@pytest.mark.soak
def test_both_ways_of_a_run_plan_the_four_calls_of_the_separate_layout(
    make_memory: MakeMemory,
) -> None:
    chosen = openai("http://127.0.0.1:9/v1", views={"layout": "separate"})
    memory = make_memory(["contract", "seat"], **chosen)
    memory.ingest(*({"contract": "acme", "seat": s, "doc_id": s, "text": "Role: x"} for s in "ab"))

    small = plan(memory)
    memory.settings = make_settings("contract", "seat", **chosen, budgets={"small_run_nodes": 0})
    by_spark = plan(memory, is_full=True)

    assert [(level.calls, level.cached) for level in small.levels] == [(4, 0), (8, 0)]
    assert by_spark == replace(small, considered=by_spark.considered)
