"""Rows of data files that match, read without Spark."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hltm_spark.pipeline.files import read_rows, read_sizes

ROWS = [
    {"tenant_id": "acme", "node_id": "acme/é", "text": "Oulu"},
    {"tenant_id": "acme", "node_id": "acme/007", "text": "東京"},
    {"tenant_id": "globex", "node_id": "acme/007", "text": None},
]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two data files, one of them without tenant acme."""
    for number, rows in enumerate((ROWS[:2], ROWS[2:])):
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / f"{number}.parquet")
    return [str(tmp_path / f"{number}.parquet") for number in range(2)]


SCHEMA = pa.schema([(name, pa.string()) for name in ROWS[0]])


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"tenant_id": ["acme"]}, ROWS[:2]),
        ({"tenant_id": ["globex", "initech"]}, ROWS[2:]),
        ({"node_id": ["acme/007"]}, ROWS[1:]),
        ({"node_id": ["acme/007"], "tenant_id": ["acme"]}, ROWS[1:2]),
        ({"tenant_id": ["initech"]}, []),
        ({"tenant_id": []}, []),
    ],
)
def test_only_matching_rows_are_read(
    files: list[str], where: dict[str, list[str]], expected: list[dict[str, str]]
) -> None:
    assert read_rows(files, list(SCHEMA.names), where=where) == expected
    assert read_rows(files, ["text"], where=where) == [{"text": row["text"]} for row in expected]


def test_sizes_are_bytes_of_what_matches(files: list[str]) -> None:
    assert read_sizes(files, "text", where={"tenant_id": ["acme"]}) == 4 + 6
    assert read_sizes(files, "text", where={"tenant_id": ["initech"]}) == 0
    assert read_sizes([], "text", where={"tenant_id": ["acme"]}) == 0


def test_columns_that_a_later_file_has_more_are_read_too(files: list[str]) -> None:
    wider = pa.Table.from_pylist([{**ROWS[0], "note": "new"}])
    pq.write_table(wider, files[0])

    assert read_rows(files, ["note"], where={"tenant_id": ["acme"]}) == [{"note": "new"}]
