import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from hltm_spark.core.config import LlmSettings
from hltm_spark.core.errors import EnvironmentProblem, LlmError, LlmStopError, SettingsError
from hltm_spark.models import response_format
from hltm_spark.models.answering import ask
from hltm_spark.models.llm import Request
from hltm_spark.models.openai_client import OpenAiClient
from hltm_spark.models.parsing import json_schema_of, parse_answer
from tests import llm_server as replies
from tests.llm_server import Call, LlmServer, Reply, serve_llm
from tests.unit.models.openai_calls import KEY, REQUEST, SECRET, always, client, complete, failure

LIMIT_NAMES = ("max_completion_tokens", "max_tokens")

# ---- what is sent and what comes back


def test_a_request_sends_only_what_is_set(server: LlmServer) -> None:
    asked = client(server)

    completion = asked.complete(REQUEST)
    asked.close()

    body = server.chats[0].body
    assert body.keys() == {"model", "messages", "max_completion_tokens", "response_format"}
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert body["response_format"]["json_schema"]["schema"] == json_schema_of("facets")
    assert server.chats[0].headers["authorization"] == f"Bearer {KEY}"
    assert completion.finish_reason == "stop"
    assert completion.prompt_tokens > 0
    assert completion.completion_tokens > 0
    assert completion.latency_s > 0
    parsed = parse_answer(
        completion.text, completion.finish_reason, output="facets", source_ids=["d1"]
    )
    assert parsed.fields["facets"] == [{"name": "city", "value": "Oulu", "sources": ["d1"]}]


def test_parameters_are_named_as_the_model_wants_them(server: LlmServer) -> None:
    asked = client(
        server,
        temperature=0.0,
        max_output_tokens=77,
        output_tokens_parameter="max_tokens",
        structured_output="text",
    )

    asked.complete(REQUEST)
    asked.close()

    body = server.chats[0].body
    assert (body["temperature"], body["max_tokens"]) == (0.0, 77)
    assert "max_completion_tokens" not in body
    assert "response_format" not in body


def test_azure_puts_the_deployment_into_the_url(server: LlmServer) -> None:
    asked = client(server, provider="azure", base_url=server.base_url.removesuffix("/v1"))

    asked.complete(REQUEST)
    asked.close()

    call = server.chats[0]
    assert call.path.startswith("/openai/deployments/gpt-test/chat/completions?api-version=2024-")
    assert call.headers["api-key"] == KEY


@pytest.mark.parametrize(
    ("message", "text", "finish_reason"),
    [
        ({"content": "x"}, "x", "stop"),
        ({"content": None}, "", "stop"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", "stop"),
        ({"content": None, "refusal": "no"}, "", "refusal"),
        (None, "", "stop"),
        ({"content": "x", "reasoning_content": "is it {", "reasoning": "no"}, "x", "stop"),
        ({"content": [{"type": "reasoning", "text": "{"}, {"text": "x"}]}, "x", "stop"),
    ],
)
def test_servers_may_shape_their_message_as_they_like(
    message: Any, text: str, finish_reason: str
) -> None:
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": None})

    completion, _ = complete([replies.raw(body.encode())])

    assert (completion.text, completion.finish_reason) == (text, finish_reason)
    assert (completion.prompt_tokens, completion.completion_tokens) == (0, 0)


@pytest.mark.parametrize(
    "more", [{}, {"usage": {}}, {"usage": []}, {"usage": {"prompt_tokens": None}}, {"usage": "9"}]
)
def test_an_answer_without_usage_is_an_answer_all_the_same(more: dict[str, Any]) -> None:
    choice = {"message": {"content": "x"}, "finish_reason": "stop"}

    completion, _ = complete([replies.raw(json.dumps({"choices": [choice], **more}).encode())])

    assert (completion.text, completion.prompt_tokens, completion.completion_tokens) == ("x", 0, 0)


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        (
            {"content": '<think>Is it {"facets": {"a": 1}}?</think>\n{"facets": {"city": "Oulu"}}'},
            1,
        ),
        ({"content": '{"facets": {"city": "Oulu"}}', "reasoning_content": '{"facets": {}}'}, 1),
        ({"content": '<think>Is it {"facets": {"city": "Turku"}}? I should'}, 2),
    ],
)
def test_the_thinking_of_a_reasoning_model_is_no_answer(message: Any, asked: int) -> None:
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    right = replies.text('{"facets": {"city": "Oulu"}}')

    with serve_llm([replies.raw(body), right]) as server, closing(client(server)) as model:
        parsed = ask(model, REQUEST, source_ids=["d1"], on_completion=lambda *_: None)

    assert parsed.fields["facets"] == [{"name": "city", "value": "Oulu", "sources": []}]
    assert len(server.chats) == asked


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"content": None}, "malformed"),
        ({"content": None, "reasoning_content": '{"facets": {"a": 1}}'}, "malformed"),
        ({"content": "", "tool_calls": [{"function": {"arguments": "{}"}}]}, "malformed"),
        ({"content": None, "refusal": "I can't."}, "refused"),
        ({"content": '{"facets": {"a": 1}}', "refusal": "I can't."}, "refused"),
    ],
)
def test_an_answer_without_content_fails_its_request_after_one_call(
    message: Any, kind: str
) -> None:
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()

    with (
        serve_llm(always(replies.raw(body))) as server,
        closing(client(server)) as model,
        pytest.raises(LlmError, match=f"^{kind}"),
    ):
        ask(model, REQUEST, source_ids=["d1"], on_completion=lambda *_: None)

    assert len(server.chats) == 1


pytestmark = pytest.mark.usefixtures("key_and_short_waits")


# ---- keys and settings


def test_a_missing_key_is_said_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("MY_KEY", " ")

    for name in ("OPENAI_API_KEY", "MY_KEY"):
        with pytest.raises(EnvironmentProblem, match=f"variable {name} .llm.api_key_env. is not"):
            OpenAiClient(LlmSettings(provider="openai", model="m", api_key_env=name))


def test_a_server_of_ones_own_needs_no_key(
    server: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")

    asked = client(server)
    asked.complete(REQUEST)
    asked.close()

    assert server.chats[0].headers["authorization"] == "Bearer none"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"provider": "azure"}, "llm.base_url must be the Azure endpoint"),
        ({"provider": "openai", "base_url": "localhost:8000"}, "must start with http"),
    ],
)
def test_a_base_url_that_cannot_work_is_said_before_any_call(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        OpenAiClient(LlmSettings(model="m", **settings))


def test_a_key_with_strange_characters_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "“sk-secret”")

    with pytest.raises(EnvironmentProblem, match="no key has") as raised:
        OpenAiClient(LlmSettings(provider="openai", model="m"))

    assert "secret" not in str(raised.value)


# ---- structured output


def refuses(*formats: str, reply: Reply) -> replies.Script:
    def script(call: Call) -> Reply | None:
        return reply if call.response_format in formats else None

    return script


@pytest.mark.parametrize(
    ("reply", "refused", "seen"),
    [
        (replies.format_refused(), ["json_schema"], ["json_schema", "json_object"]),
        (replies.server_error(500), ["json_schema"], ["json_schema", "json_object"]),
        (
            replies.error(422, message="response_format: unknown"),
            ["json_schema", "json_object"],
            ["json_schema", "json_object", "text"],
        ),
    ],
)
def test_structured_output_steps_down_once_for_all_rows(
    reply: Reply, refused: list[str], seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_format, "PATIENCE_S", 600)
    with serve_llm(refuses(*refused, reply=reply)) as server:
        asked = client(server)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: asked.complete(REQUEST), range(24)))
        asked.close()

    formats = [call.response_format for call in server.chats]
    assert formats[: len(seen)] == seen
    assert formats[len(seen) :] == [seen[-1]] * 23


def test_requests_run_together_once_the_format_is_known() -> None:
    together = threading.Barrier(4)

    def script(call: Call) -> Reply | None:
        if call.number:
            together.wait(timeout=10)
        return None

    with serve_llm(script) as server:
        asked = client(server)
        asked.complete(REQUEST)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: asked.complete(REQUEST), range(4)))
        asked.close()

    assert server.peak == 4


def test_nobody_waits_long_for_the_first_answer() -> None:
    together = threading.Barrier(4)

    def script(_: Call) -> None:
        together.wait(timeout=60)

    with serve_llm(script) as server:
        asked = client(server)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: asked.complete(REQUEST), range(4)))
        asked.close()

    assert server.peak == 4


@pytest.mark.parametrize("reply", [replies.format_refused(), replies.server_error(500)])
def test_a_format_that_several_requests_were_refused_for_is_left_by_all(reply: Reply) -> None:
    together = threading.Barrier(4)

    def script(call: Call) -> Reply | None:
        if call.response_format != "json_schema":
            return None
        together.wait(timeout=60)
        return reply

    with serve_llm(script) as server:
        asked = client(server, max_attempts=1)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: asked.complete(REQUEST), range(4)))
        asked.close()

    formats = sorted(str(call.response_format) for call in server.chats)
    assert formats == ["json_object"] * 4 + ["json_schema"] * 4


def test_http_500_after_an_answer_in_json_schema_is_a_fault_like_any_other() -> None:
    with serve_llm([None, replies.server_error(500), None]) as server:
        asked = client(server)

        asked.complete(REQUEST)
        asked.complete(REQUEST)
        asked.close()

    assert [call.response_format for call in server.chats] == ["json_schema"] * 3


def test_a_format_that_was_set_by_hand_is_not_changed() -> None:
    error, server = failure(always(replies.format_refused()), structured_output="json_schema")

    assert isinstance(error, LlmStopError)
    assert "set it to 'auto'" in str(error)
    assert len(server.chats) == 1


def test_a_failed_first_request_leaves_the_format_open_for_the_next() -> None:
    with serve_llm([replies.too_long(), replies.format_refused(), None]) as server:
        asked = client(server)

        with pytest.raises(LlmError, match=r"^too_long"):
            asked.complete(REQUEST)
        asked.complete(REQUEST)
        asked.close()

    assert [c.response_format for c in server.chats] == [
        "json_schema",
        "json_schema",
        "json_object",
    ]


def test_requests_do_not_queue_behind_an_endpoint_that_is_down() -> None:
    with serve_llm([replies.server_error(503), replies.server_error(500), None]) as server:
        asked = client(server, max_attempts=1)

        with pytest.raises(LlmError, match=r"^unavailable"):
            asked.complete(REQUEST)
        assert asked._format._is_settled
        asked.complete(REQUEST)
        asked.close()

    assert [c.response_format for c in server.chats] == [
        "json_schema",
        "json_schema",
        "json_object",
    ]


def test_json_object_requests_hold_the_word_json(server: LlmServer) -> None:
    asked = client(server, structured_output="json_object")

    asked.complete(REQUEST)
    asked.complete(Request(task="t", output="facets", system="", user="hello"))
    asked.close()

    assert server.chats[0].system == REQUEST.system
    assert server.chats[1].system == "Answer with one JSON object."


# ---- logs


def test_prompts_are_not_logged_at_debug_level(
    server: LlmServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        asked = client(server)
        asked.complete(REQUEST)
        asked.close()

    assert SECRET not in caplog.text


@pytest.mark.parametrize(("name", "other"), [LIMIT_NAMES, LIMIT_NAMES[::-1]])
def test_an_endpoint_that_passes_over_the_output_limit_is_told_of_once(
    caplog: pytest.LogCaptureFixture, name: str, other: str
) -> None:
    choice = {"message": {"content": SECRET}, "finish_reason": "length"}
    body = {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 101}}
    settings = {"max_output_tokens": 100, "output_tokens_parameter": name}

    with serve_llm(always(replies.raw(json.dumps(body).encode()))) as server:
        asked = client(server, **settings)
        for _ in range(2):
            asked.complete(REQUEST)
        asked.close()

    (told,) = [r.getMessage() for r in caplog.records if "101 tokens" in r.getMessage()]
    assert f"set llm.output_tokens_parameter = {other!r}" in told
    assert SECRET not in told


def test_an_answer_within_the_output_limit_is_not_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    choice = {"message": {"content": "x"}, "finish_reason": "length"}
    body = {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 200}}

    with serve_llm(always(replies.raw(json.dumps(body).encode()))) as server:
        asked = client(server, max_output_tokens=100)
        asked.complete(replace(REQUEST, output_factor=2))
        asked.close()

    assert not caplog.records
