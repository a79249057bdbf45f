"""What both ways of publishing use: tables, staging, and where a version came from."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from hltm_spark.core.config import Settings
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import DOCUMENTS, EMBEDDINGS, LONG, MEMORY, TEXT, struct

DUE = struct({"tenant_id": TEXT, "state": TEXT, "nodes": LONG, "documents": LONG})
"""A tenant to publish: the state that its shard is to have, null where the shard is to go, and the
shard's size in rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishContext:
    """One publishing.

    Attributes:
        spark: Session.
        settings: The conf.
        root: Storage root.
        commits: The run's commits.
        run_id: The run.
        documents_version: Version of `documents` that memory was written from.
    """

    spark: SparkSession
    settings: Settings
    root: Root
    commits: Commits
    run_id: str
    documents_version: int

    @property
    def memory(self) -> DataFrame:
        """The `memory` table."""
        return MEMORY.read(self.spark, self.root.path)

    @property
    def documents(self) -> DataFrame:
        """The `documents` table as memory was written from it."""
        return DOCUMENTS.read(self.spark, self.root.path, version=self.documents_version)

    @property
    def embeddings(self) -> DataFrame:
        """The `embeddings` table."""
        return EMBEDDINGS.read(self.spark, self.root.path)

    @property
    def shards(self) -> str:
        """Folder of the published shards."""
        return str(self.root.shards)

    def staging(self, name: str) -> str:
        """Path of a staged folder of this run."""
        return str(self.root.staging(self.run_id) / name)

    def provenance(self) -> dict[str, Any]:
        """Return what provenance.json says of a version that is written now."""
        return {
            "run_id": self.run_id,
            "documents_version": self.documents_version,
            "memory_version": MEMORY.version(self.root.path),
            "published_at": datetime.now(UTC).isoformat(),
        }
