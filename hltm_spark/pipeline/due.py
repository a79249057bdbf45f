"""Which tenants are to be published: those whose shard is behind their memory and documents.

State decides, not what a run changed: a tenant is due where its memory and documents differ from
the state of its last published version. A run that died between MERGE and publishing so leaves
nothing stale. Where all nodes are few enough to be listed, they are looked at in this process, else
by Spark; the states are the same.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.shard import is_published
from hltm_spark.pipeline.files import read_rows, row_count
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.publish_context import PublishContext
from hltm_spark.pipeline.shard_rows import NODE_COLUMNS, OWN_DOCUMENT, shard_format
from hltm_spark.pipeline.tables import DOCUMENTS, MEMORY, PUBLISHED, TEXT, struct

NODES_A_RUN, DOCUMENTS_A_RUN = 400, 400
"""Most nodes and documents that are listed, as multiples of `budgets.small_run_nodes`."""

_OF_NODE = ("node_id", "memory_fingerprint", "status")
_OF_DOCUMENT = ("node_id", "doc_id", "content_hash")
_SEPARATOR = "\x00"
_PUBLISHED = ["tenant_id", "state", "version", "published_at", "run_id"]
_DIGITS = 15  # hexadecimal digits that a signed 64-bit number holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Nodes and documents of whole tenants, without their texts.

    Attributes:
        nodes: `NODE_COLUMNS` of `memory`.
        documents: tenant_id, node_id and `OWN_DOCUMENT`.
    """

    nodes: Sequence[Mapping[str, Any]]
    documents: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, context: PublishContext, *, tenants: Iterable[str] | None = None) -> Self:
        """List some tenants, or every one."""
        where = None if tenants is None else {"tenant_id": set(tenants)}
        texts = DOCUMENTS.files(context.root.path, version=context.documents_version)
        names = ["tenant_id", "node_id", *OWN_DOCUMENT.names]
        return cls(
            nodes=read_rows(MEMORY.files(context.root.path), NODE_COLUMNS, where=where),
            documents=read_rows(texts, names, where=where),
        )

    @classmethod
    def read_small(cls, context: PublishContext) -> Self | None:
        """List every tenant, or return None where they are too many nodes or documents."""
        limit = context.settings.budgets.small_run_nodes
        texts = DOCUMENTS.files(context.root.path, version=context.documents_version)
        if row_count(MEMORY.files(context.root.path)) > limit * NODES_A_RUN:
            return None
        return cls.read(context) if row_count(texts) <= limit * DOCUMENTS_A_RUN else None

    def states(self, settings: Settings) -> Iterator[dict[str, Any]]:
        """Yield what `tenant_states` returns."""
        nodes, texts = (
            _listed_digests(self.nodes, _OF_NODE),
            _listed_digests(self.documents, _OF_DOCUMENT),
        )
        for tenant_id, (digest, count) in nodes.items():
            own = texts.get(tenant_id)
            parts = [shard_format(settings), digest, *([own[0]] if own else [])]
            yield {
                "tenant_id": tenant_id,
                "state": hashlib.sha256(":".join(parts).encode()).hexdigest(),
                "nodes": count,
                "documents": own[1] if own else 0,
            }


def listed_due(
    context: PublishContext, listing: Listing, unsure: Iterable[str], *, is_checking: bool
) -> list[dict[str, Any]]:
    """Return what `due_tenants` does, of a listing of every tenant.

    Args:
        context: The publishing.
        listing: Every node and document.
        unsure: Tenants whose shard may be another than `published` says.
        is_checking: Compare every published file with its manifest.
    """
    rows = read_rows(PUBLISHED.files(context.root.path), _PUBLISHED)
    rows.sort(key=lambda row: (row["published_at"], row["run_id"]))
    latest = {row["tenant_id"]: row for row in rows}
    flagged = set(unsure)
    if is_checking:
        flagged |= {row["tenant_id"] for row in _damaged(latest.values(), Path(context.shards))}
    states = {row["tenant_id"]: row for row in listing.states(context.settings)}
    due = []
    for tenant_id in sorted(states.keys() | latest.keys() | flagged):
        state, published = states.get(tenant_id), latest.get(tenant_id)
        now, before = state and state["state"], published and published["state"]
        if tenant_id in flagged or now != before:
            gone = {"tenant_id": tenant_id, "state": None, "nodes": None, "documents": None}
            due.append(state or gone)
    return due


def due_tenants(context: PublishContext, unsure: Sequence[str], *, is_checking: bool) -> DataFrame:
    """Return the tenants whose state differs from the published one: `DUE` rows.

    Args:
        context: The publishing.
        unsure: Folders with `DUE` rows of tenants whose shard may be another than `published` says.
        is_checking: Compare every published file with its manifest: a tenant whose files are
            damaged or gone is due.
    """
    published = PUBLISHED.read(context.spark, context.root.path)
    flagged = published.limit(0).select("tenant_id")
    if unsure:
        flagged = flagged.unionByName(context.spark.read.parquet(*unsure).select("tenant_id"))
    if is_checking:
        flagged = flagged.unionByName(damaged_tenants(published, context))
    states = tenant_states(context.memory, context.documents, context.settings)
    return differing_tenants(states, published, flagged)


def differing_tenants(states: DataFrame, published: DataFrame, unsure: DataFrame) -> DataFrame:
    """Return the states that differ from the published ones; null where a shard is to go.

    Args:
        states: From `tenant_states`.
        published: Rows of `published`.
        unsure: tenant_id of those that are due in any case.
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


def damaged_tenants(published: DataFrame, context: PublishContext) -> DataFrame:
    """Return tenant_id of those whose files on disk are not their last published version."""
    shards = Path(context.shards)
    latest = latest_published(published)
    return map_rows(latest, lambda rows: _damaged(rows, shards), struct({"tenant_id": TEXT}))


def latest_published(published: DataFrame) -> DataFrame:
    """Return the last state and version of every tenant: tenant_id, state, version."""
    latest = F.max_by(F.struct("state", "version"), F.struct("published_at", "run_id"))
    rows = published.groupBy("tenant_id").agg(latest.alias("latest"))
    return rows.select("tenant_id", "latest.state", "latest.version")


def tenant_states(memory: DataFrame, documents: DataFrame, settings: Settings) -> DataFrame:
    """Return one row per tenant with memory.

    Returns:
        tenant_id, state (equal where a shard would have equal bytes), and the size of the shard
        in rows: nodes, documents.
    """
    nodes, texts = _digests(memory, _OF_NODE), _digests(documents, _OF_DOCUMENT)
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


def _damaged(rows: Iterable[Mapping[str, Any]], shards: Path) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row["version"] and not is_published(shards, row["tenant_id"], row["version"]):
            yield {"tenant_id": row["tenant_id"]}


def _digests(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return one row per tenant: count, and a digest of columns whatever the rows' order."""
    of_row = F.sha2(F.concat_ws(_SEPARATOR, *columns), 256)

    def folded(start: int) -> Column:
        number = F.conv(F.substring("of_row", 1 + start, _DIGITS), 16, 10)
        return F.bit_xor(number.cast("long"))

    digest = F.concat_ws("-", F.count("*"), folded(0), folded(_DIGITS))
    grouped = rows.select("tenant_id", of_row.alias("of_row")).groupBy("tenant_id")
    return grouped.agg(digest.alias("digest"), F.count("*").alias("count"))


def _listed_digests(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str]
) -> dict[str, tuple[str, int]]:
    """Return (digest, count) by tenant, as `_digests` has them."""
    found: dict[str, list[int]] = {}
    for row in rows:
        parts = (row[name] for name in columns if row[name] is not None)
        of_row = hashlib.sha256(_SEPARATOR.join(parts).encode()).hexdigest()
        sums = found.setdefault(row["tenant_id"], [0, 0, 0])
        sums[0] += 1
        sums[1] ^= int(of_row[:_DIGITS], 16)
        sums[2] ^= int(of_row[_DIGITS : 2 * _DIGITS], 16)
    return {tenant: ("-".join(map(str, sums)), sums[0]) for tenant, sums in found.items()}
