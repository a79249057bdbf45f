"""A model in a process of its own that costs next to nothing: real HTTP, correct JSON, a set delay.

python -m benchmarks.answering --latency-ms 500

It prints its address and ends when its standard input does, so that it outlives nobody. An answer
cites ids of its prompt and says a digest of it: an input that differs always gives another answer,
so that nothing is cut off early. It also says its height, one more than the greatest that the
prompt shows: the passes of a wide node can be read off the greatest height.
"""

import argparse
import asyncio
import hashlib
import html
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]

_SOURCE = re.compile(r'<(?:document|child) id="([^"]*)"')
_HEIGHT = re.compile(r"\bheight (\d+)\b")
_VALUES = {
    "location": ("Oulu", "Porto", "Leeds", "Gdynia"),
    "work mode": ("on-site", "hybrid", "remote"),
    "must-have skills": ("Go", "Kafka", "SQL", "Rust", "Python"),
    "seniority": ("junior", "senior", "principal"),
    "visa sponsorship": ("yes", "no"),
}


@dataclass(slots=True, kw_only=True)
class Served:
    """What the server did since it was last asked for this.

    Attributes:
        calls: Chat completions.
        peak: Most of them that waited at once.
        height: Greatest height of an answer.
        cpu_s: Seconds of its own processor time: what it took away from the pipeline.
    """

    calls: int = 0
    peak: int = 0
    height: int = 0
    cpu_s: float = 0.0


def answer(user: str) -> tuple[str, int]:
    """Return the answer to a leaf's or parent's prompt as JSON text, and its height."""
    digest = hashlib.sha256(user.encode()).hexdigest()
    sources = [html.unescape(shown) for shown in _SOURCE.findall(user)[:3]]
    cited = sources[0] if sources else "none"  # a repair shows the answer and no source
    height = 1 + max(map(int, _HEIGHT.findall(user)), default=0)
    said = {
        name: values[int(digest[at : at + 4], 16) % len(values)]
        for at, (name, values) in enumerate(_VALUES.items())
    }
    fields = {
        "facets": [
            {"name": name, "values": [value], "sources": sources} for name, value in said.items()
        ],
        "rationale": f"{len(sources)} of the inputs are cited.",
        "question_answers": [
            {
                "question": f"What is the {name} of {digest[:8]}?",
                "answer": f"The {name} is {value}, and nothing else was agreed.",
                "sources": sources,
            }
            for name, value in said.items()
        ],
        "summary": f"Digest {digest[:12]}, height {height}. "
        + " ".join(f"The {name} is {value} [{cited}]." for name, value in said.items()),
        "one_sentence_summary": f"Digest {digest[:12]}: {', '.join(said.values())}.",
    }
    return json.dumps(fields), height


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Shares of the calls that go wrong, evenly spread; 0 for none.

    Attributes:
        limited: HTTP 429 with Retry-After of one second.
        reset: The connection ends without an answer.
        malformed: An answer that is not the JSON that was asked for.
    """

    limited: float = 0.0
    reset: float = 0.0
    malformed: float = 0.0

    def of(self, number: int) -> str:
        """Return what goes wrong with a call, by its number; empty for nothing."""
        for name, share in asdict(self).items():
            # the parts of a golden section are spread as evenly as can be, whatever the share
            if share and (number * 0.618033988749895 + len(name) / 7) % 1 < share:
                return str(name)
        return ""


class AnsweringServer:
    """Answers every chat completion after a delay, as many at once as come."""

    def __init__(self, latency_s: float, faults: Faults) -> None:
        self._latency_s, self._faults, self._number = latency_s, faults, 0
        self._served = Served()
        self._waiting = 0
        self._cpu_began = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                fault = self._next_fault(head)
                if fault == "reset":
                    break
                status = b"429 Busy\r\nretry-after: 1" if fault == "limited" else b"200 OK"
                content = json.dumps(await self._reply(head, body, fault)).encode()
                writer.write(
                    b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n"
                    b"content-length: %d\r\n\r\n%b" % (status, len(content), content)
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client hung up, or the server ends
        finally:
            writer.close()

    def _next_fault(self, head: bytes) -> str:
        if head.startswith(b"GET /served"):
            return ""
        self._number += 1
        return self._faults.of(self._number)

    async def _reply(self, head: bytes, body: bytes, fault: str) -> dict[str, Any]:
        if head.startswith(b"GET /served"):
            return self._take()
        if fault == "limited":
            return {"error": {"code": "rate_limit_exceeded", "message": "busy"}}
        self._waiting += 1
        self._served.calls += 1
        self._served.peak = max(self._served.peak, self._waiting)
        try:
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            return self._complete(json.loads(body), is_right=fault != "malformed")
        finally:
            self._waiting -= 1

    def _complete(self, request: dict[str, Any], *, is_right: bool) -> dict[str, Any]:
        text, height = answer(request["messages"][-1]["content"])
        text = text if is_right else "There is nothing to say about this."
        self._served.height = max(self._served.height, height)
        return {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": text},
                }
            ],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }

    def _take(self) -> dict[str, Any]:
        now = time.process_time()
        served, self._served = self._served, Served()
        served.cpu_s, self._cpu_began = round(now - self._cpu_began, 3), now
        return asdict(served)


class Answering:
    """The server as its user sees it."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def take(self) -> Served:
        """Return what was served since the last time."""
        with urllib.request.urlopen(f"{self.base_url.removesuffix('/v1')}/served") as reply:  # noqa: S310 - our own
            return Served(**json.load(reply))


@contextmanager
def serve_answers(latency_s: float, faults: Faults | None = None) -> Iterator[Answering]:
    """Run a server in a process of its own for the time of a with block."""
    milliseconds = str(round(latency_s * 1000))
    command = [sys.executable, "-m", "benchmarks.answering", "--latency-ms", milliseconds]
    command += ["--faults", json.dumps(asdict(faults or Faults()))]
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the server has no pipes")
        try:
            yield Answering(process.stdout.readline().strip())
        finally:
            process.stdin.close()


async def _run(latency_s: float, faults: Faults) -> None:
    server = await asyncio.start_server(
        AnsweringServer(latency_s, faults).serve, "127.0.0.1", 0, backlog=512
    )
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description="A model that answers at once, or after a delay.")
    parser.add_argument("--latency-ms", type=int, default=0, help="Delay of every answer.")
    parser.add_argument("--faults", default="{}", help="Fields of Faults as JSON.")
    arguments = parser.parse_args()
    asyncio.run(_run(arguments.latency_ms / 1000, Faults(**json.loads(arguments.faults))))


if __name__ == "__main__":
    main()
