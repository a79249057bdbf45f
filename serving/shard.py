"""One opened version of one tenant's shard: columns and vectors in memory, never changed.

Safe to share between threads. A query keeps the object that it began with, so it never sees two
versions.
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hltm_spark.core.errors import ScopeNotFound, ShardCorrupt
from hltm_spark.core.shard import (
    FAISS_HEADER_BYTES,
    VIEWS,
    Manifest,
    current_version,
    verify_shard,
)
from hltm_spark.core.tree import to_keys

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


class View:
    """Items of one view in tree order, with their vectors.

    Attributes:
        table: One row an item.
        node: Row of each item's node, ascending.
        vectors: Shape (vector count, dimension).
        vector_rows: Item row of each vector, ascending.
    """

    def __init__(self, table: pa.Table, vectors: Floats) -> None:
        self.table = table
        self.node: Rows = table.column("node").to_numpy().astype(np.int64)
        self.vectors = vectors
        self.vector_rows: Rows = np.flatnonzero(table.column("has_vector").to_numpy())

    def rows_of(self, first: int, end: int) -> tuple[int, int]:
        """Return the item rows that belong to the nodes [first, end)."""
        low, high = np.searchsorted(self.node, [first, end])
        return int(low), int(high)

    def scored(self, queries: Floats, low: int, high: int) -> tuple[Rows, Floats]:
        """Return item rows of [low, high) that have a vector, and their cosines.

        Args:
            queries: Shape (count, dimension), unit rows.
            low: First item row.
            high: End of the item rows.

        Returns:
            Rows, and cosines of shape (rows, count), clipped to [-1, 1].
        """
        begin, end = np.searchsorted(self.vector_rows, [low, high])
        cosines = self.vectors[begin:end] @ queries.T
        return self.vector_rows[begin:end], np.clip(cosines, -1.0, 1.0)

    def row(self, index: int) -> dict[str, Any]:
        """Return one item."""
        rows: list[dict[str, Any]] = self.table.slice(index, 1).to_pylist()
        return rows[0]

    def items(self, low: int, high: int) -> list[dict[str, Any]]:
        """Return the items [low, high)."""
        items: list[dict[str, Any]] = self.table.slice(low, high - low).to_pylist()
        return items


@dataclass(frozen=True)
class Postings:
    """Lexical index of the evidence, sorted by (term, row).

    Attributes:
        ids: Term id by term.
        ends: End of each term's postings.
        rows: Evidence row of each posting.
        weights: Weight of the term in the document, its neighbours' share included.
        lengths: Sum of weights of each document.
    """

    ids: dict[str, int]
    ends: Rows
    rows: Rows
    weights: Floats
    lengths: Floats


class Shard:
    """One version, opened and checked."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.version = folder.name
        self.manifest = manifest
        self._folder = folder
        nodes = _read_table(folder / "nodes.arrow")
        self.nodes = nodes
        self._node_ids = nodes.column("node_id")
        self.subtree_end: Rows = nodes.column("subtree_end").to_numpy().astype(np.int64)
        self.parent: Rows = nodes.column("parent").to_numpy().astype(np.int64)
        self._views = {
            view: View(
                _read_table(folder / f"{view}.arrow"),
                _read_vectors(folder / f"{view}.faiss", manifest.dimension),
            )
            for view in VIEWS
        }
        self._check_counts()
        # opened eagerly: after this the version's folder may be removed
        self.postings = self._read_postings()

    @classmethod
    def open(cls, tenant: Path, *, tenant_id: str) -> "Shard":
        """Open the version that CURRENT names.

        Raises:
            ShardNotFound: The tenant has no published version.
            ShardCorrupt: Files and manifest disagree.
        """
        folder = tenant / current_version(tenant)
        manifest = verify_shard(folder, full=True)
        if manifest.tenant_id != tenant_id:
            raise ShardCorrupt(f"{folder.name} is another tenant's shard; publish again")
        return cls(folder, manifest)

    def view(self, name: str) -> View:
        """Return a view: summaries, facets, questions or evidence."""
        return self._views[name]

    def node_id(self, row: int) -> str:
        """Return the id of a node."""
        return str(self._node_ids[row].as_py())

    def level(self, row: int) -> str:
        """Return the level of a node."""
        return str(self.nodes.column("level")[row].as_py())

    def find(self, keys: tuple[str, ...]) -> int:
        """Return the row of the node with these keys.

        Raises:
            ScopeNotFound: There is none.
        """
        row = bisect_left(range(self.nodes.num_rows), keys, key=self._keys)
        if row < self.nodes.num_rows and self._keys(row) == keys:
            return row
        raise ScopeNotFound("no memory at this scope; check the node id")

    def _keys(self, row: int) -> tuple[str, ...]:
        return to_keys(self.node_id(row))

    @cached_property
    def document_rows(self) -> dict[str, int]:
        """Evidence row by document id."""
        ids = self.view("evidence").table.column("doc_id").to_pylist()
        return {doc_id: row for row, doc_id in enumerate(ids)}

    def _check_counts(self) -> None:
        got = {"nodes": self.nodes.num_rows}
        got |= {name: view.table.num_rows for name, view in self._views.items()}
        vectors = {name: len(view.vectors) for name, view in self._views.items()}
        marked = {name: len(view.vector_rows) for name, view in self._views.items()}
        manifest = self.manifest
        if got != dict(manifest.counts) or not (vectors == marked == dict(manifest.vector_counts)):
            raise ShardCorrupt(
                f"row counts differ: manifest {dict(manifest.counts)}, files {got}, "
                f"vectors {vectors}; publish the tenant again"
            )

    def _read_postings(self) -> Postings | None:
        if "terms.arrow" not in self.manifest.files:
            return None
        terms = _read_table(self._folder / "terms.arrow")
        postings = _read_table(self._folder / "postings.arrow")
        rows = postings.column("row").to_numpy().astype(np.int64)
        weights = postings.column("weight").to_numpy()
        count = self.view("evidence").table.num_rows
        return Postings(
            ids={term: i for i, term in enumerate(terms.column("term").to_pylist())},
            ends=terms.column("end").to_numpy(),
            rows=rows,
            weights=weights,
            lengths=np.bincount(rows, weights, minlength=count).astype(np.float32),
        )


def _read_table(file: Path) -> pa.Table:
    try:
        with pa.OSFile(str(file), "rb") as source:
            return pa.ipc.open_file(source).read_all().combine_chunks()
    except (OSError, pa.ArrowInvalid) as error:
        raise ShardCorrupt(
            f"{file.parent.name}/{file.name} cannot be read ({type(error).__name__}); "
            "publish the tenant again"
        ) from None


def _read_vectors(file: Path, dimension: int) -> Floats:
    """Return the matrix of a flat index, copied: in the file it is not aligned."""
    values = np.fromfile(file, "<f4", offset=FAISS_HEADER_BYTES)
    if values.size % dimension:
        raise ShardCorrupt(f"{file.parent.name}/{file.name} is cut; publish the tenant again")
    return values.reshape(-1, dimension)
