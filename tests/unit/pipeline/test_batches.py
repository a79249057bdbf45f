"""Batches over real HTTP, without Spark: what is asked, and what becomes of the answers."""

import json
import logging
from collections import Counter
from collections.abc import Callable

import pytest

from hltm_spark.core.errors import LlmStopError, SettingsError
from tests import llm_server as replies
from tests.batch_server import Ending
from tests.builders import settings
from tests.llm_answers import Call, is_repair
from tests.llm_server import Reply
from tests.unit.pipeline.batch_rig import SECRET, Rig

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


pytestmark = pytest.mark.usefixtures("quick_batches")


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


# ---- settings


@pytest.mark.parametrize("provider", ["extractive", "azure"])
def test_batch_mode_needs_a_provider_that_has_it(provider: str) -> None:
    with pytest.raises(SettingsError, match=r"llm\.execution 'batch' needs llm\.provider 'openai'"):
        settings(llm={"provider": provider, "model": "m", "execution": "batch"})
