import shutil

from hltm_spark.core.shard import current_version, tenant_folder
from hltm_spark.pipeline.files import local_rows
from hltm_spark.pipeline.tables import LLM_CALLS, MEMORY
from hltm_spark.pipeline.verify import verify
from tests.builders import raw_document
from tests.spark.conftest import Memory


def test_verify_finds_what_is_not_as_a_rebuild_makes_it(memory: Memory) -> None:
    rows = [raw_document(f"d{n}", project=f"p{n % 2}", text=f"Pay: {n}") for n in range(4)]
    memory.ingest(*rows)
    memory.run(is_publishing=True)
    memory.ingest({**rows[0], "text": "Pay: 9"}, {**rows[1], "op": "delete"})

    pending = verify(memory.spark, memory.settings, memory.root)
    assert (pending.equal, pending.pending) == (False, 1)

    memory.run("update", is_publishing=True)
    answers = memory.read(LLM_CALLS).count()
    clean = verify(memory.spark, memory.settings, memory.root)
    assert (clean.equal, clean.calls, clean.nodes) == (True, 0, 4), clean.differences
    assert memory.read(LLM_CALLS).count() == answers

    spoiled = memory.read(MEMORY).where("node_id = 'acme/s1/p1'").toArrow().to_pylist()
    spoiled[0]["summary"] = "not what it was written as"
    memory.spark.sql(
        f"DELETE FROM {MEMORY.sql_name(memory.root.path)} WHERE node_id = 'acme/s1/p1'"
    )
    MEMORY.append(local_rows(memory.spark, spoiled, MEMORY.schema), memory.root.path)
    tenant = memory.root.shards / tenant_folder("acme")
    published = tenant / current_version(tenant)
    shutil.copy(published / "nodes.arrow", published / "evidence.arrow")

    broken = verify(memory.spark, memory.settings, memory.root)
    found = {(d.node_id, d.what) for d in broken.differences}
    assert found == {("acme", "shard: evidence.arrow"), ("acme/s1/p1", "summary")}
    assert not list(memory.root.folder("staging").glob("verify-*"))
