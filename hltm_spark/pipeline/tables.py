"""The Delta tables under a storage root: schemas, keys, properties, and all use of Delta's API.

Tables are addressed by path, unpartitioned and clustered on salted hashes of the ids, so that no
id or text reaches the transaction log's statistics. Merges are SQL: Spark Connect has them
without a server plugin. All is written by Spark; which files a version has, its number and the
table's id are read from the log by delta-rs, in milliseconds where a Spark job takes a third of a
second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

TEXT, INTEGER, LONG, DOUBLE = t.StringType(), t.IntegerType(), t.LongType(), t.DoubleType()
BOOLEAN, TIME, BINARY = t.BooleanType(), t.TimestampType(), t.BinaryType()
TEXTS = t.ArrayType(TEXT)


def struct(columns: Mapping[str, t.DataType]) -> t.StructType:
    """Return a schema of nullable columns."""
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def arrow(schema: t.StructType) -> pa.Schema:
    """Return the Arrow form of a schema, for partition functions."""
    return to_arrow_schema(schema)


FACET = struct(
    {
        "name": TEXT,
        "value": TEXT,
        "sources": TEXTS,
        "documents": TEXTS,
        "support": INTEGER,
        "total": INTEGER,
        "latest_at": TEXT,
    }
)
QUESTION_ANSWER = struct({"question": TEXT, "answer": TEXT, "sources": TEXTS, "documents": TEXTS})
NODE_KEYS = {"tenant_id": TEXT, "tenant_key": TEXT, "node_id": TEXT, "node_key": TEXT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: where it is, what a row is, and how it is laid out.

    Attributes:
        name: Folder under `<root>/tables/`.
        columns: Column types in order.
        key: Columns that identify a row.
        cluster_by: Clustering columns, the only ones with statistics.
        has_change_feed: True where runs read what changed.
    """

    name: str
    columns: Mapping[str, t.DataType]
    key: Sequence[str]
    cluster_by: Sequence[str] = ("tenant_key",)
    has_change_feed: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> t.StructType:
        """Schema of the table."""
        return struct(self.columns)

    def path(self, root: str) -> str:
        """Return the table's path under a storage root."""
        return f"{root.rstrip('/')}/tables/{self.name}"

    def sql_name(self, root: str) -> str:
        """Return the table as SQL names it."""
        return f"delta.`{self.path(root).replace('`', '``')}`"

    def create(self, spark: SparkSession, root: str) -> None:
        """Create the table where it does not exist yet."""
        columns = ", ".join(f"`{n}` {k.simpleString()}" for n, k in self.columns.items())
        properties = {
            "delta.enableChangeDataFeed": str(self.has_change_feed).lower(),
            "delta.enableDeletionVectors": "false",
            "delta.dataSkippingStatsColumns": ",".join(self.cluster_by),
            **self.properties,
        }
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        cluster = f"CLUSTER BY ({', '.join(self.cluster_by)})" if self.cluster_by else ""
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self.sql_name(root)} ({columns}) USING DELTA "
            f"{cluster} TBLPROPERTIES ({listed})"
        )

    def read(self, spark: SparkSession, root: str, *, version: int | None = None) -> DataFrame:
        """Return the rows, of one version where it is given."""
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(self.path(root))

    def files(self, root: str, *, version: int | None = None) -> list[str]:
        """Return the paths of the data files of a version: for reads without a Spark job."""
        return [unquote(uri) for uri in DeltaTable(self.path(root), version=version).file_uris()]

    def files_if_any(self, root: str) -> list[str]:
        """Return the data files of the latest version; none where there is no table yet."""
        return self.files(root) if self.exists(root) else []

    def append(self, rows: DataFrame, root: str) -> None:
        """Add rows by a plain append."""
        rows.select(*self.columns).write.format("delta").mode("append").save(self.path(root))

    def merge(self, source: DataFrame, root: str, *, delete_when: str) -> None:
        """Merge rows that were read back from a file or table, never a frame that calls a model.

        Args:
            source: Rows with all columns; those to delete need only the key.
            root: Storage root.
            delete_when: SQL condition on a source row `s` that deletes its match; any other row
                updates its match or is inserted.
        """
        view = f"merge_into_{self.name}"
        source.createOrReplaceTempView(view)
        on = " AND ".join(f"t.{column} = s.{column}" for column in self.key)
        sets = ", ".join(f"t.`{column}` = s.`{column}`" for column in self.columns)
        names = ", ".join(f"`{column}`" for column in self.columns)
        values = ", ".join(f"s.`{column}`" for column in self.columns)
        source.sparkSession.sql(
            f"MERGE INTO {self.sql_name(root)} t USING {view} s ON {on} "
            f"WHEN MATCHED AND {delete_when} THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {sets} "
            f"WHEN NOT MATCHED AND NOT ({delete_when}) THEN INSERT ({names}) VALUES ({values})"
        )
        source.sparkSession.catalog.dropTempView(view)

    def version(self, root: str) -> int:
        """Return the latest version."""
        return DeltaTable(self.path(root)).version()

    def committed_at(self, root: str, version: int) -> datetime | None:
        """Return when a version was committed, or None where its log entry was cleaned up."""
        file = Path(self.path(root)) / "_delta_log" / f"{version:020d}.json"
        try:
            return datetime.fromtimestamp(file.stat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    def table_id(self, root: str) -> str:
        """Return the id that Delta gave the table; a table made anew has another one."""
        return str(DeltaTable(self.path(root)).metadata().id)

    def exists(self, root: str) -> bool:
        """Tell whether the table was created."""
        return (Path(self.path(root)) / "_delta_log").is_dir()


DOCUMENTS = Table(
    name="documents",
    columns={
        **NODE_KEYS,
        "keys": TEXTS,
        "doc_id": TEXT,
        "text": TEXT,
        "kind": TEXT,
        "event_time": TIME,
        "author": TEXT,
        "metadata": t.MapType(TEXT, TEXT),
        "content_hash": TEXT,
    },
    key=("tenant_key", "tenant_id", "doc_id"),
    cluster_by=("tenant_key", "node_key"),
    has_change_feed=True,
)

REJECTS = Table(
    name="rejects",
    columns={
        "run_id": TEXT,
        "row": TEXT,
        "tenant_id": TEXT,
        "doc_id": TEXT,
        "reason": TEXT,
        "raw": TEXT,
    },
    key=("row", "reason"),
    cluster_by=("run_id",),
)

LLM_CALLS = Table(
    name="llm_calls",
    columns={
        "tenant_id": TEXT,
        "tenant_key": TEXT,
        "request_hash": TEXT,
        "repair_of": TEXT,
        "node_id": TEXT,
        "level": TEXT,
        "task": TEXT,
        "model": TEXT,
        "prompt_fingerprint": TEXT,
        "is_usable": BOOLEAN,
        "finish_reason": TEXT,
        "response": TEXT,
        "prompt_tokens": LONG,
        "completion_tokens": LONG,
        "latency_s": DOUBLE,
        "run_id": TEXT,
    },
    key=("tenant_key", "tenant_id", "request_hash"),
)

EMBEDDINGS = Table(
    name="embeddings",
    columns={
        "tenant_id": TEXT,
        "tenant_key": TEXT,
        "model": TEXT,
        "text_hash": TEXT,
        "dimension": INTEGER,
        "vector": BINARY,
    },
    key=("tenant_key", "tenant_id", "model", "text_hash"),
)

MEMORY = Table(
    name="memory",
    columns={
        **NODE_KEYS,
        "parent_id": TEXT,
        "keys": TEXTS,
        "level": TEXT,
        "depth": INTEGER,
        "facets": t.ArrayType(FACET),
        "question_answers": t.ArrayType(QUESTION_ANSWER),
        "rationale": TEXT,
        "summary": TEXT,
        "one_sentence_summary": TEXT,
        "sources": TEXTS,
        "latest_at": TEXT,
        "status": TEXT,
        "missing": TEXTS,
        "input_fingerprint": TEXT,
        "memory_fingerprint": TEXT,
        "run_id": TEXT,
    },
    key=("tenant_key", "tenant_id", "node_key", "node_id"),
    cluster_by=("tenant_key", "node_key"),
)

FAILURES = Table(
    name="failures",
    columns={
        **NODE_KEYS,
        "task": TEXT,
        "kind": TEXT,
        "reason": TEXT,
        "tries": INTEGER,
        "run_id": TEXT,
    },
    key=("tenant_key", "tenant_id", "node_key", "node_id", "task"),
    cluster_by=("tenant_key", "node_key"),
)

PUBLISHED = Table(
    name="published",
    columns={
        "tenant_id": TEXT,
        "tenant_key": TEXT,
        "state": TEXT,
        "version": TEXT,
        "run_id": TEXT,
        "published_at": TIME,
    },
    key=("tenant_key", "tenant_id"),
)

RUNS = Table(
    name="runs",
    columns={
        "run_id": TEXT,
        "kind": TEXT,
        "status": TEXT,
        "started_at": TIME,
        "finished_at": TIME,
        "documents_table_id": TEXT,
        "documents_version": LONG,
        "memory_table_id": TEXT,
        "settings_fingerprint": TEXT,
        "documents": LONG,
        "nodes_touched": LONG,
        "nodes_written": LONG,
        "nodes_removed": LONG,
        "calls": LONG,
        "cached": LONG,
        "failed": LONG,
        "prompt_tokens": LONG,
        "completion_tokens": LONG,
        "cost": DOUBLE,
        "seconds": DOUBLE,
        "freshness_s": DOUBLE,
        "stage_seconds": t.MapType(TEXT, DOUBLE),
        "tenants_published": LONG,
        "message": TEXT,
    },
    key=("run_id",),
    cluster_by=(),
    properties={"delta.dataSkippingNumIndexedCols": "0"},
)

TABLES = (
    DOCUMENTS,
    REJECTS,
    LLM_CALLS,
    EMBEDDINGS,
    MEMORY,
    FAILURES,
    PUBLISHED,
    RUNS,
)


def create_tables(spark: SparkSession, root: str) -> None:
    """Create every table of a root that is not there yet."""
    for table in TABLES:
        if not table.exists(root):
            table.create(spark, root)
