"""Journals on their way into the ledger, and failures into a frame: Spark reads files on disk."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.journal import FAILURE
from hltm_spark.pipeline.journal_stop import LLM, write_stop
from hltm_spark.pipeline.journal_store import JournalStore
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import INTEGER, LLM_CALLS, TEXT, struct

ORPHAN_S = 60.0
"""Seconds to wait for workers whose run is dead."""

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


def has_failures(journal: JournalStore) -> bool:
    """Tell whether anything failed in a run."""
    return bool(journal.files(FAILURE))


def read_failures(spark: SparkSession, journal: JournalStore, scratch: Path) -> DataFrame | None:
    """Return `FAILED` rows of a run, or None where nothing failed."""
    names = [file.name for file in journal.files(FAILURE)]
    if not names:
        return None
    return spark.read.schema(FAILED).json(journal.on_disk(names, scratch))


def left_answers(places: Iterable[JournalStore], scratch: Path) -> list[str]:
    """Return files on disk with the answers that the journals in some places hold.

    Args:
        places: From `left_journals`.
        scratch: Folder for copies, where any are needed.
    """
    files: list[str] = []
    for place in places:
        files += place.on_disk([f.name for f in place.files(".jsonl") if f.size], scratch)
    return files


def fold_journals(
    spark: SparkSession,
    root: Root,
    commits: Commits,
    *,
    places: Sequence[JournalStore],
    scratch: Path,
) -> int:
    """Append answers of runs that did not get to it to the ledger; return how many.

    The journals are removed once their answers are in the ledger. A worker that outlives its driver
    for a moment is told to stop, and what it has in flight is waited for.
    """
    for place in places:
        for run in {name.partition("/")[0] for name, _ in place.files("") if "/" in name}:
            write_stop(place.within(run), "its run is dead", kind=LLM)
        place.wait_for_claims(patience_s=ORPHAN_S)
    count = append_journalled(spark, root, commits, left_answers(places, scratch))
    for place in places:
        place.clear()
    return count


def append_journalled(
    spark: SparkSession, root: Root, commits: Commits, files: Sequence[str]
) -> int:
    """Append what the ledger does not have of some journal files; return how many answers.

    A torn last line, from a process that was killed while it wrote, is not an answer.

    Args:
        spark: Session.
        root: Storage root.
        commits: Of the run that folds.
        files: Paths on disk.
    """
    if not files:
        return 0
    lines = spark.read.schema(LLM_CALLS.schema).json(sorted(files))
    whole = lines.where("request_hash IS NOT NULL AND run_id IS NOT NULL")
    known = LLM_CALLS.read(spark, root.path)
    # a run may ask again what an earlier one was answered in vain: both were paid
    key = ["tenant_id", "request_hash", "run_id"]
    fresh = whole.dropDuplicates(key).join(known.select(*key), key, "left_anti")
    count = fresh.count()
    if count:
        commits.append(LLM_CALLS, fresh)
    return count
