"""Answers to the requests of a small run: from the ledger, or from the model as nodes ask."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from hltm_spark.core.tokens import estimate_tokens
from hltm_spark.models.llm import Request
from hltm_spark.pipeline.batch_run import answer_rows, is_batched
from hltm_spark.pipeline.calls import Caller
from hltm_spark.pipeline.context import RunContext
from hltm_spark.pipeline.files import read_rows, read_table, write_rows
from hltm_spark.pipeline.flow import Flow, Key, request_key
from hltm_spark.pipeline.tables import LLM_CALLS

_ANSWER_COLUMNS = ("tenant_id", "request_hash", "repair_of", "is_usable", "response")
_Sized = tuple[Mapping[str, Any], int]
"""A request and its prompt tokens, about."""
_AT_ONCE = 16
"""Requests that are rendered and looked up together."""


class SmallAnswers:
    """Answers the requests of a flow until it has ended.

    What is paid is in the journal at once, and in the ledger when the block is left, also by an
    error.
    """

    def __init__(self, context: RunContext, *, tenants: Iterable[str]) -> None:
        self._context = context
        self._files = LLM_CALLS.files(context.root.path)
        self._on_record = _hashes_on_record(self._files, tenants)
        self._answers: dict[Key, str] = {}  # paid in this run, so not in the files of the ledger
        self._paid: list[Mapping[str, Any]] = []
        self._in_flight: dict[Key, int] = {}  # prompt tokens, about
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._open.close()
        finally:
            self._settle()

    def answer(self, flow: Flow) -> None:
        """Answer every request that comes up, until the flow has ended.

        Raises:
            LlmStopError: The model refuses every further request.
            EndpointDownError: The endpoint stayed down.
            BudgetReachedError: The run's budget is used up.
            BatchesLeftError: As `batch_run`.
        """
        if is_batched(self._context):
            self._answer_in_batches(flow)
        else:
            self._answer_by_calls(flow)

    def _answer_by_calls(self, flow: Flow) -> None:
        """Keep as many calls in flight as the model's limits allow, whichever nodes they are of.

        Some are on their way while others are being rendered.
        """
        meter, waiting = self._context.meter, deque[_Sized]()
        caller: Caller | None = None
        with meter.watching():
            while True:
                waiting.extend((r, self._size(r)) for r in self._open_requests(flow))
                if waiting:
                    caller = caller or self._make_caller()
                    self._submit(caller, waiting)
                if not flow.is_waiting:
                    continue
                if caller is None or not caller.pending:
                    break
                self._take(caller, flow)
        if caller:
            self._raise_if_stopped(caller)

    def _submit(self, caller: Caller, waiting: deque[_Sized]) -> None:
        """Have requests answered, the first ones first, as many as limits and budget allow now."""
        meter = self._context.meter
        if meter.budget.is_limited:
            caller.journal.flush()
        sizes = [size for _, size in islice(waiting, caller.room)]
        for _ in range(meter.allowed(sizes, in_flight=list(self._in_flight.values()))):
            request, size = waiting.popleft()
            self._in_flight[request_key(request)] = size
            caller.submit(request)

    def _size(self, request: Mapping[str, Any]) -> int:
        """Return the prompt tokens of a request, about; 0 where no budget asks for them."""
        if not self._context.meter.budget.is_limited:
            return 0
        sent: Request = request["request"]
        return estimate_tokens(sent.system) + estimate_tokens(sent.user)

    def _make_caller(self) -> Caller:
        return self._open.enter_context(Caller(self._context.call_settings(slots=1)))

    def _take(self, caller: Caller, flow: Flow) -> None:
        """Take what was answered meanwhile, at least one request."""
        is_failed = False
        with self._context.run.timed("calls"):
            done = caller.take()
        for request, paid in done:
            key = request_key(request)
            del self._in_flight[key]
            self._paid += paid
            response = self._keep(paid).get(key)
            is_failed = is_failed or response is None
            flow.settle(key, response)
        if is_failed:  # or was not made because of a stop, which is no failure: the run ends
            self._raise_if_stopped(caller)

    def _raise_if_stopped(self, caller: Caller) -> None:
        """Raise what kept the run from making a request, once what is in flight is settled."""
        if not self._context.is_stopped:
            return
        while caller.pending:
            self._paid += [row for _, paid in caller.take() for row in paid]
        caller.journal.flush()
        self._settle()
        self._context.raise_if_stopped()

    def _answer_in_batches(self, flow: Flow) -> None:
        """Send what can be asked now as one batch after the other."""
        while waiting := self._every_open_request(flow):
            answers: dict[Key, str] = {}
            for part in self._context.meter.portions(len(waiting)):
                answers |= self._keep(answer_rows(self._context, waiting[part.start : part.stop]))
            self._context.raise_if_stopped()
            for request in waiting:
                flow.settle(request_key(request), answers.get(request_key(request)))

    def _every_open_request(self, flow: Flow) -> list[Mapping[str, Any]]:
        waiting: list[Mapping[str, Any]] = []
        while not flow.is_waiting:
            waiting += self._open_requests(flow)
        return waiting

    def _open_requests(self, flow: Flow) -> list[Mapping[str, Any]]:
        """Return some requests without an answer on record; those that have one are settled."""
        fresh = flow.requests(most=_AT_ONCE)
        found = self._look_up(fresh)
        for request in fresh:
            key = request_key(request)
            if key in found:
                self._context.run.count(request["level"], cached=1)
                flow.settle(key, found[key])
        return [request for request in fresh if request_key(request) not in found]

    def _look_up(self, requests: Sequence[Mapping[str, Any]]) -> dict[Key, str]:
        keys = {request_key(request) for request in requests}
        found = {key: self._answers[key] for key in keys & self._answers.keys()}
        wanted = pa.array({request_hash for _, request_hash in keys}, pa.string())
        hashes = self._on_record.filter(pc.is_in(self._on_record, wanted)).to_pylist()
        for column in ("request_hash", "repair_of") if hashes else ():
            for row in read_rows(self._files, _ANSWER_COLUMNS, where={column: hashes}):
                key = (row["tenant_id"], row["repair_of"] or row["request_hash"])
                if row["is_usable"] and key in keys:
                    found[key] = max(found.get(key, ""), row["response"])
        return found

    def _keep(self, paid: Iterable[Mapping[str, Any]]) -> dict[Key, str]:
        """Return the usable ones of paid answers, and keep them for later requests."""
        answers = {
            (r["tenant_id"], r["repair_of"] or r["request_hash"]): r["response"]
            for r in paid
            if r["is_usable"]
        }
        self._answers |= answers
        return answers

    def _settle(self) -> None:
        """Bring what was paid into the ledger; until then it is in the journal."""
        if self._paid:
            path = self._context.staging("paid")
            write_rows(self._paid, LLM_CALLS.schema, path)
            self._paid = []
            rows = self._context.spark.read.schema(LLM_CALLS.schema).parquet(path)
            self._context.commits.append(LLM_CALLS, rows)


def _hashes_on_record(files: Sequence[str], tenants: Iterable[str]) -> pa.ChunkedArray:
    """Return the hashes of the requests of some tenants that have a usable answer."""
    if not files:
        return pa.chunked_array([], pa.string())
    columns = ("request_hash", "repair_of", "is_usable")
    rows = read_table(files, columns, where={"tenant_id": tenants})
    usable = rows.filter(rows["is_usable"])
    return pc.coalesce(usable["repair_of"], usable["request_hash"])
