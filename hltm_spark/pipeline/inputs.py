"""Input of any format to one form: rows as JSON objects, whose values keep the types they had.

A row that cannot be read as it was meant is told by `fault`, so that it becomes a reject and the
rest goes on.
"""

import csv
import gzip
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hltm_spark.core.errors import DataError
from hltm_spark.pipeline.tables import TEXT, struct

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
_NOT_UTF8 = "row is not UTF-8; convert the file, e.g. with iconv -t UTF-8"
_OTHER_FIELDS = "row has another number of fields than the header; quote text that holds a comma"
_MALFORMED = "_malformed"


def read_input(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return every row of the inputs: `file`, `raw` (the row as JSON), `fault` (null if none).

    Raises:
        DataError: A path does not exist or holds nothing readable.
    """
    frames = [frame for path in paths for frame in _read_path(spark, path)]
    if not frames:
        raise DataError("no input given; pass --input PATH")
    return reduce(DataFrame.unionByName, frames)


def rows_of_frame(frame: DataFrame, *, name: str = "dataframe") -> DataFrame:
    """Return the rows of any DataFrame as `read_input` does."""
    return _to_rows(frame, file=F.lit(name), columns=frame.columns)


def _to_rows(
    frame: DataFrame, *, file: Column, columns: Iterable[str], fault: Column | None = None
) -> DataFrame:
    named = [_column(name) for name in columns]
    fault = F.lit(None).cast("string") if fault is None else fault
    return frame.select(
        file.alias("file"), F.to_json(F.struct(*named)).alias("raw"), fault.alias("fault")
    )


def _column(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _read_path(spark: SparkSession, path: str) -> Iterator[DataFrame]:
    local = Path(path)
    if not local.exists():
        raise DataError(f"no such input: {path!r}")
    if local.is_file() and _format_of(local) is None:
        raise DataError(f"cannot read {path!r}; known endings: {sorted(FORMATS)} (.gz too)")
    tables, files = _found(local) if local.is_dir() else ([], [local])
    if not tables and not files:
        raise DataError(f"no readable file in {path!r}; known endings: {sorted(FORMATS)} (.gz too)")
    for table in tables:
        yield rows_of_frame(spark.read.format("delta").load(str(table)), name=table.name)
    for kind in sorted(set(FORMATS.values())):
        chosen = [str(file.absolute()) for file in files if _format_of(file) == kind]
        if chosen:
            yield from _READERS[kind](spark, chosen)


def _found(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the Delta tables in a folder, itself perhaps, and the files outside of them."""
    tables, files = [], []
    for place, folders, names in os.walk(folder, followlinks=True):
        if "_delta_log" in folders:
            tables.append(Path(place))
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        files += [Path(place) / name for name in sorted(names) if _format_of(Path(name))]
    return sorted(tables), files


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def _format_of(file: Path) -> str | None:
    if _is_hidden(file.name):
        return None
    plain = file.with_suffix("") if file.suffix == ".gz" else file
    return FORMATS.get(plain.suffix)


def _escaped(path: str) -> str:
    """Return a path whose brackets and stars are no pattern."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)


def _file_name() -> Column:
    return F.regexp_extract("_metadata.file_path", r"([^/]*)$", 1)


def _read_jsonl(spark: SparkSession, files: Sequence[str]) -> Iterator[DataFrame]:
    is_utf8 = F.is_valid_utf8("value")
    lines = spark.read.text([_escaped(file) for file in files]).select(
        _file_name().alias("file"),
        F.trim(F.make_valid_utf8("value")).alias("raw"),
        F.when(~is_utf8, F.lit(_NOT_UTF8)).alias("fault"),
    )
    yield lines.where(F.length(F.regexp_replace("raw", "^\ufeff", "")) > 0)


def _read_csv(spark: SparkSession, files: Sequence[str]) -> Iterator[DataFrame]:
    """Yield one frame per distinct header: Spark would apply the first file's to every file."""
    by_header: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        if header := _csv_header(file):
            by_header.setdefault(header, []).append(file)
    for header, same in by_header.items():
        reader = spark.read.schema(struct(dict.fromkeys([*header, _MALFORMED], TEXT)))
        reader = reader.options(header=True, multiLine=True, escape='"', encoding="UTF-8")
        reader = reader.option("columnNameOfCorruptRecord", _MALFORMED)
        every = F.concat_ws(" ", *(_column(name) for name in header))
        fault = F.when(F.col(_MALFORMED).isNotNull(), _OTHER_FIELDS).when(
            every.contains("\ufffd"), _NOT_UTF8
        )
        table = reader.csv([_escaped(file) for file in same])
        yield _to_rows(table, file=_file_name(), columns=header, fault=fault)


def _csv_header(path: str) -> tuple[str, ...]:
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as file:
        header = tuple(next((row for row in csv.reader(file) if row), ()))
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise DataError(f"{Path(path).name} has the columns {repeated} twice; rename them")
    return header


def _read_parquet(spark: SparkSession, files: Sequence[str]) -> Iterator[DataFrame]:
    reader = spark.read.option("mergeSchema", str(len(files) > 1).lower())
    try:
        table = reader.parquet(*(_escaped(file) for file in files))
    except PySparkException as error:
        raise DataError(
            f"cannot read {Path(files[0]).name} and what is beside it as Parquet "
            f"({error.getCondition()}); check the files, and that their columns have equal types"
        ) from error
    yield _to_rows(table, file=_file_name(), columns=table.columns)


_READERS = {"jsonl": _read_jsonl, "csv": _read_csv, "parquet": _read_parquet}
