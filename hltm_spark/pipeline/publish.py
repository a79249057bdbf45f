"""Memory to per-tenant shards; which tenants is decided by state, not by what a run changed.

A tenant is published when its memory and documents differ from the state of its last published
version. So a run that died between MERGE and publishing leaves nothing stale: the next one, or
`hltm publish`, sees the difference. What is due stands under publishing/ until its records are
written: tenants of a run that died in between are due again, whatever their state.

A few small tenants are written in this process, others by Spark, one task a tenant; the bytes are
the same.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.records import fingerprint
from hltm_spark.core.shard import FORMAT_VERSION
from hltm_spark.core.tree import salted_hash
from hltm_spark.pipeline.changes import salted_key
from hltm_spark.pipeline.commits import Commits
from hltm_spark.pipeline.embed import embed_texts, embedded_rows, open_texts
from hltm_spark.pipeline.files import read_rows, row_count, write_rows
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.session import task_slots
from hltm_spark.pipeline.shard_rows import (
    DOCUMENT_COLUMNS,
    NODE_COLUMNS,
    STAGED,
    move_into_place,
    row_order,
    to_view_rows,
    view_row_of_document,
    view_rows_of_node,
    write_shards,
)
from hltm_spark.pipeline.tables import (
    DOCUMENTS,
    EMBEDDINGS,
    LONG,
    MEMORY,
    PUBLISHED,
    TEXT,
    Table,
    struct,
)

_DUE = struct({"tenant_id": TEXT, "state": TEXT, "nodes": LONG, "documents": LONG})
_HASH = ["tenant_id", "text_hash"]
_NODES_A_RUN, _DOCUMENTS_A_RUN = 4, 20  # of `small_run_nodes`: rows are cheaper than requests


def publish(
    spark: SparkSession,
    settings: Settings,
    root: Root,
    *,
    commits: Commits,
    run_id: str,
    documents_version: int,
) -> int:
    """Publish every tenant whose shard is behind its memory.

    Args:
        spark: Session.
        settings: The conf.
        root: Storage root.
        commits: The run's commits.
        run_id: The run.
        documents_version: Version of `documents` that memory was written from.

    Returns:
        Number of tenants published or removed.
    """
    publishing = _Publishing(
        spark=spark,
        settings=settings,
        root=root,
        commits=commits,
        run_id=run_id,
        documents_version=documents_version,
    )
    return publishing.publish()


def tenant_states(memory: DataFrame, documents: DataFrame, settings: Settings) -> DataFrame:
    """Return one row per tenant with memory.

    Returns:
        tenant_id, state (equal where a shard would have equal bytes), and the size of the shard
        in rows: nodes, documents.
    """
    nodes = _digest(memory, "node_id", "memory_fingerprint", "status")
    texts = _digest(documents, "node_id", "doc_id", "content_hash")
    format_of_shard = fingerprint(
        FORMAT_VERSION,
        settings.embedding.model_name,
        settings.views.evidence.model_dump(mode="json"),
        settings.level_names,
    )
    state = F.sha2(F.concat_ws(":", F.lit(format_of_shard), "nodes.digest", "texts.digest"), 256)
    return (
        nodes.alias("nodes")
        .join(texts.alias("texts"), "tenant_id", "left")
        .select(
            "tenant_id",
            state.alias("state"),
            F.col("nodes.count").alias("nodes"),
            F.coalesce("texts.count", F.lit(0)).alias("documents"),
        )
    )


def due_tenants(states: DataFrame, published: DataFrame, unsure: DataFrame) -> DataFrame:
    """Return the states that differ from the published ones; null where a shard is to go.

    Args:
        states: From `tenant_states`.
        published: Rows of `published`.
        unsure: tenant_id of those whose shard may be another than `published` says.
    """
    latest = published.groupBy("tenant_id").agg(
        F.max_by("state", F.struct("published_at", "run_id")).alias("published_state")
    )
    flagged = unsure.select("tenant_id").distinct().withColumn("is_unsure", F.lit(True))
    return (
        states.join(latest, "tenant_id", "full_outer")
        .join(flagged, "tenant_id", "full_outer")
        .where("is_unsure OR NOT (state <=> published_state)")
        .select("tenant_id", "state", "nodes", "documents")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Publishing:
    spark: SparkSession
    settings: Settings
    root: Root
    commits: Commits
    run_id: str
    documents_version: int

    def publish(self) -> int:
        left = self.root.unfinished_publishing()
        memory = MEMORY.read(self.spark, self.root.path)
        published = PUBLISHED.read(self.spark, self.root.path)
        states = tenant_states(memory, self._documents, self.settings)
        unsure = self.spark.read.schema(_DUE).parquet(*left) if left else published.limit(0)
        path = self.root.publishing(self.run_id)
        due_tenants(states, published, unsure).write.parquet(path)
        if count := row_count(path):
            sizes = pq.read_table(path, columns=["nodes", "documents"])
            limit = self.settings.budgets.small_run_nodes
            nodes = max(count, pc.sum(sizes["nodes"]).as_py() or 0)
            documents = pc.sum(sizes["documents"]).as_py() or 0
            if nodes <= limit * _NODES_A_RUN and documents <= limit * _DOCUMENTS_A_RUN:
                self._publish_small(pq.read_table(path).to_pylist())
            else:
                self._publish_large(self.spark.read.schema(_DUE).parquet(path))
        for folder in (*left, path):
            shutil.rmtree(folder)
        return count

    @property
    def _documents(self) -> DataFrame:
        return DOCUMENTS.read(self.spark, self.root.path, version=self.documents_version)

    @property
    def _embeddings(self) -> DataFrame:
        return EMBEDDINGS.read(self.spark, self.root.path)

    def _staging(self, name: str) -> str:
        return str(self.root.staging(self.run_id) / name)

    def _view_rows(self, due: DataFrame) -> DataFrame:
        """Return the view rows of due tenants, with the state that each is to have."""
        written = F.broadcast(due.where("state IS NOT NULL").select("tenant_id", "state"))
        tenants = written.select("tenant_id")
        memory = MEMORY.read(self.spark, self.root.path)
        rows = to_view_rows(
            memory.join(tenants, "tenant_id", "left_semi"),
            self._documents.join(tenants, "tenant_id", "left_semi"),
            self.settings,
        )
        return rows.join(written, "tenant_id")

    @property
    def _provenance(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "documents_version": self.documents_version,
            "memory_version": MEMORY.version(self.root.path),
            "published_at": datetime.now(UTC).isoformat(),
        }

    def _publish_small(self, due: list[dict[str, Any]]) -> None:
        """Write the due shards in this process: few jobs, where Spark's plans would take longer."""
        states = {row["tenant_id"]: row["state"] for row in due if row["state"] is not None}
        rows = [{**row, "state": states[row["tenant_id"]]} for row in self._local_rows(states)]
        vectors = self._vectors({(r["tenant_id"], r["text_hash"]): r["text"] for r in rows})
        for row in rows:
            row["vector"] = vectors.get((row["tenant_id"], row["text_hash"]))
        rows.sort(key=row_order)
        staged = [*write_shards(rows, self.settings, staging=self._staging("shards"))]
        staged += [{**row, "folder": None} for row in due if row["state"] is None]
        for row in staged:
            row["tenant_key"] = salted_hash(row["tenant_id"], salt=self.root.salt)
        moved = move_into_place(
            staged, self.settings, shards=str(self.root.shards), values=self._provenance
        )
        self._append(PUBLISHED, moved)

    def _local_rows(self, tenants: Iterable[str]) -> Iterator[dict[str, Any]]:
        where = {"tenant_id": list(tenants)}
        for row in read_rows(MEMORY.files(self.spark, self.root.path), NODE_COLUMNS, where=where):
            yield from view_rows_of_node(row)
        documents = DOCUMENTS.files(self.spark, self.root.path, version=self.documents_version)
        for row in read_rows(documents, DOCUMENT_COLUMNS, where=where):
            yield view_row_of_document(row, self.settings.views.evidence)

    def _append(self, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        path = self._staging(table.name)
        write_rows(rows, table.schema, path)
        self.commits.append(table, self.spark.read.schema(table.schema).parquet(path))

    def _vectors(self, texts: Mapping[tuple[str, str], str | None]) -> dict[Any, bytes | None]:
        """Return the vector of each text by its key; those not on record are made."""
        model = self.settings.embedding.model_name
        hashes = {text_hash for (_, text_hash), text in texts.items() if text}
        known = read_rows(
            EMBEDDINGS.files(self.spark, self.root.path),
            ["tenant_id", "text_hash", "vector"],
            where={"text_hash": hashes, "model": [model]},
        )
        vectors = {(row["tenant_id"], row["text_hash"]): row["vector"] for row in known}
        waiting = [
            {
                "tenant_id": tenant_id,
                "tenant_key": salted_hash(tenant_id, salt=self.root.salt),
                "text_hash": text_hash,
                "text": text,
            }
            for (tenant_id, text_hash), text in texts.items()
            if text and (tenant_id, text_hash) not in vectors
        ]
        if waiting:
            made = list(embedded_rows(waiting, self.settings.embedding))
            self._append(EMBEDDINGS, made)
            vectors |= {(row["tenant_id"], row["text_hash"]): row["vector"] for row in made}
        return vectors

    def _publish_large(self, due: DataFrame) -> None:
        rows = self._view_rows(due)
        self._embed(rows)
        staged = self._write_shards(rows)
        gone = due.where("state IS NULL").withColumn("folder", F.lit(None).cast("string"))
        with_key = staged.unionByName(gone.select(*STAGED.names)).withColumn(
            "tenant_key", salted_key("tenant_id", self.root)
        )
        settings, shards, values = self.settings, str(self.root.shards), self._provenance

        def switch(given: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
            return move_into_place(given, settings, shards=shards, values=values)

        self.commits.append(PUBLISHED, map_rows(with_key, switch, PUBLISHED.schema))

    def _embed(self, rows: DataFrame) -> None:
        embedding, path = self.settings.embedding, self._staging("texts")
        texts = open_texts(rows, self._embeddings, model=embedding.model_name, root=self.root)
        texts.write.parquet(path)
        if count := row_count(path):
            staged = self.spark.read.schema(texts.schema).parquet(path)
            slots = min(task_slots(self.spark), count)
            self.commits.append(EMBEDDINGS, embed_texts(staged, embedding, slots=slots))

    def _write_shards(self, rows: DataFrame) -> DataFrame:
        settings, folder, path = self.settings, self._staging("shards"), self._staging("staged")
        vectors = self._embeddings.where(F.col("model") == settings.embedding.model_name)
        ordered = (
            rows.drop("text")
            .join(vectors.select(*_HASH, "vector"), _HASH, "left")
            .drop("text_hash")
            .repartition(task_slots(self.spark), "tenant_id")
            .sortWithinPartitions("tenant_id", "keys", "kind", "place")
            .drop("place")
        )
        shards = map_rows(ordered, lambda r: write_shards(r, settings, staging=folder), STAGED)
        shards.write.parquet(path)
        return self.spark.read.schema(STAGED).parquet(path)


def _digest(rows: DataFrame, *columns: str) -> DataFrame:
    """Return one row per tenant: count, and a digest of columns whatever the rows' order."""
    one, two = F.xxhash64(*columns), F.xxhash64(F.lit("second"), *columns)
    digest = F.concat_ws("-", F.count("*"), F.bit_xor(one), F.bit_xor(two))
    return rows.groupBy("tenant_id").agg(digest.alias("digest"), F.count("*").alias("count"))
