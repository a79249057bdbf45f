"""The journal: paid answers and failures of a run, on disk as they arrive.

Every worker appends to files of its own. A run's journal is removed once its answers are in the
ledger; what a dead run left is folded into the ledger by the next one.
"""

import json
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from hltm_spark.models.budgets import Spent
from hltm_spark.pipeline.claim import wait_for_claims
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import INTEGER, LLM_CALLS, TEXT, struct

ORPHAN_S = 60.0
"""Seconds to wait for workers whose run is dead."""

_LEFT, _FAILURE = ".left", ".failure"

FAILED = struct(
    {
        "tenant_id": TEXT,
        "tenant_key": TEXT,
        "node_id": TEXT,
        "task": TEXT,
        "kind": TEXT,
        "reason": TEXT,
        "tries": INTEGER,
        "run_id": TEXT,
    }
)
"""A request without a usable answer, as its worker noted it."""

LLM, DOWN, BUDGET = "llm", "down", "budget"
"""Kinds of stops: a model that takes no request, an endpoint that is down, a budget's end."""


@dataclass(slots=True)
class Journal:
    """One worker's file of paid answers, one JSON object a line, appended as they arrive.

    Attributes:
        folder: The run's journal.
        name: Of the call stage and the worker in it, the same for every attempt of a task.
    """

    folder: Path
    name: str
    file: Any
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def start(cls, folder: Path, *, stage: str, worker: int) -> "Journal":
        """Open a new file; the last part of its name is unique to this attempt."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{stage}.{worker}"
        file = (folder / f"{name}.{uuid.uuid4().hex}.jsonl").open("a", encoding="utf-8")
        return cls(folder, name, file)

    def earlier(self) -> Iterator[dict[str, Any]]:
        """Yield what earlier attempts of the same task were answered."""
        for file in sorted(self.folder.glob(f"{self.name}.*.jsonl")):
            if file.name != Path(self.file.name).name:
                with file.open(encoding="utf-8") as lines:
                    yield from (json.loads(line) for line in lines if line.endswith("\n"))

    def append(self, answer: Mapping[str, Any]) -> None:
        """Write one answer; a process that dies afterwards does not lose it."""
        line = json.dumps(answer, ensure_ascii=False) + "\n"
        with self.lock:
            self.file.write(line)
            self.file.flush()

    def note_failure(self, failure: Mapping[str, Any]) -> None:
        """Write one failure to a file of its own; there are few."""
        note_failure(self.folder, failure, name=self.name)

    def earlier_failures(self) -> Iterator[tuple[str, str]]:
        """Yield (tenant_id, request_hash) of what failed in earlier attempts of the same task."""
        for file in self.folder.glob(f"{self.name}.*{_FAILURE}"):
            failure = json.loads(file.read_text(encoding="utf-8"))
            yield failure["tenant_id"], failure["request_hash"]

    def stop(self, message: str, *, kind: str = LLM) -> None:
        """Tell every worker of the run to make no further call: the model takes none."""
        (self.folder / "STOP").write_text(f"{kind}\n{message}", encoding="utf-8")

    def stopped(self) -> bool:
        """Tell whether some worker of the run, or its driver, said stop."""
        return (self.folder / "STOP").exists()

    def note_skipped(self) -> None:
        """Note that a request was not made because of a stop."""
        note_skipped(self.folder)

    def leave(self) -> None:
        """Say that this worker has no more to do."""
        (self.folder / f"{self.name}{_LEFT}").touch()

    def has_left(self) -> bool:
        """Tell whether some attempt of this task had no more to do."""
        return (self.folder / f"{self.name}{_LEFT}").exists()

    def place(self, *, of: int) -> tuple[int, int]:
        """Return (rank, count): this worker's place among those of its stage still at work."""
        stage, _, own = self.name.rpartition(".")
        left = {file.name for file in self.folder.glob(f"{stage}.*{_LEFT}")}
        at_work = [n for n in range(of) if n == int(own) or f"{stage}.{n}{_LEFT}" not in left]
        return at_work.index(int(own)), len(at_work)

    def close(self) -> None:
        """Close the file; it stays until its answers are in the ledger."""
        self.file.close()


def note_failure(folder: Path, failure: Mapping[str, Any], *, name: str = "driver") -> None:
    """Write one failure to a run's journal, as one of the task of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f"{name}.{uuid.uuid4().hex}.part"
    scratch.write_text(json.dumps(failure, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(scratch.with_suffix(_FAILURE))  # as a whole, or not at all


def journalled_count(folder: Path) -> int:
    """Return the number of answers in a run's journal, for progress."""
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*.jsonl"))


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a run makes no further call; `kind` is `LLM`, `DOWN` or `BUDGET`."""

    kind: str
    message: str


def write_stop(folder: Path, message: str, *, kind: str) -> None:
    """Tell every worker of a run to make no further call, unless one was told already."""
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError), (folder / "STOP").open("x", encoding="utf-8") as file:
        file.write(f"{kind}\n{message}")


def note_skipped(folder: Path) -> None:
    """Note that a request of a run was not made because of a stop."""
    file = folder / "SKIPPED"
    if not file.exists():
        file.touch()


def read_stop(folder: Path) -> Stop | None:
    """Return what keeps a run from going on, or None.

    A budget that the last call of all used up keeps it from nothing: only a request that was not
    made does.
    """
    file = folder / "STOP"
    if not file.exists():
        return None
    kind, _, message = file.read_text(encoding="utf-8").partition("\n")
    if kind == BUDGET and not (folder / "SKIPPED").exists():
        return None
    return Stop(kind, message)


@dataclass(slots=True)
class Spending:
    """The sums over a run's journal while it grows: every line is read once."""

    folder: Path
    _spent: Spent = field(default_factory=Spent)
    _read: dict[Path, int] = field(default_factory=dict)  # bytes that were read, by file

    def read(self) -> Spent:
        """Return what was paid until now; a line that is being written counts the next time."""
        for file in self.folder.glob("*.jsonl"):
            begin = self._read.get(file, 0)
            if file.stat().st_size > begin:
                self._read[file] = begin + self._add(file, begin)
        return replace(self._spent)

    def _add(self, file: Path, begin: int) -> int:
        """Add the whole lines of a file from a position on; return their bytes."""
        size = 0
        with file.open("rb") as lines:
            lines.seek(begin)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                size += len(line)
                answer = json.loads(line)
                self._spent.calls += 1
                self._spent.prompt_tokens += answer["prompt_tokens"]
                self._spent.completion_tokens += answer["completion_tokens"]
        return size


def read_spent(folder: Path) -> Spent:
    """Return the sums over a run's journal."""
    return Spending(folder).read()


def read_failures(spark: SparkSession, folder: Path) -> DataFrame | None:
    """Return `FAILED` rows of a run, or None where nothing failed."""
    if not any(folder.glob(f"*{_FAILURE}")):
        return None
    return spark.read.schema(FAILED).json(f"{folder}/*{_FAILURE}")


def fold_journals(spark: SparkSession, root: Root, commits: Commits) -> int:
    """Append answers of runs that did not get to it to the ledger; return how many.

    The journals are removed once their answers are in the ledger. A worker that outlives its driver
    for a moment is told to stop, and what it has in flight is waited for.
    """
    for folder in root.journal().glob("*"):
        write_stop(folder, "its run is dead", kind=LLM)
    wait_for_claims(root.journal(), patience_s=ORPHAN_S)
    count = append_journalled(spark, root, commits, list(root.journal().rglob("*.jsonl")))
    shutil.rmtree(root.journal(), ignore_errors=True)
    return count


def append_journalled(
    spark: SparkSession, root: Root, commits: Commits, files: Sequence[Path]
) -> int:
    """Append what the ledger does not have of some journal files; return how many answers.

    A torn last line, from a process that was killed while it wrote, is not an answer.
    """
    filled = sorted(str(file) for file in files if file.stat().st_size)
    if not filled:
        return 0
    lines = spark.read.schema(LLM_CALLS.schema).json(filled)
    whole = lines.where("request_hash IS NOT NULL AND run_id IS NOT NULL")
    known = LLM_CALLS.read(spark, root.path)
    # a run may ask again what an earlier one was answered in vain: both were paid
    key = ["tenant_id", "request_hash", "run_id"]
    fresh = whole.dropDuplicates(key).join(known.select(*key), key, "left_anti")
    count = fresh.count()
    if count:
        commits.append(LLM_CALLS, fresh)
    return count
