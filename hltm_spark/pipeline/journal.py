"""The journal: paid answers and failures of a run, out of the process as they arrive.

Every worker writes files of its own (`journal_lines`), on a disk, a shared mount or in an object
store (`journal_store`, `journal_objects`, `journal_place`). A run's journal is removed once its
answers are in the ledger; what a dead run left is folded into the ledger by the next one
(`journal_fold`). In the folder of a run:

    answers/        what was paid, one JSON object a line
    left/STAGE/     one file for each worker of a stage that has no more to do
    TASK.*.failure  requests without a usable answer
    TASK.lock       held by the attempt of a task that is at work (`claim`)
    STOP            tells every worker to make no further call, SKIPPED that one was left out
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hltm_spark.pipeline.journal_lines import Lines
from hltm_spark.pipeline.journal_stop import LLM, StopWatch
from hltm_spark.pipeline.journal_store import JournalStore, whole_lines

FAILURE = ".failure"


@dataclass(slots=True)
class Journal:
    """One worker's part in the journal of a run.

    Attributes:
        store: The run's journal.
        name: Of the call stage and the worker in it, the same for every attempt of a task.
        attempt: Begins the names of the files that this attempt writes, and of no others.
    """

    store: JournalStore
    name: str
    attempt: str
    _answers: JournalStore
    _lines: Lines
    _stop: StopWatch

    @classmethod
    def start(cls, store: JournalStore, *, stage: str, worker: int) -> "Journal":
        """Begin files of a new attempt."""
        name, answers = f"{stage}.{worker}", answers_of(store)
        attempt = f"{name}.{uuid.uuid4().hex}"
        return cls(store, name, attempt, answers, answers.start_lines(attempt), StopWatch(store))

    def append(self, answer: Mapping[str, Any]) -> None:
        """Write one answer, or have it wait for others where the store takes whole files only.

        Raises:
            EnvironmentProblem: The store did not take earlier ones.
        """
        self._lines.append(json.dumps(answer, ensure_ascii=False) + "\n")

    def flush(self) -> None:
        """Write what waits: a process that dies afterwards loses no answer."""
        self._lines.flush()

    def earlier(self) -> Iterator[dict[str, Any]]:
        """Yield what earlier attempts of the same task were answered."""
        names = (file.name for file in self._answers.files(".jsonl"))
        yield from self._read(
            name
            for name in names
            if name.startswith(f"{self.name}.") and not name.startswith(f"{self.attempt}.")
        )

    def answers(self) -> Iterator[dict[str, Any]]:
        """Yield what this attempt wrote."""
        yield from self._read(self._own())

    def on_disk(self, scratch: Path) -> list[str]:
        """Return paths of files with what this attempt wrote, copied to a folder where needed."""
        return self._answers.on_disk(self._own(), scratch)

    def note_failure(self, failure: Mapping[str, Any]) -> None:
        """Write one failure to a file of its own; there are few."""
        note_failure(self.store, failure, name=self.name)

    def earlier_failures(self) -> Iterator[tuple[str, str]]:
        """Yield (tenant_id, request_hash) of what failed in earlier attempts of the same task."""
        files = (file.name for file in self.store.files(FAILURE))
        own = [name for name in files if name.startswith(f"{self.name}.")]
        for stream in self.store.streams(own):
            failure = json.loads(stream.read())
            yield failure["tenant_id"], failure["request_hash"]

    def stop(self, message: str, *, kind: str = LLM) -> None:
        """Tell every worker of the run to make no further call: the model takes none."""
        self._stop.stop(message, kind=kind)

    def stopped(self) -> bool:
        """Tell whether some worker of the run, or its driver, said stop.

        Raises:
            EnvironmentProblem: Answers cannot be written, so that no more may be paid for.
        """
        self._lines.check()
        return self._stop.is_stopped()

    def note_skipped(self) -> None:
        """Note that a request was not made because of a stop."""
        self._stop.note_skipped()

    def leave(self) -> None:
        """Say that this worker has no more to do."""
        stage, own = self._place()
        self.store.within("left", stage).write(own, "")

    def has_left(self) -> bool:
        """Tell whether some attempt of this task had no more to do."""
        stage, own = self._place()
        return self.store.within("left", stage).exists(own)

    def place(self, *, of: int) -> tuple[int, int]:
        """Return (rank, count): this worker's place among those of its stage still at work."""
        stage, own = self._place()
        left = {file.name for file in self.store.within("left", stage).files("")}
        at_work = [n for n in range(of) if n == int(own) or f"{n}" not in left]
        return at_work.index(int(own)), len(at_work)

    def close(self) -> None:
        """Write what waits and close the files; they stay until their answers are in the ledger."""
        self._lines.close()

    def _place(self) -> tuple[str, str]:
        stage, _, own = self.name.rpartition(".")
        return stage, own

    def _own(self) -> list[str]:
        names = (file.name for file in self._answers.files(".jsonl"))
        return [name for name in names if name.startswith(f"{self.attempt}.")]

    def _read(self, names: Iterator[str] | list[str]) -> Iterator[dict[str, Any]]:
        for stream in self._answers.streams(list(names)):
            yield from map(json.loads, whole_lines(stream))


def answers_of(journal: JournalStore) -> JournalStore:
    """Return the part of a run's journal that holds its answers."""
    return journal.within("answers")


def note_failure(
    journal: JournalStore, failure: Mapping[str, Any], *, name: str = "driver"
) -> None:
    """Write one failure to a run's journal, as one of the task of that name."""
    line = json.dumps(failure, ensure_ascii=False) + "\n"
    journal.write(f"{name}.{uuid.uuid4().hex}{FAILURE}", line)
