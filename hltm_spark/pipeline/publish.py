"""Memory to per-tenant shards, of the tenants that are due.

What is due stands under publishing/ until its records are written: tenants of a run that died in
between are due again, whatever their state.

Of a tenant that has a version, only the nodes that changed are read and embedded; the rest is taken
over from it (`core.shard_previous`). A few small tenants, or many that changed little, are written
in this process, others by Spark, one task a tenant; the bytes are the same in every case.
"""

import shutil
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from hltm_spark.pipeline.due import (
    DOCUMENTS_A_RUN,
    NODES_A_RUN,
    Listing,
    due_tenants,
    listed_due,
)
from hltm_spark.pipeline.files import row_count, write_rows
from hltm_spark.pipeline.publish_context import DUE, PublishContext
from hltm_spark.pipeline.publish_large import publish_large
from hltm_spark.pipeline.publish_small import publish_small


def publish(context: PublishContext, *, is_checking: bool) -> int:
    """Publish every tenant whose shard is behind its memory.

    Args:
        context: Settings, root, and the version of `documents` that memory was written from.
        is_checking: Compare every published file with its manifest: one that is damaged or gone
            is written again.

    Returns:
        Number of tenants published or removed.
    """
    root = context.root
    root.shards.mkdir(parents=True, exist_ok=True)
    left, path = root.unfinished_publishing(), root.publishing(context.run_id)
    listing = Listing.read_small(context)
    if listing is None:
        due_tenants(context, left, is_checking=is_checking).write.parquet(path)
    else:
        unsure = [row["tenant_id"] for folder in left for row in _due(folder)]
        due = listed_due(context, listing, unsure, is_checking=is_checking)
        write_rows(due, DUE, path)
    if (count := row_count(path)) and not _publish_small(context, path, listing):
        publish_large(context, context.spark.read.schema(DUE).parquet(path))
    for folder in (*left, path):
        shutil.rmtree(folder)
    return count


def _publish_small(context: PublishContext, path: str, listing: Listing | None) -> bool:
    """Publish in this process, or return False where that is too much for it."""
    sizes = pq.read_table(path, columns=["nodes", "documents"])
    nodes = max(sizes.num_rows, pc.sum(sizes["nodes"]).as_py() or 0)
    documents = pc.sum(sizes["documents"]).as_py() or 0
    limit = context.settings.budgets.small_run_nodes
    if nodes > limit * NODES_A_RUN or documents > limit * DOCUMENTS_A_RUN:
        return False
    return publish_small(context, _due(path), listing)


def _due(folder: str) -> list[dict[str, Any]]:
    return list(pq.read_table(folder).to_pylist())
