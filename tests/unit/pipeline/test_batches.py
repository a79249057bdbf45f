"""Batches over real HTTP, without Spark: what is asked, paid, kept and asked again."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hltm_spark.core.errors import BatchesLeftError, LlmStopError, SettingsError
from hltm_spark.models import retrying
from hltm_spark.models.batch_client import BatchClient
from hltm_spark.models.providers import make_llm
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline import batches as module
from hltm_spark.pipeline.batch_records import BatchRecords
from hltm_spark.pipeline.batches import Batches, BatchPlace
from hltm_spark.pipeline.calls import CallSettings
from hltm_spark.pipeline.journal import Journal
from tests import llm_server as replies
from tests.batch_server import BatchServer, Ending, serve_batches
from tests.builders import document, node, settings
from tests.llm_answers import Call, is_repair
from tests.llm_server import Reply

SECRET = "the applicant's secret"
KEY = "sk-test-key"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(retrying, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(module, "SETTLE_S", 0.0)


@dataclass
class Rig:
    """A root without tables: a list stands for the ledger, and survives what a kill does."""

    root: Path
    server: BatchServer
    llm: dict[str, Any] = field(default_factory=dict)
    count: int = 5
    text: str = "Location: Turku"
    ledger: list[dict[str, Any]] = field(default_factory=list)
    runs: int = 0

    @property
    def folder(self) -> Path:
        return self.root / "batches"

    @property
    def journal(self) -> Path:
        return self.root / "journal" / f"run-{self.runs}"

    def call(self) -> CallSettings:
        given = {"provider": "openai", "model": "m", "base_url": self.server.base_url}
        given |= {"execution": "batch", "batch_poll_s": 0.001, "max_retry_s": 5.0, **self.llm}
        chosen = settings(llm=given)
        prompts = NodePrompts.load(chosen)
        return CallSettings(
            settings=chosen,
            prompts=prompts,
            journal=str(self.journal),
            stage="only",
            workers=1,
            run_id=f"run-{self.runs}",
            make_client=make_llm,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return every request, as a level's wave has them: two tenants, half of the rows each."""
        prompts, made = self.call().prompts, []
        for number in range(self.count):
            tenant = "acme" if number % 2 else "nordic"
            text = f"{self.text}\n{SECRET} {number // 2}"
            given = node(
                document(f"d{number // 2}", text=text),
                tenant_id=tenant,
                node_id=f"{tenant}/s1/p{number // 2}",
                level="project",
            )
            request = prompts.request(given, "fused", summary=None, is_group=False)
            made.append(
                {
                    "tenant_id": tenant,
                    "tenant_key": f"key of {tenant}",
                    "node_id": given.node_id,
                    "level": "project",
                    "task": "fused",
                    "request_hash": prompts.request_hash(request, tenant_id=tenant),
                    "summary": None,
                    "payload": json.dumps(given.to_dict()),
                }
            )
        return sorted(made, key=lambda row: (row["tenant_id"], row["request_hash"]))

    def open_rows(self) -> list[dict[str, Any]]:
        answered = {key(row) for row in self.ledger if row["is_usable"]}
        return [row for row in self.rows() if key(row) not in answered]

    def keep(self, file: Path) -> None:
        known = {(row["tenant_id"], row["request_hash"], row["run_id"]) for row in self.ledger}
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if (row["tenant_id"], row["request_hash"], row["run_id"]) not in known:
                self.ledger.append(row)

    def run(self) -> list[dict[str, Any]]:
        """Do what a run does: fold journals, collect what is left, ask for the rest."""
        for file in (self.root / "journal").rglob("*.jsonl"):
            self.keep(file)
        self.runs += 1
        place = BatchPlace(
            records=BatchRecords(self.folder),
            scratch=self.root / "staging" / f"run-{self.runs}",
            salt="salt",
            keep=self.keep,
            check=lambda: None,
        )
        batches = Batches(self.call(), place)
        try:
            batches.collect_left()
            rows = self.open_rows()
            return list(batches.answers(lambda: rows))
        finally:
            batches.close()

    def failures(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in self.journal.glob("*.failure")]

    def is_complete(self) -> bool:
        return not self.open_rows() and not list(self.folder.iterdir())


def key(row: dict[str, Any]) -> tuple[str, str]:
    return row["tenant_id"], row.get("repair_of") or row["request_hash"]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Return a factory of rigs; options of the server and of the rig."""
    opened = []

    def make(
        *, count: int = 5, text: str = "Location: Turku", llm: Any = None, **served: Any
    ) -> Rig:
        context = serve_batches(**served)
        opened.append(context)
        return Rig(tmp_path, context.__enter__(), llm=llm or {}, count=count, text=text)

    yield make
    for context in opened:
        context.__exit__(None, None, None)


# ---- what is sent


def test_a_wave_is_one_batch_and_its_answers_are_in_the_ledger(rig: Callable[..., Rig]) -> None:
    made = rig(polls=3)

    paid = made.run()

    assert len(made.server.batches) == 1
    assert len(paid) == len(made.ledger) == len(made.server.paid) == 5
    assert {row["task"] for row in paid} == {"leaf/fused"}
    assert all(row["is_usable"] and row["prompt_tokens"] for row in paid)
    assert {row["tenant_key"] for row in paid} == {"key of acme", "key of nordic"}
    assert made.is_complete()


def test_lines_stand_in_the_order_of_requests_and_tell_nothing_by_their_ids(
    rig: Callable[..., Rig],
) -> None:
    made = rig()
    made.run()

    lines = made.server.requests(0)
    again = Rig(made.root / "again", made.server)
    again.run()

    assert lines == made.server.requests(1)
    assert len({line["custom_id"] for line in lines}) == 5
    assert all(len(line["custom_id"]) == 32 for line in lines)
    assert not any("acme" in line["custom_id"] for line in lines)
    first = lines[0]["body"]
    assert first["response_format"]["type"] == "json_schema"
    assert first["model"] == "m"
    assert lines[0]["url"] == "/v1/chat/completions"


def test_requests_are_split_by_the_limits_of_a_file(rig: Callable[..., Rig]) -> None:
    made = rig(count=7, llm={"batch_max_requests": 3})
    made.run()
    by_count = [len(made.server.requests(n)) for n in range(3)]
    size = len(made.server.files["file-0"]) // 3

    other = Rig(made.root / "other", made.server, llm={"batch_max_bytes": size * 2 + 100}, count=7)
    other.run()

    assert by_count == [3, 3, 1]
    assert [len(made.server.requests(n)) for n in range(3, 7)] == [2, 2, 2, 1]
    assert other.is_complete()


def test_a_request_larger_than_a_file_may_be_fails_alone(rig: Callable[..., Rig]) -> None:
    made = rig(llm={"batch_max_bytes": 100})

    assert made.run() == []

    assert [failure["kind"] for failure in made.failures()] == ["too_long"] * 5
    assert not made.server.batches


def test_progress_is_told_at_submission_and_at_each_change_without_any_text(
    rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    made = rig(polls=5)
    with caplog.at_level(logging.DEBUG, logger="hltm_spark"):
        made.run()

    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("batch batch_0: 5 requests, ")
    assert said[1:] == [
        "batch batch_0: in_progress, 0 of 5 answered, 0 failed",
        "batch batch_0: completed, 5 of 5 answered, 0 failed",
        "batch batch_0: 5 answers collected",
    ]
    assert SECRET not in caplog.text


def test_records_hold_no_text_of_documents(rig: Callable[..., Rig]) -> None:
    made = rig(script=lambda call: replies.unauthorized() if "/batches/" in call.path else None)
    with pytest.raises(LlmStopError):
        made.run()

    files = list(made.folder.iterdir())
    assert sorted(file.suffix for file in files) == [".json", ".rows"]
    assert not any(SECRET in file.read_text() for file in files)
    assert not list((made.root / "staging").rglob("batch-*"))


# ---- what comes back


def test_an_expired_batch_keeps_what_it_has_and_the_rest_is_asked_once_more(
    rig: Callable[..., Rig],
) -> None:
    made = rig(endings=[Ending(status="expired", answered=2)])

    made.run()

    assert [len(made.server.requests(n)) for n in range(2)] == [5, 3]
    assert len(made.server.paid) == 5
    assert made.is_complete()


@pytest.mark.parametrize(
    "ending",
    [
        Ending(status="expired", answered=4),
        Ending(status="cancelled", answered=4, is_telling=False),
        Ending(answered=4, is_telling=False),
    ],
)
def test_what_two_batches_leave_is_a_failure_of_that_node_alone(
    rig: Callable[..., Rig], ending: Ending
) -> None:
    rest = Ending(status=ending.status, answered=0, is_telling=ending.is_telling)
    made = rig(endings=[ending, rest])

    paid = made.run()

    assert len(paid) == 4
    [failure] = made.failures()
    assert (failure["kind"], failure["tries"], failure["task"]) == ("unavailable", 2, "fused")
    assert len(made.server.batches) == 2
    assert list(made.folder.iterdir()) == []


def test_a_batch_that_fails_as_a_whole_is_tried_twice(rig: Callable[..., Rig]) -> None:
    failed = Ending(status="failed", errors=[{"code": "invalid_json_line", "message": SECRET}])
    made = rig(endings=[failed, failed])

    assert made.run() == []

    assert len(made.server.batches) == 2
    assert {failure["kind"] for failure in made.failures()} == {"unavailable"}
    assert SECRET not in json.dumps(made.failures())


def test_a_full_queue_does_not_count_while_other_batches_get_through(
    rig: Callable[..., Rig],
) -> None:
    full = Ending(status="failed", errors=[{"code": "token_limit_exceeded", "message": "full"}])
    made = rig(
        count=4, llm={"batch_max_requests": 1}, endings=[None, full, full, full, None, full, full]
    )

    made.run()

    assert made.is_complete()
    assert len(made.server.paid) == 4


def test_temporary_errors_of_lines_are_asked_again_and_others_fail_alone(
    rig: Callable[..., Rig],
) -> None:
    seen: Counter[str] = Counter()

    def lines(call: Call) -> Reply | None:
        seen[call.prompt] += 1
        if "p0" in call.prompt and "nordic" in call.prompt:
            return replies.rate_limited() if seen[call.prompt] == 1 else None
        if "p1" in call.prompt and "nordic" in call.prompt:
            return replies.content_filter_error()
        if "p0" in call.prompt:
            return replies.server_error(500) if seen[call.prompt] == 1 else None
        return replies.truncated() if "p1" in call.prompt else None

    made = rig(lines=lines)
    made.run()

    assert sorted(failure["kind"] for failure in made.failures()) == ["filtered", "truncated"]
    assert [len(made.server.requests(n)) for n in range(2)] == [5, 2]
    assert [row["is_usable"] for row in made.ledger].count(False) == 1
    assert len(made.open_rows()) == 2


def test_strange_lines_are_passed_over(
    rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    def rewrite(lines: list[str]) -> list[str]:
        other = json.dumps({**json.loads(lines[0]), "custom_id": "someone else's"})
        numbered = json.dumps({**json.loads(lines[0]), "custom_id": [1]})
        return [*lines, lines[1], other, numbered, "not json", "[]", ""]

    made = rig(endings=[Ending(rewrite=rewrite)])
    made.run()

    assert len(made.ledger) == 5
    assert made.is_complete()
    assert "batch batch_0: 5 lines are of no request, or repeat one; ignored" in caplog.text


def test_an_answer_counts_over_an_error_to_the_same_request(rig: Callable[..., Rig]) -> None:
    def rewrite(lines: list[str]) -> list[str]:
        bad = {"status_code": 500, "body": {"error": {"message": "x"}}}
        return [json.dumps({**json.loads(lines[0]), "response": bad}), *lines]

    made = rig(endings=[Ending(rewrite=rewrite)])
    made.run()

    assert len(made.server.batches) == 1
    assert made.is_complete()


def test_malformed_answers_are_repaired_once_in_a_second_batch(rig: Callable[..., Rig]) -> None:
    def lines(call: Call) -> Reply | None:
        if is_repair(call):
            return replies.apology() if call.number == 1 and "p9" in call.prompt else None
        return replies.broken_json() if "d1" in call.prompt else None

    made = rig(lines=lines)
    made.run()

    assert len(made.server.requests(1)) == 2
    repairs = [row for row in made.ledger if row["repair_of"]]
    assert {row["task"] for row in repairs} == {"repair/response"}
    assert made.is_complete()
    assert made.failures() == []


def test_an_answer_that_a_repair_does_not_mend_is_a_failure(rig: Callable[..., Rig]) -> None:
    made = rig(count=1, lines=lambda call: replies.text("nothing like JSON"))
    made.run()

    [failure] = made.failures()
    assert failure["kind"] == "malformed"
    assert "after one repair" in failure["reason"]
    assert [row["is_usable"] for row in made.ledger] == [False, False]
    assert len(made.server.batches) == 2


def test_a_repair_that_expired_is_asked_once_more(rig: Callable[..., Rig]) -> None:
    made = rig(
        count=1,
        lines=lambda call: None if is_repair(call) else replies.broken_json(),
        endings=[None, Ending(status="expired", answered=0)],
    )
    made.run()

    assert [len(made.server.requests(n)) for n in range(3)] == [1, 1, 1]
    assert made.server.requests(1) == made.server.requests(2)
    assert made.is_complete()


# ---- structured output


def test_auto_steps_down_when_every_line_is_refused_because_of_the_format(
    rig: Callable[..., Rig],
) -> None:
    def lines(call: Call) -> Reply | None:
        return None if call.response_format == "text" else replies.format_refused()

    made = rig(lines=lines)
    made.run()

    formats = [
        made.server.requests(n)[0]["body"].get("response_format", {}).get("type") for n in range(3)
    ]
    assert formats == ["json_schema", "json_object", None]
    assert made.is_complete()


def test_auto_steps_down_when_the_whole_batch_is_refused(rig: Callable[..., Rig]) -> None:
    error = {"code": "invalid_request", "message": "no", "param": "body.response_format"}
    made = rig(endings=[Ending(status="failed", errors=[error])])
    made.run()

    assert made.server.requests(1)[0]["body"]["response_format"]["type"] == "json_object"
    assert made.is_complete()


def test_a_format_that_some_lines_took_is_kept(rig: Callable[..., Rig]) -> None:
    made = rig(lines=lambda c: replies.format_refused() if "d2" in c.prompt else None)
    made.run()

    assert [failure["kind"] for failure in made.failures()] == ["refused"]
    assert len(made.server.batches) == 1


def test_a_format_that_is_set_stops_the_run_when_it_is_refused(rig: Callable[..., Rig]) -> None:
    made = rig(lines=lambda _: replies.format_refused(), llm={"structured_output": "json_schema"})

    with pytest.raises(LlmStopError, match=r"llm\.structured_output 'json_schema'"):
        made.run()


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
    with monkeypatch.context() as patch:
        patch.setattr(Batches, "_check", interrupted_while_waiting)
        with pytest.raises(KeyboardInterrupt):
            made.run()
    made.text = "Location: Espoo"
    made.count = 3

    paid = made.run()

    assert len(made.server.batches) == 2
    assert len(made.ledger) == 8
    assert len(paid) == 3
    assert {row["run_id"] for row in made.ledger} == {"run-1", "run-2"}
    assert made.is_complete()


def interrupted_while_waiting(batches: Batches) -> None:
    if batches._seen:
        raise KeyboardInterrupt


def test_a_batch_at_another_endpoint_is_left_alone(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig(polls=2)
    with monkeypatch.context() as patch:
        patch.setattr(Batches, "_check", interrupted_while_waiting)
        with pytest.raises(KeyboardInterrupt):
            made.run()
    with serve_batches() as other:
        moved = Rig(made.root, other, ledger=made.ledger, runs=made.runs)
        moved.run()

    assert len(other.paid) == 5
    assert len(list(made.folder.glob("*.json"))) == 1


# ---- settings


@pytest.mark.parametrize("provider", ["extractive", "azure"])
def test_batch_mode_needs_a_provider_that_has_it(provider: str) -> None:
    with pytest.raises(SettingsError, match=r"llm\.execution 'batch' needs llm\.provider 'openai'"):
        settings(llm={"provider": provider, "model": "m", "execution": "batch"})
