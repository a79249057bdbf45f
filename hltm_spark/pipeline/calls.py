"""The call stage: open requests to paid answers, journalled as they arrive.

A frame of calls is written once and read back before anything else touches it: every further
action on it would call the model again. A worker keeps a bounded number of calls in flight and
journals each answer before it reports it, so that a killed task loses only what was in flight, and
in an object store what waited to be written (`journal_lines`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Self

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import EndpointDownError, LlmError, LlmStopError
from hltm_spark.core.records import NodeInput, fingerprint
from hltm_spark.core.tokens import estimate_tokens, most_tokens
from hltm_spark.models.answering import REPAIR, ask
from hltm_spark.models.limits import CallLimiter
from hltm_spark.models.llm import TOO_LONG, Completion, LlmClient, Request
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.journal import Journal
from hltm_spark.pipeline.journal_place import open_store
from hltm_spark.pipeline.journal_stop import DOWN
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.tables import LLM_CALLS, TEXT, struct

OPEN_REQUEST = struct(
    {
        "tenant_id": TEXT,
        "tenant_key": TEXT,
        "node_id": TEXT,
        "level": TEXT,
        "task": TEXT,
        "request_hash": TEXT,
        "summary": TEXT,
        "payload": TEXT,
    }
)


_Done = tuple[Mapping[str, Any], list[dict[str, Any]], BaseException | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """What a worker needs to answer requests; travels as a value.

    Attributes:
        settings: Provider, limits, budgets.
        prompts: To render the requests again on the worker.
        journal: Path or URL of this run's journal.
        stage: Name of this use: a run has one for each level and wave.
        workers: Partitions that are called side by side, which share the run's limits.
        run_id: Recorded with every answer.
        make_client: Called once a partition, on the worker: clients hold sockets.
    """

    settings: Settings
    prompts: NodePrompts
    journal: str
    stage: str
    workers: int
    run_id: str
    make_client: Callable[[Settings, CallLimiter], LlmClient]


def find_answers(requests: DataFrame, ledger: DataFrame) -> DataFrame:
    """Return the requests that have a usable answer on record, with it.

    Args:
        requests: tenant_id, request_hash, and whatever else.
        ledger: Rows of `llm_calls`.

    Returns:
        The requests' columns and response. Where a race paid one request twice, two rows.
    """
    usable = ledger.where("is_usable").select(
        "tenant_id", F.coalesce("repair_of", "request_hash").alias("request_hash"), "response"
    )
    return requests.join(usable, ["tenant_id", "request_hash"])


def open_requests(requests: DataFrame, ledger: DataFrame) -> DataFrame:
    """Return the requests without a usable answer, each once: `OPEN_REQUEST` columns."""
    key = ["tenant_id", "request_hash"]
    answered = find_answers(requests.select(*key), ledger).select(*key)
    return requests.join(answered, key, "left_anti").dropDuplicates(key).select(*OPEN_REQUEST.names)


def nth_requests(requests: DataFrame, part: range) -> DataFrame:
    """Return the open requests at some positions of their order by node, task and hash."""
    key = ["tenant_id", "request_hash"]
    ordered = requests.select("tenant_id", "node_id", "task", "request_hash").orderBy(
        "tenant_id", "node_id", "task", "request_hash"
    )
    chosen = ordered.offset(part.start).limit(len(part)).select(*key)
    return requests.join(chosen, key, "left_semi").select(*OPEN_REQUEST.names)


def call_model(requests: DataFrame, call: CallSettings, *, slots: int) -> DataFrame:
    """Return `llm_calls` rows for open requests. Append this frame once, then read the table."""
    spread = requests.repartition(slots)
    return map_rows(spread, lambda rows: answer_rows(rows, call), LLM_CALLS.schema)


def answer_rows(rows: Iterable[Mapping[str, Any]], call: CallSettings) -> Iterator[dict[str, Any]]:
    """Answer the requests of one partition: `OPEN_REQUEST` rows.

    Attempts of one task follow one another: a speculative twin waits until the first one ended or
    died. What an earlier attempt was answered comes from its journal and is not asked again, nor is
    what failed there; after one that came to its end, nothing is. A worker that has no more to do
    says so, and the others take over its share of the limits: no partition works on alone at a
    fraction of what the endpoint allows.

    Yields:
        Paid answers as `llm_calls` rows, in order of completion.
    """
    worker = _partition()
    with (
        open_store(call.journal).claimed(f"{call.stage}.{worker}"),
        Caller(call, worker=worker) as caller,
    ):
        is_done, settled = caller.journal.has_left(), set(caller.journal.earlier_failures())
        for answer in caller.journal.earlier():
            if answer["is_usable"]:
                settled.add((answer["tenant_id"], answer["repair_of"] or answer["request_hash"]))
            yield answer
        yield from caller.answers(
            r for r in rows if not is_done and (r["tenant_id"], r["request_hash"]) not in settled
        )
        caller.journal.leave()


def _partition() -> int:
    task = TaskContext.get()
    return task.partitionId() if task else 0


def render(row: Mapping[str, Any], prompts: NodePrompts) -> tuple[Request, tuple[str, ...]]:
    """Return the request of an `OPEN_REQUEST` row, and the ids that its prompt shows."""
    payload = json.loads(row["payload"])
    node, is_group = NodeInput.from_dict(payload), bool(payload.get("group"))
    request = prompts.request(node, row["task"], summary=row["summary"], is_group=is_group)
    return request, node.source_ids


class Caller:
    """One worker's client, its threads and its journal, until it is closed.

    Attributes:
        journal: Takes every answer before it is yielded.
        pending: Requests that were submitted and not taken.

    A request that fails is noted beside the journal; only a bug raises. After an error that no
    further request can survive, no worker of the run makes another call.
    """

    def __init__(self, call: CallSettings, *, worker: int = 0) -> None:
        self.journal = Journal.start(open_store(call.journal), stage=call.stage, worker=worker)
        self._call = call
        self._limiter = CallLimiter(
            call.settings.llm, workers=lambda: self.journal.place(of=call.workers)
        )
        self._client = call.make_client(call.settings, self._limiter)
        threads = call.settings.llm.max_concurrency  # started as they are needed
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hltm-call")
        self._done: SimpleQueue[_Done] = SimpleQueue()
        self.pending = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for what is in flight, and release connections and files."""
        self._pool.shutdown(cancel_futures=True)
        try:
            self.journal.close()
        finally:
            self._client.close()

    def answers(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield paid answers as `llm_calls` rows, in order of completion.

        All of them are in the journal at the end.

        Args:
            rows: `OPEN_REQUEST` columns; request and source_ids, where there are, stand for
                summary and payload.
        """
        for row in rows:
            self.submit(row)
            while not self.room:
                yield from self._next()[1]
        while self.pending:
            yield from self._next()[1]
        self.journal.flush()

    @property
    def room(self) -> int:
        """How many more requests can be submitted now.

        Twice as many as may be in flight: some of them wait before they try again.
        """
        return max(0, 2 * self._limiter.window - self.pending)

    def submit(self, row: Mapping[str, Any]) -> None:
        """Have one request answered, as `answers` has them; `take` gives what came of it."""
        self.pending += 1
        self._pool.submit(self._work, row)

    def take(self) -> list[tuple[Mapping[str, Any], list[dict[str, Any]]]]:
        """Wait for a request to be answered; return all that are, with what each was paid for."""
        taken = [self._next()]
        while not self._done.empty():
            taken.append(self._next())
        return taken

    def _work(self, row: Mapping[str, Any]) -> None:
        try:
            self._done.put((row, self._answer(row), None))
        except BaseException as error:  # noqa: BLE001 - raised where the answers are taken
            self._done.put((row, [], error))

    def _next(self) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
        row, paid, error = self._done.get()
        self.pending -= 1
        if error is not None:
            raise error
        return row, paid

    def _answer(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        paid: list[dict[str, Any]] = []
        if self.journal.stopped():
            self.journal.note_skipped()
            return paid
        try:
            self._ask(row, paid)
        except LlmStopError as error:
            self.journal.stop(str(error))
        except EndpointDownError as error:
            self.journal.stop(str(error), kind=DOWN)
        except LlmError as error:
            kind, _, detail = str(error).partition(": ")
            self.journal.note_failure(
                {
                    **{name: row[name] for name in ("tenant_id", "tenant_key", "node_id", "task")},
                    "request_hash": row["request_hash"],
                    "kind": kind,
                    "reason": detail,
                    "tries": max(1, len(paid)),
                    "run_id": self._call.run_id,
                }
            )
        return paid

    def _ask(self, row: Mapping[str, Any], paid: list[dict[str, Any]]) -> None:
        prompts = self._call.prompts
        is_rendered = "request" in row
        request, ids = (row["request"], row["source_ids"]) if is_rendered else render(row, prompts)
        check_size(request, self._call.settings)

        def record(sent: Request, completion: Completion, usable: bool) -> None:  # noqa: FBT001
            answer = paid_row(row, sent, completion, self._call)
            answer["is_usable"] = usable
            self.journal.append(answer)
            paid.append(answer)

        ask(
            self._client,
            request,
            source_ids=ids,
            on_completion=record,
            max_questions=prompts.max_questions,
            repair=prompts.prompts[REPAIR],
        )


def check_size(request: Request, settings: Settings) -> None:
    """Return if a request is within the budget.

    Raises:
        LlmError: It is not.
    """
    limit = settings.budgets.max_input_tokens
    if settings.llm.provider == "extractive":
        return
    texts = (request.system, request.user)
    if sum(map(most_tokens, texts)) <= limit:  # as nearly always: counting takes a while
        return
    tokens = sum(map(estimate_tokens, texts))
    if tokens > limit:
        raise LlmError(
            f"{TOO_LONG}: the input has about {tokens} tokens, budgets.max_input_tokens is {limit}"
        )


def paid_row(
    row: Mapping[str, Any], sent: Request, completion: Completion, call: CallSettings
) -> dict[str, Any]:
    """Return an answer as a row of `llm_calls`, all but `is_usable`.

    Args:
        row: `OPEN_REQUEST` columns of what was asked.
        sent: The request, or the repair of its answer.
        completion: The answer to it.
        call: The run.
    """
    is_again = sent.task == REPAIR or sent.output_factor > 1
    prompts = call.prompts
    own_hash = row["request_hash"]
    if is_again:
        own_hash = fingerprint(own_hash, sent.system, sent.user, sent.output_factor)
    prompt = prompts.prompts.get(sent.task)
    return {
        **{name: row[name] for name in ("tenant_id", "tenant_key", "node_id", "level")},
        "request_hash": own_hash,
        "repair_of": row["request_hash"] if is_again else None,
        "task": sent.task,
        "model": prompts.model,
        "prompt_fingerprint": prompt.fingerprint if prompt else "",
        "finish_reason": completion.finish_reason,
        "response": clean_text(completion.text),
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "latency_s": completion.latency_s,
        "run_id": call.run_id,
    }


def clean_text(text: str) -> str:
    """Return an answer's text as UTF-8 can hold it."""
    return text.encode("utf-8", "replace").decode("utf-8")
