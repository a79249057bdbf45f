"""Raw input to rows of `documents`, with a reject for every row that cannot be taken.

Every format becomes the same thing first: one JSON object a row, whose values keep the types that
they had. `to_document` judges it, without Spark; nothing is ever inferred from a key's look.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import DataError, HltmError
from hltm_spark.core.records import fingerprint
from hltm_spark.core.tree import salted_hash, to_node_id
from hltm_spark.pipeline.root import Root
from hltm_spark.pipeline.tables import DOCUMENTS, REJECTS, TEXT, arrow, create_tables, struct

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
OPERATIONS = {"": "upsert", "upsert": "upsert", "delete": "delete"}

_CHECKED = struct({**DOCUMENTS.columns, "op": TEXT, "row": TEXT, "reason": TEXT, "raw": TEXT})


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What one ingest did, in rows.

    Attributes:
        taken: Rows that were accepted; each is added, changed, unchanged or deleted.
        added: Documents that were not there before.
        unchanged: Rows whose content was there already, and deletes of what was not there.
        changed: Documents whose content differs.
        deleted: Documents removed by a delete row, or by a snapshot that lacks them.
        rejected: Rows that could not be taken; `rejects` has the reasons.
        version: Version of `documents` afterwards.
    """

    taken: int
    added: int
    unchanged: int
    changed: int
    deleted: int
    rejected: int
    version: int


class _RejectedRow(HltmError):
    """Raised inside this module for one row that cannot be taken."""


def to_document(raw: str, settings: Settings, *, salt: str) -> dict[str, Any]:
    """Return the `documents` columns of one input row, with its operation as `op`.

    A row that cannot be taken comes back with `reason` set, and with whatever ids it had.

    Args:
        raw: The row as one JSON object.
        settings: Levels and input mapping.
        salt: The root's salt, for the hashed keys.
    """
    row: dict[str, Any] = {}
    try:
        fields = _json_object(raw)
        row.update(_claimed_ids(fields, settings))
        return _document(fields, settings, salt=salt)
    except HltmError as error:
        return {**row, "reason": str(error), "raw": raw}


def read_input(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Return every row of the inputs as JSON: columns `file` and `raw`.

    Raises:
        DataError: A path does not exist or holds nothing readable.
    """
    frames = [frame for path in paths for frame in _read_path(spark, path)]
    if not frames:
        raise DataError("no input given; pass --input PATH")
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.unionByName(frame)
    return rows


def rows_of_frame(frame: DataFrame, *, name: str = "dataframe") -> DataFrame:
    """Return the rows of any DataFrame as `read_input` does."""
    columns = [F.col(f"`{column}`") for column in frame.columns]
    return frame.select(F.lit(name).alias("file"), F.to_json(F.struct(*columns)).alias("raw"))


def check_rows(rows: DataFrame, settings: Settings, *, salt: str) -> DataFrame:
    """Return one row per input row: the `documents` columns and `op`, or `reason` and `raw`."""
    schema = arrow(_CHECKED)

    def check(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            given = zip(batch["file"].to_pylist(), batch["raw"].to_pylist(), strict=True)
            checked = []
            for file, raw in given:
                row = to_document(raw, settings, salt=salt)
                checked.append({**row, "row": f"{file}#{fingerprint(raw)[:16]}"})
            yield pa.RecordBatch.from_pylist(checked, schema=schema)

    return rows.mapInArrow(check, _CHECKED)


def ingest(
    rows: DataFrame, settings: Settings, root: Root, *, mode: str = "upsert"
) -> IngestReport:
    """Bring input rows into `documents`; unchanged rows write nothing.

    Args:
        rows: Columns `file` and `raw`, from `read_input` or `rows_of_frame`.
        settings: Levels and input mapping.
        root: Storage root.
        mode: `upsert`, or `snapshot`: what a tenant of the input no longer has is deleted, unless
            a row of that tenant was rejected, since the absent document may be that row.
    """
    spark = rows.sparkSession
    create_tables(spark, root.path)
    run_id = f"ingest-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    staged = str(root.staging(run_id) / "checked")
    try:
        check_rows(rows, settings, salt=root.salt).write.parquet(staged)
        checked = reject_conflicts(spark.read.schema(_CHECKED).parquet(staged))
        stored = DOCUMENTS.read(spark, root.path)
        changes = classify(checked, stored)
        if mode == "snapshot":
            changes = changes.unionByName(absent_documents(checked, stored))
        outcome = str(root.staging(run_id) / "outcome")
        changes.write.parquet(outcome)
        outcomes = spark.read.parquet(outcome)
        counts = {
            row["outcome"]: row["count"] for row in outcomes.groupBy("outcome").count().collect()
        }
        _apply(outcomes, counts, root)
        rejected = _append_rejects(checked, root, run_id=run_id)
        rows_in = sum(
            row["count"] for row in checked.where("reason IS NULL").groupBy().count().collect()
        )
    finally:
        root.clear_staging(run_id)
    return IngestReport(
        taken=rows_in,
        added=counts.get("added", 0),
        unchanged=rows_in
        - counts.get("added", 0)
        - counts.get("changed", 0)
        - counts.get("deleted", 0),
        changed=counts.get("changed", 0),
        deleted=counts.get("deleted", 0) + counts.get("absent", 0),
        rejected=rejected,
        version=DOCUMENTS.version(spark, root.path),
    )


def reject_conflicts(checked: DataFrame) -> DataFrame:
    """Turn rows that contradict each other into rejects: one document twice, not the same.

    Their order in the input means nothing, so none of them can be called the newer one.
    """
    key = ["tenant_id", "doc_id"]
    state = F.concat_ws(":", "op", "content_hash")
    disputed = (
        checked.where("reason IS NULL")
        .groupBy(*key)
        .agg(F.count_distinct(state).alias("states"))
        .where("states > 1")
    )
    reason = F.concat(
        F.lit("doc_id comes "),
        F.col("states"),
        F.lit(" times with different content in one input; keep the newest row"),
    )
    raw = F.to_json(F.struct("tenant_id", "node_id", "doc_id", "op", "kind", "event_time", "text"))
    is_disputed = F.col("reason").isNull() & F.col("states").isNotNull()
    return checked.join(disputed, key, "left").select(
        *[c for c in checked.columns if c not in ("reason", "raw")],
        F.when(is_disputed, reason).otherwise(F.col("reason")).alias("reason"),
        F.when(is_disputed, raw).otherwise(F.col("raw")).alias("raw"),
    )


def classify(checked: DataFrame, stored: DataFrame) -> DataFrame:
    """Return one row per (tenant_id, doc_id) taken, with `outcome`.

    Outcomes: added, changed, unchanged, deleted, and unchanged for a delete of what is not there.
    """
    key = ["tenant_key", "tenant_id", "doc_id"]
    accepted = checked.where("reason IS NULL").dropDuplicates(["tenant_id", "doc_id"])
    before = stored.select(*key, F.col("content_hash").alias("stored_hash"))
    is_delete = F.col("op") == "delete"
    outcome = (
        F.when(is_delete & F.col("stored_hash").isNull(), "unchanged")
        .when(is_delete, "deleted")
        .when(F.col("stored_hash").isNull(), "added")
        .when(F.col("stored_hash") != F.col("content_hash"), "changed")
        .otherwise("unchanged")
    )
    return accepted.join(before, key, "left").select(*DOCUMENTS.columns, outcome.alias("outcome"))


def absent_documents(checked: DataFrame, stored: DataFrame) -> DataFrame:
    """Return the stored documents that a snapshot lacks, with outcome `absent`.

    A tenant with a rejected row keeps all its documents, and so does every tenant when a rejected
    row names no tenant.
    """
    accepted = checked.where("reason IS NULL")
    rejected = checked.where("reason IS NOT NULL")
    spared = rejected.select("tenant_id").distinct()
    unnamed = rejected.where("tenant_id IS NULL").select(F.lit(True).alias("unnamed")).limit(1)
    return (
        stored.join(accepted.select("tenant_id").distinct(), "tenant_id", "left_semi")
        .join(spared, "tenant_id", "left_anti")
        .join(accepted.select("tenant_id", "doc_id"), ["tenant_id", "doc_id"], "left_anti")
        .join(F.broadcast(unnamed), F.lit(True), "left_anti")
        .select(*DOCUMENTS.columns, F.lit("absent").alias("outcome"))
    )


def _apply(outcomes: DataFrame, counts: Mapping[str, int], root: Root) -> None:
    if not any(counts.get(name) for name in ("added", "changed", "deleted", "absent")):
        return
    assignments = ", ".join(f"t.`{c}` = s.`{c}`" for c in DOCUMENTS.columns)
    names = ", ".join(f"`{c}`" for c in DOCUMENTS.columns)
    values = ", ".join(f"s.`{c}`" for c in DOCUMENTS.columns)
    DOCUMENTS.merge(
        outcomes.where("outcome != 'unchanged'"),
        root.path,
        clauses=(
            "WHEN MATCHED AND s.outcome IN ('deleted', 'absent') THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {assignments} "
            f"WHEN NOT MATCHED AND s.outcome = 'added' THEN INSERT ({names}) VALUES ({values})"
        ),
    )


def _append_rejects(checked: DataFrame, root: Root, *, run_id: str) -> int:
    """Record rejects that are not on record yet; return how many rows were rejected now."""
    rejects = checked.where("reason IS NOT NULL").withColumn("run_id", F.lit(run_id))
    count = rejects.count()
    if count:
        known = REJECTS.read(checked.sparkSession, root.path).select("row", "reason")
        REJECTS.append(rejects.join(known, ["row", "reason"], "left_anti"), root.path)
    return count


def _read_path(spark: SparkSession, path: str) -> Iterator[DataFrame]:
    local = Path(path)
    if not local.exists():
        raise DataError(f"no such input: {path!r}")
    if (local / "_delta_log").is_dir():
        yield rows_of_frame(spark.read.format("delta").load(path), name=local.name)
        return
    if local.is_file():
        kind = _format_of(local)
        if kind is None:
            raise DataError(f"cannot read {path!r}; known endings: {sorted(FORMATS)} (.gz too)")
        yield _read_files(spark, path, kind, pattern=None)
        return
    endings = sorted({_ending(file) for file in local.rglob("*") if _format_of(file)})
    if not endings:
        raise DataError(f"no readable file in {path!r}; known endings: {sorted(FORMATS)} (.gz too)")
    for ending in endings:
        yield _read_files(spark, path, FORMATS[ending.removesuffix(".gz")], pattern=f"*{ending}")


def _ending(file: Path) -> str:
    return "".join(file.suffixes[-2:]) if file.suffix == ".gz" else file.suffix


def _format_of(file: Path) -> str | None:
    hidden = any(part.startswith(("_", ".")) and part not in {".", ".."} for part in (file.name,))
    return None if hidden else FORMATS.get(_ending(file).removesuffix(".gz"))


def _read_files(spark: SparkSession, path: str, kind: str, *, pattern: str | None) -> DataFrame:
    reader = spark.read.option("recursiveFileLookup", "true")
    if pattern:
        reader = reader.option("pathGlobFilter", pattern)
    file = F.regexp_extract("_metadata.file_path", r"([^/]*)$", 1).alias("file")
    if kind == "jsonl":
        lines = reader.text(path).select(file, F.trim("value").alias("raw"))
        return lines.where(F.length(F.regexp_replace("raw", "^\ufeff", "")) > 0)
    if kind == "csv":
        table = reader.options(header=True, multiLine=True, escape='"', encoding="UTF-8").csv(path)
    else:
        table = reader.parquet(path)
    columns = [F.col(f"`{column}`") for column in table.columns]
    return table.select(file, F.to_json(F.struct(*columns)).alias("raw"))


def _json_object(raw: str) -> dict[str, Any]:
    try:
        fields = json.loads(raw.lstrip("\ufeff"))
    except ValueError as error:
        raise _RejectedRow(
            f"row is not JSON ({error.args[0].split(':')[0]}); write one object a line"
        ) from None
    except RecursionError:
        raise _RejectedRow("row is nested too deeply; write one flat object a line") from None
    if not isinstance(fields, dict):
        raise _RejectedRow(f"row is a JSON {type(fields).__name__}; write one object a line")
    return fields


def _claimed_ids(fields: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the ids that a row claims, where they are text: a reject keeps them."""
    tenant = fields.get(settings.levels[0].key_column)
    doc_id = fields.get(settings.input.doc_id)
    claimed = {"tenant_id": tenant, "doc_id": doc_id}
    return {k: v for k, v in claimed.items() if isinstance(v, str) and v.strip() and _is_clean(v)}


def _document(fields: Mapping[str, Any], settings: Settings, *, salt: str) -> dict[str, Any]:
    names = settings.input
    operation = _operation(fields.get(names.operation), names.operation)
    doc_id = _text(fields, names.doc_id, required=True)
    if operation == "delete":
        tenant = _text(fields, settings.levels[0].key_column, required=True)
        return {
            "tenant_id": tenant,
            "tenant_key": salted_hash(tenant, salt=salt),
            "doc_id": doc_id,
            "op": operation,
            "content_hash": "",
        }
    keys = _keys(fields, settings)
    node_id = to_node_id(keys)
    text = _text(fields, names.text, required=True)
    kind = _text(fields, names.kind)
    event_time = _event_time(fields.get(names.event_time), names.event_time)
    metadata = _metadata(fields.get(names.metadata), names.metadata)
    stamp = event_time.isoformat() if event_time else ""
    return {
        "tenant_id": keys[0],
        "tenant_key": salted_hash(keys[0], salt=salt),
        "node_id": node_id,
        "node_key": salted_hash(node_id, salt=salt),
        "keys": keys,
        "doc_id": doc_id,
        "text": text,
        "kind": kind,
        "event_time": event_time,
        "author": metadata.get(names.author, ""),
        "metadata": sorted(metadata.items()),
        "content_hash": fingerprint(
            keys, text, kind, stamp, metadata, metadata.get(names.author, "")
        ),
        "op": operation,
    }


def _operation(value: Any, column: str) -> str:
    name = "" if value is None else value
    if not isinstance(name, str) or name.strip().lower() not in OPERATIONS:
        raise _RejectedRow(f"{column} must be 'upsert', 'delete' or null, got {value!r}")
    return OPERATIONS[name.strip().lower()]


def _keys(fields: Mapping[str, Any], settings: Settings) -> list[str]:
    columns = [level.key_column for level in settings.levels]
    values = [_key(fields, column) for column in columns]
    keys = [value for value in values if value is not None]
    if values[0] is None:
        raise _RejectedRow(f"{columns[0]} is null; every document needs its tenant")
    if values[: len(keys)] != keys:
        gap = columns[values.index(None)]
        raise _RejectedRow(f"{gap} is null but a level below it is not; only the last may be null")
    return keys


def _key(fields: Mapping[str, Any], column: str) -> str | None:
    value = fields.get(column)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _RejectedRow(
            f"{column} must be text, got {type(value).__name__} {value!r}; "
            "write keys as strings, so that '007' stays '007'"
        )
    if not value.strip():
        raise _RejectedRow(
            f"{column} is empty; give it a key, or null for a document of the level above"
        )
    return _clean(value, column)


def _text(fields: Mapping[str, Any], column: str, *, required: bool = False) -> str:
    value = fields.get(column)
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        raise _RejectedRow(f"{column} must be text, got {type(value).__name__}")
    if required and not value.strip():
        raise _RejectedRow(f"{column} is empty")
    return _clean(value, column)


def _is_clean(value: str) -> bool:
    return not re.search("[\ud800-\udfff]", value)


def _clean(value: str, column: str) -> str:
    if not _is_clean(value):
        raise _RejectedRow(f"{column} holds half a surrogate pair; write it as UTF-8")
    return value


def _event_time(value: Any, column: str) -> datetime | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise _RejectedRow(f"{column} must be ISO 8601 text, got {type(value).__name__} {value!r}")
    try:
        time = datetime.fromisoformat(value.strip())
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _RejectedRow(
            f"{column} must be ISO 8601, such as 2026-03-04T09:00:00Z, got {value!r}"
        ) from None
    return time


def _metadata(value: Any, column: str) -> dict[str, str]:
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            raise _RejectedRow(f"{column} is text that is not a JSON object") from None
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise _RejectedRow(f"{column} must be an object of strings, got {type(value).__name__}")
    return {
        _clean(k, column): _metadata_value(k, v, column) for k, v in value.items() if v is not None
    }


def _metadata_value(name: str, value: Any, column: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if not isinstance(value, str):
        raise _RejectedRow(f"{column}.{name} must be text, got {type(value).__name__}")
    return _clean(value, column)
