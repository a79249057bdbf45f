"""Rows of the tables to shards on disk: what a shard holds, in tree order, and its last step."""

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from hltm_spark.core.config import EvidenceView, Settings
from hltm_spark.core.records import fingerprint
from hltm_spark.core.shard import FORMAT_VERSION, publish_version, remove_tenant
from hltm_spark.core.shard_previous import PreviousVersion
from hltm_spark.core.shard_writer import ShardWriter
from hltm_spark.core.views import facet_text
from hltm_spark.pipeline.items import to_iso_time, to_micros
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.tables import BOOLEAN, INTEGER, LONG, TEXT, TEXTS, struct

KINDS = ("node", "summary", "facet", "question", "document")
"""Order of a node's rows in the stream that the shard writer takes."""

NODE_COLUMNS = ["tenant_id", "node_id", "keys", "level", "status", "latest_at"]
NODE_COLUMNS += ["memory_fingerprint"]
VIEW_COLUMNS = ["tenant_id", "keys", "facets", "question_answers", "summary"]
VIEW_COLUMNS += ["one_sentence_summary"]
DOCUMENT_COLUMNS = ["tenant_id", "keys", "doc_id", "kind", "event_time", "author", "metadata"]
DOCUMENT_COLUMNS += ["text"]
OWN_DOCUMENT = struct({"doc_id": TEXT, "content_hash": TEXT})
PUBLISHED_NODES = struct({"tenant_id": TEXT, "node_id": TEXT, "published": TEXT})
"""A node of the version that a tenant has now, with the fingerprint of its rows there."""
SHARD_NODES = struct(
    {
        "tenant_id": TEXT,
        "node_id": TEXT,
        "keys": TEXTS,
        "level": TEXT,
        "status": TEXT,
        "latest_at": TEXT,
        "fingerprint": TEXT,
        "is_unchanged": BOOLEAN,
    }
)
"""A node of the next version: fingerprint decides its rows, and an unchanged node has them in the
version that the tenant has now."""
_PLACE = struct({"undated": BOOLEAN, "micros": LONG, "position": INTEGER, "doc_id": TEXT})
_FIRST = {"undated": False, "micros": 0, "position": 0, "doc_id": ""}
VIEW_ROWS = struct(
    {
        "tenant_id": TEXT,
        "keys": TEXTS,
        "kind": INTEGER,
        "place": _PLACE,
        "body": TEXT,
        "text": TEXT,
        "text_hash": TEXT,
    }
)
"""One row of a shard: kind is a position in `KINDS`, place the order inside node and kind, body
what the shard writer takes as JSON, text what is embedded (null for none)."""

STAGED = struct({"tenant_id": TEXT, "state": TEXT, "folder": TEXT})


def shard_format(settings: Settings) -> str:
    """Return a fingerprint of what decides a shard's bytes beside memory and documents."""
    return fingerprint(
        FORMAT_VERSION,
        settings.embedding.model_name,
        settings.views.evidence.model_dump(mode="json"),
        settings.level_names,
    )


def published_nodes(tenants: Iterable[str], *, shards: str) -> Iterator[dict[str, Any]]:
    """Yield `PUBLISHED_NODES` rows of the tenants whose version can be trusted."""
    for tenant_id in tenants:
        previous = PreviousVersion.open(Path(shards), tenant_id)
        for node_id, published in (previous.fingerprints if previous else {}).items():
            yield {"tenant_id": tenant_id, "node_id": node_id, "published": published}


def to_shard_nodes(rows: Iterable[Mapping[str, Any]], *, form: str) -> Iterator[dict[str, Any]]:
    """Yield one `SHARD_NODES` row a node.

    Args:
        rows: `NODE_COLUMNS`, own documents as `OWN_DOCUMENT` by doc_id, and `published`.
        form: From `shard_format`.
    """
    for row in rows:
        own = [
            (document["doc_id"], document["content_hash"]) for document in row["documents"] or ()
        ]
        now = fingerprint(form, row["memory_fingerprint"], row["status"], own)
        yield {
            **{name: row[name] for name in NODE_COLUMNS if name != "memory_fingerprint"},
            "fingerprint": now,
            "is_unchanged": now == row["published"],
        }


def node_row(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row that stands before a node's views: `VIEW_ROWS` of one of `SHARD_NODES`."""
    names = ("level", "status", "latest_at", "fingerprint", "is_unchanged")
    return _view_row(node, 0, {name: node[name] for name in names})


def view_rows_of_memory(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the views of one row of `memory` as `VIEW_ROWS`."""
    if sentence := row["one_sentence_summary"]:
        body = {name: row[name] for name in ("summary", "one_sentence_summary")}
        yield _view_row(row, 1, body, text=sentence)
    for position, facet in enumerate(row["facets"] or ()):
        text = facet_text(facet["name"], facet["value"])
        yield _view_row(row, 2, facet, text=text, position=position)
    for position, pair in enumerate(row["question_answers"] or ()):
        yield _view_row(row, 3, pair, text=pair["question"], position=position)


def view_row_of_document(row: Mapping[str, Any], evidence: EvidenceView) -> dict[str, Any]:
    """Return what a shard holds of one row of `documents`."""
    body = {name: row[name] for name in ("doc_id", "kind", "author")}
    body |= {"event_time": to_iso_time(row["event_time"]), "metadata": dict(row["metadata"] or ())}
    if evidence.ship_text:
        body["text"] = row["text"]
    text = None
    if evidence.enabled:
        text = f"{row['author']}: {row['text']}" if row["author"] else row["text"]
    micros = to_micros(row["event_time"]) if row["event_time"] else 0
    place = {"undated": row["event_time"] is None, "micros": micros, "doc_id": row["doc_id"]}
    return _view_row(row, 4, body, text=text, **place)


def to_view_rows(
    nodes: DataFrame, memory: DataFrame, documents: DataFrame, evidence: EvidenceView
) -> DataFrame:
    """Return what shards hold: `VIEW_ROWS`, one per node, view item and document.

    Args:
        nodes: `SHARD_NODES` of whole tenants.
        memory: Rows of those that changed.
        documents: Their documents.
        evidence: What a shard has of a document.
    """

    def of_nodes(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return map(node_row, rows)

    def of_memory(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return (view for row in rows for view in view_rows_of_memory(row))

    def of_documents(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return (view_row_of_document(row, evidence) for row in rows)

    return (
        map_rows(nodes, of_nodes, VIEW_ROWS)
        .unionByName(map_rows(memory.select(*VIEW_COLUMNS), of_memory, VIEW_ROWS))
        .unionByName(map_rows(documents.select(*DOCUMENT_COLUMNS), of_documents, VIEW_ROWS))
    )


def _view_row(
    row: Mapping[str, Any],
    kind: int,
    body: Mapping[str, Any],
    *,
    text: str | None = None,
    **place: Any,
) -> dict[str, Any]:
    words = text if text and text.strip() else None
    return {
        "tenant_id": row["tenant_id"],
        "keys": row["keys"],
        "kind": kind,
        "place": {**_FIRST, **place},
        "body": json.dumps(body, ensure_ascii=False),
        "text": words,
        "text_hash": None if words is None else hashlib.sha256(words.encode()).hexdigest(),
    }


def write_shards(
    rows: Iterable[Mapping[str, Any]], settings: Settings, *, staging: str, shards: str
) -> Iterator[dict[str, Any]]:
    """Write the shard of each tenant in a partition, one after the other, into staging.

    Args:
        rows: View rows with state and vector, by (tenant_id, keys, kind, place).
        settings: Embedding model and evidence view.
        staging: Folder for the versions; every attempt takes a name of its own.
        shards: Folder of the published shards, from which unchanged nodes are taken over.

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
            previous=PreviousVersion.open(Path(shards), tenant_id, full=False),
        ) as writer:
            for row in group:
                kind, keys = KINDS[row["kind"]], tuple(row["keys"])
                body = json.loads(row["body"])
                if kind == "node" and body["is_unchanged"]:
                    writer.add_unchanged(keys, body)
                else:
                    writer.add(kind, keys, body, row["vector"])
            writer.close()
        yield {"tenant_id": tenant_id, "state": state, "folder": str(folder)}


def row_order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what sorts view rows as Spark sorts (tenant_id, keys, kind, place)."""
    place = row["place"]
    at = (place["undated"], place["micros"], place["position"], place["doc_id"])
    return row["tenant_id"], row["keys"], row["kind"], at


def move_into_place(
    staged: Iterable[Mapping[str, Any]],
    settings: Settings,
    *,
    shards: str,
    values: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Switch each tenant to its new version, or remove it; yield its `published` row.

    Args:
        staged: `STAGED` rows with tenant_key; a null state is a tenant without memory.
        settings: How many versions are kept.
        shards: Folder of the published shards.
        values: What provenance.json says, run_id and published_at among it.
    """
    for row in staged:
        version = row["state"][:16] if row["state"] else None
        if version is None:
            remove_tenant(Path(shards), row["tenant_id"])
        else:
            publish_version(
                Path(shards),
                row["tenant_id"],
                Path(row["folder"]),
                version=version,
                keep=settings.storage.keep_versions,
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
