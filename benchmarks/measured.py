"""A memory on a temporary root, and what a run over it costs: seconds, Spark jobs, calls."""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.answering import Answering, Served, serve_answers
from benchmarks.hiring import Documents, edit, make_documents, write_changes
from hltm_spark.core.conf_file import load_settings
from hltm_spark.core.config import Settings
from hltm_spark.core.errors import HltmError
from hltm_spark.pipeline.index import run_pipeline
from hltm_spark.pipeline.ingest import ingest
from hltm_spark.pipeline.inputs import read_input
from hltm_spark.pipeline.root import Root, open_root
from hltm_spark.pipeline.runs import Run

CONCURRENCY = 64
CONF = "conf/hiring.toml"
_WARM_UP_LEAVES = 100


class VoidMeasurementError(HltmError):
    """Raised where a run did not do all of its work, so that its cost says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one run took.

    Attributes:
        seconds: From the call to its return, the run's own record included.
        jobs: Spark jobs.
        served: What the model's server counted meanwhile.
        run: The run's own record.
    """

    seconds: float
    jobs: int
    served: Served
    run: Run

    @property
    def calls(self) -> int:
        """Calls that reached the server."""
        return self.served.calls


@dataclass(slots=True, kw_only=True)
class MeasuredMemory:
    """One root with its settings and the documents that it has now."""

    spark: SparkSession
    settings: Settings
    root: Root
    server: Answering
    scratch: Path
    documents: Documents

    def ingest(self, after: Documents) -> float:
        """Bring the documents to another state by the real ingest; return its seconds."""
        file = self.scratch / "input.jsonl"
        count = write_changes(self.documents, after, file)
        self._say(f"ingest of {count} rows")
        began = time.perf_counter()
        report = ingest(read_input(self.spark, [str(file)]), self.settings, self.root)
        seconds = time.perf_counter() - began
        if report.taken != count or report.unchanged:
            raise VoidMeasurementError(f"{count} rows given, but ingest says {report}")
        self.documents = after
        return seconds

    def run(self, kind: str) -> Cost:
        """Run `index` or `update`, shards included, and return its cost."""
        self._say(f"{kind} over {len(self.documents)} documents")
        self.server.take()
        before = job_ids(self.spark)
        began = time.perf_counter()
        run = run_pipeline(self.spark, self.settings, self.root, kind=kind)
        seconds = time.perf_counter() - began
        jobs = len(job_ids(self.spark) - before)
        if run.status != "done":
            raise VoidMeasurementError(f"{kind} ended {run.status!r}, {run.failed} nodes failed")
        return Cost(seconds=seconds, jobs=jobs, served=self.server.take(), run=run)

    def _say(self, what: str) -> None:
        print(f"  {what}", file=sys.stderr, flush=True)


@contextmanager
def measured_memory(
    spark: SparkSession, documents: Documents, *, latency_s: float = 0.0, small_run_nodes: int = -1
) -> Iterator[MeasuredMemory]:
    """Give a memory whose documents are ingested, on a root that is removed afterwards.

    Args:
        spark: Session.
        documents: First state.
        latency_s: Delay of the model.
        small_run_nodes: Over the conf's budget; below 0 the conf's holds.
    """
    with (
        tempfile.TemporaryDirectory(prefix="hltm-bench-") as folder,
        serve_answers(latency_s) as server,
    ):
        overrides = [
            "llm.provider=openai",
            "llm.model=scripted",
            f"llm.base_url={server.base_url}",
            f"llm.max_concurrency={CONCURRENCY}",
        ]
        if small_run_nodes >= 0:
            overrides.append(f"budgets.small_run_nodes={small_run_nodes}")
        memory = MeasuredMemory(
            spark=spark,
            settings=load_settings(CONF, overrides=overrides),
            root=open_root(f"{folder}/root"),
            server=server,
            scratch=Path(folder),
            documents={},
        )
        memory.ingest(documents)
        yield memory


def warm_up(spark: SparkSession) -> None:
    """Go both ways through the pipeline once, so that the first part pays no start-up for all."""
    print("warm-up", file=sys.stderr, flush=True)
    documents = make_documents(_WARM_UP_LEAVES)
    with measured_memory(spark, documents, small_run_nodes=_WARM_UP_LEAVES // 2) as memory:
        memory.run("index")  # by Spark
        memory.ingest(edit(documents, 4, seed=0))
        memory.run("update")  # in this process


def job_ids(spark: SparkSession) -> set[int]:
    """Return the jobs that Spark remembers, once its listener knows of all; the last 1,000."""
    tracker = spark.sparkContext.statusTracker()
    known: set[int] = set()
    while (found := set(tracker.getJobIdsForGroup(None))) - known:
        known = found
        time.sleep(0.2)
    return known
