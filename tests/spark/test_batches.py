"""Batch mode through Spark: the same tree as interactive mode, and no batch is submitted twice."""

import json

import pytest

from hltm_spark.pipeline.batch_records import BatchRecords
from hltm_spark.pipeline.batches import Batches
from hltm_spark.pipeline.tables import LLM_CALLS
from tests.batch_server import BatchServer, serve_batches
from tests.builders import raw_document
from tests.spark.conftest import MakeMemory, Memory

ROWS = [
    raw_document("d1", project="p1", text="Location: Turku\nWork mode: hybrid"),
    raw_document("d2", project="p2", text="Location: Turku\nWork mode: remote"),
    raw_document("d3", contract="nordic", project="p1", text="Location: Oulu"),
]
PRICES = {"scripted": {"prompt": 1000.0, "completion": 1000.0}}


def served(
    make_memory: MakeMemory,
    server: BatchServer,
    execution: str,
    *,
    nodes: int = 500,
    like: Memory | None = None,
) -> Memory:
    return make_memory(
        llm={
            "provider": "openai",
            "model": "scripted",
            "base_url": server.base_url,
            "execution": execution,
            "batch_poll_s": 0.01,
            "batch_max_requests": 2,
        },
        budgets={"small_run_nodes": nodes},
        prices=PRICES,
        like=like,
    )


def interrupted_while_waiting(batches: Batches) -> None:
    if batches._seen:
        raise KeyboardInterrupt


def test_batches_write_the_tree_that_calls_write_and_a_killed_run_submits_none_twice(
    make_memory: MakeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_batches() as server:
        called = served(make_memory, server, "interactive")
        large, small = (
            served(make_memory, server, "batch", nodes=nodes, like=called) for nodes in (0, 500)
        )
        for memory in (called, large, small):
            memory.ingest(*ROWS)

        by_call = called.run()
        with monkeypatch.context() as patch:
            patch.setattr(Batches, "_check", interrupted_while_waiting)
            with pytest.raises(KeyboardInterrupt):
                large.run()
        left = BatchRecords(large.root.batches()).left()
        by_batch = large.run()
        asked = len(server.asked)
        by_small = small.run()

    assert [record.count for record in left] == [2, 1]
    assert large.content() == small.content() == called.content()
    assert by_call.calls == by_batch.calls == by_small.calls == 7
    assert by_batch.cost == pytest.approx(by_call.cost / 2)
    assert asked == 7, "nothing was submitted twice"
    assert len(server.asked) == 14
    assert large.read(LLM_CALLS).count() == 7
    assert not any(large.root.batches().iterdir())
    levels = [{json.dumps(r["custom_id"]) for r in server.requests(n)} for n in range(6)]
    assert [len(level) for level in levels] == [2, 1, 2, 2, 2, 1]
