"""Items: what a node is written from, its own documents and its children's memories.

An item is one row with its place among the node's items, its id and fingerprint, and its content:
as JSON by expressions for frames, as a value by functions for rows that this process reads itself.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hltm_spark.core.records import Child, Document

NODE_ID = ["tenant_id", "node_id"]
CHILD_FIELDS = (
    "node_id",
    "latest_at",
    "facets",
    "question_answers",
    "rationale",
    "summary",
    "one_sentence_summary",
)


def document_items(documents: DataFrame, due: DataFrame) -> DataFrame:
    """Return the own documents of the due nodes as items, one row per (node, document).

    Args:
        documents: Rows of `documents`.
        due: One row per (tenant_id, node_id), with whatever else an item's row is to carry.
    """
    event_time = F.coalesce(iso_time("event_time"), F.lit("")).alias("event_time")
    body = F.struct("doc_id", "text", "kind", event_time, "author", "metadata")
    own = ["doc_id", "text", "kind", "event_time", "author", "metadata", "content_hash"]
    return (
        documents.select(*NODE_ID, *own)
        .join(due, NODE_ID)
        .select(
            *due.columns,
            F.struct(
                F.lit(1).alias("rank"),
                F.col("event_time").isNull().alias("undated"),
                F.unix_micros("event_time").alias("micros"),
                F.array("doc_id").alias("key"),
            ).alias("place"),
            F.col("doc_id").alias("item_id"),
            F.col("content_hash").alias("item_fingerprint"),
            F.lit("complete").alias("item_status"),
            F.to_json(body).alias("item"),
        )
    )


def child_items(children: DataFrame, due: DataFrame) -> DataFrame:
    """Return the memories of the due nodes' children as items, one row per (node, child)."""
    own = ["keys", "memory_fingerprint", "status", *CHILD_FIELDS]
    renamed = {name: f"child_{name}" for name in own}
    columns = [F.col(name).alias(new) for name, new in renamed.items()]
    return (
        children.select("tenant_id", F.col("parent_id").alias("node_id"), *columns)
        .join(due, NODE_ID)
        .select(*due.columns, *_child_columns(renamed))
    )


def _child_columns(names: Mapping[str, str]) -> list[Column]:
    """Return the item columns of a child from its memory's columns, under whatever names."""
    body = F.struct(*[F.col(names[field]).alias(field) for field in CHILD_FIELDS])
    return [
        F.struct(
            F.lit(0).alias("rank"),
            F.lit(False).alias("undated"),
            F.lit(None).cast("long").alias("micros"),
            F.col(names["keys"]).alias("key"),
        ).alias("place"),
        F.col(names["node_id"]).alias("item_id"),
        F.col(names["memory_fingerprint"]).alias("item_fingerprint"),
        F.col(names["status"]).alias("item_status"),
        F.to_json(body).alias("item"),
    ]


def document_item(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the item columns of a row of `documents` as `document_items` has them, as a value."""
    time = row["event_time"]
    body = {name: row[name] for name in ("doc_id", "text", "kind", "author")}
    body |= {"event_time": to_iso_time(time), "metadata": dict(row["metadata"] or ())}
    micros = None if time is None else to_micros(time)
    return {
        "place": {"rank": 1, "undated": time is None, "micros": micros, "key": [row["doc_id"]]},
        "item_id": row["doc_id"],
        "item_fingerprint": row["content_hash"],
        "item_status": "complete",
        "item": Document.from_dict(body),
    }


def child_item(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the item columns of a row of `memory` as `child_items` has them, as a value."""
    return {
        "place": {"rank": 0, "undated": False, "micros": None, "key": list(written["keys"])},
        "item_id": written["node_id"],
        "item_fingerprint": written["memory_fingerprint"],
        "item_status": written["status"],
        "item": Child.from_dict({name: written[name] for name in CHILD_FIELDS}),
    }


def place_order(item: Mapping[str, Any]) -> tuple[int, bool, int, list[str]]:
    """Return what sorts items as Spark sorts their `place`."""
    place = item["place"]
    return place["rank"], place["undated"], place["micros"] or 0, place["key"]


def iso_time(column: str) -> Column:
    """Return a timestamp as ISO 8601 text in UTC, without a fraction of zero; null stays null."""
    text = F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
    return F.concat(F.regexp_replace(text, r"\.0+$", ""), F.lit("Z"))


def to_iso_time(time: datetime | None) -> str:
    """Return what `iso_time` makes of a timestamp; empty where there is none."""
    if time is None:
        return ""
    text = _to_utc(time).isoformat(timespec="microseconds")
    return f"{text.removesuffix('.000000')}Z"


def to_micros(time: datetime) -> int:
    """Return a timestamp in microseconds since 1970."""
    return (_to_utc(time) - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001


def _to_utc(time: datetime) -> datetime:
    """Return a time in UTC without a zone; one without a zone is in UTC already."""
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
