"""A scripted OpenAI-compatible server for the whole test suite: real HTTP, no model.

    with serve_llm() as server:
        settings = LlmSettings(provider="openai", model="fake", base_url=server.base_url)

It reads the prompt it gets, as a model would: ids of `<document id=...>` and `<child id=...>`,
`Label: value` lines, the wanted keys; and it answers with correct JSON that cites those ids.
Faults come from a script: a list of replies for the first requests (None: answer normally), or a
function of the call.

    with serve_llm(script=[rate_limited("0"), None]) as server: ...
    with serve_llm(script=lambda c: filtered() if "doc-23" in c.prompt else None) as server: ...
"""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.llm_answers import (
    Call,
    hashed_vector,
    is_repair,
    right_answer,
    source_ids,
    wanted_keys,
    with_ids,
)

__all__ = ["Call", "LlmServer", "Reply", "hashed_vector", "is_repair", "right_answer", "serve_llm",
           "source_ids", "wanted_keys"]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What differs from a correct answer.

    Attributes:
        status: HTTP status; other than 200 an error body is sent.
        error: Body of the `error` object.
        headers: Further response headers.
        body: Whole response body, in place of everything else.
        rewrite: Changes the text of a correct answer.
        finish_reason: Of the choice.
        refusal: `message.refusal`, with no content.
        delay_s: Seconds to wait before anything is sent.
        is_reset: The connection is cut instead of an answer.
        is_last: The connection ends after the answer, which does not say so.
    """

    status: int = 200
    error: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    rewrite: Callable[[str], str] | None = None
    finish_reason: str | None = "stop"
    refusal: str | None = None
    delay_s: float = 0.0
    is_reset: bool = False
    is_last: bool = False


Script = Sequence[Reply | None] | Callable[[Call], Reply | None]


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # many clients connect at once
    llm: "LlmServer"

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.llm.disconnect()  # only now does the client see it


class LlmServer:
    """A running server.

    Attributes:
        base_url: Root of its API.
        calls: Every request so far, in order of arrival.
        peak: Most requests that were in the server at once.
        connections: How many were made so far.
        connected: How many of them are open.
    """

    def __init__(
        self, script: Script, *, dimension: int, handler: type["_Handler"] | None = None
    ) -> None:
        self.script = script
        self.dimension = dimension
        self.calls: list[Call] = []
        self.peak = 0
        self.connections = self.connected = 0
        self._in_flight = 0
        self._lock = threading.Lock()
        kind = type("Handler", (handler or _Handler,), {"llm": self})
        self._http = _Http(("127.0.0.1", 0), kind)
        self._http.llm = self
        self.base_url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def chats(self) -> list[Call]:
        """Chat completion requests so far."""
        return [call for call in list(self.calls) if "/chat/completions" in call.path]

    @property
    def embeddings(self) -> list[Call]:
        """Embedding requests so far."""
        return [call for call in list(self.calls) if "/embeddings" in call.path]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def enter(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[Call, Reply]:
        """Log one request and return what to do with it."""
        with self._lock:
            call = Call(path=path, body=body, headers=headers, number=len(self.calls))
            self.calls.append(call)
            self._in_flight += 1
            self.peak = max(self.peak, self._in_flight)
        if callable(self.script):
            reply = self.script(call)
        else:
            reply = self.script[call.number] if call.number < len(self.script) else None
        return call, reply or Reply()

    def leave(self) -> None:
        with self._lock:
            self._in_flight -= 1

    def connect(self) -> None:
        with self._lock:
            self.connections += 1
            self.connected += 1

    def disconnect(self) -> None:
        with self._lock:
            self.connected -= 1


@contextmanager
def serve_llm(script: Script = (), *, dimension: int = 64) -> Iterator[LlmServer]:
    """Run a server for the time of a with block.

    Args:
        script: Replies for the first requests, or a function that names one for each request.
        dimension: Length of embeddings, where a request does not ask for another.
    """
    server = LlmServer(script, dimension=dimension)
    server.start()
    try:
        yield server
    finally:
        server.stop()


# ---- replies -------------------------------------------------------------------------------------


def error(status: int, *, code: str | None = None, message: str = "no", **more: Any) -> Reply:
    """Answer an error as OpenAI writes it; `type` and `param` may follow."""
    return Reply(status=status, error={"message": message, "code": code, **more})


def rate_limited(retry_after: str | None = "0", **headers: str) -> Reply:
    """Answer HTTP 429, with Retry-After unless None."""
    asked = {} if retry_after is None else {"retry-after": retry_after}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return replace(error(429, code="rate_limit_exceeded"), headers=asked | named)


def insufficient_quota() -> Reply:
    """Answer HTTP 429 for an account without credit."""
    return error(429, code="insufficient_quota", type="insufficient_quota")


def unauthorized() -> Reply:
    """Answer HTTP 401."""
    return error(401, code="invalid_api_key")


def unknown_model() -> Reply:
    """Answer HTTP 404 as for a model that does not exist."""
    return error(404, code="model_not_found")


def server_error(status: int = 500) -> Reply:
    """Answer a 5xx."""
    return error(status, message="internal error")


def format_refused() -> Reply:
    """Answer HTTP 400 because of `response_format`."""
    return error(400, message="json_schema is not supported here", param="response_format")


def too_long() -> Reply:
    """Answer HTTP 400 for an input beyond the model's context."""
    return error(400, code="context_length_exceeded", param="messages")


def content_filter_error() -> Reply:
    """Answer HTTP 400 for an input that the provider's filter stopped."""
    return error(400, code="content_filter")


def filtered() -> Reply:
    """Answer 200, stopped by the content filter."""
    return Reply(finish_reason="content_filter", rewrite=lambda _: "")


def refused() -> Reply:
    """Answer 200 with a refusal and no content."""
    return Reply(refusal="I can't help with that.")


def apology() -> Reply:
    """Answer 200 with an apology where JSON was asked for."""
    return text("I'm sorry, I can't help with that.")


def text(content: str, finish_reason: str | None = "stop") -> Reply:
    """Answer 200 with this text."""
    return Reply(rewrite=lambda _: content, finish_reason=finish_reason)


def empty() -> Reply:
    """Answer 200 with no text."""
    return text("")


def fenced() -> Reply:
    """Answer correctly, in a fence between prose."""
    return Reply(rewrite=lambda right: f"Sure!\r\n```json\r\n{right}\r\n```\r\nSee [docs].")


def broken_json() -> Reply:
    """Answer the right text without its last brackets, as if it had ended by itself."""
    return Reply(rewrite=lambda right: right[: len(right) * 2 // 3].rstrip('"}] ,'))


def truncated() -> Reply:
    """Answer the first half, cut off at the output limit."""
    return Reply(rewrite=lambda right: right[: len(right) // 2], finish_reason="length")


def invented_ids(*ids: str) -> Reply:
    """Answer correctly, but cite these ids (`T2/P-7` unless given) beside the right ones."""
    return Reply(rewrite=lambda right: with_ids(right, ids or ("T2/P-7",)))


def reset() -> Reply:
    """Cut the connection."""
    return Reply(is_reset=True)


def delayed(seconds: float) -> Reply:
    """Answer correctly, later."""
    return Reply(delay_s=seconds)


def raw(body: bytes, **headers: str) -> Reply:
    """Answer 200 with this body."""
    return Reply(body=body, headers=headers)


# ---- http ----------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    llm: LlmServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # header and body are two writes

    def setup(self) -> None:
        super().setup()
        self.llm.connect()

    def do_GET(self) -> None:
        self._serve({})

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        content = self.rfile.read(length)
        if len(content) < length:  # the client died: no request
            self.close_connection = True
            return
        self._serve(self._read(content))

    def _read(self, content: bytes) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(content or b"{}")
        return body

    def _serve(self, body: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        call, reply = self.llm.enter(self.path, body, headers)
        try:
            time.sleep(reply.delay_s)
            if reply.is_reset:
                self._cut()
            else:
                self._send(call, reply)
                self.close_connection |= reply.is_last
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client did not wait
        finally:
            self.llm.leave()

    def _cut(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()

    def _send(self, call: Call, reply: Reply) -> None:
        call.status = reply.status
        if reply.body is not None:
            content = reply.body
        elif reply.status != 200:
            content = json.dumps({"error": reply.error}).encode()
        else:
            content = json.dumps(_answer(self.llm, call, reply)).encode()
        headers = {"content-type": "application/json"} | reply.headers
        self.send_response(call.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        call.sent = content

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _answer(server: LlmServer, call: Call, reply: Reply) -> dict[str, Any]:
    if "/embeddings" in call.path:
        return _embeddings(server, call)
    if "/chat/completions" in call.path:
        return _chat(call, reply)
    return {"object": "list", "data": [{"id": "fake", "object": "model"}]}


def _chat(call: Call, reply: Reply) -> dict[str, Any]:
    content: str | None = None
    if reply.refusal is None:
        content = right_answer(call)
        content = reply.rewrite(content) if reply.rewrite else content
    message = {"role": "assistant", "content": content, "refusal": reply.refusal}
    tokens = (len(call.prompt) // 4, len(content or "") // 4)
    usage = {
        "prompt_tokens": tokens[0],
        "completion_tokens": tokens[1],
        "total_tokens": sum(tokens),
    }
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    return {
        "id": f"chatcmpl-{call.number}",
        "object": "chat.completion",
        "created": 0,
        "model": call.body.get("model", "fake"),
        "choices": [choice],
        "usage": usage,
    }


def _embeddings(server: LlmServer, call: Call) -> dict[str, Any]:
    given = call.body["input"]
    texts = [given] if isinstance(given, str) else given
    dimension = call.body.get("dimensions", server.dimension)
    data = [
        {"object": "embedding", "index": i, "embedding": hashed_vector(t, dimension=dimension)}
        for i, t in enumerate(texts)
    ]
    tokens = sum(len(t) // 4 for t in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": call.body.get("model"), "usage": usage}
