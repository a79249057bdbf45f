"""The openai provider over real HTTP, against a scripted server that answers from the prompt."""

import pytest

from hltm_spark.core.errors import LlmStopError, TooManyFailuresError
from hltm_spark.pipeline import publish_large, publish_small
from hltm_spark.pipeline.index import publish_only
from hltm_spark.pipeline.tables import EMBEDDINGS, FAILURES, LLM_CALLS, MEMORY
from serving import MemoryReader
from tests.builders import raw_document
from tests.llm_server import (
    Call,
    Reply,
    broken_json,
    content_filter_error,
    format_refused,
    rate_limited,
    serve_llm,
    unauthorized,
)
from tests.spark.conftest import MakeMemory, Memory

DIMENSION = 64
ROWS = [
    raw_document("d1", project="p1", text="Location: Turku\nWork mode: hybrid"),
    raw_document("d2", project="p2", text="Location: Turku\nWork mode: remote"),
]


def served(make_memory: MakeMemory, base_url: str, **sections: object) -> Memory:
    return make_memory(
        llm={"provider": "openai", "model": "scripted", "base_url": base_url, "max_retry_s": 20.0},
        embedding={
            "provider": "openai",
            "model": "scripted",
            "base_url": base_url,
            "dimension": DIMENSION,
        },
        **sections,
    )


def test_a_tree_is_written_published_and_asked_through_the_faults_of_a_server(
    make_memory: MakeMemory,
) -> None:
    with serve_llm(
        [format_refused(), rate_limited(), broken_json()], dimension=DIMENSION
    ) as server:
        memory = served(make_memory, server.base_url)
        memory.ingest(*ROWS)

        run = memory.run(is_publishing=True)
        again = memory.run()
        reader = MemoryReader.open(memory.root.shards, settings=memory.settings)
        answer = reader.scope("acme/s1").answer("What is the location?")

    assert (run.status, run.failed, run.nodes_written) == ("done", 0, 4)
    assert run.calls == memory.read(LLM_CALLS).count() == 5  # four nodes and one repair
    assert run.prompt_tokens > 0
    assert (again.calls, again.nodes_touched) == (0, 0)
    assert answer.usage.calls == 2
    assert answer.citation
    cited = {d for f in memory.nodes()["acme"]["facets"] for d in f["documents"]}
    assert cited
    assert cited <= {"d1", "d2"}


@pytest.mark.soak
@pytest.mark.parametrize("small_run_nodes", [500, 0])
def test_vectors_that_were_paid_before_a_failure_are_not_bought_again(
    make_memory: MakeMemory, monkeypatch: pytest.MonkeyPatch, small_run_nodes: int
) -> None:
    monkeypatch.setattr(publish_small, "TEXTS_A_COMMIT", 5)
    monkeypatch.setattr(publish_large, "TEXTS_A_COMMIT", 5)
    asked: list[str] = []

    def script(call: Call) -> Reply | None:
        if "/embeddings" not in call.path:
            return None
        if call.body["input"] and len(asked) >= 8 and not is_healed:
            return unauthorized()
        asked.extend(call.body["input"])
        return None

    is_healed = False
    with serve_llm(script, dimension=DIMENSION) as server:
        budgets = {"small_run_nodes": small_run_nodes}
        memory = served(make_memory, server.base_url, budgets=budgets)
        memory.ingest(*ROWS)
        memory.run()
        with pytest.raises(Exception, match=r"401|api_key"):
            publish_only(memory.spark, memory.settings, memory.root)
        paid = memory.read(EMBEDDINGS).count()
        is_healed = True
        publish_only(memory.spark, memory.settings, memory.root)

    assert paid >= 5
    assert len(set(asked)) == memory.read(EMBEDDINGS).count()
    assert len(asked) - len(set(asked)) <= 5, "no more than one commit's worth is lost"


@pytest.mark.soak
def test_four_calls_a_node_in_the_separate_layout(make_memory: MakeMemory) -> None:
    with serve_llm(dimension=DIMENSION) as server:
        memory = served(make_memory, server.base_url, views={"layout": "separate"})
        memory.ingest(ROWS[0])

        run = memory.run()

    assert run.calls == 12
    assert {row["task"] for row in memory.read(LLM_CALLS).collect()} == {
        f"{kind}/{task}"
        for kind in ("leaf", "parent")
        for task in ("facets", "question_answers", "summary", "one_sentence_summary")
    }


def test_a_refused_document_fails_alone_and_is_tried_again(make_memory: MakeMemory) -> None:
    with serve_llm([content_filter_error()], dimension=DIMENSION) as server:
        memory = served(make_memory, server.base_url, budgets={"max_failure_ratio": 0.1})
        memory.ingest(*ROWS)

        with pytest.raises(TooManyFailuresError, match=r"budgets\.max_failure_ratio"):
            memory.run(is_publishing=True)
        statuses = {row["status"] for row in memory.read(MEMORY).collect()}
        failures = [row["kind"] for row in memory.read(FAILURES).collect()]
        repaired = memory.run("update", is_publishing=True)

    assert statuses == {"complete", "partial"}
    assert failures == ["filtered"]
    assert (repaired.status, repaired.failed) == ("done", 0)
    assert memory.read(FAILURES).count() == 0


@pytest.mark.soak
def test_a_wrong_key_stops_the_run_at_once(make_memory: MakeMemory) -> None:
    rows = [raw_document(f"d{n}", project=f"p{n}") for n in range(40)]
    with serve_llm(lambda _call: unauthorized(), dimension=DIMENSION) as server:
        memory = served(make_memory, server.base_url)
        memory.ingest(*rows)

        with pytest.raises(LlmStopError):
            memory.run()
        calls = len(server.chats)

    assert calls < 40
    assert memory.read(MEMORY).count() == 0
