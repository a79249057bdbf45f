"""Writes one version of one tenant's shard from a stream of rows in tree order.

Memory is bounded by one batch of rows, two integers and the packed columns of every node, and the
evidence's dictionary; vectors go straight to their files, whose headers are patched at the end.
"""

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from hltm_spark.core import shard_files
from hltm_spark.core.config import Settings
from hltm_spark.core.errors import DataError
from hltm_spark.core.shard import FORMAT_VERSION, VIEWS, Manifest, file_entry
from hltm_spark.core.shard_files import ArrowFile, FlatIndexFile
from hltm_spark.core.shard_lexical import LexicalWriter
from hltm_spark.core.shard_previous import PreviousVersion
from hltm_spark.core.tree import to_node_id

_TEXTS = pa.list_(pa.string())
_ITEM = [("node", pa.int32()), ("has_vector", pa.bool_())]
_SCHEMAS = {
    "nodes": pa.schema(
        [
            ("node_id", pa.string()),
            ("level", pa.string()),
            ("depth", pa.int32()),
            ("status", pa.string()),
            ("latest_at", pa.string()),
            ("fingerprint", pa.string()),
            ("parent", pa.int32()),
            ("subtree_end", pa.int32()),
        ]
    ),
    "summaries": pa.schema(
        [*_ITEM, ("summary", pa.string()), ("one_sentence_summary", pa.string())]
    ),
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
}
_VIEW_OF_KIND = {
    "summary": "summaries",
    "facet": "facets",
    "question": "questions",
    "document": "evidence",
}
_ORDER = ("node", *_VIEW_OF_KIND)
_LEXICAL_COLUMNS = ["author", "text", "event_time"]


class ShardWriter:
    """One version being written into a folder of its own.

    Rows come sorted by (keys, kind, position), kinds in the order node, summary, facet, question,
    document; every node's row stands before its views. Nodes that stay as they are in the previous
    version come without views, by `add_unchanged`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tenant_id: str,
        embedding_model: str,
        dimension: int,
        settings: Settings,
        previous: PreviousVersion | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self._folder, self._tenant_id = folder, tenant_id
        self._model, self._dimension = embedding_model, dimension
        self._tables = {
            name: ArrowFile(folder / f"{name}.arrow", _SCHEMAS[name]) for name in ("nodes", *VIEWS)
        }
        self._vectors = {view: FlatIndexFile(folder / f"{view}.faiss", dimension) for view in VIEWS}
        self._tree = _Tree()
        self._lexical = LexicalWriter(folder) if settings.views.evidence.enabled else None
        self._kind = "node"
        self._previous, self._unchanged = previous, _Range()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files; without `close` before, there is no manifest and so no version."""
        for table in self._tables.values():
            table.release()
        for index in self._vectors.values():
            index.release()
        if self._lexical is not None:
            self._lexical.release()

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
        self._take_over()
        self._check_order(kind, keys)
        if kind == "node":
            self._tree.open(keys, body)
            return
        row = {"node": self._tree.row_of(keys), "has_vector": vector is not None, **body}
        view = _VIEW_OF_KIND[kind]
        if vector is not None:
            self._vectors[view].add(vector)
        if kind == "document":
            metadata = body.get("metadata") or {}
            row["metadata"] = json.dumps(metadata, sort_keys=True, ensure_ascii=False)
            if self._lexical is not None:
                self._lexical.add(row)
        self._tables[view].add(row)

    def add_unchanged(self, keys: tuple[str, ...], body: Mapping[str, Any]) -> None:
        """Add a node whose items stay as the previous version has them.

        Raises:
            DataError: The previous version has no such node, or the row is out of order.
        """
        if self._previous is None:
            raise DataError(f"there is no previous version to take {to_node_id(keys)!r} from")
        row = self._previous.row_of(to_node_id(keys), body["fingerprint"])
        if row != self._unchanged.end:
            self._take_over()
        self._tree.open(keys, body)
        self._kind = "node"
        if not self._unchanged.count:
            self._unchanged = _Range(self._tree.row_of(keys), row, row)
        self._unchanged.end = row + 1

    def _take_over(self) -> None:
        """Write the items of the unchanged nodes that were added last."""
        unchanged, self._unchanged = self._unchanged, _Range()
        if self._previous is None:
            return
        for begin in range(unchanged.begin, unchanged.end, shard_files.BATCH_ROWS):
            end = min(begin + shard_files.BATCH_ROWS, unchanged.end)
            row = unchanged.row + begin - unchanged.begin
            for view in VIEWS:
                items, vectors = self._previous.items(view, begin, end, row=row)
                self._vectors[view].add_rows(vectors)
                self._tables[view].add_table(items)
                if view == "evidence" and self._lexical is not None:
                    for document in items.select(_LEXICAL_COLUMNS).to_pylist():
                        self._lexical.add(document)

    def close(self) -> Manifest:
        """Write what is left, the manifest last, and return it."""
        self._take_over()
        for batch in self._tree.batches():
            self._tables["nodes"].add_table(pa.Table.from_batches([batch]))
        counts = {name: table.close() for name, table in self._tables.items()}
        vector_counts = {view: index.close() for view, index in self._vectors.items()}
        if self._lexical is not None:
            self._lexical.close()
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

    def _check_order(self, kind: str, keys: tuple[str, ...]) -> None:
        if kind not in _ORDER:
            raise DataError(f"row kind {kind!r} is unknown; kinds are {list(_ORDER)}")
        if kind != "node" and _ORDER.index(kind) < _ORDER.index(self._kind):
            raise DataError(f"a {kind} of {to_node_id(keys)!r} comes after a {self._kind}")
        self._kind = kind


@dataclass(slots=True)
class _Range:
    """Nodes of the previous version that stand one after the other in both.

    Attributes:
        row: Row of the first one in this version.
        begin: Row of the first one in the previous version.
        end: End of them in the previous version.
    """

    row: int = 0
    begin: int = 0
    end: int = 0

    @property
    def count(self) -> int:
        return self.end - self.begin


class _Tree:
    """Nodes in tree order; a subtree ends where the first row outside it begins."""

    def __init__(self) -> None:
        self._schema = pa.schema(list(_SCHEMAS["nodes"])[:-2])
        self._packed: list[pa.RecordBatch] = []
        self._rows: list[dict[str, Any]] = []
        self._parents, self._ends = array("i"), array("i")
        self._path: list[tuple[tuple[str, ...], int]] = []
        self._last: tuple[str, ...] = ()

    def open(self, keys: tuple[str, ...], body: Mapping[str, Any]) -> None:
        if self._parents and keys <= self._last:
            raise DataError(f"node {to_node_id(keys)!r} comes after {to_node_id(self._last)!r}")
        row = len(self._parents)
        self._close_until(keys, row)
        self._parents.append(self._path[-1][1] if self._path else -1)
        self._ends.append(-1)
        self._rows.append(
            {
                "node_id": to_node_id(keys),
                "level": body["level"],
                "depth": len(keys) - 1,
                "status": body.get("status") or "",
                "latest_at": body.get("latest_at") or "",
                "fingerprint": body.get("fingerprint") or "",
            }
        )
        if len(self._rows) == shard_files.BATCH_ROWS:
            self._pack()
        self._path.append((keys, row))
        self._last = keys

    def row_of(self, keys: tuple[str, ...]) -> int:
        if keys != self._last:
            raise DataError(f"a view of {to_node_id(keys)!r} does not follow its node")
        return len(self._parents) - 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all nodes, once, after the last."""
        self._close_until((), len(self._parents))
        self._pack()
        first = 0
        for packed in self._packed:
            end = first + packed.num_rows
            links = [pa.array(a[first:end], pa.int32()) for a in (self._parents, self._ends)]
            arrays = [*packed.columns, *links]
            yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMAS["nodes"])
            first = end

    def _pack(self) -> None:
        if self._rows:
            self._packed.append(pa.RecordBatch.from_pylist(self._rows, schema=self._schema))
            self._rows = []

    def _close_until(self, keys: tuple[str, ...], row: int) -> None:
        while self._path and (not keys or keys[: len(self._path[-1][0])] != self._path[-1][0]):
            _, closed = self._path.pop()
            self._ends[closed] = row
