"""llama.cpp's own server with a small real model, behind a proxy that writes down every request.

    with serve_llama(folder) as llama:
        settings = LlmSettings(provider="openai", model=MODEL, base_url=llama.base_url)

`make test-llm` installs it beside the product, in `.venv-llm`. What it was asked and what it
answered is read from `llama.exchanges`, as the server itself said it.
"""

import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODEL = "smollm2-135m"
KEY = "llama-test-key"
CONTEXT_TOKENS = 4096
"""What the model sees at once, prompt and answer together; the model would take 8,192."""

HOST = "127.0.0.1"
CHAT = "/v1/chat/completions"
_VENV = Path(__file__).resolve().parents[2] / ".venv-llm"
_START_S = 120.0
_ANSWER_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request to the server and its answer.

    Attributes:
        path: Path of the URL.
        body: JSON of the request; {} for GET.
        status: HTTP status of the answer; 0 where the server broke off.
        answer: JSON of the answer.
    """

    path: str
    body: dict[str, Any]
    status: int
    answer: dict[str, Any]

    @property
    def response_format(self) -> str:
        return str(self.body.get("response_format", {}).get("type", "text"))

    @property
    def prompt(self) -> str:
        return "\n".join(message["content"] for message in self.body["messages"])


class LlamaServer:
    """A running server.

    Attributes:
        base_url: Root of its API, through the proxy.
        exchanges: Every finished request so far, in order of its end.
        has_request: Set while a request has reached the server.
    """

    def __init__(self, folder: Path) -> None:
        self.exchanges: list[Exchange] = []
        self.has_request = threading.Event()
        self.port = _free_port()
        self._log = folder / "llama-server.log"
        self._process = _start(self.port, self._log)
        kind = type("Proxy", (_Proxy,), {"llama": self})
        self._proxy = ThreadingHTTPServer((HOST, 0), kind)
        self._proxy.daemon_threads = True
        self.base_url = f"http://{HOST}:{self._proxy.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._proxy.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def chats(self) -> list[Exchange]:
        """Chat completions so far, refused ones too."""
        return [one for one in list(self.exchanges) if one.path == CHAT]

    @property
    def answered(self) -> list[Exchange]:
        """Chat completions that came with HTTP 200: what a provider would have charged."""
        return [one for one in self.chats if one.status == 200]

    def forget(self) -> None:
        """Empty the record."""
        self.exchanges.clear()
        self.has_request.clear()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the server's answer to a request that is not recorded."""
        status, content = self.forward("GET" if body is None else "POST", path, body, KEY)
        assert status == 200, f"{path}: HTTP {status}"
        answer: dict[str, Any] = json.loads(content)
        return answer

    def forward(
        self, method: str, path: str, body: dict[str, Any] | None, key: str
    ) -> tuple[int, bytes]:
        """Send one request to the server and return its status and body."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_ANSWER_S)
        try:
            headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def wait_until_up(self) -> None:
        """Wait until the model is loaded."""
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(OSError, http.client.HTTPException):
                self.ask("/v1/models")
                return
            time.sleep(0.1)
        raise AssertionError(f"the server did not start:\n{self._log.read_text('utf-8')[-2000:]}")

    def kill(self) -> None:
        """End the server as a crash would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End server and proxy."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self.kill()
        self._proxy.shutdown()
        self._proxy.server_close()
        self._thread.join()


@contextmanager
def serve_llama(folder: Path) -> Iterator[LlamaServer]:
    """Run a server for the time of a with block.

    Args:
        folder: Gets the server's log.
    """
    server = LlamaServer(folder)
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()


def _start(port: int, log: Path) -> subprocess.Popen[bytes]:
    python, models = _VENV / "bin/python", sorted(_VENV.glob("lib/*/site-packages/**/*.gguf"))
    assert models, f"no model server in {_VENV}; run: make test-llm"
    options = {
        "model": models[0],
        "model_alias": MODEL,
        "host": HOST,
        "port": port,
        "api_key": KEY,
        "n_ctx": CONTEXT_TOKENS,
        "n_threads": os.cpu_count() or 1,
        "logits_all": "false",  # else 200 kB a token of the context
        "verbose": "false",
    }
    command = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    with log.open("wb") as output:
        return subprocess.Popen(
            [python, "-m", "llama_cpp.server", *command], stdout=output, stderr=subprocess.STDOUT
        )


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        port: int = listening.getsockname()[1]
        return port


class _Proxy(BaseHTTPRequestHandler):
    """Hands requests on as they are; where the server breaks off, so does the connection."""

    llama: LlamaServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # header and body are two writes

    def do_GET(self) -> None:
        self._hand_on(None)

    def do_POST(self) -> None:
        self._hand_on(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _hand_on(self, body: dict[str, Any] | None) -> None:
        llama, key = self.llama, self.headers.get("authorization", "").removeprefix("Bearer ")
        llama.has_request.set()
        status, content = 0, b"{}"
        with suppress(OSError, http.client.HTTPException):
            status, content = llama.forward(self.command, self.path, body, key)
        answer = json.loads(content)
        llama.exchanges.append(
            Exchange(path=self.path, body=body or {}, status=status, answer=answer)
        )
        if status == 0:
            self.close_connection = True
            return
        with suppress(BrokenPipeError, ConnectionResetError):  # the client did not wait
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""
