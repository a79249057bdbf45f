"""Plain generators over dict rows as partition functions: the form that Spark Connect has too."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from hltm_spark.pipeline.tables import arrow

Batches = Iterable[pa.RecordBatch]


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
