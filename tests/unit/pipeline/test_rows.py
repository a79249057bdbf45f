import json
import re
from typing import Any

import pytest

from hltm_spark.pipeline.rows import to_document
from tests.builders import raw_document, settings


def checked(**fields: Any) -> dict[str, Any]:
    return to_document(json.dumps(raw_document(**fields)), settings(), salt="s")


def test_a_good_row_becomes_a_document() -> None:
    row = checked(
        project="007", event_time="2026-03-04T10:00:00+02:00", metadata={"author": "Aino"}
    )

    assert row["node_id"] == "acme/s1/007"
    assert row["keys"] == ["acme", "s1", "007"]
    assert row["event_time"].isoformat() == "2026-03-04T08:00:00+00:00"
    assert (row["op"], row["author"]) == ("upsert", "Aino")
    assert "reason" not in row


@pytest.mark.parametrize(
    "project", ["007", "7", "7.0", " 7", "a/b", "é", "e\u0301", "😀", "9007199254740993"]
)
def test_keys_stay_as_they_are(project: str) -> None:
    assert checked(project=project)["keys"][-1] == project


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"project": 7}, "project must be text, got int 7"),
        ({"project": True}, "project must be text, got bool"),
        ({"project": ""}, "project is empty"),
        ({"seat": None}, "seat is null but a level below it is not"),
        ({"contract": None}, "contract is null; every document needs its tenant"),
        ({"doc_id": None}, "doc_id is missing; every row needs it"),
        ({"doc_id": " "}, "doc_id is empty"),
        ({"text": "\n "}, "text is empty"),
        ({"text": ["x"]}, "text must be text, got list"),
        ({"event_time": "yesterday"}, "event_time must be ISO 8601"),
        ({"event_time": 1700000000}, "event_time must be ISO 8601 text, got int"),
        ({"op": "upsrt"}, "op must be 'upsert', 'delete' or null"),
        ({"metadata": {"a": {"b": 1}}}, r"metadata\.a must be text"),
        ({"metadata": "x"}, "metadata is text that is not a JSON object"),
        ({"text": "\ud83d"}, "half a surrogate pair"),
    ],
)
def test_a_bad_row_is_rejected_with_its_reason(fields: dict[str, Any], reason: str) -> None:
    row = checked(**fields)

    assert re.search(reason, row["reason"])
    assert row["raw"]


@pytest.mark.parametrize("raw", ["not json", "[1]", '"text"', "[" * 100_000, "{"])
def test_what_is_not_an_object_is_rejected(raw: str) -> None:
    assert "row is" in to_document(raw, settings(), salt="s")["reason"]


def test_a_reject_keeps_the_ids_that_it_had() -> None:
    row = checked(text="")

    assert (row["tenant_id"], row["doc_id"]) == ("acme", "d1")


def test_a_document_names_its_keys_as_far_down_as_it_belongs() -> None:
    assert checked(project=None)["node_id"] == "acme/s1"
    assert checked(project=None, seat=None)["node_id"] == "acme"


def test_a_delete_needs_only_tenant_and_document() -> None:
    row = to_document('{"contract": "acme", "doc_id": "d1", "op": "DELETE"}', settings(), salt="s")

    assert row["op"] == "delete"
    assert "reason" not in row


def test_the_content_hash_covers_what_a_node_is_written_from() -> None:
    base = checked()["content_hash"]

    assert checked()["content_hash"] == base
    for change in ({"text": "x"}, {"kind": "k"}, {"project": "p2"}, {"event_time": "2026-01-01"}):
        assert checked(**change)["content_hash"] != base
    assert checked(metadata={"a": "1", "b": "2"}) == checked(metadata={"b": "2", "a": "1"})


def test_a_rejected_rows_reason_holds_no_document_text() -> None:
    row = checked(text="SECRET", op="nonsense")

    assert "SECRET" not in row["reason"]
