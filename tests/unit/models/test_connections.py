import gc
import gzip
import json
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from hltm_spark.core.errors import LlmError
from hltm_spark.models.openai_client import OpenAiClient
from tests import llm_server as replies
from tests.llm_server import Call, LlmServer, Reply, serve_llm
from tests.unit.models.openai_calls import REQUEST, client, complete, failure

pytestmark = pytest.mark.usefixtures("key_and_short_waits")


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when it holds; the suite's time limit ends what never does."""
    while not condition():
        time.sleep(0.001)


def complete_together(model: OpenAiClient, count: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda _: model.complete(REQUEST), range(count)))


def all_at_once(count: int) -> Callable[[Call], Reply | None]:
    """Answer the first call, then so many only when all of them are there, and so on."""
    together = threading.Barrier(count)

    def script(call: Call) -> Reply | None:
        if call.number:
            together.wait(timeout=60)
        return None

    return script


# ---- connections


def test_one_call_after_another_goes_over_one_connection(server: LlmServer) -> None:
    with closing(client(server)) as model:
        for _ in range(5):
            model.complete(REQUEST)

    assert (len(server.chats), server.connections) == (5, 1)


def test_there_are_as_many_connections_as_calls_at_once_whatever_their_threads() -> None:
    with serve_llm(all_at_once(4)) as server, closing(client(server)) as model:
        model.complete(REQUEST)
        for _ in range(3):  # threads of their own each time
            complete_together(model, 4)

    assert (len(server.chats), server.connections) == (13, 4)


def test_close_ends_all_connections() -> None:
    with serve_llm(all_at_once(4)) as server:
        with closing(client(server)) as model:
            model.complete(REQUEST)
            complete_together(model, 4)
            before = server.connected
        wait_until(lambda: server.connected == 0)

    assert before == 4


def test_a_call_that_outlives_its_client_leaves_no_connection() -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def script(_: Call) -> None:
        arrived.set()
        go_on.wait(timeout=60)

    with serve_llm(script) as server:
        model = client(server)
        thread = threading.Thread(target=model.complete, args=[REQUEST])
        thread.start()
        arrived.wait(timeout=60)
        model.close()
        go_on.set()
        thread.join()
        wait_until(lambda: server.connected == 0)


def test_no_socket_is_forgotten(server: LlmServer) -> None:
    gc.collect()  # what other tests left

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        with closing(client(server, max_attempts=1)) as model:
            model.complete(REQUEST)
            complete_together(model, 8)
            server.script = lambda _: replies.reset()
            with pytest.raises(LlmError):
                model.complete(REQUEST)
            server.script = lambda _: replies.server_error()
            with pytest.raises(LlmError):
                model.complete(REQUEST)
        del model
        gc.collect()

    assert [str(warning.message) for warning in warned] == []


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    with (
        serve_llm([Reply(is_last=True)]) as server,
        closing(client(server, max_attempts=1)) as model,
    ):
        model.complete(REQUEST)
        wait_until(lambda: server.connected == 0)
        model.complete(REQUEST)

    assert (len(server.chats), server.connections) == (2, 2)


def test_a_connection_outlives_an_answer_that_is_an_error() -> None:
    _, server = complete([replies.rate_limited(), replies.server_error(503), None])

    assert (len(server.chats), server.connections) == (3, 1)


# ---- what the SDK does


def test_calls_go_through_the_proxy_of_the_environment(
    server: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.base_url.removesuffix("/v1"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    with closing(client(server, base_url="http://model.example/v1")) as model:
        model.complete(REQUEST)
        model.complete(REQUEST)

    assert [call.path for call in server.chats] == ["http://model.example/v1/chat/completions"] * 2


def test_no_proxy_is_asked_for_a_host_that_needs_none(
    server: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    with closing(client(server, max_attempts=1)) as model:
        model.complete(REQUEST)

    assert len(server.chats) == 1


def test_a_redirect_is_followed() -> None:
    def script(call: Call) -> Reply | None:
        if "/moved" in call.path:
            return None
        return Reply(status=307, headers={"location": "/moved/chat/completions"})

    completion, server = complete(script)

    assert completion.finish_reason == "stop"
    assert server.chats[-1].path == "/moved/chat/completions"
    assert server.chats[-1].body == server.chats[0].body


def test_an_answer_may_be_packed_though_nobody_asked_for_it() -> None:
    body = json.dumps({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
    packed = replies.raw(gzip.compress(body.encode()), **{"content-encoding": "gzip"})

    completion, server = complete([packed])

    assert completion.text == "x"
    assert server.chats[0].headers["accept-encoding"] == "identity"


def test_every_call_has_the_headers_that_the_sdk_sends(server: LlmServer) -> None:
    with closing(client(server)) as model:
        model.complete(REQUEST)
        model.sdk.post(
            "/chat/completions", body={"model": "gpt-test", "messages": []}, cast_to=object
        )

    ours, of_sdk = (call.headers for call in server.chats)
    own = {"accept-encoding", "content-length"}
    assert {k: v for k, v in ours.items() if k not in own} == {
        k: v for k, v in of_sdk.items() if k not in own
    }


def test_a_key_that_no_header_can_hold_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-first\nsk-second")

    error, server = failure([], max_attempts=1)

    assert str(error).startswith("unavailable: no connection")
    assert "sk-" not in str(error)
    assert server.chats == []
