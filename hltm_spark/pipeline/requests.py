"""One level's node inputs and their requests, from documents and from the children's memories."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from hltm_spark.core.records import NodeInput, canonical_json, fingerprint
from hltm_spark.models.requests import NodePrompts
from hltm_spark.pipeline.tables import INTEGER, TEXT, TEXTS, arrow, struct

IDENTITY = {
    "tenant_id": TEXT,
    "node_id": TEXT,
    "parent_id": TEXT,
    "keys": TEXTS,
    "depth": INTEGER,
}
REQUEST = struct({"task": TEXT, "request_hash": TEXT})
INPUTS = struct(
    {
        **IDENTITY,
        "level": TEXT,
        "latest_at": TEXT,
        "sources": TEXTS,
        "missing": TEXTS,
        "input_fingerprint": TEXT,
        "payload": TEXT,
        "requests": t.ArrayType(REQUEST),
    }
)
"""One row per node whose input changed: its payload and the requests that need no other answer."""

CHILD_FIELDS = (
    "node_id",
    "latest_at",
    "facets",
    "question_answers",
    "rationale",
    "summary",
    "one_sentence_summary",
)

Batches = Iterable[pa.RecordBatch]


def document_items(documents: DataFrame, candidates: DataFrame) -> DataFrame:
    """Return the candidates' own documents as items, one row per (node, document)."""
    node = ["tenant_id", "node_id"]
    event_time = F.coalesce(iso_time("event_time"), F.lit(""))
    body = F.struct("doc_id", "text", "kind", event_time.alias("event_time"), "author", "metadata")
    own = documents.select(
        *node,
        F.struct(
            F.lit(1).alias("rank"),
            F.col("event_time").isNull().alias("undated"),
            "event_time",
            F.array("doc_id").alias("key"),
        ).alias("place"),
        F.col("doc_id").alias("item_id"),
        F.col("content_hash").alias("item_fingerprint"),
        F.lit("complete").alias("item_status"),
        F.to_json(body).alias("item"),
    )
    return own.join(candidates, node)


def child_items(children: DataFrame, candidates: DataFrame) -> DataFrame:
    """Return the memories of the candidates' children as items, one row per (node, child)."""
    views = children.select(
        "tenant_id",
        F.col("parent_id").alias("node_id"),
        F.struct(
            F.lit(0).alias("rank"),
            F.lit(False).alias("undated"),
            F.lit(None).cast("timestamp").alias("event_time"),
            F.col("keys").alias("key"),
        ).alias("place"),
        F.col("node_id").alias("item_id"),
        F.col("memory_fingerprint").alias("item_fingerprint"),
        F.col("status").alias("item_status"),
        F.to_json(F.struct(*CHILD_FIELDS)).alias("item"),
    )
    return views.join(candidates, ["tenant_id", "node_id"])


def gather_inputs(items: DataFrame, prompts: NodePrompts, *, level: str, slots: int) -> DataFrame:
    """Return the inputs of the nodes whose input differs from what their memory was written from.

    Items are sorted inside the partition and folded by a generator, so that a node's input is
    never held by the JVM as one value, and its bytes do not depend on partitioning.

    Args:
        items: Rows of `document_items` and `child_items`, all of one level.
        prompts: Decide the fingerprints and requests.
        level: The level's name in conf.
        slots: Partitions to spread the nodes over.

    Returns:
        `INPUTS` rows, in no order.
    """
    columns = [*IDENTITY, "stored_fingerprint"]
    columns += ["item_id", "item_fingerprint", "item_status", "item"]
    return (
        items.repartition(slots, "tenant_id", "node_id")
        .sortWithinPartitions("tenant_id", "node_id", "place")
        .select(*columns)
        .mapInArrow(_mapper(lambda rows: fold_items(rows, prompts, level=level), INPUTS), INPUTS)
    )


def fold_items(
    rows: Iterable[Mapping[str, Any]], prompts: NodePrompts, *, level: str
) -> Iterator[dict[str, Any]]:
    """Yield one input per node from items that stand together, in order.

    Args:
        rows: Items sorted by (tenant_id, node_id, place).
        prompts: As for `gather_inputs`.
        level: As for `gather_inputs`.
    """
    for (tenant_id, node_id), group in groupby(rows, lambda r: (r["tenant_id"], r["node_id"])):
        items = list(group)
        node = to_node_input(items, tenant_id=tenant_id, node_id=node_id, level=level)
        print_of_input = fingerprint(
            prompts.fingerprint_of(is_leaf=node.is_leaf),
            [(i["item_id"], i["item_fingerprint"], i["item_status"] == "partial") for i in items],
        )
        if print_of_input == items[0]["stored_fingerprint"]:
            continue
        yield {
            **{name: items[0][name] for name in IDENTITY},
            "level": level,
            "latest_at": node.latest_at,
            "sources": list(node.source_ids),
            "missing": [i["item_id"] for i in items if i["item_status"] != "complete"],
            "input_fingerprint": print_of_input,
            "payload": canonical_json(node.to_dict()),
            "requests": [
                {"task": task, "request_hash": prompts.request_hash(request, tenant_id=tenant_id)}
                for task, request in (prompts.first_requests(node) if node.source_ids else ())
            ],
        }


def to_node_input(
    items: Iterable[Mapping[str, Any]], *, tenant_id: str, node_id: str, level: str
) -> NodeInput:
    """Return the node's input; a child that has no views yet is left out."""
    bodies = [json.loads(item["item"]) for item in items]
    children = [body for body in bodies if "doc_id" not in body]
    return NodeInput.from_dict(
        {
            "tenant_id": tenant_id,
            "node_id": node_id,
            "level": level,
            "documents": [body for body in bodies if "doc_id" in body],
            "children": [c for c in children if c.get("summary") or c.get("facets")],
        }
    )


def iso_time(column: str) -> Column:
    """Return a timestamp as ISO 8601 text in UTC, without a fraction of zero; null stays null."""
    text = F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
    return F.concat(F.regexp_replace(text, r"\.0+$", ""), F.lit("Z"))


def map_rows(
    rows: DataFrame,
    function: Callable[[Iterator[dict[str, Any]]], Iterator[dict[str, Any]]],
    schema: t.StructType,
) -> DataFrame:
    """Return the rows that a plain generator over dict rows makes of each partition."""
    return rows.mapInArrow(_mapper(function, schema), schema)


def _mapper(
    function: Callable[[Iterator[dict[str, Any]]], Iterator[dict[str, Any]]], schema: t.StructType
) -> Callable[[Batches], Batches]:
    arrow_schema = arrow(schema)

    def run(batches: Batches) -> Batches:
        rows = (row for batch in batches for row in batch.to_pylist())
        chunk: list[dict[str, Any]] = []
        for row in function(rows):
            chunk.append(row)
            if len(chunk) == 64:
                yield pa.RecordBatch.from_pylist(chunk, schema=arrow_schema)
                chunk = []
        if chunk:
            yield pa.RecordBatch.from_pylist(chunk, schema=arrow_schema)

    return run
