"""The journal: paid answers and failures of a run, on disk as they arrive.

Every worker appends to files of its own. A run's journal is removed once its answers are in the
ledger; what a dead run left is folded into the ledger by the next one.
"""

import json
import shutil
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import INTEGER, LLM_CALLS, TEXT, struct

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


@dataclass(slots=True)
class Journal:
    """One worker's file of paid answers, one JSON object a line, appended as they arrive."""

    folder: Path
    file: Any
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def start(cls, folder: Path) -> "Journal":
        """Open a new file; its name is unique to this attempt."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, (folder / f"{uuid.uuid4().hex}.jsonl").open("a", encoding="utf-8"))

    def append(self, answer: Mapping[str, Any]) -> None:
        """Write one answer; a process that dies afterwards does not lose it."""
        line = json.dumps(answer, ensure_ascii=False) + "\n"
        with self.lock:
            self.file.write(line)
            self.file.flush()

    def note_failure(self, failure: Mapping[str, Any]) -> None:
        """Write one failure to a file of its own; there are few."""
        note_failure(self.folder, failure)

    def stop(self, message: str) -> None:
        """Tell every worker of the run to make no further call."""
        (self.folder / "STOP").write_text(message, encoding="utf-8")

    def stopped(self) -> bool:
        """Tell whether some worker of the run said stop."""
        return (self.folder / "STOP").exists()

    def close(self) -> None:
        """Close the file; it stays until its answers are in the ledger."""
        self.file.close()


def note_failure(folder: Path, failure: Mapping[str, Any]) -> None:
    """Write one failure to a run's journal."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{uuid.uuid4().hex}.failure"
    file.write_text(json.dumps(failure, ensure_ascii=False) + "\n", encoding="utf-8")


def journalled_count(folder: Path) -> int:
    """Return the number of answers in a run's journal, for progress."""
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("*.jsonl"))


@dataclass(slots=True)
class Spent:
    """What a run's journal says was paid."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


def read_spent(folder: Path) -> Spent:
    """Return the sums over a run's journal, read line by line."""
    spent = Spent()
    for file in sorted(folder.glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                answer = json.loads(line)
                spent.calls += 1
                spent.prompt_tokens += answer["prompt_tokens"]
                spent.completion_tokens += answer["completion_tokens"]
    return spent


def read_failures(spark: SparkSession, folder: Path) -> DataFrame | None:
    """Return `FAILED` rows of a run, or None where nothing failed."""
    if not any(folder.glob("*.failure")):
        return None
    return spark.read.schema(FAILED).json(f"{folder}/*.failure")


def fold_journals(spark: SparkSession, root: Root, commits: Commits) -> int:
    """Append answers of runs that did not get to it to the ledger; return how many.

    The journals are removed once their answers are in the ledger.
    """
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
