"""One Spark session for all tests that need one, and a memory on a scratch root."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from hltm_spark.core.config import Settings
from hltm_spark.pipeline.index import run_pipeline
from hltm_spark.pipeline.ingest import IngestReport, ingest
from hltm_spark.pipeline.inputs import read_input
from hltm_spark.pipeline.root import Root, open_root
from hltm_spark.pipeline.runs import Run
from hltm_spark.pipeline.session import make_session
from hltm_spark.pipeline.tables import MEMORY, Table, create_tables
from tests.builders import settings as make_settings


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session for small data: little compilation, two partitions (one hides order faults)."""
    session = make_session(
        "hltm tests",
        extra={
            "spark.master": "local[2,4]",  # a task whose worker was killed is tried again
            "spark.sql.shuffle.partitions": "2",
            # the first compiler alone starts faster, but then the default code cache fills up
            "spark.driver.extraJavaOptions": (
                "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
            ),
        },
    )
    yield session
    session.stop()


@dataclass(kw_only=True)
class Memory:
    """A root with its settings, and what tests do with it."""

    spark: SparkSession
    root: Root
    settings: Settings
    scratch: Path

    def ingest(self, *rows: dict[str, Any] | str, mode: str = "upsert") -> IngestReport:
        """Ingest rows given as documents (or as raw lines) through a JSONL file."""
        file = self.scratch / "input.jsonl"
        lines = [r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in rows]
        file.write_text("\n".join(lines), encoding="utf-8")
        return ingest(read_input(self.spark, [str(file)]), self.settings, self.root, mode=mode)

    def run(self, kind: str = "index", **options: Any) -> Run:
        """Run the pipeline; shards are left out unless asked for."""
        options = {"is_publishing": False, **options}
        return run_pipeline(self.spark, self.settings, self.root, kind=kind, **options)

    def read(self, table: Table) -> DataFrame:
        """Return a table."""
        return table.read(self.spark, self.root.path)

    def nodes(self) -> dict[str, Row]:
        """Return the memory rows by node id."""
        return {row["node_id"]: row for row in self.read(MEMORY).collect()}

    def content(self) -> list[dict[str, Any]]:
        """Return what a rebuild must equal: the memory without run ids, in tree order."""
        rows = self.read(MEMORY).drop("run_id").orderBy("tenant_id", "keys").collect()
        return [row.asDict(recursive=True) for row in rows]


class MakeMemory:
    """Makes memories on scratch roots; one test may want several.

    The tables are copied from ones that were made once: their creation costs seconds a root.
    """

    def __init__(self, spark: SparkSession, scratch: Path, tables: Path) -> None:
        self._spark, self._scratch, self._tables = spark, scratch, tables
        self._count = 0

    def __call__(
        self, levels: Sequence[str] = (), *, like: Memory | None = None, **sections: Any
    ) -> Memory:
        """Return an empty memory; one like another has its salt, so that rows compare."""
        self._count += 1
        path = self._scratch / f"root-{self._count}"
        shutil.copytree(self._tables, path / "tables")
        if like is not None:
            shutil.copy(Path(like.root.path) / "root.json", path)
        return Memory(
            spark=self._spark,
            root=open_root(str(path)),
            settings=make_settings(*levels, **sections),
            scratch=self._scratch,
        )


@pytest.fixture(scope="session")
def empty_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every table, empty."""
    root = tmp_path_factory.mktemp("template")
    create_tables(spark, str(root))
    return root / "tables"


@pytest.fixture
def make_memory(spark: SparkSession, tmp_path: Path, empty_tables: Path) -> MakeMemory:
    """Return a factory of memories."""
    return MakeMemory(spark, tmp_path, empty_tables)


@pytest.fixture
def memory(make_memory: MakeMemory) -> Memory:
    """Return a memory with the levels contract, seat, project."""
    return make_memory()
