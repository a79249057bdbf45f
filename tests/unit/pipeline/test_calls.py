"""The call stage of one worker over real HTTP."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from hltm_spark.models.providers import make_llm
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.calls import Caller, CallSettings, answer_rows
from hltm_spark.pipeline.journal_stop import DOWN, read_stop
from hltm_spark.pipeline.journal_store import FolderStore
from hltm_spark.pipeline.journal_sums import read_spent
from tests.builders import document, node, settings
from tests.llm_server import (
    Call,
    LlmServer,
    Reply,
    content_filter_error,
    delayed,
    serve_llm,
)


def call_settings(server: LlmServer, journal: Path, **llm: Any) -> CallSettings:
    given = {"provider": "openai", "model": "m", "base_url": server.base_url, **llm}
    chosen = settings(llm=given)
    return CallSettings(
        settings=chosen,
        prompts=NodePrompts.load(chosen),
        journal=str(journal),
        stage="only",
        workers=1,
        run_id="run-1",
        make_client=make_llm,
    )


def requests(prompts: NodePrompts, count: int) -> list[dict[str, Any]]:
    made = []
    for number in range(count):
        given = node(document(f"d{number}"), node_id=f"acme/s1/p{number}", level="project")
        ((task, request),) = prompts.first_requests(given)
        made.append(
            {
                "tenant_id": given.tenant_id,
                "tenant_key": "key",
                "node_id": given.node_id,
                "level": given.level,
                "task": task,
                "request_hash": prompts.request_hash(request, tenant_id=given.tenant_id),
                "request": request,
                "source_ids": given.source_ids,
            }
        )
    return made


def answers(call: CallSettings, count: int) -> list[dict[str, Any]]:
    with Caller(call) as caller:
        return list(caller.answers(requests(call.prompts, count)))


def test_every_answer_is_in_the_journal_and_comes_back(tmp_path: Path) -> None:
    with serve_llm() as server:
        paid = answers(call_settings(server, tmp_path, max_concurrency=4), 20)

    assert len({row["request_hash"] for row in paid}) == len(server.chats) == 20
    assert all(row["is_usable"] for row in paid)
    assert read_spent(FolderStore(tmp_path)).calls == 20
    assert server.peak <= 4


def test_an_answer_that_was_cut_off_is_paid_twice_and_usable_once(tmp_path: Path) -> None:
    with serve_llm([None, Reply(finish_reason="length")]) as server:
        paid = answers(call_settings(server, tmp_path, max_concurrency=1), 2)

    first, cut, whole = paid
    limits = [call.body["max_completion_tokens"] for call in server.chats]
    assert limits == [2048, 2048, 4096]
    assert [row["is_usable"] for row in paid] == [True, False, True]
    assert (first["repair_of"], whole["repair_of"]) == (None, cut["request_hash"])


def test_fewer_calls_are_made_at_once_after_refusals(tmp_path: Path) -> None:
    busy = Reply(
        status=429, headers={"retry-after-ms": "10"}, error={"code": "rate_limit_exceeded"}
    )
    seen: list[int] = []

    def script(call: Any) -> Reply | None:
        seen.append(call.number)
        return busy if 8 <= call.number < 16 else Reply(delay_s=0.02)

    with serve_llm(script) as server:
        paid = answers(call_settings(server, tmp_path, max_concurrency=8), 40)

    assert len(paid) == 40
    assert len(seen) == 48


def test_an_endpoint_that_stays_down_stops_the_run_and_not_its_nodes(tmp_path: Path) -> None:
    llm = {"circuit_failures": 3, "circuit_s": 0.2, "max_concurrency": 2, "max_attempts": 9}

    with serve_llm(lambda _: Reply(status=503)) as server:
        paid = answers(call_settings(server, tmp_path, **llm), 50)

    stop = read_stop(FolderStore(tmp_path))
    assert paid == []
    assert stop is not None
    assert stop.kind == DOWN
    assert not list(tmp_path.glob("*.failure"))
    assert len(server.chats) < 10


# --- Attempts of one task


def filtered_once(call: Call) -> Reply:
    """Answer a bit later; the third document's prompt is refused for good."""
    return content_filter_error() if "text of d2" in call.prompt else delayed(0.01)


def asked(server: LlmServer) -> Counter[str]:
    return Counter(call.prompt for call in server.chats)


def test_a_twin_of_a_task_pays_nothing_that_the_first_attempt_pays(tmp_path: Path) -> None:
    with serve_llm(filtered_once) as server:
        call = call_settings(server, tmp_path, max_concurrency=4)
        rows = requests(call.prompts, 20)

        with ThreadPoolExecutor(2) as attempts:
            first, twin = attempts.map(lambda _: list(answer_rows(rows, call)), range(2))

    assert len(first) == len(twin) == 19
    assert {row["request_hash"] for row in first} == {row["request_hash"] for row in twin}
    assert set(asked(server).values()) == {1}


def test_an_attempt_asks_again_neither_answers_nor_failures_of_one_that_ended_early(
    tmp_path: Path,
) -> None:
    with serve_llm(filtered_once) as server:
        call = call_settings(server, tmp_path, max_concurrency=2)
        rows = requests(call.prompts, 20)

        early: Any = answer_rows(rows, call)
        assert len(list(islice(early, 8))) == 8
        early.close()  # what is in flight then is still journalled
        again = list(answer_rows(rows, call))

    assert len({row["request_hash"] for row in again}) == len(again) == 19
    assert set(asked(server).values()) == {1}
    assert len(list(tmp_path.glob("*.failure"))) == 1


def test_a_second_action_over_answered_requests_calls_no_model(tmp_path: Path) -> None:
    with serve_llm(filtered_once) as server:
        call = call_settings(server, tmp_path, max_concurrency=4)
        rows = requests(call.prompts, 20)

        both = [list(answer_rows(rows, call)) for _ in range(2)]

    assert [len(answered) for answered in both] == [19, 19]
    assert set(asked(server).values()) == {1}
