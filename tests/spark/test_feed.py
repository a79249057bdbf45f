"""The edges of the change feed: nothing new, nothing readable, a table that was widened."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hltm_spark.core.errors import DataError
from hltm_spark.pipeline.index import publish_only
from hltm_spark.pipeline.root import open_root
from hltm_spark.pipeline.runs import Cursor, read_cursor
from hltm_spark.pipeline.tables import DOCUMENTS, LLM_CALLS, MEMORY, PUBLISHED, RUNS
from tests.builders import raw_document
from tests.spark.conftest import Memory

UNCHECKED = "spark.databricks.delta.retentionDurationCheck.enabled"


def leaf(number: int, city: str) -> dict[str, object]:
    return raw_document(f"d{number}", project=f"p{number}", text=f"Location: {city}")


def cursor(memory: Memory) -> Cursor:
    found = read_cursor(RUNS.files(memory.root.path))
    assert found is not None
    return found


def cities(memory: Memory) -> dict[str, str]:
    """Return the location of every leaf."""
    leaves = {node: row for node, row in memory.nodes().items() if row["depth"] == 2}
    return {
        node: facet["value"]
        for node, row in leaves.items()
        for facet in row["facets"]
        if facet["name"] == "location"
    }


def documents_sql(memory: Memory, statement: str) -> None:
    memory.spark.sql(statement.format(DOCUMENTS.sql_name(memory.root.path)))


def vacuum(memory: Memory) -> None:
    memory.spark.conf.set(UNCHECKED, "false")
    try:
        documents_sql(memory, "VACUUM {} RETAIN 0 HOURS")
    finally:
        memory.spark.conf.unset(UNCHECKED)


def switch_off(memory: Memory) -> None:
    documents_sql(memory, "ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")


def expire_log(memory: Memory) -> None:
    """Leave what Delta's log retention leaves before a checkpoint: nothing."""
    documents_sql(memory, "ALTER TABLE {} SET TBLPROPERTIES (note = 'one more commit')")
    spark, path = memory.spark, DOCUMENTS.path(memory.root.path)
    delta = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    delta.checkpoint()
    *expired, _ = sorted(Path(path, "_delta_log").glob("*.json"))
    for file in expired:
        file.unlink()


def switch_on(memory: Memory) -> None:
    documents_sql(memory, "ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")


def test_an_update_without_a_commit_since_the_last_run_changes_no_table(memory: Memory) -> None:
    memory.ingest(leaf(1, "Turku"))
    memory.run(is_publishing=True)
    tables = (DOCUMENTS, MEMORY, LLM_CALLS, PUBLISHED)
    before = {table.name: table.version(memory.root.path) for table in tables}

    memory.ingest(leaf(1, "Turku"))
    run = memory.run("update", is_publishing=True)

    assert (run.status, run.calls, run.cached, run.nodes_touched) == ("done", 0, 0, 0)
    assert {table.name: table.version(memory.root.path) for table in tables} == before


def stop_and_heal(memory: Memory, harm: Callable[[Memory], None]) -> None:
    """Have an update stop over a harmed feed, changing nothing, and `index` do its work."""
    memory.ingest(leaf(1, "Turku"), leaf(2, "Oulu"), leaf(3, "Espoo"))
    memory.run()
    before, nodes = cursor(memory), memory.content()

    memory.ingest(leaf(1, "Tampere"), {"contract": "acme", "doc_id": "d3", "op": "delete"})
    harm(memory)
    with pytest.raises(DataError, match="run `hltm index`") as caught:
        memory.run("update")

    assert ("enableChangeDataFeed = true" in str(caught.value)) == (harm is switch_off)
    assert (cursor(memory), memory.content()) == (before, nodes)
    assert memory.run("index").status == "done"
    assert cities(memory) == {"acme/s1/p1": "Tampere", "acme/s1/p2": "Oulu"}


def test_a_vacuumed_feed_stops_the_update_and_index_heals_it(memory: Memory) -> None:
    stop_and_heal(memory, vacuum)


@pytest.mark.soak
def test_a_feed_that_was_off_stops_the_update_and_index_heals_it(memory: Memory) -> None:
    stop_and_heal(memory, switch_off)

    switch_on(memory)
    memory.ingest(leaf(2, "Vaasa"))
    run = memory.run("update")

    assert run.nodes_touched == 3
    assert cities(memory) == {"acme/s1/p1": "Tampere", "acme/s1/p2": "Vaasa"}


def test_an_expired_log_stops_the_update_and_index_heals_it(memory: Memory) -> None:
    stop_and_heal(memory, expire_log)


def test_a_renamed_table_stops_the_update_and_a_renamed_root_does_not(memory: Memory) -> None:
    memory.ingest(leaf(1, "Turku"), leaf(2, "Oulu"))
    memory.run()
    before, nodes = cursor(memory), memory.content()
    memory.ingest(leaf(1, "Tampere"))
    table = Path(DOCUMENTS.path(memory.root.path))
    table.rename(table.with_name("documents_2026"))

    for kind in ("update", "index"):
        with pytest.raises(DataError, match=r"the documents table that .* is gone .* put it back"):
            memory.run(kind)

    assert (cursor(memory), memory.content()) == (before, nodes)
    table.with_name("documents_2026").rename(table)
    root = Path(memory.root.path)
    memory.root = open_root(str(root.rename(root.with_name("moved"))))
    run = memory.run("update")
    assert (run.status, run.nodes_touched) == ("done", 3)
    assert cities(memory) == {"acme/s1/p1": "Tampere", "acme/s1/p2": "Oulu"}


def test_a_lost_memory_table_is_written_again_and_nothing_is_published_from_an_empty_one(
    memory: Memory,
) -> None:
    memory.ingest(leaf(1, "Turku"), leaf(2, "Oulu"))
    calls = memory.run(is_publishing=True).calls
    nodes = memory.content()
    shutil.rmtree(MEMORY.path(memory.root.path))

    with pytest.raises(DataError, match=r"not the one that the last run wrote .* put that table"):
        publish_only(memory.spark, memory.settings, memory.root)
    run = memory.run("update", is_publishing=True)

    assert (run.status, run.nodes_written, run.calls, run.cached) == ("done", 4, 0, calls)
    assert memory.content() == nodes
    assert publish_only(memory.spark, memory.settings, memory.root).tenants_published == 0


@pytest.mark.soak
def test_a_column_added_from_outside_does_not_break_updates(memory: Memory) -> None:
    memory.ingest(leaf(1, "Turku"), leaf(2, "Oulu"))
    memory.run()

    documents_sql(memory, "ALTER TABLE {} ADD COLUMNS (reviewed_by STRING)")
    documents_sql(memory, "UPDATE {} SET reviewed_by = 'someone' WHERE doc_id = 'd2'")
    memory.ingest(leaf(1, "Tampere"), leaf(3, "Espoo"))
    run = memory.run("update")

    assert (run.status, run.nodes_touched) == ("done", 4)
    assert cities(memory) == {
        "acme/s1/p1": "Tampere",
        "acme/s1/p2": "Oulu",
        "acme/s1/p3": "Espoo",
    }
    kept = memory.read(DOCUMENTS).where("reviewed_by IS NOT NULL").collect()
    assert [row["doc_id"] for row in kept] == ["d2"]
