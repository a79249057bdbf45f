from hltm_spark.core.records import MAX_DOCUMENTS, Views
from hltm_spark.core.views import assemble_views
from tests.builders import child, document, facet, node, pair


def test_a_leafs_items_stand_on_the_documents_they_cite() -> None:
    given = node(document("d1", event_time="2026-01-01"), document("d2", event_time="2026-02-01"))
    fields = {
        "facets": [{"name": "location", "value": "Turku", "sources": ["d2"]}],
        "question_answers": [{"question": "Where?", "answer": "Turku", "sources": ["d1", "d2"]}],
    }

    views = assemble_views(given, fields)

    assert views.facets[0].documents == ("d2",)
    assert views.facets[0].latest_at == "2026-02-01"
    assert (views.facets[0].support, views.facets[0].total) == (1, 1)
    assert views.question_answers[0].documents == ("d1", "d2")


def test_an_item_without_sources_stands_on_every_input() -> None:
    given = node(document("d1"), document("d2"))

    views = assemble_views(given, {"facets": [{"name": "a", "value": "b", "sources": []}]})

    assert views.facets[0].sources == ("d1", "d2")


def test_a_parents_facet_adds_up_the_children_that_state_it() -> None:
    children = [
        child(
            "acme/s1/p1", facets=(facet("mode", "hybrid", documents=("d1",), support=3, total=4),)
        ),
        child("acme/s1/p2", facets=(facet("mode", "Hybrid", documents=("d2",)),)),
        child("acme/s1/p3", facets=(facet("mode", "remote", documents=("d3",)),)),
    ]
    sources = ["acme/s1/p1", "acme/s1/p2"]
    fields = {"facets": [{"name": "mode", "value": "hybrid", "sources": sources}]}

    mode = assemble_views(node(*children), fields).facets[0]

    assert mode.documents == ("d1", "d2")
    assert (mode.support, mode.total) == (4, 6)


def test_an_inner_nodes_own_document_counts_once() -> None:
    given = node(child("acme/s1/p1", facets=(facet("visa", "no"),)), document("policy"))
    fields = {"facets": [{"name": "visa", "value": "no", "sources": ["acme/s1/p1", "policy"]}]}

    visa = assemble_views(given, fields).facets[0]

    assert (visa.support, visa.total) == (2, 2)
    assert visa.documents == ("policy",)


def test_every_value_of_a_facet_has_the_same_total() -> None:
    given = node(child("acme/s1/p1", facets=(facet("visa", "no"),)), document("policy"))
    fields = {
        "facets": [
            {"name": "visa", "value": "no", "sources": ["acme/s1/p1"]},
            {"name": "visa", "value": "yes", "sources": ["policy"]},
        ]
    }

    assert [f.total for f in assemble_views(given, fields).facets] == [2, 2]


def test_a_reworded_value_still_leads_to_the_documents_of_that_facet() -> None:
    given = node(child("acme/s1/p1", facets=(facet("city", "Turku (FI)", documents=("d9",)),)))
    fields = {"facets": [{"name": "city", "value": "Turku", "sources": ["acme/s1/p1"]}]}

    assert assemble_views(given, fields).facets[0].documents == ("d9",)


def test_a_question_leads_to_the_same_question_of_the_child_or_to_all_its_documents() -> None:
    asked = pair("Where?", documents=("d1",))
    other = pair("When?", documents=("d2",))
    given = node(child("acme/s1/p1", question_answers=(asked, other)))
    source = ["acme/s1/p1"]
    fields = {
        "question_answers": [
            {"question": "where?", "answer": "x", "sources": source},
            {"question": "Why?", "answer": "x", "sources": source},
        ]
    }

    same, new = assemble_views(given, fields).question_answers

    assert same.documents == ("d1",)
    assert new.documents == ("d1", "d2")


def test_an_answer_leads_to_the_facets_that_it_states() -> None:
    below = child(
        "acme/s1",
        facets=(
            facet("location", "Bergen", documents=("d1",)),
            facet("location", "Oslo", documents=("d2",)),
            facet("office", "Bergen", documents=("d3",)),
            facet("seniority", "Os", documents=("d4",)),
        ),
    )

    def documents(question: str, answer: str) -> tuple[str, ...]:
        item = {"question": question, "answer": answer, "sources": ["acme/s1"]}
        return (
            assemble_views(node(below), {"question_answers": [item]}).question_answers[0].documents
        )

    assert documents("What is the typical location?", "bergen in 2 of 3, Oslo once") == ("d1", "d2")
    assert documents("Where is it?", "Bergen") == ("d1", "d3")
    assert documents("Where is it?", "Nobody knows") == ("d1", "d2", "d3", "d4")


def test_documents_behind_one_item_are_bounded() -> None:
    given = node(*(document(f"d{n:03}") for n in range(100)))

    views = assemble_views(given, {"facets": [{"name": "a", "value": "b"}]})

    assert len(views.facets[0].documents) == MAX_DOCUMENTS


def test_views_survive_their_json_form() -> None:
    views = Views(facets=(facet("a", "b"),), question_answers=(pair("q"),), summary="s")

    assert Views.from_dict(views.to_dict()) == views
