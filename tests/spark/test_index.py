import shutil

import pytest

from hltm_spark.core.errors import DataError
from hltm_spark.pipeline.tables import DOCUMENTS, FAILURES, LLM_CALLS, MEMORY
from tests.builders import raw_document
from tests.spark.conftest import MakeMemory, Memory


def role(doc_id: str, project: str, **fields: str) -> dict[str, object]:
    lines = [f"{name.replace('_', ' ')}: {value}" for name, value in fields.items()]
    return raw_document(doc_id, project=project, text="\n".join(lines) or f"Note of {doc_id}.")


def test_documents_become_a_tree_with_views_on_every_level(memory: Memory) -> None:
    memory.ingest(
        role("d1", "p1", Location="Turku"),
        role("d2", "p2", Location="Turku"),
        raw_document("d3", project=None, text="Sponsorship: never for this seat."),
    )

    run = memory.run()

    nodes = memory.nodes()
    assert set(nodes) == {"acme", "acme/s1", "acme/s1/p1", "acme/s1/p2"}
    assert (run.nodes_touched, run.nodes_written, run.failed) == (4, 4, 0)
    assert all(row["status"] == "complete" for row in nodes.values())
    assert all(row["summary"] and row["one_sentence_summary"] for row in nodes.values())
    assert nodes["acme/s1"]["sources"] == ["acme/s1/p1", "acme/s1/p2", "d3"]
    assert [nodes[n]["depth"] for n in sorted(nodes)] == [0, 1, 2, 2]


@pytest.mark.soak
def test_a_citation_at_the_root_resolves_to_documents(memory: Memory) -> None:
    memory.ingest(role("d1", "p1", Location="Turku"), role("d2", "p2", Location="Turku"))
    memory.run()

    facets = [f for f in memory.nodes()["acme"]["facets"] if f["value"] == "Turku"]

    assert [f["documents"] for f in facets] == [["d1", "d2"]]
    assert (facets[0]["support"], facets[0]["total"]) == (2, 2)


def test_a_second_run_over_unchanged_documents_calls_nothing_and_writes_no_row(
    memory: Memory,
) -> None:
    memory.ingest(role("d1", "p1", Location="Turku"))
    memory.run()
    version = MEMORY.version(memory.root.path)

    for kind in ("index", "update"):
        run = memory.run(kind)
        assert (run.calls, run.nodes_touched, run.nodes_written) == (0, 0, 0)
    assert MEMORY.version(memory.root.path) == version


def test_an_update_writes_only_the_changed_leaf_and_its_ancestors(memory: Memory) -> None:
    memory.ingest(
        role("d1", "p1", Location="Turku"),
        role("d2", "p2", Location="Oulu"),
        raw_document("d3", seat="s2", project="p3", text="Location: Espoo"),
    )
    memory.run()

    memory.ingest(role("d1", "p1", Location="Tampere"))
    run = memory.run("update")

    rewritten = {n for n, row in memory.nodes().items() if row["run_id"] == run.run_id}
    assert rewritten == {"acme/s1/p1", "acme/s1", "acme"}
    assert run.nodes_touched == 3


@pytest.mark.soak
def test_a_leaf_whose_views_came_out_the_same_stops_there(memory: Memory) -> None:
    memory.ingest(role("d1", "p1", Location="Turku"))
    memory.run()

    memory.ingest({**role("d1", "p1", Location="Turku"), "text": "Location: Turku\n\n"})
    run = memory.run("update")

    assert run.nodes_touched == 1


@pytest.mark.soak
def test_a_moved_document_leaves_its_old_leaf(memory: Memory) -> None:
    memory.ingest(role("d1", "p1", Location="Turku"), role("d2", "p2", Location="Oulu"))
    memory.run()

    memory.ingest(role("d1", "p9", Location="Turku"))
    run = memory.run("update")

    assert set(memory.nodes()) == {"acme", "acme/s1", "acme/s1/p2", "acme/s1/p9"}
    assert run.nodes_removed == 1


def test_a_deletion_reaches_every_ancestor_and_empties_the_tree(memory: Memory) -> None:
    memory.ingest(role("d1", "p1", Location="Reykjavik"), role("d2", "p2", Location="Oulu"))
    memory.run()

    memory.ingest({"contract": "acme", "doc_id": "d1", "op": "delete"})
    memory.run("update")
    assert "Reykjavik" not in str(memory.content())
    assert "p1" not in str(memory.content())

    memory.ingest({"contract": "acme", "doc_id": "d2", "op": "delete"})
    run = memory.run("update")
    assert memory.nodes() == {}
    assert run.nodes_removed == 3


@pytest.mark.soak
def test_updates_in_any_order_equal_a_rebuild(memory: Memory, make_memory: MakeMemory) -> None:
    memory.ingest(*(role(f"d{n}", f"p{n % 3}", Location=f"City {n % 2}") for n in range(9)))
    memory.run()
    memory.ingest(role("d1", "p1", Location="Elsewhere"), role("d2", "p9", Location="City 1"))
    memory.run("update")
    memory.ingest({"contract": "acme", "doc_id": "d4", "op": "delete"})
    memory.ingest(role("d4", "p0", Location="City 0"))
    memory.run("update")

    rebuilt = make_memory(like=memory)
    snapshot = memory.read(DOCUMENTS)
    DOCUMENTS.append(snapshot, rebuilt.root.path)
    rebuilt.run()

    assert rebuilt.content() == memory.content()


def test_two_tenants_with_equal_keys_stay_apart(memory: Memory) -> None:
    same = {"seat": "s1", "project": "p1"}
    memory.ingest(
        raw_document("d1", **same, text="Location: Akaa"),
        raw_document("d1", contract="globex", **same, text="Location: Boden"),
    )
    memory.run()
    before = memory.nodes()["globex/s1/p1"]

    memory.ingest(raw_document("d1", **same, text="Location: Akureyri"))
    memory.run("update")

    nodes = memory.nodes()
    assert len(nodes) == 6
    assert nodes["globex/s1/p1"] == before
    assert "Boden" not in str([row for n, row in nodes.items() if n.startswith("acme")])
    calls = memory.read(LLM_CALLS).where("tenant_id = 'globex'").collect()
    assert all("Ak" not in row["response"] for row in calls)


def test_odd_keys_keep_their_place_in_the_tree(memory: Memory) -> None:
    keys = ["007", "7", "a/b", "é", "e\u0301", "😀", "..", "100%"]
    memory.ingest(*(raw_document(f"d{i}", project=key) for i, key in enumerate(keys)))

    memory.run()

    leaves = {row["keys"][-1] for row in memory.nodes().values() if row["depth"] == 2}
    assert leaves == set(keys)


@pytest.mark.parametrize("count", [1, 5])
def test_a_tree_may_have_one_level_or_five(make_memory: MakeMemory, count: int) -> None:
    levels = ["l1", "l2", "l3", "l4", "l5"][:count]
    memory = make_memory(levels)
    rows = [
        {**dict.fromkeys(levels, "k"), "doc_id": f"d{n}", "text": "Location: Turku"}
        for n in range(2)
    ]
    memory.ingest(*rows)

    run = memory.run()

    assert run.nodes_written == count
    assert memory.nodes()["/".join("k" * count)]["sources"] == ["d0", "d1"]


@pytest.mark.soak
def test_a_wide_parent_counts_every_child(memory: Memory) -> None:
    memory.ingest(*(role(f"d{n}", f"p{n:04}", Location="Turku") for n in range(400)))

    memory.run()

    seat = memory.nodes()["acme/s1"]
    assert len(seat["sources"]) == 400
    assert [f["support"] for f in seat["facets"] if f["value"] == "Turku"] == [400]


def test_an_empty_input_makes_an_empty_tree(memory: Memory) -> None:
    memory.ingest()

    run = memory.run(is_publishing=True)

    assert (run.status, run.documents, run.nodes_written) == ("done", 0, 0)


@pytest.mark.soak
def test_both_layouts_write_the_same_tree_shape(make_memory: MakeMemory) -> None:
    runs = {}
    for layout in ("fused", "separate"):
        memory = make_memory(views={"layout": layout})
        memory.ingest(role("d1", "p1", Location="Turku"))
        runs[layout] = memory.run()
        assert all(row["one_sentence_summary"] for row in memory.nodes().values())

    assert runs["fused"].calls == 3
    assert runs["separate"].calls == 12


@pytest.mark.soak
def test_a_recreated_documents_table_stops_the_update_with_a_remedy(memory: Memory) -> None:
    memory.ingest(role("d1", "p1"))
    memory.run()
    memory.spark.sql(f"DROP TABLE {DOCUMENTS.sql_name(memory.root.path)}")
    shutil.rmtree(DOCUMENTS.path(memory.root.path), ignore_errors=True)
    memory.ingest(role("d1", "p1"))

    with pytest.raises(DataError, match="hltm index"):
        memory.run("update")
    assert memory.run("index").status == "done"


@pytest.mark.soak
def test_nothing_is_left_in_staging_and_journal(memory: Memory) -> None:
    memory.ingest(role("d1", "p1"))
    memory.run()

    assert not list(memory.root.folder("staging").rglob("*.parquet"))
    assert not list(memory.root.journal().rglob("*.jsonl"))
    assert memory.read(FAILURES).count() == 0
