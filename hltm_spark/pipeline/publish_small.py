"""Publishing in this process: few jobs, where Spark's plans would take longer than the rows.

A tenant's nodes are listed whole, which is cheap; views are read and written only of those that
changed since its last version.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hltm_spark.core.shard import has_versions, tenant_folder
from hltm_spark.core.tree import salted_hash
from hltm_spark.pipeline.due import Listing
from hltm_spark.pipeline.embed import TEXTS_A_COMMIT, embedded_rows
from hltm_spark.pipeline.files import read_rows, write_rows
from hltm_spark.pipeline.publish_context import PublishContext
from hltm_spark.pipeline.shard_rows import (
    DOCUMENT_COLUMNS,
    VIEW_COLUMNS,
    move_into_place,
    node_row,
    published_nodes,
    row_order,
    shard_format,
    to_shard_nodes,
    view_row_of_document,
    view_rows_of_memory,
    write_shards,
)
from hltm_spark.pipeline.tables import DOCUMENTS, EMBEDDINGS, MEMORY, PUBLISHED, Table

_CHANGED_NODES, _CHANGED_DOCUMENTS = 8, 20
"""Most of which the views are read, as multiples of `budgets.small_run_nodes`."""


def publish_small(
    context: PublishContext, due: Sequence[Mapping[str, Any]], listing: Listing | None
) -> bool:
    """Publish the due tenants, or return False where too much of them changed.

    Args:
        context: The publishing.
        due: `DUE` rows.
        listing: The due tenants' nodes and documents, and maybe others'; read where it is None.
    """
    limit = context.settings.budgets.small_run_nodes
    if sum(row["nodes"] for row in due if _is_new(context, row)) > limit * _CHANGED_NODES:
        return False
    states = {row["tenant_id"]: row["state"] for row in due if row["state"] is not None}
    listing = listing or Listing.read(context, tenants=states)
    own = _own_documents(listing, states)
    nodes = list(_nodes(context, listing, states, own))
    changed = {_node(node) for node in nodes if not node["is_unchanged"]}
    documents = sum(len(own.get(node, ())) for node in changed)
    if len(changed) > limit * _CHANGED_NODES or documents > limit * _CHANGED_DOCUMENTS:
        return False
    rows = [*map(node_row, nodes), *_views(context, changed)]
    vectors = _vectors(context, {_text(row): row["text"] for row in rows})
    for row in rows:
        row |= {"state": states[row["tenant_id"]], "vector": vectors.get(_text(row))}
    rows.sort(key=row_order)
    _move(context, rows, gone=[row for row in due if row["state"] is None])
    return True


def _is_new(context: PublishContext, row: Mapping[str, Any]) -> bool:
    """Return whether nothing can be taken over for a tenant: all of its nodes are to be written."""
    tenant = Path(context.shards) / tenant_folder(row["tenant_id"])
    return row["nodes"] is not None and not has_versions(tenant)


def _node(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["tenant_id"], row["node_id"]


def _text(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["tenant_id"], row["text_hash"]


def _own_documents(
    listing: Listing, tenants: Container[str]
) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return the documents of every node that has some, by doc_id."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in listing.documents:
        if row["tenant_id"] in tenants:
            found.setdefault(_node(row), []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row["doc_id"])
    return found


def _nodes(
    context: PublishContext,
    listing: Listing,
    tenants: Mapping[str, str],
    own: Mapping[tuple[str, str], Any],
) -> Iterator[dict[str, Any]]:
    """Yield the `SHARD_NODES` of whole tenants."""
    published = {
        _node(row): row["published"] for row in published_nodes(tenants, shards=context.shards)
    }
    rows = (
        {**row, "documents": own.get(_node(row)), "published": published.get(_node(row))}
        for row in listing.nodes
        if row["tenant_id"] in tenants
    )
    return to_shard_nodes(rows, form=shard_format(context.settings))


def _views(context: PublishContext, nodes: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the views and documents of some nodes."""
    where = {"tenant_id": {node[0] for node in nodes}, "node_id": {node[1] for node in nodes}}
    for row in read_rows(MEMORY.files(context.root.path), ["node_id", *VIEW_COLUMNS], where=where):
        if _node(row) in nodes:
            yield from view_rows_of_memory(row)
    texts = DOCUMENTS.files(context.root.path, version=context.documents_version)
    for row in read_rows(texts, ["node_id", *DOCUMENT_COLUMNS], where=where):
        if _node(row) in nodes:
            yield view_row_of_document(row, context.settings.views.evidence)


def _vectors(
    context: PublishContext, texts: Mapping[tuple[str, str], str | None]
) -> dict[tuple[str, str], bytes | None]:
    """Return the vector of each text by its key; those not on record are made."""
    hashes = {text_hash for (_, text_hash), text in texts.items() if text}
    known = read_rows(
        EMBEDDINGS.files(context.root.path),
        ["tenant_id", "text_hash", "vector"],
        where={"text_hash": hashes, "model": [context.settings.embedding.model_name]},
    )
    vectors = {_text(row): row["vector"] for row in known}
    waiting = [
        {
            "tenant_id": tenant_id,
            "tenant_key": salted_hash(tenant_id, salt=context.root.salt),
            "text_hash": text_hash,
            "text": text,
        }
        for (tenant_id, text_hash), text in texts.items()
        if text and (tenant_id, text_hash) not in vectors
    ]
    embedding = context.settings.embedding
    size = TEXTS_A_COMMIT if embedding.is_paid else max(1, len(waiting))
    for first in range(0, len(waiting), size):
        made = list(embedded_rows(waiting[first : first + size], embedding))
        _append(context, EMBEDDINGS, made, name=f"embeddings-{first}")
        vectors |= {_text(row): row["vector"] for row in made}
    return vectors


def _move(
    context: PublishContext,
    rows: Iterable[Mapping[str, Any]],
    *,
    gone: Iterable[Mapping[str, Any]],
) -> None:
    """Write the shards and switch to them; record it."""
    staging, shards = context.staging("shards"), context.shards
    staged = [*write_shards(rows, context.settings, staging=staging, shards=shards)]
    staged += [{**row, "folder": None} for row in gone]
    for row in staged:
        row["tenant_key"] = salted_hash(row["tenant_id"], salt=context.root.salt)
    values = context.provenance()
    moved = move_into_place(staged, context.settings, shards=shards, values=values)
    _append(context, PUBLISHED, moved, name="published")


def _append(
    context: PublishContext, table: Table, rows: Iterable[Mapping[str, Any]], *, name: str
) -> None:
    path = context.staging(name)
    write_rows(rows, table.schema, path)
    context.commits.append(table, context.spark.read.schema(table.schema).parquet(path))
