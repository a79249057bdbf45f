"""The two kinds of files in a shard, written row by row: Arrow tables and flat FAISS indexes."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hltm_spark.core.errors import DataError

BATCH_ROWS = 1024


class ArrowFile:
    """An Arrow file written in batches of a fixed size, wherever its rows come from."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        """Open the file."""
        self._schema = schema
        self._file = pa.OSFile(str(file), "wb")
        self._writer = pa.ipc.new_file(self._file, schema)
        self._rows: list[Mapping[str, Any]] = []
        self._parts: list[pa.Table] = []
        self._waiting = self._count = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        self._rows.append(row)
        self._waiting += 1
        if self._waiting >= BATCH_ROWS:
            self._flush()

    def add_table(self, table: pa.Table) -> None:
        """Take the rows of a table."""
        self._pack()
        self._parts.append(table)
        self._waiting += table.num_rows
        if self._waiting >= BATCH_ROWS:
            self._flush()

    def close(self) -> int:
        """Write what is left and return the number of rows."""
        self._flush(smallest=1)
        self._writer.close()
        self._file.close()
        return self._count

    def release(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def _pack(self) -> None:
        if self._rows:
            self._parts.append(pa.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []

    def _flush(self, smallest: int = BATCH_ROWS) -> None:
        """Write full batches; a shorter one where `smallest` allows it.

        Taking the rows copies them: a slice would bring along what stands behind it in its buffers.
        """
        self._pack()
        if not self._parts:
            return
        rows = pa.concat_tables(self._parts)
        while rows.num_rows >= smallest:
            batch = rows.slice(0, BATCH_ROWS).combine_chunks()
            copied = batch.take(np.arange(batch.num_rows)).combine_chunks()
            self._writer.write_batch(copied.to_batches()[0])
            rows = rows.slice(BATCH_ROWS)
            self._count += batch.num_rows
        self._parts = [rows] if rows.num_rows else []
        self._waiting = rows.num_rows


class FlatIndexFile:
    """A FAISS flat inner-product file: 45 bytes of header, then rows; the count comes last."""

    def __init__(self, file: Path, dimension: int) -> None:
        """Open the file."""
        self._dimension, self._count = dimension, 0
        self._file = file.open("wb")
        self._file.write(self._header())

    def add(self, vector: bytes) -> None:
        """Take one vector.

        Raises:
            DataError: It has another dimension, or is not of unit length.
        """
        values = np.frombuffer(vector, "<f4")
        norm = float(np.linalg.norm(values))
        if values.shape != (self._dimension,) or not abs(norm - 1.0) < 1e-3:
            raise DataError(
                f"vector has shape {values.shape} and length {norm:.4f}; "
                f"a shard takes ({self._dimension},) of unit length"
            )
        self.add_rows(vector)

    def add_rows(self, vectors: bytes) -> None:
        """Take vectors that were checked when they were first written."""
        self._file.write(vectors)
        self._count += len(vectors) // (4 * self._dimension)

    def close(self) -> int:
        """Write the header with the count, and return it."""
        self._file.seek(0)
        self._file.write(self._header())
        self._file.close()
        return self._count

    def release(self) -> None:
        """Close the file as it is."""
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
