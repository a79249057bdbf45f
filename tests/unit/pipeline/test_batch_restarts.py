"""Batches of runs that end early: nothing is lost, and nothing is paid twice."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hltm_spark.core.errors import BatchesLeftError, LlmStopError
from hltm_spark.models.batch_client import BatchClient
from hltm_spark.pipeline import batches as module
from hltm_spark.pipeline.batch_records import BatchRecords
from hltm_spark.pipeline.batches import Batches
from hltm_spark.pipeline.journal import Journal
from tests import llm_server as replies
from tests.batch_server import Ending, serve_batches
from tests.llm_answers import Call
from tests.llm_server import Reply
from tests.unit.pipeline.batch_rig import KEY, SECRET, Rig

# ---- what ends a run


@pytest.mark.parametrize(
    ("path", "reply", "said"),
    [
        ("/files", replies.unauthorized(), r"refused the key.*OPENAI_API_KEY"),
        ("/files", replies.error(413), r"batch file of \d+ bytes: HTTP 413; lower llm.batch_max"),
        ("/files", replies.error(404), r"no Batch API.*llm\.execution = 'interactive'"),
        ("/batches", replies.insufficient_quota(), "quota .* is used up"),
        ("/batches", replies.error(400, code="billing_hard_limit_reached"), "quota .* is used up"),
    ],
)
def test_what_no_further_request_can_survive_stops_the_run_with_one_message(
    rig: Callable[..., Rig], path: str, reply: Reply, said: str
) -> None:
    made = rig(script=lambda call: reply if call.path == f"/v1{path}" else None)

    with pytest.raises(LlmStopError, match=said) as raised:
        made.run()

    assert SECRET not in str(raised.value)
    assert KEY not in str(raised.value)
    assert list(made.folder.glob("*.json")) == []
    assert len(made.server.calls) <= 2


@pytest.mark.parametrize(
    "served",
    [
        {"lines": lambda c: replies.unknown_model() if "d2" in c.prompt else None},
        {"lines": lambda c: replies.insufficient_quota() if "d2" in c.prompt else None},
    ],
)
def test_a_stop_in_one_line_keeps_what_the_others_were_answered(
    rig: Callable[..., Rig], served: Any
) -> None:
    made = rig(**served)

    with pytest.raises(LlmStopError, match=r"llm\.model 'm'"):
        made.run()

    assert len(made.ledger) == 4
    assert list(made.folder.iterdir()) == []


def test_a_batch_of_an_unknown_model_stops_the_run(rig: Callable[..., Rig]) -> None:
    error = {"code": "model_not_found", "message": "no"}
    made = rig(endings=[Ending(status="failed", errors=[error])])

    with pytest.raises(LlmStopError, match="does not know"):
        made.run()

    assert len(made.server.batches) == 1


def test_a_stop_file_leaves_the_batch_on_record_for_the_next_run(
    rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    def stop(call: Call) -> Reply | None:
        if "/batches/" in call.path and made.runs == 1:
            (made.journal / "STOP").write_text("enough")
        return None

    made = rig(polls=2, script=stop)
    (made.root / "journal" / "run-1").mkdir(parents=True)

    with pytest.raises(BatchesLeftError):
        made.run()
    said = caplog.text
    made.run()

    assert "1 batches go on at the provider" in said
    assert len(made.server.batches) == 1
    assert made.is_complete()


def test_an_endpoint_that_is_down_while_a_batch_works_is_waited_for(
    rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hltm_spark")
    down = [replies.server_error(503)] * 4
    made = rig(script=[None, None, *down], llm={"max_attempts": 2})
    made.run()

    assert caplog.text.count("no answer from the endpoint (unavailable: HTTP 503)") == 1
    assert made.is_complete()


def test_an_endpoint_that_stays_down_ends_the_run_with_everything_on_record(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SILENCE_S", 0.0)

    def down(call: Call) -> Reply | None:
        return replies.server_error(503) if "/batches/" in call.path and made.runs == 1 else None

    made = rig(script=down, llm={"max_attempts": 1})
    with pytest.raises(BatchesLeftError, match="run again"):
        made.run()
    made.run()

    assert len(made.server.batches) == 1
    assert made.is_complete()


pytestmark = pytest.mark.usefixtures("quick_batches")


# ---- restart


class KilledError(BaseException):
    """Stands for SIGKILL."""


class Killer:
    """Counts the steps of a run and dies after one of them, before it is known to be done."""

    def __init__(self, at: int) -> None:
        self.at, self.step = at, 0

    def __call__(self) -> None:
        self.step += 1
        if self.step == self.at:
            raise KilledError

    def around(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        inner = getattr(owner, name)

        def stepped(*args: Any, **options: Any) -> Any:
            result = inner(*args, **options)
            self()
            return result

        patch.setattr(owner, name, stepped)


STEPS = [
    (BatchClient, "_call"),
    (BatchRecords, "write"),
    (BatchRecords, "remove"),
    (Path, "unlink"),
    (Journal, "append"),
    (Rig, "keep"),
]


def test_a_run_that_is_killed_at_any_step_and_run_again_pays_nothing_twice(tmp_path: Path) -> None:
    at = 1
    while True:
        killer = Killer(at)
        with serve_batches(polls=1, endings=[Ending(status="expired", answered=1)]) as server:
            made = Rig(tmp_path / str(at), server, llm={"batch_max_requests": 2}, count=3)
            with pytest.MonkeyPatch.context() as patch:
                for owner, name in STEPS:
                    killer.around(patch, owner, name)
                try:
                    made.run()
                except KilledError:
                    is_killed = True
                else:
                    is_killed = False
            made.run()

            assert made.is_complete(), at
            assert len(server.paid) == 3, at
            assert len(made.ledger) == 3, at
        if not is_killed:
            break
        at += 1
    assert at > 20


def test_a_batch_whose_creation_was_answered_by_a_cut_connection_is_found_again(
    rig: Callable[..., Rig],
) -> None:
    made = rig(count=6, llm={"batch_max_requests": 2})
    made.server.lost = {2}

    made.run()

    assert len(made.server.batches) == 3
    assert made.is_complete()


def test_an_interrupt_leaves_the_batch_and_the_next_run_finds_it_among_others(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = rig()
    with monkeypatch.context() as patch:
        killer = Killer(at=1)  # started, but not yet on record with its id
        killer.around(patch, BatchRecords, "write")
        with pytest.raises(KilledError):
            made.run()
    for _ in range(5):  # further batches of the same account, of which a page shows two
        others = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        made.server.create({**others, "input_file_id": "file-0", "metadata": None})
    made.run()

    assert "the next run collects them" in caplog.text
    assert len(made.server.batches) == 6
    assert made.is_complete()


def test_a_run_whose_requests_changed_still_collects_the_old_batch(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig(polls=2)
    interrupt(made, monkeypatch)
    made.text = "Location: Espoo"
    made.count = 3

    paid = made.run()

    assert len(made.server.batches) == 2
    assert len(made.ledger) == 8
    assert len(paid) == 3
    assert {row["run_id"] for row in made.ledger} == {"run-1", "run-2"}
    assert made.is_complete()


def interrupt(made: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until a batch is waited for, and interrupt it there."""
    with monkeypatch.context() as patch:
        patch.setattr(Batches, "_check", interrupted_while_waiting)
        with pytest.raises(KeyboardInterrupt):
            made.run()


def interrupted_while_waiting(batches: Batches) -> None:
    if batches._seen:
        raise KeyboardInterrupt


def test_a_batch_at_another_endpoint_is_left_alone(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig(polls=2)
    interrupt(made, monkeypatch)
    with serve_batches() as other:
        moved = Rig(made.root, other, ledger=made.ledger, runs=made.runs)
        moved.run()

    assert len(other.paid) == 5
    assert len(list(made.folder.glob("*.json"))) == 1
