"""Writes one version of one tenant's shard from a stream of rows in tree order.

Memory is bounded by one batch of rows, the open path of the tree, one node's documents and the
postings of the evidence; vectors go straight to their files, whose headers are patched at the end.
"""

import json
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from hltm_spark.core.config import Settings
from hltm_spark.core.errors import DataError
from hltm_spark.core.shard import FORMAT_VERSION, VIEWS, Manifest, file_entry
from hltm_spark.core.text import date_words, to_terms
from hltm_spark.core.tree import to_node_id

BATCH_ROWS = 1024
_TEXTS = pa.list_(pa.string())
_ITEM = [("node", pa.int32()), ("has_vector", pa.bool_())]
_SCHEMAS = {
    "nodes": pa.schema(
        [
            ("node_id", pa.string()),
            ("level", pa.string()),
            ("depth", pa.int32()),
            ("parent", pa.int32()),
            ("subtree_end", pa.int32()),
            ("status", pa.string()),
            ("latest_at", pa.string()),
        ]
    ),
    "summaries": pa.schema([*_ITEM, ("summary", pa.string()), ("one_sentence_summary", pa.string())]),
    "facets": pa.schema(
        [
            *_ITEM,
            ("name", pa.string()),
            ("value", pa.string()),
            ("sources", _TEXTS),
            ("documents", _TEXTS),
            ("support", pa.int32()),
            ("total", pa.int32()),
            ("latest_at", pa.string()),
        ]
    ),
    "questions": pa.schema(
        [
            *_ITEM,
            ("question", pa.string()),
            ("answer", pa.string()),
            ("sources", _TEXTS),
            ("documents", _TEXTS),
        ]
    ),
    "evidence": pa.schema(
        [
            *_ITEM,
            ("doc_id", pa.string()),
            ("kind", pa.string()),
            ("event_time", pa.string()),
            ("author", pa.string()),
            ("metadata", pa.string()),
            ("text", pa.string()),
        ]
    ),
    "terms": pa.schema([("term", pa.string()), ("end", pa.int64())]),
    "postings": pa.schema([("row", pa.int32()), ("weight", pa.float32())]),
}
_VIEW_OF_KIND = {"summary": "summaries", "facet": "facets", "question": "questions"}


class ShardWriter:
    """One version being written into a folder of its own.

    Rows come sorted by (keys, kind, position), kinds in the order node, summary, facet, question,
    document; every node's row stands before its views.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tenant_id: str,
        embedding_model: str,
        dimension: int,
        settings: Settings,
    ) -> None:
        folder.mkdir(parents=True)
        self._folder, self._tenant_id = folder, tenant_id
        self._model, self._dimension = embedding_model, dimension
        self._tables = {
            name: _Table(folder / f"{name}.arrow", _SCHEMAS[name]) for name in ("nodes", *VIEWS)
        }
        self._vectors = {
            view: _FlatIndex(folder / f"{view}.faiss", dimension) for view in VIEWS
        }
        self._tree = _Tree()
        self._lexical = _Lexical(window=settings.views.evidence.context_window)
        self._is_lexical = settings.views.evidence.enabled

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files; without `close` before, the folder holds no manifest and is no version."""
        for part in (*self._tables.values(), *self._vectors.values()):
            part.release()

    def add(
        self, kind: str, keys: tuple[str, ...], body: Mapping[str, Any], vector: bytes | None
    ) -> None:
        """Add one row.

        Args:
            kind: node, summary, facet, question or document.
            keys: Keys of the node that the row belongs to.
            body: The row's columns.
            vector: Little-endian float32 of unit length, or None for an item without one.

        Raises:
            DataError: A row is out of order, or a vector cannot be stored.
        """
        if kind == "node":
            self._tree.open(keys, body)
            return
        row = {"node": self._tree.row_of(keys), "has_vector": vector is not None, **body}
        if kind == "document":
            row["metadata"] = json.dumps(body.get("metadata") or {}, sort_keys=True, ensure_ascii=False)
            if self._is_lexical:
                self._lexical.add(row)
        view = _VIEW_OF_KIND.get(kind, "evidence")
        self._tables[view].add(row)
        if vector is not None:
            self._vectors[view].add(vector)

    def close(self) -> Manifest:
        """Write what is left, the manifest last, and return it."""
        for row in self._tree.rows():
            self._tables["nodes"].add(row)
        counts = {name: table.close() for name, table in self._tables.items()}
        vector_counts = {view: index.close() for view, index in self._vectors.items()}
        if self._is_lexical:
            self._lexical.write(self._folder)
        files = {f.name: file_entry(f) for f in sorted(self._folder.iterdir())}
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            tenant_id=self._tenant_id,
            embedding_model=self._model,
            dimension=self._dimension,
            counts=counts,
            vector_counts=vector_counts,
            files=files,
        )
        manifest.write(self._folder)
        return manifest


class _Table:
    """An Arrow file written in batches of a fixed size."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = pa.OSFile(str(file), "wb")
        self._writer = pa.ipc.new_file(self._file, schema)
        self._rows: list[Mapping[str, Any]] = []
        self._count = 0

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        self._count += 1
        if len(self._rows) == BATCH_ROWS:
            self._flush()

    def close(self) -> int:
        self._flush()
        self._writer.close()
        self._file.close()
        return self._count

    def release(self) -> None:
        self._file.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_batch(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
            self._rows = []


class _FlatIndex:
    """A FAISS flat inner-product file: 45 bytes of header, then rows; the count comes last."""

    def __init__(self, file: Path, dimension: int) -> None:
        self._dimension, self._count = dimension, 0
        self._file = file.open("wb")
        self._file.write(self._header())

    def add(self, vector: bytes) -> None:
        values = np.frombuffer(vector, "<f4")
        norm = float(np.linalg.norm(values))
        if values.shape != (self._dimension,) or not abs(norm - 1.0) < 1e-3:
            raise DataError(
                f"vector has shape {values.shape} and length {norm:.4f}; "
                f"a shard takes ({self._dimension},) of unit length"
            )
        self._file.write(vector)
        self._count += 1

    def close(self) -> int:
        self._file.seek(0)
        self._file.write(self._header())
        self._file.close()
        return self._count

    def release(self) -> None:
        self._file.close()

    def _header(self) -> bytes:
        """Return the header as faiss.write_index writes it for an IndexFlatIP."""
        unused, is_trained, inner_product = 1 << 20, 1, 0
        return struct.pack(
            "<4siqqqbiQ",
            b"IxFI",
            self._dimension,
            self._count,
            unused,
            unused,
            is_trained,
            inner_product,
            self._count * self._dimension,
        )


class _Tree:
    """Nodes in tree order; a subtree ends where the first row outside it begins."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._path: list[tuple[tuple[str, ...], int]] = []
        self._last: tuple[str, ...] = ()

    def open(self, keys: tuple[str, ...], body: Mapping[str, Any]) -> None:
        if self._rows and keys <= self._last:
            raise DataError(f"node {to_node_id(keys)!r} comes after {to_node_id(self._last)!r}")
        row = len(self._rows)
        self._close_until(keys, row)
        parent = self._path[-1][1] if self._path else -1
        self._rows.append(
            {
                "node_id": to_node_id(keys),
                "level": body["level"],
                "depth": len(keys) - 1,
                "parent": parent,
                "subtree_end": -1,
                "status": body.get("status", ""),
                "latest_at": body.get("latest_at", ""),
            }
        )
        self._path.append((keys, row))
        self._last = keys

    def row_of(self, keys: tuple[str, ...]) -> int:
        if keys != self._last:
            raise DataError(f"a view of {to_node_id(keys)!r} does not follow its node")
        return len(self._rows) - 1

    def rows(self) -> list[dict[str, Any]]:
        self._close_until((), len(self._rows))
        return self._rows

    def _close_until(self, keys: tuple[str, ...], row: int) -> None:
        while self._path and (not keys or keys[: len(self._path[-1][0])] != self._path[-1][0]):
            _, closed = self._path.pop()
            self._rows[closed]["subtree_end"] = row


class _Lexical:
    """Postings of the evidence: a document's terms, and its neighbours' with decayed weights.

    Neighbours are documents of the same node, up to `window` places away, at half the weight for
    every place.
    """

    def __init__(self, *, window: int) -> None:
        self._window = window
        self._ids: dict[str, int] = {}
        self._node = -1
        self._buffer: list[Counter[str]] = []
        self._count = 0
        self._postings: list[tuple[list[int], list[int], list[float]]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Take one document; its postings are written when its node is complete."""
        if row["node"] != self._node:
            self._flush()
            self._node = row["node"]
        shown = f"{row.get('author') or ''} {row.get('text') or ''}"
        self._buffer.append(Counter(to_terms(f"{shown} {date_words(row['event_time'])}")))

    def write(self, folder: Path) -> None:
        """Write terms and postings, sorted by (term, row)."""
        self._flush()
        parts = self._postings or [([], [], [])]
        terms, rows = (np.concatenate([np.asarray(p[i], np.int32) for p in parts]) for i in (0, 1))
        weights = np.concatenate([np.asarray(p[2], np.float32) for p in parts])
        order = np.argsort(terms, kind="stable")
        ends = np.cumsum(np.bincount(terms, minlength=len(self._ids)))
        _write(folder / "terms.arrow", _SCHEMAS["terms"], [list(self._ids), ends])
        _write(folder / "postings.arrow", _SCHEMAS["postings"], [rows[order], weights[order]])

    def _flush(self) -> None:
        documents = self._buffer
        for position, own in enumerate(documents):
            weights: dict[str, float] = {}
            low, high = max(0, position - self._window), position + self._window + 1
            for near in range(low, min(high, len(documents))):
                factor = 0.5 ** abs(near - position)
                for term, count in documents[near].items():
                    weights[term] = weights.get(term, 0.0) + factor * count
            for term in own:
                self._ids.setdefault(term, len(self._ids))
            self._add_postings(weights, row=self._count + position)
        self._count += len(documents)
        self._buffer = []

    def _add_postings(self, weights: Mapping[str, float], *, row: int) -> None:
        ids = [self._ids.setdefault(term, len(self._ids)) for term in weights]
        self._postings.append((ids, [row] * len(ids), list(weights.values())))


def _write(file: Path, schema: pa.Schema, columns: list[Any]) -> None:
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.table(arrays, schema=schema), max_chunksize=1 << 20)
