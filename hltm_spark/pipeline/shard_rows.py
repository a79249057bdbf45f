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
from hltm_spark.core.shard import publish_version, remove_tenant
from hltm_spark.core.shard_writer import ShardWriter
from hltm_spark.core.views import facet_text
from hltm_spark.pipeline.items import to_iso_time, to_micros
from hltm_spark.pipeline.partitions import map_rows
from hltm_spark.pipeline.tables import BOOLEAN, INTEGER, LONG, TEXT, TEXTS, struct

KINDS = ("node", "summary", "facet", "question", "document")
"""Order of a node's rows in the stream that the shard writer takes."""

NODE_COLUMNS = ["tenant_id", "keys", "level", "status", "latest_at", "missing", "facets"]
NODE_COLUMNS += ["question_answers", "summary", "one_sentence_summary"]
DOCUMENT_COLUMNS = ["tenant_id", "keys", "doc_id", "kind", "event_time", "author", "metadata"]
DOCUMENT_COLUMNS += ["text"]
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


def view_rows_of_node(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a shard holds of one row of `memory`: `VIEW_ROWS` without text_hash."""
    yield _view_row(
        row, 0, {name: row[name] for name in ("level", "status", "latest_at", "missing")}
    )
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


def to_view_rows(memory: DataFrame, documents: DataFrame, settings: Settings) -> DataFrame:
    """Return everything that shards hold: `VIEW_ROWS`, one per node, view item and document."""
    evidence = settings.views.evidence

    def of_nodes(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return (view for row in rows for view in view_rows_of_node(row))

    def of_documents(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return (view_row_of_document(row, evidence) for row in rows)

    nodes = map_rows(memory.select(*NODE_COLUMNS), of_nodes, VIEW_ROWS)
    return nodes.unionByName(map_rows(documents.select(*DOCUMENT_COLUMNS), of_documents, VIEW_ROWS))


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
