"""The rules of one input row: what makes it a document, and the reason where it is none.

Pure Python, no Spark: `ingest` maps it over every row. Nothing is inferred from a key's look.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import HltmError
from hltm_spark.core.records import fingerprint
from hltm_spark.core.tree import salted_hash, to_node_id

OPERATIONS = {"": "upsert", "upsert": "upsert", "delete": "delete"}


class _RejectedRow(HltmError):
    """Raised inside this module for one row that cannot be taken."""


def to_document(
    raw: str, settings: Settings, *, salt: str, fault: str | None = None
) -> dict[str, Any]:
    """Return the `documents` columns of one input row, with its operation as `op`.

    A row that cannot be taken comes back with `reason` set, and with whatever ids it had.

    Args:
        raw: The row as one JSON object.
        settings: Levels and input mapping.
        salt: The root's salt, for the hashed keys.
        fault: Why the row could not be read as it was meant, if so.
    """
    row: dict[str, Any] = {}
    try:
        fields = _json_object(raw)
        row.update(_claimed_ids(fields, settings))
        if fault:
            raise _RejectedRow(fault)
        return _document(fields, settings, salt=salt)
    except HltmError as error:
        return {**row, "reason": str(error), "raw": raw}


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
    if value is None:
        raise _RejectedRow(f"{column} is missing; every row needs it")
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
