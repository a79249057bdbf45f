import shutil

import pytest

from hltm_spark.core.shard import current_version, tenant_folder
from hltm_spark.pipeline.due import Listing, tenant_states
from hltm_spark.pipeline.index import publish_only
from hltm_spark.pipeline.tables import DOCUMENTS, EMBEDDINGS, MEMORY
from serving import MemoryReader, ScopeNotFound, ShardCorrupt
from tests.builders import raw_document
from tests.spark.conftest import MakeMemory, Memory

ROWS = [
    raw_document("d1", text="Title: Welder\nLocation: Turku\nWork mode: hybrid"),
    raw_document("d2", project="a/b", text="Title: Fitter\nLocation: Turku"),
    raw_document("d1", contract="globex", text="Title: Baker\nLocation: Boden"),
]


def reader(memory: Memory) -> MemoryReader:
    return MemoryReader.open(memory.root.shards, settings=memory.settings)


def versions(memory: Memory) -> dict[str, str]:
    tenants = {t: memory.root.shards / tenant_folder(t) for t in ("acme", "globex")}
    return {t: current_version(folder) for t, folder in tenants.items() if folder.exists()}


def shard_bytes(memory: Memory) -> dict[str, bytes]:
    files = [f for f in memory.root.shards.rglob("*") if f.is_file()]
    kept = [f for f in files if f.name != "provenance.json"]
    return {str(f.relative_to(memory.root.shards)): f.read_bytes() for f in kept}


def test_the_reader_answers_from_what_the_pipeline_published(memory: Memory) -> None:
    memory.ingest(*ROWS)

    run = memory.run(is_publishing=True)

    assert run.tenants_published == 2
    scope = reader(memory).scope("acme/s1")
    answer = scope.answer("What is the location?")
    assert "Turku" in answer.answer
    assert set(answer.documents) <= {"d1", "d2"}
    assert scope.evidence(answer)[0].text.startswith("Title:")
    assert reader(memory).scope(("acme", "s1", "a/b")).show().views.one_sentence_summary
    assert "Boden" not in str(reader(memory).scope("acme").retrieve("location").hits)


def test_a_tenants_state_is_the_same_in_this_process_and_by_spark(memory: Memory) -> None:
    memory.ingest(*ROWS, raw_document("東京 %", contract="ö/ä", seat=None, project=None))
    memory.run()

    documents, stored = memory.read(DOCUMENTS), memory.read(MEMORY)
    by_spark = tenant_states(stored, documents, memory.settings).collect()
    listing = Listing(
        nodes=[row.asDict() for row in stored.collect()],
        documents=[row.asDict() for row in documents.collect()],
    )

    listed = {row["tenant_id"]: row for row in listing.states(memory.settings)}
    assert {row["tenant_id"]: row.asDict() for row in by_spark} == listed
    assert len({row["state"] for row in listed.values()}) == 3


@pytest.mark.soak
def test_only_a_tenant_that_changed_is_published_again(memory: Memory) -> None:
    memory.ingest(*ROWS)
    memory.run(is_publishing=True)
    before = versions(memory)

    memory.ingest({**ROWS[0], "text": "Title: Welder\nLocation: Oulu"})
    run = memory.run("update", is_publishing=True)

    after = versions(memory)
    assert run.tenants_published == 1
    assert after["acme"] != before["acme"]
    assert after["globex"] == before["globex"]


def test_a_run_that_died_before_publishing_leaves_nothing_stale(memory: Memory) -> None:
    memory.ingest(*ROWS)
    memory.run(is_publishing=False)

    run = publish_only(memory.spark, memory.settings, memory.root)

    assert run.tenants_published == 2
    assert reader(memory).scope("globex").show().document_count == 1
    assert publish_only(memory.spark, memory.settings, memory.root).tenants_published == 0


def test_a_damaged_shard_is_published_again(memory: Memory) -> None:
    memory.ingest(*ROWS)
    memory.run(is_publishing=True)
    before = shard_bytes(memory)
    acme, globex = (memory.root.shards / tenant_folder(t) for t in ("acme", "globex"))
    (acme / versions(memory)["acme"] / "facets.faiss").write_bytes(b"IxFI")
    shutil.rmtree(globex)
    with pytest.raises(ShardCorrupt, match="publish the tenant again"):
        reader(memory).scope("acme").retrieve("location")

    run = publish_only(memory.spark, memory.settings, memory.root)

    assert run.tenants_published == 2
    assert shard_bytes(memory) == before
    (acme / "CURRENT").write_text("gone\n", encoding="utf-8")
    with pytest.raises(ShardCorrupt, match="run `hltm publish`"):
        reader(memory).scope("acme").retrieve("location")
    assert publish_only(memory.spark, memory.settings, memory.root).tenants_published == 1
    assert shard_bytes(memory) == before


@pytest.mark.soak
def test_a_tenant_without_documents_loses_its_shard(memory: Memory) -> None:
    memory.ingest(*ROWS)
    memory.run(is_publishing=True)

    memory.ingest({"contract": "globex", "doc_id": "d1", "op": "delete"})
    memory.run("update", is_publishing=True)

    assert not (memory.root.shards / tenant_folder("globex")).exists()
    with pytest.raises(ScopeNotFound):
        reader(memory).scope("globex")


@pytest.mark.soak
def test_a_rebuild_publishes_the_same_bytes(memory: Memory, make_memory: MakeMemory) -> None:
    memory.ingest(*ROWS)
    memory.run(is_publishing=True)
    rebuilt = make_memory(like=memory)
    rebuilt.ingest(*reversed(ROWS))

    rebuilt.run(is_publishing=True)

    assert shard_bytes(rebuilt) == shard_bytes(memory)


@pytest.mark.soak
def test_each_text_is_embedded_once_per_tenant(memory: Memory) -> None:
    memory.ingest(*ROWS)
    memory.run(is_publishing=True)

    keys = [(r["tenant_id"], r["text_hash"]) for r in memory.read(EMBEDDINGS).collect()]

    assert keys
    assert len(keys) == len(set(keys))
