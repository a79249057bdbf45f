"""Requests on their way into a batch, and what one round leaves to be asked again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from hltm_spark.core.errors import LlmError
from hltm_spark.core.tree import salted_hash
from hltm_spark.models.answering import REPAIR, repair_request
from hltm_spark.models.llm import Completion, Request
from hltm_spark.pipeline.batch_records import BatchRecords, SentRequest
from hltm_spark.pipeline.calls import CallSettings, check_size, paid_row, render
from hltm_spark.pipeline.journal import note_failure
from hltm_spark.pipeline.journal_place import open_store

Rows = Callable[[], Iterable[Mapping[str, Any]]]
"""Gives `OPEN_REQUEST` rows by (tenant_id, request_hash), the same each time it is called."""

_NOTHING = Completion(
    text="", finish_reason="", prompt_tokens=0, completion_tokens=0, latency_s=0.0
)


@dataclass(slots=True, kw_only=True)
class BatchPart:
    """One batch file while it is written, with the list of its requests beside it.

    Attributes:
        key: Of the batch that it becomes.
        file: Request bodies, in the scratch folder: they hold text.
    """

    key: str
    file: Path
    _lines: Any
    _rows: Any
    count: int = 0
    size: int = 0

    @classmethod
    def start(cls, records: BatchRecords, scratch: Path) -> Self:
        """Open the files of a new batch."""
        key = records.new_key()
        scratch.mkdir(parents=True, exist_ok=True)
        file = scratch / f"batch-{key}.jsonl"
        rows = records.rows_file(key).open("w", encoding="utf-8")
        return cls(key=key, file=file, _lines=file.open("wb"), _rows=rows)

    def add(self, line: bytes, asked: SentRequest) -> None:
        """Take one request."""
        self._lines.write(line)
        self._rows.write(asked.to_line())
        self.count += 1
        self.size += len(line)

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        self._rows.close()


@dataclass(slots=True)
class Todo:
    """What the finished batches of one round leave for the next one.

    Attributes:
        file: Requests that only this file has: repairs, which hold text of answers.
        again: Tries by custom id, of requests that are written from their rows again.
        paid: Answers of this round so far.
    """

    file: Path
    again: dict[str, int] = field(default_factory=dict)
    paid: int = 0

    def add(self, asked: SentRequest, *, tries: int) -> None:
        """Note a request to be asked for the `tries`th time."""
        if not asked.repair:
            self.again[asked.custom_id] = tries
            return
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(replace(asked, tries=tries).to_line())

    def repairs(self) -> Iterator[SentRequest]:
        """Yield the repairs."""
        if self.file.exists():
            with self.file.open(encoding="utf-8") as lines:
                yield from map(SentRequest.from_line, lines)

    def __bool__(self) -> bool:
        return bool(self.again) or self.file.exists()


@dataclass(frozen=True, slots=True)
class BatchRequests:
    """Writes the requests of one run.

    Attributes:
        salt: Of the root: the provider gets no hash that could be compared with another's.
    """

    call: CallSettings
    salt: str

    def first(
        self, rows: Rows, only: Mapping[str, int] | None = None
    ) -> Iterator[tuple[SentRequest, Request]]:
        """Yield requests in the order of their rows; one that is too long fails here.

        Args:
            rows: The open requests.
            only: Tries by custom id of those that are wanted; all, for the first time, where None.
        """
        prompts = self.call.prompts
        for row in rows():
            custom_id = self._custom_id(row)
            if only is not None and custom_id not in only:
                continue
            is_rendered = "request" in row
            request, ids = (
                (row["request"], row["source_ids"]) if is_rendered else render(row, prompts)
            )
            asked = SentRequest(
                custom_id=custom_id,
                row=paid_row(row, request, _NOTHING, self.call),
                task=row["task"],
                output=request.output,
                source_ids=tuple(ids),
                tries=1 if only is None else only[custom_id],
            )
            try:
                check_size(request, self.call.settings)
            except LlmError as error:
                self.fail(asked, str(error))
            else:
                yield asked, request

    def again(self, rows: Rows, todo: Todo) -> Iterator[tuple[SentRequest, Request]]:
        """Yield what one round left for the next: repairs, then requests in their order."""
        for asked in todo.repairs():
            yield asked, asked.repair_request()
        if todo.again:
            yield from self.first(rows, todo.again)

    def repair(self, one: SentRequest, problem: str, text: str) -> SentRequest:
        """Return the request to write a malformed answer again."""
        prompt = self.call.prompts.prompts[REPAIR]
        request = repair_request(one.output, problem, text, prompt=prompt)
        row = paid_row(one.row, request, _NOTHING, self.call)
        return replace(
            one,
            custom_id=self._custom_id(row),
            row=row,
            problem=problem,
            repair={"system": request.system, "user": request.user},
        )

    def fail(self, one: SentRequest, message: str) -> None:
        """Note that a request failed for good."""
        if one.problem:
            message = f"{one.problem}; after one repair: {message}"
        kind, _, reason = message.partition(": ")
        note_failure(
            open_store(self.call.journal),
            {
                **{name: one.row[name] for name in ("tenant_id", "tenant_key", "node_id")},
                "task": one.task,
                "kind": kind,
                "reason": reason,
                "tries": 2 if one.problem else one.tries,
                "run_id": self.call.run_id,
            },
        )

    def _custom_id(self, row: Mapping[str, Any]) -> str:
        return salted_hash(f"{row['tenant_id']}\x00{row['request_hash']}", salt=self.salt)
