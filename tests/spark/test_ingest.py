import gzip
import json

import pytest
from pyspark.sql import SparkSession

from hltm_spark.core.errors import DataError
from hltm_spark.pipeline.ingest import ingest
from hltm_spark.pipeline.inputs import read_input, rows_of_frame
from hltm_spark.pipeline.tables import DOCUMENTS, REJECTS
from tests.builders import raw_document
from tests.spark.conftest import Memory

DELTA_COLUMNS = "contract string, doc_id string, text string"


def ids(memory: Memory) -> set[tuple[str, str]]:
    return {(row["tenant_id"], row["doc_id"]) for row in memory.read(DOCUMENTS).collect()}


def test_a_second_ingest_of_the_same_rows_writes_nothing(memory: Memory) -> None:
    rows = [raw_document("d1"), raw_document("d2", contract="globex")]

    first = memory.ingest(*rows)
    second = memory.ingest(*rows)

    assert (first.taken, first.added, first.rejected) == (2, 2, 0)
    assert (second.taken, second.unchanged, second.changed) == (2, 2, 0)
    assert second.version == first.version


def test_edits_deletes_and_moves_are_told_apart(memory: Memory) -> None:
    memory.ingest(raw_document("d1"), raw_document("d2"), raw_document("d3"))

    report = memory.ingest(
        raw_document("d1", text="new"),
        raw_document("d2", project="p2"),
        {"contract": "acme", "doc_id": "d3", "op": "delete", "seat": "elsewhere"},
        {"contract": "acme", "doc_id": "never there", "op": "delete"},
    )

    assert (report.changed, report.deleted, report.unchanged) == (2, 1, 1)
    assert ids(memory) == {("acme", "d1"), ("acme", "d2")}


def test_bad_rows_are_kept_with_their_reason_and_the_rest_goes_on(memory: Memory) -> None:
    rows = [raw_document("good"), raw_document("bad", project=7), "not json"]

    first = memory.ingest(*rows)
    memory.ingest(*rows)

    assert (first.taken, first.rejected) == (1, 2)
    reasons = {row["doc_id"]: row["reason"] for row in memory.read(REJECTS).collect()}
    assert reasons.keys() == {"bad", None}
    assert "project must be text" in reasons["bad"]
    assert memory.read(REJECTS).count() == 2


def test_rows_that_contradict_each_other_are_all_rejected(memory: Memory) -> None:
    report = memory.ingest(
        raw_document("d1", text="one"),
        raw_document("d1", text="other"),
        raw_document("d2"),
        raw_document("d2"),
    )

    assert (report.taken, report.added, report.rejected) == (2, 1, 2)
    assert ids(memory) == {("acme", "d2")}


def test_a_snapshot_deletes_what_a_present_tenant_no_longer_has(memory: Memory) -> None:
    memory.ingest(raw_document("d1"), raw_document("d2"), raw_document("d1", contract="globex"))

    report = memory.ingest(raw_document("d2"), mode="snapshot")

    assert (report.deleted, report.unchanged) == (1, 1)
    assert ids(memory) == {("acme", "d2"), ("globex", "d1")}


@pytest.mark.parametrize("bad", [json.dumps(raw_document("d1", text="")), "not json"])
def test_a_snapshot_with_a_rejected_row_deletes_nothing_that_it_may_mean(
    memory: Memory, bad: str
) -> None:
    memory.ingest(raw_document("d1"), raw_document("d2"))

    report = memory.ingest(raw_document("d2"), bad, mode="snapshot")

    assert report.deleted == 0
    assert ids(memory) == {("acme", "d1"), ("acme", "d2")}


def test_two_tenants_may_have_the_same_document_id(memory: Memory) -> None:
    memory.ingest(raw_document("d1"), raw_document("d1", contract="globex"))

    memory.ingest({"contract": "acme", "doc_id": "d1", "op": "delete"})

    assert ids(memory) == {("globex", "d1")}


def test_every_format_gives_the_same_documents(memory: Memory, spark: SparkSession) -> None:
    columns = ["contract", "seat", "project", "doc_id", "text", "event_time"]
    rows = [
        ("acme", "s1", "007", "d1", 'a "quoted"\nline', "2026-01-01"),
        ("acme", "s1", "a/b", "d2", "é 東京 😀", None),
        ("acme", "s1", None, "d3", "guideline", None),
    ]
    frame = spark.createDataFrame(rows, ", ".join(f"{c} string" for c in columns))
    folder = memory.scratch / "in"
    frame.write.parquet(str(folder / "parquet"))
    frame.write.format("delta").save(str(folder / "delta"))
    frame.coalesce(1).write.options(header=True, escape='"').csv(str(folder / "csv"))
    frame.write.json(str(folder / "json"))
    ingest(rows_of_frame(frame), memory.settings, memory.root)

    for name in ("parquet", "delta", "csv", "json"):
        report = ingest(read_input(spark, [str(folder / name)]), memory.settings, memory.root)
        assert (name, report.taken, report.unchanged) == (name, 3, 3)


def test_a_folder_of_everything_is_read_as_what_each_part_is(
    memory: Memory, spark: SparkSession
) -> None:
    folder = memory.scratch / "a [new] folder"
    (folder / "tables").mkdir(parents=True)
    (folder / "_staging").mkdir()
    table = folder / "tables" / "documents"
    frame = spark.createDataFrame([("acme", "d1", "old"), ("acme", "d2", "x")], DELTA_COLUMNS)
    frame.write.format("delta").save(str(table))
    spark.sql(f"DELETE FROM delta.`{table}` WHERE doc_id = 'd1'")  # its file is still there
    header = "contract,doc_id,text"
    (folder / "one.csv").write_text(f'{header}\nacme,d3,"a, b"\n', encoding="utf-8-sig")
    (folder / "two.csv").write_text("text,doc_id,contract\r\nc,d4,acme\r\n", encoding="utf-8")
    (folder / "empty.csv").write_text("", encoding="utf-8")
    (folder / "three.jsonl.gz").write_bytes(
        gzip.compress(b'{"contract": "acme", "doc_id": "d5", "text": "z"}\n')
    )
    (folder / "_staging" / "four.jsonl").write_text("not for reading", encoding="utf-8")

    report = ingest(read_input(spark, [str(folder)]), memory.settings, memory.root)

    assert (report.taken, report.rejected) == (4, 0)
    texts = {row["doc_id"]: row["text"] for row in memory.read(DOCUMENTS).collect()}
    assert texts == {"d2": "x", "d3": "a, b", "d4": "c", "d5": "z"}


def test_rows_that_cannot_be_read_as_meant_are_rejected_alone(
    memory: Memory, spark: SparkSession
) -> None:
    lines = [
        '{"contract": "acme", "doc_id": "d1", "text": "schön"}',
        json.dumps(raw_document("d2")),
    ]
    (memory.scratch / "latin.jsonl").write_bytes("\n".join(lines).encode("cp1252"))
    rows = ["contract,doc_id,text", "acme,d3,a, b", "acme,d4", "acme,d5,schön", "acme,d6,good"]
    (memory.scratch / "latin.csv").write_bytes("\n".join(rows).encode("cp1252"))
    files = [str(memory.scratch / name) for name in ("latin.jsonl", "latin.csv")]

    report = ingest(read_input(spark, files), memory.settings, memory.root)

    assert (report.taken, report.rejected) == (2, 4)
    assert ids(memory) == {("acme", "d2"), ("acme", "d6")}
    reasons = {row["doc_id"]: row["reason"] for row in memory.read(REJECTS).collect()}
    assert reasons["d1"].startswith("row is not UTF-8")
    assert reasons["d5"].startswith("row is not UTF-8")
    assert reasons["d3"] == reasons["d4"]
    assert reasons["d3"].startswith("row has another number of fields than the header")


def test_a_level_without_any_key_is_told(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    row = raw_document("d1")
    row["projekt"] = row.pop("project")

    memory.ingest(row)

    assert "no row has a value in column 'project'" in caplog.text


def test_typed_keys_are_never_turned_into_text(memory: Memory, spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("acme", 7, "d1", "x")], "contract string, seat int, doc_id string, text string"
    )

    report = ingest(rows_of_frame(frame), memory.settings, memory.root)

    assert (report.taken, report.rejected) == (0, 1)


def test_an_empty_file_is_no_input_row(memory: Memory) -> None:
    report = memory.ingest("", "  ")

    assert (report.taken, report.rejected, report.version) == (0, 0, 0)


def test_a_missing_path_is_named(spark: SparkSession) -> None:
    with pytest.raises(DataError, match=r"no such input: '/nowhere/x\.jsonl'"):
        read_input(spark, ["/nowhere/x.jsonl"])


def test_no_id_and_no_text_stands_in_the_transaction_log(memory: Memory) -> None:
    memory.ingest(raw_document("doc-canary", contract="tenant-canary", text="text-canary"))

    log = memory.root.folder("tables", "documents", "_delta_log")
    written = b"".join(file.read_bytes() for file in log.rglob("*") if file.is_file())
    assert b"canary" not in written
    assert b"tenant_key" in written
