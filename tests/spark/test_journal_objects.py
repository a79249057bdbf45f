"""Runs by Spark whose journal is in an object store: real executors, a real server."""

from collections.abc import Iterator
from typing import Any

import pytest

from hltm_spark.core.errors import BudgetReachedError, EnvironmentProblem
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.journal_place import open_store
from hltm_spark.pipeline.plan import plan_run
from hltm_spark.pipeline.tables import LLM_CALLS, Table
from hltm_spark.pipeline.verify import verify
from tests.builders import raw_document
from tests.builders import settings as make_settings
from tests.llm_server import LlmServer, content_filter_error, serve_llm
from tests.object_server import ObjectServer, serve_objects
from tests.spark.conftest import MakeMemory, Memory

ROWS = [
    raw_document(f"d{number}", project=f"p{number:02}", text=f"Location: Turku {number}.")
    for number in range(8)
]
ALL = len(ROWS) + 2


class DeathError(BaseException):
    """Stands for a kill: nothing that a run does with an error is done with it."""


@pytest.fixture
def objects() -> Iterator[ObjectServer]:
    with serve_objects() as server:
        yield server


def sections(server: LlmServer, objects: ObjectServer, **budgets: Any) -> dict[str, Any]:
    llm = {"provider": "openai", "model": "scripted", "base_url": server.base_url}
    return {
        "llm": {**llm, "max_concurrency": 4},
        "budgets": {"small_run_nodes": 0, **budgets},
        "storage": {"journal_url": objects.url("memories")},
    }


def kept(objects: ObjectServer) -> list[str]:
    return [file.name for file in open_store(objects.url("memories")).files("")]


def make(make_memory: MakeMemory, server: LlmServer, objects: ObjectServer) -> Memory:
    memory = make_memory(**sections(server, objects))
    memory.ingest(*ROWS)
    return memory


@pytest.mark.soak
@pytest.mark.parametrize("way", [{}, {"small_run_nodes": 500}], ids=["spark", "small"])
def test_a_run_that_a_budget_stopped_goes_on_without_paying_again(
    make_memory: MakeMemory, objects: ObjectServer, way: dict[str, int]
) -> None:
    with serve_llm() as server:
        memory = make(make_memory, server, objects)
        memory.settings = make_settings(**sections(server, objects, **way, max_calls=5))

        with pytest.raises(BudgetReachedError):
            memory.run()
        first = len(server.chats)
        again = memory.run("update")

    assert first == 5
    assert (again.status, again.calls, again.cached) == ("done", ALL - 5, 5)
    assert len(server.chats) == memory.read(LLM_CALLS).count() == ALL
    assert kept(objects) == []


@pytest.mark.soak
def test_what_a_dead_run_journalled_is_planned_and_folded_and_not_paid_again(
    make_memory: MakeMemory, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Commits.append

    def die(self: Commits, table: Table, rows: Any) -> None:
        if table is not LLM_CALLS:
            return append(self, table, rows)
        rows.write.format("noop").mode("overwrite").save()
        raise DeathError

    with serve_llm() as server:
        memory = make(make_memory, server, objects)
        with monkeypatch.context() as patch:
            patch.setattr(Commits, "append", die)
            with pytest.raises(DeathError):
                memory.run()
        left, paid = kept(objects), len(server.chats)

        planned = plan_run(memory.spark, memory.settings, memory.root, is_full=False)
        run = memory.run(is_publishing=True)
        found = verify(memory.spark, memory.settings, memory.root)

    assert [name for name in left if name.endswith(".jsonl")]
    assert paid == len(ROWS)
    assert (planned.calls, planned.cached) == (2, len(ROWS))
    assert (run.status, run.calls, run.cached) == ("done", 2, len(ROWS))
    assert len(server.chats) == ALL
    assert (found.differences, found.calls) == ((), 0)
    assert kept(objects) == []


@pytest.mark.soak
def test_failures_are_recorded_from_there(make_memory: MakeMemory, objects: ObjectServer) -> None:
    def script(call: Any) -> Any:
        return content_filter_error() if "Turku 3." in call.prompt else None

    with serve_llm(script) as server:
        run = make(make_memory, server, objects).run()

    assert (run.status, run.failed) == ("partial", 3)
    assert kept(objects) == []


@pytest.mark.soak
def test_a_place_that_cannot_be_written_ends_a_run_before_anything_is_paid(
    make_memory: MakeMemory, objects: ObjectServer
) -> None:
    with serve_llm() as server:
        memory = make(make_memory, server, objects)
        objects.refused = {"PUT", "POST"}

        with pytest.raises(EnvironmentProblem, match=r"cannot keep the journal in s3://.*DENIED"):
            memory.run()

    assert server.chats == []
