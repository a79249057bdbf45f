from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hltm_spark.core import shard_lexical
from hltm_spark.core.shard_lexical import LexicalWriter

DOCUMENTS: list[dict[str, str | None]] = [
    {"text": "Turku office, Turku harbour", "author": "Ada"},
    {"text": "", "author": None, "event_time": None},
    {"text": "harbour", "event_time": "2023-05-08T13:56:00Z"},
    {"author": "Ben"},
    {"text": "Turku", "event_time": "soon"},
]


def written(folder: Path) -> Path:
    folder.mkdir()
    writer = LexicalWriter(folder)
    for document in DOCUMENTS:
        writer.add(document)
    writer.close()
    return folder


def read(file: Path) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = pa.ipc.open_file(str(file)).read_all().to_pydict()
    return columns


def test_postings_are_sorted_by_term_and_row(tmp_path: Path) -> None:
    folder = written(tmp_path / "v")

    terms, postings = read(folder / "terms.arrow"), read(folder / "postings.arrow")
    starts = [0, *terms["end"][:-1]]
    found = {
        term: list(zip(postings["row"][low:high], postings["count"][low:high], strict=True))
        for term, low, high in zip(terms["term"], starts, terms["end"], strict=True)
    }
    assert found["turku"] == [(0, 2), (4, 1)]
    assert found["harbour"] == [(0, 1), (2, 1)]
    assert found["ada"] == [(0, 1)]
    assert found["ben"] == [(3, 1)]
    assert found["monday"] == found["2023"] == [(2, 1)]


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_bytes_do_not_depend_on_what_is_spilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    whole = written(tmp_path / "whole")
    monkeypatch.setattr(shard_lexical, "_CHUNK", chunk)

    spilled = written(tmp_path / "spilled")

    names = Counter(file.name for file in (*whole.iterdir(), *spilled.iterdir()))
    assert names == {"terms.arrow": 2, "postings.arrow": 2}
    for name in names:
        assert (whole / name).read_bytes() == (spilled / name).read_bytes()


def test_no_document_is_an_empty_index(tmp_path: Path) -> None:
    LexicalWriter(tmp_path).close()

    assert read(tmp_path / "postings.arrow") == {"row": [], "count": []}
