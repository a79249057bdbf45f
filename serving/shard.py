"""One opened version of one tenant's shard: columns and vectors in memory, never changed.

Safe to share between threads. A query keeps the object that it began with, so it never sees two
versions.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hltm_spark.core.errors import ScopeNotFound, ShardCorrupt, ShardNotFound
from hltm_spark.core.shard import (
    FAISS_HEADER_BYTES,
    VIEWS,
    Manifest,
    current_version,
    read_pointer,
    verify_shard,
)
from hltm_spark.core.tree import to_keys

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int64]

OPEN_TRIES = 10
"""Versions that may be published and removed while one tenant is being opened."""


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

    def take(self, rows: Sequence[int] | Rows) -> list[dict[str, Any]]:
        """Return the items of these rows, in their order."""
        items: list[dict[str, Any]] = self.table.take(pa.array(rows, pa.int64())).to_pylist()
        return items

    def items(self, low: int, high: int) -> list[dict[str, Any]]:
        """Return the items [low, high)."""
        items: list[dict[str, Any]] = self.table.slice(low, high - low).to_pylist()
        return items


@dataclass(frozen=True)
class Postings:
    """Own terms of the documents, sorted by (term, row).

    Attributes:
        ids: Term id by term.
        ends: End of each term's postings.
        rows: Evidence row of each posting.
        counts: How often the term stands in that document.
        lengths: Number of terms of each document.
    """

    ids: Mapping[str, int]
    ends: Rows
    rows: Ints
    counts: Ints
    lengths: Floats

    def of_term(self, term: str, low: int, high: int) -> tuple[Ints, Floats]:
        """Return the documents of [low, high) that hold a term, counted from low, and how often."""
        term_id = self.ids.get(term)
        if term_id is None:
            return self.rows[:0], self.lengths[:0]
        begin = int(self.ends[term_id - 1]) if term_id else 0
        rows = self.rows[begin : int(self.ends[term_id])]
        first, end = np.searchsorted(rows, [low, high])
        return rows[first:end] - low, self.counts[begin + first : begin + end].astype(np.float32)


class Shard:
    """One version, opened and checked; all of it is in memory, so its folder may be removed."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.version = folder.name
        self.manifest = manifest
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
        self.postings = self._read_postings(folder)

    @classmethod
    def open(cls, tenant: Path, *, tenant_id: str) -> "Shard":
        """Open the version that CURRENT names.

        A version that was switched away from and removed while it was being opened is no fault:
        the one that CURRENT names by then is opened instead.

        Raises:
            ShardNotFound: The tenant has no published version.
            ShardCorrupt: Files and manifest disagree.
        """
        tries = OPEN_TRIES
        while True:
            pointer, tries = read_pointer(tenant), tries - 1
            try:
                return cls._open_version(tenant / current_version(tenant), tenant_id=tenant_id)
            except (ShardCorrupt, ShardNotFound):
                if not tries or read_pointer(tenant) == pointer:
                    raise

    @classmethod
    def _open_version(cls, folder: Path, *, tenant_id: str) -> "Shard":
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
    def authors(self) -> tuple[list[str], Ints]:
        """Distinct authors of the evidence, and the position of each document's author in them."""
        codes = self.view("evidence").table.column("author").fill_null("").combine_chunks()
        encoded = codes.dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)

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

    def _read_postings(self, folder: Path) -> Postings | None:
        if "terms.arrow" not in self.manifest.files:
            return None
        terms = _read_table(folder / "terms.arrow")
        postings = _read_table(folder / "postings.arrow")
        rows, counts = postings.column("row").to_numpy(), postings.column("count").to_numpy()
        documents = self.view("evidence").table.num_rows
        return Postings(
            ids={term: i for i, term in enumerate(terms.column("term").to_pylist())},
            ends=terms.column("end").to_numpy(),
            rows=rows,
            counts=counts,
            lengths=np.bincount(rows, counts, minlength=documents).astype(np.float32),
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
