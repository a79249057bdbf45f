"""A wave of requests through the provider's Batch API: submitted, waited for, and collected.

The requests go out in their order by (tenant_id, request_hash), in as many batches as the limits of
a file make. A batch is on record (`batch_records`) from before it is started until its answers are
in the ledger, so a run that is killed at any moment loses and repeats nothing: the next one first
collects what it finds on record, and then asks for what the ledger still does not have.

What was not answered (expired, cancelled, a temporary error, a line that is missing) is asked once
more in a further batch; a malformed answer is repaired in that same batch. Not interactively: it
would cost the full price, a run's cost could not be told from its tokens, and a repair that is on
record survives a kill as any other request does. A batch that was collected from an earlier run is
not repaired: as after any kill, its unusable answers leave their requests open.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hltm_spark.core.errors import BatchesLeftError, LlmError
from hltm_spark.models.batch_client import BatchClient, NotStartedError
from hltm_spark.models.batch_lines import BatchLines, BatchState
from hltm_spark.models.llm import TOO_LONG, Request
from hltm_spark.models.openai_client import OpenAiClient
from hltm_spark.pipeline.batch_parts import BatchPart, BatchRequests, Rows, Todo
from hltm_spark.pipeline.batch_records import BatchRecord, BatchRecords, SentRequest
from hltm_spark.pipeline.batch_results import BatchReader
from hltm_spark.pipeline.calls import CallSettings
from hltm_spark.pipeline.journal import Journal
from hltm_spark.pipeline.journal_place import open_store
from hltm_spark.pipeline.journal_stop import STOP

logger = logging.getLogger("hltm_spark")

SETTLE_S = 30.0
"""A batch may still be starting so long after the process that asked for it was killed."""
MAX_SILENCE_S = 3600.0
"""A run waits so long for an endpoint that does not say how its batches are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """Where the batches of one run are kept.

    Attributes:
        records: Batches at the provider.
        scratch: Folder for files with text, which goes with the run.
        salt: Of the root.
        keep: Brings journalled answers into the ledger, those that are not there yet.
        check: Raises where this run may write no more.
    """

    records: BatchRecords
    scratch: Path
    salt: str
    keep: Callable[[Journal], None]
    check: Callable[[], None]


class Batches:
    """The batches of one run."""

    def __init__(self, call: CallSettings, place: BatchPlace) -> None:
        """Prepare the client; it makes no call yet.

        Raises:
            EnvironmentProblem: The variable of the key is not set.
        """
        self._call, self._place = call, place
        self._llm = call.settings.llm
        self._chat = OpenAiClient(self._llm)
        self._client = BatchClient(self._llm, self._chat)
        self._lines = BatchLines(self._llm, self._chat)
        self._records = place.records
        self._requests = BatchRequests(call, place.salt)
        self._reader = BatchReader(self._lines, self._requests)
        self._seen: dict[str, str] = {}
        self._heard_at = time.monotonic()
        self._rounds = 0

    def close(self) -> None:
        """Release connections, and tell of batches that go on without this run."""
        self._chat.close()
        if left := len(list(self._records.folder.glob("*.json"))):
            logger.warning(
                "%d batches go on at the provider and are on record in %s; "
                "the next run collects them",
                left,
                self._records.folder,
            )

    def answers(self, rows: Rows) -> Iterator[dict[str, Any]]:
        """Yield the paid answers to open requests as `llm_calls` rows that the ledger has.

        Raises:
            BatchesLeftError: The run was told to stop, or the endpoint cannot be reached.
            LlmStopError: No further request can succeed.
        """
        batches = self._submit(self._requests.first(rows))
        while batches:
            self._rounds += 1
            todo = Todo(self._place.scratch / f"repairs-{self._rounds}.jsonl")
            for record, state in self._ended(batches):
                yield from self._collect(record, state, todo)
            batches = self._submit(self._requests.again(rows, todo)) if todo else []

    def collect_left(self) -> int:
        """Wait for the batches of earlier runs; return how many answers they had.

        Raises:
            BatchesLeftError: As `answers`.
            LlmStopError: The key is refused, or a batch is not known there.
        """
        found = []
        for record in self._records.left():
            if record.base_url != self._llm.base_url:
                logger.warning("batch %s is at %r; left alone", record.batch_id, record.base_url)
            elif (located := self._located(record)) is not None:
                logger.info("batch %s of an earlier run: collecting", located.batch_id)
                found.append(located)
        return sum(1 for ended in self._ended(found) for _ in self._collect(*ended, None))

    # ---- what goes out

    def _submit(self, requests: Iterable[tuple[SentRequest, Request]]) -> list[BatchRecord]:
        """Submit requests as they come, a file at a time."""
        submitted: list[BatchRecord] = []
        part: BatchPart | None = None
        most, limit = self._llm.batch_max_requests, self._llm.batch_max_bytes
        try:
            for asked, request in requests:
                line = self._lines.line(asked.custom_id, request)
                if len(line) > limit:
                    bytes_ = f"{len(line)} bytes, llm.batch_max_bytes is {limit}"
                    self._requests.fail(asked, f"{TOO_LONG}: the request has {bytes_}")
                    continue
                if part and (part.count >= most or part.size + len(line) > limit):
                    submitted.append(self._send(part))
                    part = None
                part = part or BatchPart.start(self._records, self._place.scratch)
                part.add(line, asked)
            if part:
                submitted.append(self._send(part))
        finally:
            if part:
                part.close()
        return submitted

    def _send(self, part: BatchPart) -> BatchRecord:
        """Start a batch: the record is written before, and again with the batch's id."""
        part.close()
        self._check()
        with self._reaching():
            file_id = self._client.upload(part.file)
        part.file.unlink()
        record = BatchRecord(
            key=part.key,
            input_file_id=file_id,
            base_url=self._llm.base_url,
            mode=self._lines.format.mode,
            count=part.count,
            made_at=time.time(),
        )
        self._records.write(record)
        self._check()
        try:
            with self._reaching():
                batch_id = self._client.create(file_id, part.key, since=record.made_at)
        except NotStartedError:
            self._records.remove(record)
            raise
        record = replace(record, batch_id=batch_id)
        self._records.write(record)
        logger.info("batch %s: %d requests, %d bytes submitted", batch_id, part.count, part.size)
        return record

    def _located(self, record: BatchRecord) -> BatchRecord | None:
        """Return a record with its batch's id, or None where the batch was never started."""
        if record.batch_id:
            return record
        time.sleep(max(0.0, min(SETTLE_S, record.made_at + SETTLE_S - time.time())))
        with self._reaching():
            batch_id = self._client.find(record.key, since=record.made_at)
        if batch_id is None:
            self._records.remove(record)
            return None
        record = replace(record, batch_id=batch_id)
        self._records.write(record)
        return record

    # ---- waiting

    def _ended(self, batches: Iterable[BatchRecord]) -> Iterator[tuple[BatchRecord, BatchState]]:
        """Yield batches as they end; last those that found the provider's queue full."""
        waiting, held = list(batches), []
        self._heard_at = time.monotonic()
        while waiting:
            for record in list(waiting):
                state = self._look(record)
                if state is None or not state.is_ended:
                    continue
                waiting.remove(record)
                if state.is_queue_full:
                    held.append((record, state))
                else:
                    yield record, state
            if waiting:
                self._check()
                time.sleep(self._llm.batch_poll_s)
        yield from held

    def _look(self, record: BatchRecord) -> BatchState | None:
        """Return how far a batch is, or None where the endpoint does not say now."""
        try:
            state = self._client.retrieve(record.batch_id)
        except LlmError as error:
            if time.monotonic() - self._heard_at > MAX_SILENCE_S:
                raise _unreachable(error) from None
            self._tell(record, f"no answer from the endpoint ({error}); waiting on")
            return None
        self._heard_at = time.monotonic()
        self._tell(record, str(state))
        return state

    def _tell(self, record: BatchRecord, what: str) -> None:
        if self._seen.get(record.key) != what:
            self._seen[record.key] = what
            logger.info("batch %s: %s", record.batch_id, what)

    def _check(self) -> None:
        self._place.check()
        if open_store(self._call.journal).exists(STOP):
            raise BatchesLeftError("the run was told to stop; run again to go on")

    # ---- what comes back

    def _collect(
        self, record: BatchRecord, state: BatchState, todo: Todo | None
    ) -> Iterator[dict[str, Any]]:
        """Bring a batch that ended into the ledger, yield its answers, and note what is left.

        Args:
            record: The batch.
            state: How it ended.
            todo: Takes what is to be asked again; None for a batch of an earlier run.
        """
        asked = self._records.asked(record)
        files = self._download(state)
        journal = Journal.start(open_store(self._call.journal), stage=self._call.stage, worker=0)
        try:
            results = self._reader.read(record, asked, files, journal, todo)
        finally:
            journal.close()
        self._place.keep(journal)
        stop = self._reader.settle(record, state, asked, results, todo)
        self._records.remove(record)
        for result in files:
            result.unlink()
        logger.info("batch %s: %d answers collected", record.batch_id, len(results.answered))
        if stop and todo is not None:
            raise stop
        yield from journal.answers()

    def _download(self, state: BatchState) -> tuple[Path, ...]:
        self._place.scratch.mkdir(parents=True, exist_ok=True)
        files: list[Path] = []
        for file_id in state.file_ids:
            files.append(self._place.scratch / f"results-{len(files)}.jsonl")
            with self._reaching():
                self._client.download(file_id, files[-1])
        return tuple(files)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except LlmError as error:
            raise _unreachable(error) from None


def _unreachable(error: LlmError) -> BatchesLeftError:
    return BatchesLeftError(
        f"the endpoint of llm.base_url does not answer ({error}); what was submitted is on record, "
        "run again to go on"
    )
