"""Publishing by Spark: one task writes the shards of its tenants, one after the other.

As in `publish_small`, every node is listed, and views are made only of those that changed.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hltm_spark.pipeline.changes import salted_key
from hltm_spark.pipeline.embed import TEXTS_A_COMMIT, embed_texts, open_texts
from hltm_spark.pipeline.files import row_count
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.publish_context import PublishContext
from hltm_spark.pipeline.session import task_slots
from hltm_spark.pipeline.shard_rows import (
    NODE_COLUMNS,
    OWN_DOCUMENT,
    PUBLISHED_NODES,
    SHARD_NODES,
    STAGED,
    move_into_place,
    published_nodes,
    shard_format,
    to_shard_nodes,
    to_view_rows,
    write_shards,
)
from hltm_spark.pipeline.tables import EMBEDDINGS, PUBLISHED

_NODE = ["tenant_id", "node_id"]
_HASH = ["tenant_id", "text_hash"]


def publish_large(context: PublishContext, due: DataFrame) -> None:
    """Publish the due tenants.

    Args:
        context: The publishing.
        due: `DUE` rows, read back from their folder.
    """
    written = F.broadcast(due.where("state IS NOT NULL").select("tenant_id", "state"))
    nodes = _staged(context, "nodes", _nodes(context, written.select("tenant_id")))
    rows = _staged(context, "views", _view_rows(context, nodes))
    _embed(context, rows)
    staged = _write_shards(context, rows.join(written, "tenant_id"))
    gone = due.where("state IS NULL").withColumn("folder", F.lit(None).cast("string"))
    with_key = staged.unionByName(gone.select(*STAGED.names)).withColumn(
        "tenant_key", salted_key("tenant_id", context.root)
    )
    settings, shards, values = context.settings, context.shards, context.provenance()

    def switch(given: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return move_into_place(given, settings, shards=shards, values=values)

    context.commits.append(PUBLISHED, map_rows(with_key, switch, PUBLISHED.schema))


def _staged(context: PublishContext, name: str, rows: DataFrame) -> DataFrame:
    """Write a frame and read it back, so that it is computed once."""
    path = context.staging(name)
    rows.write.parquet(path)
    return context.spark.read.schema(rows.schema).parquet(path)


def _nodes(context: PublishContext, tenants: DataFrame) -> DataFrame:
    """Return the `SHARD_NODES` of whole tenants."""
    shards, form = context.shards, shard_format(context.settings)
    own = (
        context.documents.join(tenants, "tenant_id", "left_semi")
        .groupBy(*_NODE)
        .agg(F.array_sort(F.collect_list(F.struct(*OWN_DOCUMENT.names))).alias("documents"))
    )

    def listed(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return published_nodes((row["tenant_id"] for row in rows), shards=shards)

    spread = tenants.repartition(task_slots(context.spark), "tenant_id")
    rows = (
        context.memory.join(tenants, "tenant_id", "left_semi")
        .select(*NODE_COLUMNS)
        .join(own, _NODE, "left")
        .join(map_rows(spread, listed, PUBLISHED_NODES), _NODE, "left")
    )
    return map_rows(rows, lambda given: to_shard_nodes(given, form=form), SHARD_NODES)


def _view_rows(context: PublishContext, nodes: DataFrame) -> DataFrame:
    """Return the rows of the nodes, and the views and documents of those that changed."""
    changed = nodes.where("NOT is_unchanged").select(*_NODE)
    memory = context.memory.join(changed, _NODE, "left_semi")
    documents = context.documents.join(changed, _NODE, "left_semi")
    return to_view_rows(nodes, memory, documents, context.settings.views.evidence)


def _embed(context: PublishContext, rows: DataFrame) -> None:
    """Make the vectors that are not on record."""
    embedding, path = context.settings.embedding, context.staging("texts")
    texts = open_texts(rows, context.embeddings, model=embedding.model_name, root=context.root)
    texts.write.parquet(path)
    count = row_count(path)
    if not count:
        return
    staged = context.spark.read.schema(texts.schema).parquet(path)
    slots = min(task_slots(context.spark), count)
    parts = ceil(count / TEXTS_A_COMMIT) if embedding.is_paid else 1
    for part in range(parts):
        chosen = staged.where(F.pmod(F.xxhash64("text_hash"), F.lit(parts)) == part)
        context.commits.append(EMBEDDINGS, embed_texts(chosen, embedding, slots=slots))


def _write_shards(context: PublishContext, rows: DataFrame) -> DataFrame:
    """Write the shards into staging; `STAGED` rows, read back."""
    settings, folder, shards = context.settings, context.staging("shards"), context.shards
    vectors = context.embeddings.where(F.col("model") == settings.embedding.model_name)
    ordered = (
        rows.drop("text")
        .join(vectors.select(*_HASH, "vector"), _HASH, "left")
        .drop("text_hash")
        .repartition(task_slots(context.spark), "tenant_id")
        .sortWithinPartitions("tenant_id", "keys", "kind", "place")
        .drop("place")
    )

    def write(given: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return write_shards(given, settings, staging=folder, shards=shards)

    return _staged(context, "staged", map_rows(ordered, write, STAGED))
