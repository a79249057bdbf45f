"""The client and the way of one answer, against a server and a model that nobody scripted."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from hltm_spark.core.config import LlmSettings
from hltm_spark.core.errors import EndpointDownError, LlmError, LlmStopError
from hltm_spark.core.tokens import estimate_tokens
from hltm_spark.models.answering import ask
from hltm_spark.models.llm import Completion, Request
from hltm_spark.models.openai_client import OpenAiClient
from tests.golden_prompts import golden_files
from tests.llm.llama_server import CONTEXT_TOKENS, MODEL, LlamaServer

SUMMARY = Request(
    task="leaf/summary",
    output="summary",
    system='Answer with one JSON object and nothing else: {"summary": "text"}',
    user='<document id="d1">\nThe office is in Oulu.\n</document>\n\nWrite the summary as JSON.',
)
COUNTING = Request(
    task="leaf/summary",
    output="summary",
    system="",
    user="Count from one to one hundred in words, separated by commas.",
)


@contextmanager
def client(llama: LlamaServer, **settings: Any) -> Iterator[OpenAiClient]:
    given: dict[str, Any] = {
        "provider": "openai",
        "model": MODEL,
        "base_url": llama.base_url,
        "output_tokens_parameter": "max_tokens",
        "max_output_tokens": 32,
        "temperature": 0.0,
        "timeout_s": 300.0,
    }
    opened = OpenAiClient(LlmSettings(**given | settings))
    try:
        yield opened
    finally:
        opened.close()


def test_the_client_steps_down_once_to_a_format_that_the_server_takes(llama: LlamaServer) -> None:
    with client(llama) as model, ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(model.complete, [SUMMARY] * 3))

    sent = [(chat.response_format, chat.status) for chat in llama.chats]
    assert sent == [("json_schema", 500), *[("json_object", 200)] * 3]
    assert all(answer.text.lstrip().startswith("{") for answer in answers)


def test_the_tokens_of_an_answer_are_those_that_the_server_counted(llama: LlamaServer) -> None:
    with client(llama, structured_output="json_object") as model:
        answer = model.complete(SUMMARY)

    usage = llama.answered[0].answer["usage"]
    assert (answer.prompt_tokens, answer.completion_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert answer.prompt_tokens > 0
    assert 0 < answer.completion_tokens <= 32


def test_an_answer_that_was_cut_off_is_asked_for_once_more_and_then_fails(
    llama: LlamaServer,
) -> None:
    kept: list[tuple[Completion, bool]] = []

    with (
        client(llama, structured_output="text", max_output_tokens=8) as model,
        pytest.raises(LlmError, match=r"^truncated: "),
    ):
        ask(
            model,
            COUNTING,
            source_ids=["d1"],
            on_completion=lambda _, answer, usable: kept.append((answer, usable)),
        )

    assert [chat.body["max_tokens"] for chat in llama.chats] == [8, 16]
    assert [(answer.finish_reason, usable) for answer, usable in kept] == [("length", False)] * 2
    assert [answer.completion_tokens for answer, _ in kept] == [8, 16]


def test_an_input_beyond_the_context_is_too_long_and_not_tried_again(llama: LlamaServer) -> None:
    long = Request(task="leaf/summary", output="summary", system="", user="Oulu " * CONTEXT_TOKENS)

    with (
        client(llama, structured_output="json_object") as model,
        pytest.raises(LlmError, match=r"^too_long: "),
    ):
        model.complete(long)

    assert [chat.status for chat in llama.chats] == [400]


def test_an_input_beyond_the_context_is_too_long_while_the_format_is_open(
    llama: LlamaServer,
) -> None:
    long = Request(task="leaf/summary", output="summary", system="", user="Oulu " * CONTEXT_TOKENS)

    with client(llama) as model:
        with pytest.raises(LlmError, match=r"^too_long: "):
            model.complete(long)
        model.complete(SUMMARY)

    assert [chat.status for chat in llama.chats] == [500, 400, 200]


def test_a_wrong_key_ends_the_run(llama: LlamaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another-key")

    with client(llama) as model, pytest.raises(LlmStopError, match="refused the key") as raised:
        model.complete(SUMMARY)

    assert "another-key" not in str(raised.value)
    assert [chat.status for chat in llama.chats] == [401]


def test_an_endpoint_that_is_not_there_ends_the_run(llama: LlamaServer) -> None:
    nowhere = {"base_url": "http://127.0.0.1:9/v1", "circuit_failures": 1, "circuit_s": 0.2}

    with (
        client(llama, **nowhere) as model,
        pytest.raises(EndpointDownError, match=r"^unavailable: .*without one answer"),
    ):
        model.complete(SUMMARY)


@pytest.mark.parametrize("name", sorted(golden_files()))
def test_no_shipped_prompt_has_more_tokens_than_the_estimate(llama: LlamaServer, name: str) -> None:
    text = golden_files()[name].read_text("utf-8")

    counted = llama.ask("/extras/tokenize/count", {"input": text})["count"]

    assert counted <= estimate_tokens(text)
