"""Two actions on every frame between the documents and the tables call the model once a request."""

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame

from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.context import RunContext
from hltm_spark.pipeline.tables import LLM_CALLS, MEMORY, Table
from tests.builders import raw_document
from tests.llm_server import Call, Reply, broken_json, is_repair, serve_llm
from tests.spark.conftest import MakeMemory

pytestmark = pytest.mark.soak

PIPELINE = "hltm_spark.pipeline."
ROWS = [
    raw_document(f"d{number}", project=f"p{number}", text=f"Location: Turku {number}")
    for number in range(12)
]
GROUPED = {"max_input_tokens": 1635}
"""It leaves about 680 tokens for the items of the seat, which so needs groups."""


class Twice:
    """Acts twice on each frame that a function of the pipeline returns or a commit is given.

    Attributes:
        seen: Names of the functions, and of the tables, whose frames were acted on.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        modules = [m for name, m in sys.modules.items() if name.startswith(PIPELINE)]
        for module in modules:
            for name, function in list(vars(module).items()):
                if _returns_frames(function):
                    monkeypatch.setattr(module, name, self._acting(function))
        monkeypatch.setattr(RunContext, "stage", self._acting(RunContext.stage))
        for name in ("append", "merge"):
            monkeypatch.setattr(Commits, name, self._committing(getattr(Commits, name)))

    def act(self, frame: DataFrame, name: str) -> None:
        assert frame.count() == len(frame.collect()), name
        self.seen.add(name)

    def _acting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def acting(*given: Any, **named: Any) -> Any:
            result = function(*given, **named)
            for one in result if isinstance(result, tuple) else (result,):
                if isinstance(one, DataFrame):
                    self.act(one, function.__name__)
            return result

        return acting

    def _committing(self, commit: Callable[..., None]) -> Callable[..., None]:
        def committing(commits: Commits, table: Table, rows: DataFrame, **named: Any) -> None:
            self.act(rows, table.name)
            commit(commits, table, rows, **named)

        return committing


def _returns_frames(function: object) -> bool:
    if not inspect.isfunction(function) or not function.__module__.startswith(PIPELINE):
        return False
    return "DataFrame" in str(inspect.signature(function).return_annotation)


def one_in_six_malformed(call: Call) -> Reply | None:
    is_one = not is_repair(call) and any(f"Turku {n}" in call.user for n in (3, 9))
    return broken_json() if is_one and "<document" in call.user else None


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> Twice:
    acting = Twice()
    acting.install(monkeypatch)
    return acting


@pytest.mark.parametrize(
    ("settings", "frames"),
    [
        pytest.param(
            {"budgets": {"small_run_nodes": 0}},
            {"open_requests", "call_model", "find_answers", "answer_inputs", "assemble"},
            id="large",
        ),
        pytest.param(
            {"budgets": {**GROUPED, "small_run_nodes": 0}},
            {"open_requests", "call_model", "find_answers", "answer_inputs", "reduce_wide"},
            id="groups",
        ),
        pytest.param(
            {"budgets": {"small_run_nodes": 0}, "views": {"layout": "separate"}},
            {"first_requests", "second_requests", "call_model", "answer_inputs", "assemble"},
            id="two waves",
        ),
        pytest.param({"budgets": GROUPED}, set(), id="small"),
    ],
)
def test_a_second_action_on_a_frame_calls_no_model(
    make_memory: MakeMemory, twice: Twice, settings: dict[str, Any], frames: set[str]
) -> None:
    with serve_llm(one_in_six_malformed) as server:
        llm = {"provider": "openai", "model": "m", "base_url": server.base_url}
        memory = make_memory(llm=llm, **settings)
        memory.ingest(*ROWS)

        run = memory.run()

    assert (run.status, run.failed) == ("done", 0)
    assert twice.seen >= frames | {LLM_CALLS.name, MEMORY.name}
    assert set(Counter(call.prompt for call in server.chats).values()) == {1}
    ledger = memory.read(LLM_CALLS).select("tenant_id", "request_hash").collect()
    assert len(ledger) == len(set(ledger)) == len(server.chats) == run.calls
