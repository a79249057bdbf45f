"""Memory to per-tenant shards; which tenants is decided by state, not by what a run changed.

A tenant is published when its memory and documents differ from the state of its last published
version. So a run that died between MERGE and publishing leaves nothing stale: the next one, or
`hltm publish`, sees the difference. What is due stands under publishing/ until its records are
written: tenants of a run that died in between are due again, whatever their state.

Of a tenant that has a version, only the nodes that changed are read and embedded; the rest is taken
over from it (`core.shard_previous`). A few small tenants, or many that changed little, are written
in this process, others by Spark, one task a tenant; the bytes are the same in every case.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.shard import is_published
from hltm_spark.pipeline.files import row_count
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.publish_context import DUE, PublishContext
from hltm_spark.pipeline.publish_large import publish_large
from hltm_spark.pipeline.publish_small import DOCUMENTS_A_RUN, NODES_A_RUN, publish_small
from hltm_spark.pipeline.shard_rows import shard_format
from hltm_spark.pipeline.tables import PUBLISHED, TEXT, struct


def publish(context: PublishContext, *, is_checking: bool) -> int:
    """Publish every tenant whose shard is behind its memory.

    Args:
        context: Settings, root, and the version of `documents` that memory was written from.
        is_checking: Compare every published file with its manifest: one that is damaged or gone
            is written again.

    Returns:
        Number of tenants published or removed.
    """
    spark, settings, root = context.spark, context.settings, context.root
    root.shards.mkdir(parents=True, exist_ok=True)
    left, path = root.unfinished_publishing(), root.publishing(context.run_id)
    published = PUBLISHED.read(spark, root.path)
    states = tenant_states(context.memory, context.documents, settings)
    unsure = spark.read.schema(DUE).parquet(*left) if left else published.limit(0)
    unsure = unsure.select("tenant_id")
    if is_checking:
        unsure = unsure.unionByName(damaged_tenants(published, context))
    due_tenants(states, published, unsure).write.parquet(path)
    if count := row_count(path):
        is_small = _is_small(path, limit=settings.budgets.small_run_nodes)
        if not (is_small and publish_small(context, pq.read_table(path).to_pylist())):
            publish_large(context, spark.read.schema(DUE).parquet(path))
    for folder in (*left, path):
        shutil.rmtree(folder)
    return count


def damaged_tenants(published: DataFrame, context: PublishContext) -> DataFrame:
    """Return tenant_id of those whose files on disk are not their last published version."""
    shards = Path(context.shards)
    latest = latest_published(published).where("version IS NOT NULL")

    def damaged(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            if not is_published(shards, row["tenant_id"], row["version"]):
                yield {"tenant_id": row["tenant_id"]}

    return map_rows(latest.select("tenant_id", "version"), damaged, struct({"tenant_id": TEXT}))


def latest_published(published: DataFrame) -> DataFrame:
    """Return the last state and version of every tenant: tenant_id, state, version."""
    latest = F.max_by(F.struct("state", "version"), F.struct("published_at", "run_id"))
    rows = published.groupBy("tenant_id").agg(latest.alias("latest"))
    return rows.select("tenant_id", "latest.state", "latest.version")


def _is_small(path: str, *, limit: int) -> bool:
    sizes = pq.read_table(path, columns=["nodes", "documents"])
    nodes = max(sizes.num_rows, pc.sum(sizes["nodes"]).as_py() or 0)
    documents = pc.sum(sizes["documents"]).as_py() or 0
    return bool(nodes <= limit * NODES_A_RUN and documents <= limit * DOCUMENTS_A_RUN)


def tenant_states(memory: DataFrame, documents: DataFrame, settings: Settings) -> DataFrame:
    """Return one row per tenant with memory.

    Returns:
        tenant_id, state (equal where a shard would have equal bytes), and the size of the shard
        in rows: nodes, documents.
    """
    nodes = _digest(memory, "node_id", "memory_fingerprint", "status")
    texts = _digest(documents, "node_id", "doc_id", "content_hash")
    state = F.sha2(
        F.concat_ws(":", F.lit(shard_format(settings)), "nodes.digest", "texts.digest"), 256
    )
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
    latest = latest_published(published).select(
        "tenant_id", F.col("state").alias("published_state")
    )
    flagged = unsure.select("tenant_id").distinct().withColumn("is_unsure", F.lit(True))
    return (
        states.join(latest, "tenant_id", "full_outer")
        .join(flagged, "tenant_id", "full_outer")
        .where("is_unsure OR NOT (state <=> published_state)")
        .select("tenant_id", "state", "nodes", "documents")
    )


def _digest(rows: DataFrame, *columns: str) -> DataFrame:
    """Return one row per tenant: count, and a digest of columns whatever the rows' order."""
    one, two = F.xxhash64(*columns), F.xxhash64(F.lit("second"), *columns)
    digest = F.concat_ws("-", F.count("*"), F.bit_xor(one), F.bit_xor(two))
    return rows.groupBy("tenant_id").agg(digest.alias("digest"), F.count("*").alias("count"))
