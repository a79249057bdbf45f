"""Memory to per-tenant shards; which tenants is decided by state, not by what a run changed.

A tenant is published when its memory and documents differ from the state of its last published
version. So a run that died between MERGE and publishing leaves nothing stale: the next one, or
`hltm publish`, sees the difference.
"""

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.records import fingerprint
from hltm_spark.core.shard import FORMAT_VERSION, publish_version, remove_tenant
from hltm_spark.core.shard_writer import ShardWriter
from hltm_spark.pipeline.changes import salted_key
from hltm_spark.pipeline.embed import embed_texts, open_texts
from hltm_spark.pipeline.requests import iso_time, map_rows
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import DOCUMENTS, EMBEDDINGS, MEMORY, PUBLISHED, TEXT, struct

KINDS = ("node", "summary", "facet", "question", "document")
"""Order of a node's rows in the stream that the shard writer takes."""

STAGED = struct({"tenant_id": TEXT, "state": TEXT, "folder": TEXT})


def publish(spark: SparkSession, settings: Settings, root: Root, *, run_id: str) -> int:
    """Publish every tenant whose shard is behind its memory.

    Returns:
        Number of tenants published or removed.
    """
    version = DOCUMENTS.version(spark, root.path)
    documents = DOCUMENTS.read(spark, root.path, version=version)
    memory = MEMORY.read(spark, root.path)
    states = tenant_states(memory, documents, settings)
    due = due_tenants(states, PUBLISHED.read(spark, root.path))
    due_path = str(root.staging(run_id) / "due")
    due.write.parquet(due_path)
    due = spark.read.parquet(due_path)
    count = due.count()
    if count:
        _embed_and_publish(spark, settings, root, due=due, documents_version=version, run_id=run_id)
    return count


def tenant_states(memory: DataFrame, documents: DataFrame, settings: Settings) -> DataFrame:
    """Return one row per tenant with memory: state, equal where a shard would have equal bytes."""
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
        .select("tenant_id", state.alias("state"))
    )


def due_tenants(states: DataFrame, published: DataFrame) -> DataFrame:
    """Return one row per tenant to publish: state, null where its shard is to be removed."""
    latest = published.groupBy("tenant_id").agg(
        F.max_by("state", F.struct("published_at", "run_id")).alias("published_state")
    )
    return (
        states.join(latest, "tenant_id", "full_outer")
        .where("NOT (state <=> published_state)")
        .select("tenant_id", "state")
    )


def to_view_rows(memory: DataFrame, documents: DataFrame, settings: Settings) -> DataFrame:
    """Return everything that shards hold, one row per node, view item and document.

    Returns:
        tenant_id, keys, kind (position in `KINDS`), place (order inside node and kind), body
        (JSON for the shard writer), text (what is embedded; null for none).
    """
    node = F.struct("level", "status", "latest_at", "missing")
    summary = F.struct("summary", "one_sentence_summary")
    with_document_vectors = settings.views.evidence.enabled
    event_time = F.coalesce(iso_time("event_time"), F.lit("")).alias("event_time")
    shipped = ["text"] if settings.views.evidence.ship_text else []
    document = F.struct("doc_id", "kind", event_time, "author", "metadata", *shipped)
    spoken = F.when(F.col("author") != "", F.concat_ws(": ", "author", "text")).otherwise(
        F.col("text")
    )
    by_time = F.struct(
        F.col("event_time").isNull().alias("undated"),
        "event_time",
        F.lit(0).alias("position"),
        "doc_id",
    )
    facets = memory.select("tenant_id", "keys", F.posexplode("facets").alias("position", "item"))
    pairs = memory.select(
        "tenant_id", "keys", F.posexplode("question_answers").alias("position", "item")
    )
    has_summary = F.length("one_sentence_summary") > 0
    return (
        _rows(memory, 0, node)
        .unionByName(_rows(memory.where(has_summary), 1, summary, F.col("one_sentence_summary")))
        .unionByName(
            _rows(facets, 2, F.col("item"), F.concat_ws(": ", "item.name", "item.value"), _at())
        )
        .unionByName(_rows(pairs, 3, F.col("item"), F.col("item.question"), _at()))
        .unionByName(
            _rows(documents, 4, document, spoken if with_document_vectors else None, by_time)
        )
    )


def write_shards(
    rows: Iterable[Mapping[str, Any]], settings: Settings, *, staging: str
) -> Iterator[dict[str, Any]]:
    """Write the shard of each tenant in a partition, one after the other, into staging.

    Args:
        rows: View rows with state and vector, by (tenant_id, keys, kind, place).
        settings: Embedding model and evidence view.
        staging: Folder for the versions; every attempt takes a name of its own.

    Yields:
        `STAGED` rows.
    """
    for (tenant_id, state), group in groupby(rows, lambda r: (r["tenant_id"], r["state"])):
        folder = Path(staging) / uuid.uuid4().hex
        with ShardWriter(
            folder,
            tenant_id=tenant_id,
            embedding_model=settings.embedding.model_name,
            dimension=settings.embedding.dimension,
            settings=settings,
        ) as writer:
            for row in group:
                kind, keys = KINDS[row["kind"]], tuple(row["keys"])
                writer.add(kind, keys, json.loads(row["body"]), row["vector"])
            writer.close()
        yield {"tenant_id": tenant_id, "state": state, "folder": str(folder)}


def _embed_and_publish(
    spark: SparkSession,
    settings: Settings,
    root: Root,
    *,
    due: DataFrame,
    documents_version: int,
    run_id: str,
) -> None:
    written = due.where("state IS NOT NULL")
    documents = DOCUMENTS.read(spark, root.path, version=documents_version)
    tenants = written.select("tenant_id")
    rows = to_view_rows(
        MEMORY.read(spark, root.path).join(tenants, "tenant_id", "left_semi"),
        documents.join(tenants, "tenant_id", "left_semi"),
        settings,
    )
    slots = task_slots(spark)
    embeddings = EMBEDDINGS.read(spark, root.path)
    texts = open_texts(rows, embeddings, model=settings.embedding.model_name, root=root)
    texts_path = str(root.staging(run_id) / "texts")
    texts.write.parquet(texts_path)
    texts = spark.read.parquet(texts_path)
    if not texts.isEmpty():
        EMBEDDINGS.append(embed_texts(texts, settings.embedding, slots=slots), root.path)
    staged_path = str(root.staging(run_id) / "staged_shards")
    shard_rows = _with_vectors(rows, EMBEDDINGS.read(spark, root.path), settings)
    staging = str(root.staging(run_id) / "shards")
    ordered = (
        shard_rows.join(F.broadcast(written), "tenant_id")
        .repartition(slots, "tenant_id")
        .sortWithinPartitions("tenant_id", "keys", "kind", "place")
        .drop("place")
    )
    map_rows(ordered, lambda r: write_shards(r, settings, staging=staging), STAGED).write.parquet(
        staged_path
    )
    gone = due.where("state IS NULL").withColumn("folder", F.lit(None).cast("string"))
    staged = spark.read.parquet(staged_path).unionByName(gone.select(*STAGED.names))
    provenance = {
        "run_id": run_id,
        "documents_version": documents_version,
        "memory_version": MEMORY.version(spark, root.path),
        "published_at": datetime.now(UTC).isoformat(),
    }
    PUBLISHED.append(_move_into_place(staged, settings, root, provenance), root.path)
    shutil.rmtree(staging, ignore_errors=True)


def _move_into_place(
    staged: DataFrame, settings: Settings, root: Root, provenance: Mapping[str, Any]
) -> DataFrame:
    """Return `published` rows; computing them switches each tenant to its new version."""
    shards, keep = str(root.shards), settings.storage.keep_versions
    values = dict(provenance)

    def switch(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            version = row["state"][:16] if row["state"] else None
            if version is None:
                remove_tenant(Path(shards), row["tenant_id"])
            else:
                publish_version(
                    Path(shards),
                    row["tenant_id"],
                    Path(row["folder"]),
                    version=version,
                    keep=keep,
                    provenance=values,
                )
            yield {
                "tenant_id": row["tenant_id"],
                "tenant_key": row["tenant_key"],
                "state": row["state"],
                "version": version,
                "run_id": values["run_id"],
                "published_at": datetime.fromisoformat(values["published_at"]),
            }

    with_key = staged.withColumn("tenant_key", salted_key("tenant_id", root))
    return map_rows(with_key, switch, PUBLISHED.schema)


def _with_vectors(rows: DataFrame, embeddings: DataFrame, settings: Settings) -> DataFrame:
    vectors = embeddings.where(F.col("model") == settings.embedding.model_name).select(
        "tenant_id", "text_hash", "vector"
    )
    return (
        rows.withColumn("text_hash", F.sha2("text", 256))
        .drop("text")
        .join(vectors, ["tenant_id", "text_hash"], "left")
        .drop("text_hash")
    )


def _digest(rows: DataFrame, *columns: str) -> DataFrame:
    """Return one row per tenant: digest of its rows' columns, whatever their order."""
    one, two = F.xxhash64(*columns), F.xxhash64(F.lit("second"), *columns)
    digest = F.concat_ws("-", F.count("*"), F.bit_xor(one), F.bit_xor(two))
    return rows.groupBy("tenant_id").agg(digest.alias("digest"))


def _at() -> Column:
    return F.struct(
        F.lit(False).alias("undated"),
        F.lit(None).cast("timestamp").alias("event_time"),
        F.col("position"),
        F.lit("").alias("doc_id"),
    )


def _rows(
    source: DataFrame,
    kind: int,
    body: Column,
    text: Column | None = None,
    place: Column | None = None,
) -> DataFrame:
    words = F.lit(None).cast("string") if text is None else F.when(F.length(F.trim(text)) > 0, text)
    first = F.struct(
        F.lit(False).alias("undated"),
        F.lit(None).cast("timestamp").alias("event_time"),
        F.lit(0).alias("position"),
        F.lit("").alias("doc_id"),
    )
    return source.select(
        "tenant_id",
        "keys",
        F.lit(kind).alias("kind"),
        (first if place is None else place).alias("place"),
        F.to_json(body).alias("body"),
        words.alias("text"),
    )


def task_slots(spark: SparkSession) -> int:
    """Return how many tasks run at once: the session's shuffle partitions, set to the cores."""
    return max(1, int(spark.conf.get("spark.sql.shuffle.partitions", "2") or 2))
