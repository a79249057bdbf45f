"""Rows of the version that a tenant has now, for nodes whose part of the next one is the same.

An update changes few nodes of a shard. What the others have in the files is taken over as columns
and vectors, neither read from the tables nor made anew, and gives the same bytes.
"""

from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hltm_spark.core.errors import DataError, ShardCorrupt, ShardNotFound
from hltm_spark.core.shard import (
    FAISS_HEADER_BYTES,
    VIEWS,
    Manifest,
    current_version,
    tenant_folder,
    verify_shard,
)

Rows = npt.NDArray[np.int64]


class PreviousVersion:
    """One published version, mapped into memory.

    Attributes:
        fingerprints: Fingerprint of the rows of each node, by node id.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        nodes = _table(folder / "nodes.arrow")
        ids = nodes.column("node_id").to_pylist()
        prints = nodes.column("fingerprint").to_pylist()
        self.fingerprints: dict[str, str] = dict(zip(ids, prints, strict=True))
        self._row_of = {node_id: row for row, node_id in enumerate(ids)}
        self._views = {view: _View(folder, view, manifest.dimension) for view in VIEWS}

    @classmethod
    def open(cls, shards: Path, tenant_id: str, *, full: bool = True) -> Self | None:
        """Open what CURRENT names, or return None where nothing there can be trusted.

        Args:
            shards: Folder of the published shards.
            tenant_id: The tenant.
            full: Compare every file's sha256; else sizes only.
        """
        tenant = shards / tenant_folder(tenant_id)
        try:
            folder = tenant / current_version(tenant)
            manifest = verify_shard(folder, full=full)
        except (ShardNotFound, ShardCorrupt):
            return None
        return cls(folder, manifest) if manifest.tenant_id == tenant_id else None

    def row_of(self, node_id: str, fingerprint: str) -> int:
        """Return the row of a node that has this fingerprint.

        Raises:
            DataError: There is none, so that its items cannot be taken over.
        """
        if self.fingerprints.get(node_id) != fingerprint:
            raise DataError(f"the published version has no rows of {node_id!r} to take over")
        return self._row_of[node_id]

    def items(self, view: str, first: int, end: int, *, row: int) -> tuple[pa.Table, bytes]:
        """Return the items of the nodes [first, end), and their vectors one after the other.

        Args:
            view: One of `VIEWS`.
            first: First node.
            end: End of the nodes.
            row: What the first node is in the next version; column `node` counts from there.
        """
        return self._views[view].items(first, end, row=row)


class _View:
    def __init__(self, folder: Path, view: str, dimension: int) -> None:
        self._table = _table(folder / f"{view}.arrow")
        self._nodes: Rows = self._table.column("node").to_numpy().astype(np.int64)
        has_vector = self._table.column("has_vector").to_numpy()
        self._vectors_before: Rows = np.concatenate([[0], np.cumsum(has_vector, dtype=np.int64)])
        self._file, self._row_bytes = folder / f"{view}.faiss", 4 * dimension

    def items(self, first: int, end: int, *, row: int) -> tuple[pa.Table, bytes]:
        low, high = (int(row) for row in np.searchsorted(self._nodes, [first, end]))
        items = self._table.slice(low, high - low)
        node = pc.add(items.column("node"), pa.scalar(row - first, pa.int32()))
        before, upto = (int(self._vectors_before[item]) for item in (low, high))
        with self._file.open("rb") as file:
            file.seek(FAISS_HEADER_BYTES + before * self._row_bytes)
            vectors = file.read((upto - before) * self._row_bytes)
        return items.set_column(0, items.schema.field("node"), node), vectors


def _table(file: Path) -> pa.Table:
    with pa.memory_map(str(file)) as source:
        return pa.ipc.open_file(source).read_all()
