import json
from typing import Any

import pytest

from hltm_spark.core.errors import LlmError
from hltm_spark.core.records import NodeInput
from hltm_spark.models.extractive import NOT_IN_MEMORY, ExtractiveClient
from hltm_spark.models.llm import Request
from tests.unit.models.extractive.asking import ask, hiring, raw_text

SEAT, P1, P2 = "acme/s1", "acme/s1/p1", "acme/s1/p2"


def hit(node_id: str, view: str, text: str, **fields: Any) -> dict[str, Any]:
    """Return one memory of a context."""
    return {"node_id": node_id, "level": "", "view": view, "name": "", "text": text, **fields}


def query_facets(query: str) -> list[tuple[str, str]]:
    """Return the facets that a question is read as."""
    text = raw_text("query/facets", "facets", {"query": query}, hiring())
    return [(facet["name"], facet["value"]) for facet in json.loads(text)["facets"]]


def test_a_stored_answer_goes_before_the_facet_that_it_was_made_from() -> None:
    context = [
        hit(SEAT, "facet", "hybrid", name="work mode", support=5, total=7),
        hit(
            SEAT, "question", "What is the typical work mode at seat s1?", answer="hybrid in 5 of 7"
        ),
    ]

    found = ask("Which workplace is usual?", context)

    assert found["answer"] == "hybrid in 5 of 7"
    assert found["citation"] == [SEAT]


def test_a_facet_set_answers_with_its_counts() -> None:
    context = [
        hit(SEAT, "facet", "on-site", name="work mode", support=2, total=7),
        hit(SEAT, "facet", "hybrid", name="work mode", support=5, total=7),
    ]

    assert ask("What is the work mode?", context)["answer"] == "hybrid (5 of 7), on-site (2 of 7)"


def test_the_node_that_the_question_names_answers() -> None:
    context = [
        hit(SEAT, "facet", "hybrid", name="work mode", support=2, total=2),
        hit(P1, "facet", "hybrid", name="work mode"),
        hit(P2, "facet", "remote", name="work mode"),
    ]

    assert ask("What is the work mode of p2?", context)["answer"] == "remote"
    assert ask("What is the work mode?", context)["answer"] == "hybrid (2 of 2)"


def test_a_tie_of_nodes_is_answered_by_the_node_above_them() -> None:
    question = "What is the work mode of project {} (Data Engineer)?"
    context = [
        hit(P1, "question", question.format("p1"), answer="hybrid"),
        hit(P2, "question", question.format("p2"), answer="remote"),
        hit(SEAT, "facet", "remote", name="work mode", support=3, total=4),
    ]

    found = ask("What is the work mode of the data engineers?", context)

    assert found["answer"] == "remote (3 of 4)"
    assert found["citation"][0] == SEAT


@pytest.mark.parametrize(
    "query", ["What is the dress code for astronauts?", "ピザは何ですか。", "??"]
)
def test_what_no_memory_holds_is_not_in_memory(query: str) -> None:
    context = [hit(SEAT, "facet", "hybrid", name="work mode"), hit(P1, "summary", "Four people.")]

    found = ask(query, context)

    assert found["answer"] == NOT_IN_MEMORY
    assert found["citation"] == []


def test_an_empty_context_is_not_in_memory() -> None:
    assert ask("What is the work mode?", [])["answer"] == NOT_IN_MEMORY


def test_a_summary_answers_with_its_line_without_ids() -> None:
    summary = "Project p1 has 2 documents.\nThe queue floods after storms. [d1]\nFour people. [d2]"

    assert ask("When does the queue flood?", [hit(P1, "summary", summary)])["answer"] == (
        "The queue floods after storms."
    )


def test_a_document_answers_with_its_author_and_the_day_that_is_asked_for() -> None:
    text = "Hi Mel! I went to a support group yesterday. It was good."
    context = [hit(P1, "evidence", text, name="Caro", latest_at="2023-05-08T10:00:00Z")]

    when = ask("When did Caro go to the support group?", context)["answer"]
    what = ask("Which group gave Caro support?", context)["answer"]

    assert when == "7 May 2023 (Caro: I went to a support group yesterday.)"
    assert what == "Caro: I went to a support group yesterday."


def test_a_question_is_read_as_the_declared_facets_it_names() -> None:
    assert query_facets("What is the typical workplace for ML hires?") == [
        ("work mode", "typical ML hires")
    ]
    assert query_facets("Do we sponsor visas?") == [("visa sponsorship", "sponsor")]
    assert query_facets("勤務地はどこですか。")[0][0] == "location"


def test_a_question_without_declared_facets_is_read_by_its_names_or_words() -> None:
    assert query_facets("When did Caroline paint the lake?") == [("Caroline", "paint lake")]
    assert query_facets("how long is lunch") == [("topic", "long lunch")]
    assert query_facets("") == []


def test_a_task_without_rules_is_refused() -> None:
    request = Request(task="repair/response", output="facets", system="", user="")

    with pytest.raises(LlmError, match=r"^refused: .*'repair/response'"):
        ExtractiveClient(hiring()).complete(request)


def test_the_client_costs_nothing_and_says_what_it_is() -> None:
    client = ExtractiveClient(hiring())
    payload = NodeInput(tenant_id="a", node_id="a", level="contract").to_dict()

    done = client.complete(
        Request(task="leaf/summary", output="summary", system="", user="", payload=payload)
    )
    client.close()

    assert client.model == "extractive"
    assert (done.finish_reason, done.prompt_tokens, done.completion_tokens) == ("stop", 0, 0)
    assert done.latency_s >= 0
