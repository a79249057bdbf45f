"""Rows of data files in this process, where a Spark job would cost more than the rows are worth."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.dataset import ParquetFileFormat, ParquetReadOptions, dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from hltm_spark.pipeline.tables import arrow

_FORMAT = ParquetFileFormat(read_options=ParquetReadOptions(coerce_int96_timestamp_unit="us"))


def row_count(path: str | Sequence[str], where: pc.Expression | None = None) -> int:
    """Return the rows of a folder or of some files, or those that fulfil a condition: no job."""
    if not path:
        return 0
    source = path if isinstance(path, str) else list(path)
    return int(dataset(source, format="parquet").count_rows(filter=where))


def read_rows(
    files: Sequence[str],
    columns: Sequence[str],
    *,
    where: Mapping[str, Iterable[str]] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of data files that match, read in this process; few must match.

    Args:
        files: From `Table.files`.
        columns: Wanted columns.
        where: Values by column; a row matches where every column has one of its values. Every row
            where it is not given.
    """
    if not files:
        return []
    if where is None:
        return list(dataset(list(files), format=_FORMAT).to_table(list(columns)).to_pylist())
    return list(_scan(files, columns, where).to_pylist())


def read_table(
    files: Sequence[str], columns: Sequence[str], *, where: Mapping[str, Iterable[str]]
) -> pa.Table:
    """Return the rows that `read_rows` does as an Arrow table; many may match."""
    return _scan(files, columns, where)


def read_sizes(files: Sequence[str], column: str, *, where: Mapping[str, Iterable[str]]) -> int:
    """Return the bytes of a text column over the rows that match, as `read_rows` selects them."""
    if not files:
        return 0
    length = {"bytes": pc.binary_length(pc.field(column))}
    return int(pc.sum(_scan(files, length, where)["bytes"]).as_py() or 0)


def _scan(
    files: Sequence[str], columns: Sequence[str] | Mapping[str, Any], where: Mapping[str, Any]
) -> pa.Table:
    """Return the rows that match; of files without any, only the columns asked about are read."""
    wanted = (pc.field(name).isin(pa.array(set(v), pa.string())) for name, v in where.items())
    columns = dict(columns) if isinstance(columns, Mapping) else list(columns)
    matching = reduce(and_, wanted)
    given = dataset(list(files), format=_FORMAT)
    hits = [f.path for f in given.get_fragments() if f.count_rows(filter=matching)]
    return dataset(hits or files[:1], format=_FORMAT, schema=given.schema).to_table(
        columns=columns, filter=matching
    )


def write_rows(rows: Iterable[Mapping[str, Any]], schema: t.StructType, path: str) -> None:
    """Write rows that are in this process as one Parquet file of a new folder: no Spark job."""
    folder = Path(path)
    folder.mkdir(parents=True)
    scratch = folder / ".rows.parquet"  # readers pass over it: a torn file is never seen
    pq.write_table(pa.Table.from_pylist(list(rows), schema=arrow(schema)), scratch)
    scratch.rename(folder / "rows.parquet")


def local_rows(
    spark: SparkSession, rows: Iterable[Mapping[str, Any]], schema: t.StructType
) -> DataFrame:
    """Return a frame of a few rows that are in this process."""
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=arrow(schema)), schema)
