"""Lexical index of the evidence: which terms a document has, and how often.

Only a document's own counts are stored. What neighbours and the node add to a document, and every
statistic (document frequency, lengths), is the reader's: it depends on the scope and on weights.
"""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hltm_spark.core.text import date_words, to_terms

TERMS = pa.schema([("term", pa.string()), ("end", pa.int64())])
"""One row a term, in order of first appearance: where its postings end."""
POSTINGS = pa.schema([("row", pa.int32()), ("count", pa.int32())])
"""One row a (term, document), sorted by both: evidence row, and how often the term stands in it."""

Ints = npt.NDArray[np.int32]
_CHUNK = 1 << 18
_BATCH = 1 << 16


class LexicalWriter:
    """Takes documents in row order; postings wait in a scratch file, the dictionary in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids: dict[str, int] = {}
        self._waiting: list[tuple[int, int, int]] = []
        self._scratch = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # open as long as this is
        self._documents = 0

    def add(self, document: Mapping[str, Any]) -> None:
        """Take the next document: author, text, and day in words are its terms."""
        said = f"{document.get('author') or ''} {document.get('text') or ''}"
        day = _day(document.get("event_time") or "")
        for term, count in Counter(to_terms(f"{said} {day}")).items():
            term_id = self._ids.setdefault(term, len(self._ids))
            self._waiting.append((term_id, self._documents, count))
        self._documents += 1
        if len(self._waiting) >= _CHUNK:
            self._spill()

    def close(self) -> None:
        """Write terms.arrow and postings.arrow."""
        self._spill()
        sizes = self._sizes()
        ends = np.cumsum(sizes)
        terms = pa.table([pa.array(list(self._ids), pa.string()), pa.array(ends)], schema=TERMS)
        _write(self._folder / "terms.arrow", [terms])
        with tempfile.TemporaryFile(dir=self._folder) as sorted_file:
            columns = self._sort(ends - sizes, total=int(sizes.sum()), file=sorted_file)
            starts = range(0, columns.shape[1], _BATCH)
            batches = (_to_table(columns[:, start : start + _BATCH]) for start in starts)
            _write(self._folder / "postings.arrow", batches)
        self.release()

    def release(self) -> None:
        """Drop the scratch file."""
        self._scratch.close()

    def _spill(self) -> None:
        np.asarray(self._waiting, np.int32).tofile(self._scratch)
        self._waiting = []

    def _chunks(self) -> Iterator[Ints]:
        self._scratch.seek(0)
        while len(chunk := np.fromfile(self._scratch, np.int32, 3 * _CHUNK)):
            yield chunk.reshape(-1, 3)

    def _sizes(self) -> npt.NDArray[np.int64]:
        """Return the number of postings of every term."""
        sizes = np.zeros(len(self._ids), np.int64)
        for chunk in self._chunks():
            sizes += np.bincount(chunk[:, 0], minlength=len(sizes))
        return sizes

    def _sort(self, starts: npt.NDArray[np.int64], *, total: int, file: Any) -> Ints:
        """Return rows and counts by (term, row), shape (2, total): a counting sort in chunks."""
        if not total:
            return np.zeros((2, 0), np.int32)
        columns: Ints = np.memmap(file, np.int32, "w+", shape=(2, total))
        place = starts.copy()
        for chunk in self._chunks():
            ordered = chunk[np.argsort(chunk[:, 0], kind="stable")]
            terms, first, sizes = np.unique(ordered[:, 0], return_index=True, return_counts=True)
            at = np.arange(len(ordered)) + np.repeat(place[terms] - first, sizes)
            columns[:, at] = ordered[:, 1:].T
            place[terms] += sizes
        return columns


def _day(event_time: str) -> str:
    """Return `8 May 2023 Monday`; empty where there is no time."""
    words = date_words(event_time)
    return f"{words} {datetime.fromisoformat(event_time):%A}" if words else ""


def _to_table(columns: Ints) -> pa.Table:
    return pa.table([pa.array(np.ascontiguousarray(c)) for c in columns], schema=POSTINGS)


def _write(file: Path, tables: Iterable[pa.Table]) -> None:
    schema = TERMS if file.name == "terms.arrow" else POSTINGS
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for table in tables:
            writer.write_table(table)
