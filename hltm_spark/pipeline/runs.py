"""The record of runs: what each read, did and cost, and the cursor of the change feed."""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from hltm_spark.core.errors import DataError
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.files import local_rows, read_rows
from hltm_spark.pipeline.tables import DOCUMENTS, RUNS, create_tables

FINISHED = ("done", "partial")
"""Statuses that move the cursor: everything up to the pinned version was looked at."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One run while it goes on, then its row in `runs`.

    Attributes:
        status: `running`, then `done`, `partial` (some nodes failed), `stopped` or `failed`.
        documents: Documents in the pinned snapshot.
        nodes_touched: Nodes whose input differs from what their memory was written from.
        nodes_written: Rows of `memory` inserted or updated.
        calls: Answers paid in this run, repairs included.
        cached: Requests answered from the ledger.
        failed: Nodes that are not complete at the end.
        cost: In the currency of the conf's prices.
        freshness_s: Age of the oldest change that no run had applied when this one began.
    """

    run_id: str
    kind: str
    status: str = "running"
    started_at: datetime
    finished_at: datetime | None = None
    documents_table_id: str = ""
    documents_version: int = -1
    memory_table_id: str = ""
    settings_fingerprint: str = ""
    documents: int = 0
    nodes_touched: int = 0
    nodes_written: int = 0
    nodes_removed: int = 0
    calls: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    freshness_s: float = 0.0
    stage_seconds: dict[str, float] = field(default_factory=dict)
    tenants_published: int = 0
    message: str = ""

    @classmethod
    def start(cls, kind: str) -> "Run":
        """Return a new run; ids sort by time."""
        now = datetime.now(UTC)
        run_id = f"{kind}-{now:%Y%m%dT%H%M%S%f}-{secrets.token_hex(3)}"
        return cls(run_id=run_id, kind=kind, started_at=now)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of a block to a stage."""
        began = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - began
            self.stage_seconds[stage] = round(self.stage_seconds.get(stage, 0.0) + spent, 3)

    def count(self, level: str, *, touched: int = 0, cached: int = 0) -> None:  # noqa: ARG002
        """Count nodes of a level that are written, and requests answered from the ledger."""
        self.nodes_touched += touched
        self.cached += cached

    def finish(self, status: str, message: str = "") -> None:
        """Set the final status and times."""
        self.status, self.message = status, message
        self.finished_at = datetime.now(UTC)
        self.seconds = round((self.finished_at - self.started_at).total_seconds(), 3)

    def summary(self) -> dict[str, Any]:
        """Return what the command line prints as JSON."""
        row = asdict(self)
        return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in row.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far the last finished run read, with which settings, and which table it wrote."""

    table_id: str
    version: int
    memory_table_id: str
    settings_fingerprint: str


def open_tables(spark: SparkSession, root: str) -> None:
    """Create the tables of a root that are not there yet; `documents` only before the first run.

    An empty table in its place would have the next run remove every node.

    Raises:
        DataError: The documents table that a run has read is gone.
    """
    if not DOCUMENTS.exists(root) and read_cursor(RUNS.files_if_any(root)) is not None:
        raise DataError(
            "the documents table that the last run read is gone (moved, or not mounted); put it "
            "back, or run `hltm ingest`, which makes a new one, and then `hltm index`"
        )
    create_tables(spark, root)


def record_run(spark: SparkSession, commits: Commits, run: Run) -> None:
    """Append the run's final row: the only thing that moves the cursor."""
    row = {name: asdict(run)[name] for name in RUNS.columns}
    commits.append(RUNS, local_rows(spark, [row], RUNS.schema))


def read_cursor(runs: Sequence[str]) -> Cursor | None:
    """Return the cursor, or None before the first finished run.

    Args:
        runs: Data files of the `runs` table.
    """
    names = ["finished_at", "run_id", "documents_table_id", "documents_version"]
    names += ["memory_table_id", "settings_fingerprint"]
    where = {"status": FINISHED, "kind": ("index", "update")}
    finished = read_rows(runs, names, where=where)
    if not finished:
        return None
    last = max(finished, key=lambda row: (row["finished_at"], row["run_id"]))
    return Cursor(
        table_id=last["documents_table_id"],
        version=last["documents_version"],
        memory_table_id=last["memory_table_id"],
        settings_fingerprint=last["settings_fingerprint"],
    )
