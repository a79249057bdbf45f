"""Node ids: the path of keys from the tenant down, as one readable string.

A node id joins percent-encoded keys with `/`. Only what would break the path is encoded (`%`, `/`,
control characters, and keys that are `.` or `..`), so other scripts stay readable, a parent's id
is a prefix of its children's ids, and `007` stays `007`.
"""

import hashlib
import re
from collections.abc import Sequence
from urllib.parse import unquote

from hltm_spark.core.errors import DataError

SEPARATOR = "/"
_UNSAFE = re.compile(r"[%/\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ESCAPE = re.compile(r"%(?![0-9A-F]{2})")


def encode_key(key: str) -> str:
    """Return one key as a path segment.

    Raises:
        DataError: The key is empty.
    """
    if not key:
        raise DataError("a key must not be empty, got ''; give every level a key or leave it null")
    if key in {".", ".."}:
        return "%2E" * len(key)
    return _UNSAFE.sub(_percent, key)


def to_node_id(keys: Sequence[str]) -> str:
    """Return the node id of a path of keys, the tenant's key first."""
    if not keys:
        raise DataError("a node id needs at least the tenant's key, got no key")
    return SEPARATOR.join(encode_key(key) for key in keys)


def to_keys(node_id: str) -> tuple[str, ...]:
    """Return the keys of a node id.

    Raises:
        DataError: The string is not a node id as `to_node_id` writes it (empty segment, unencoded
            `.` or control character, or a stray `%`).
    """
    segments = node_id.split(SEPARATOR)
    keys = tuple(_decode(segment) for segment in segments)
    if any(not key for key in keys) or any(
        encode_key(key) != segment for key, segment in zip(keys, segments, strict=True)
    ):
        raise DataError(
            f"{node_id!r} is not a node id; join the encoded keys of every level with "
            f"{SEPARATOR!r}, or pass the keys as a tuple"
        )
    return keys


def parent_keys(keys: Sequence[str]) -> tuple[str, ...] | None:
    """Return the parent's keys, or None for a tenant."""
    return tuple(keys[:-1]) or None


def ancestors(keys: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the paths from the tenant down to the node itself."""
    return [tuple(keys[:length]) for length in range(1, len(keys) + 1)]


def salted_hash(value: str, *, salt: str) -> str:
    """Return the hash under which an id may appear in table statistics (design: `tenant_key`)."""
    return hashlib.sha256(f"{salt}\x00{value}".encode()).hexdigest()[:32]


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode())


def _decode(segment: str) -> str:
    if _ESCAPE.search(segment):
        return ""
    return unquote(segment, errors="strict") if _is_utf8(segment) else ""


def _is_utf8(segment: str) -> bool:
    try:
        unquote(segment, errors="strict")
    except UnicodeDecodeError:
        return False
    return True
