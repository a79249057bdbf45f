"""The Batch endpoints of `tests.llm_server`: files, batches, and answers that take some polls.

    with serve_batches(polls=2) as server:
        settings = LlmSettings(provider="openai", execution="batch", base_url=server.base_url, ...)

The lines of a batch are answered as the chat endpoint would, once, when the batch ends; `paid` has
each of those. Faults: `lines` names a reply for a line, `endings` how the first batches end, and
`script` a reply for an HTTP request, as in `serve_llm`.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlparse

from tests.llm_answers import Call
from tests.llm_server import LlmServer, Reply, Script, _chat, _Handler

Lines = Callable[[Call], Reply | None]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one batch ends, where it does not just complete.

    Attributes:
        status: Final status.
        answered: Lines that are answered; the rest is not. All where None.
        is_telling: The rest stands in the error file as expired; else nowhere.
        errors: Why the whole batch failed.
        rewrite: Changes the lines of the output file.
    """

    status: str = "completed"
    answered: int | None = None
    is_telling: bool = True
    errors: Sequence[dict[str, Any]] = ()
    rewrite: Callable[[list[str]], list[str]] = field(default=lambda lines: lines)


class BatchServer(LlmServer):
    """A running server.

    Attributes:
        files: Content by id.
        batches: Batch objects by id, in order of creation.
        paid: Every line that was answered with 200, as a chat request; `number` is its batch's.
        asked: custom_id of every line of every batch.
        lost: Batches, counted from 1, whose creation is answered by a cut connection.
    """

    def __init__(
        self, script: Script, *, lines: Lines, endings: Sequence[Ending | None], polls: int
    ) -> None:
        super().__init__(script, dimension=64, handler=_BatchHandler)
        self.lines, self.endings, self.polls = lines, endings, polls
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.paid: list[Call] = []
        self.asked: list[str] = []
        self.looks: dict[str, int] = {}
        self.lost: set[int] = set()

    def requests(self, batch: int) -> list[dict[str, Any]]:
        """Return the lines of the nth batch."""
        content = self.files[list(self.batches.values())[batch]["input_file_id"]]
        return [json.loads(line) for line in content.splitlines()]

    def upload(self, content: bytes) -> dict[str, Any]:
        file_id = f"file-{len(self.files)}"
        self.files[file_id] = content
        return {"id": file_id, "object": "file", "bytes": len(content), "purpose": "batch"}

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["endpoint"] == "/v1/chat/completions"
        assert body["completion_window"] == "24h"
        batch_id = f"batch_{len(self.batches)}"
        batch = {
            **body,
            "id": batch_id,
            "object": "batch",
            "status": "validating",
            "created_at": int(time.time()),
        }
        self.batches[batch_id] = batch
        rows = self.requests(len(self.batches) - 1)
        batch["request_counts"] = {"total": len(rows), "completed": 0, "failed": 0}
        self.asked += [row["custom_id"] for row in rows]
        return batch

    def retrieve(self, batch_id: str) -> dict[str, Any]:
        batch = self.batches[batch_id]
        self.looks[batch_id] = self.looks.get(batch_id, 0) + 1
        if batch["status"] in {"validating", "in_progress"}:
            batch["status"] = "in_progress"
            if self.looks[batch_id] > self.polls:
                self._end(batch)
        return batch

    def list(self, query: dict[str, list[str]]) -> dict[str, Any]:
        newest = list(reversed(self.batches.values()))
        if after := query.get("after"):
            ids = [batch["id"] for batch in newest]
            newest = newest[ids.index(after[0]) + 1 :]
        page = newest[:2]  # small pages, whatever is asked for
        return {
            "object": "list",
            "data": page,
            "has_more": len(newest) > len(page),
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
        }

    def _end(self, batch: dict[str, Any]) -> None:
        number = int(batch["id"].removeprefix("batch_"))
        ending = (self.endings[number] if number < len(self.endings) else None) or Ending()
        batch["status"] = ending.status
        if ending.errors:
            batch["errors"] = {"object": "list", "data": list(ending.errors)}
        if ending.status == "failed":
            return
        requests = self.requests(number)
        limit = len(requests) if ending.answered is None else ending.answered
        output, errors = [], []
        for position, request in enumerate(requests):
            if position < limit:
                status, line = self._answer(request, number)
                (output if status == 200 else errors).append(line)
            elif ending.is_telling:
                error = {"code": "batch_expired", "message": "This request could not be executed"}
                errors.append(_line(request, None, error))
        counts = batch["request_counts"]
        counts["completed"], counts["failed"] = len(output), len(errors)
        output = ending.rewrite(list(reversed(output)))  # in no order
        if output:
            batch["output_file_id"] = self.upload(b"".join(f"{o}\n".encode() for o in output))["id"]
        if errors:
            batch["error_file_id"] = self.upload(b"".join(f"{e}\n".encode() for e in errors))["id"]

    def _answer(self, request: dict[str, Any], number: int) -> tuple[int, str]:
        call = Call(path=request["url"], body=request["body"], headers={}, number=number)
        reply = self.lines(call) or Reply()
        if reply.status == 200:
            self.paid.append(call)
            body = json.loads(reply.body) if reply.body is not None else _chat(call, reply)
        else:
            body = {"error": reply.error}
        response = {"status_code": reply.status, "request_id": "r", "body": body}
        return reply.status, _line(request, response, None)


def _line(request: dict[str, Any], response: Any, error: Any) -> str:
    line = {"id": "x", "custom_id": request["custom_id"], "response": response, "error": error}
    return json.dumps(line)


@contextmanager
def serve_batches(
    *,
    script: Script = (),
    lines: Lines = lambda _: None,
    endings: Sequence[Ending | None] = (),
    polls: int = 1,
) -> Iterator[BatchServer]:
    """Run a server for the time of a with block.

    Args:
        script: Replies for the first HTTP requests, or a function that names one for each.
        lines: Names a reply for a line of a batch; a right answer where None.
        endings: How the first batches end.
        polls: Looks at a batch before it ends.
    """
    server = BatchServer(script, lines=lines, endings=endings, polls=polls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class _BatchHandler(_Handler):
    llm: BatchServer

    def _read(self, content: bytes) -> dict[str, Any]:
        if "/files" not in self.path:
            return super()._read(content)
        boundary = re.search(r'boundary="?([^";]+)', self.headers["content-type"])
        assert boundary is not None
        parts = content.split(b"--" + boundary[1].encode())
        sent = next(part for part in parts if b'name="file"' in part)
        return {"content": sent.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n").decode()}

    def _send(self, call: Call, reply: Reply) -> None:
        if reply.status == 200 and reply.body is None and (found := self._batched(call)):
            reply = Reply(body=found)
            if call.path == "/v1/batches" and call.body and len(self.llm.batches) in self.llm.lost:
                self._cut()
                return
        super()._send(call, reply)

    def _batched(self, call: Call) -> bytes | None:
        url, server = urlparse(call.path), self.llm
        name = url.path.removeprefix("/v1/")
        if name == "files":
            return json.dumps(server.upload(call.body["content"].encode())).encode()
        if name.startswith("files/"):
            return server.files[name.split("/")[1]]
        if name == "batches":
            if call.body:
                return json.dumps(server.create(call.body)).encode()
            return json.dumps(server.list(parse_qs(url.query))).encode()
        if name.startswith("batches/"):
            return json.dumps(server.retrieve(name.split("/")[1])).encode()
        return None
