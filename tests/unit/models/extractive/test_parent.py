import json

import pytest

from hltm_spark.core.records import Child, NodeInput
from hltm_spark.core.views import assemble_views
from tests.builders import child, document, facet, node, pair
from tests.unit.models.extractive.asking import answers, hiring, raw_text, values, write


def project(number: int, *, month: int = 1, **stated: str) -> Child:
    """Return a project that states these facets in one document."""
    time_of = f"2026-{month:02}-01T09:00:00Z"
    node_id = f"acme/s1/p{number}"
    facets = tuple(
        facet(
            name.replace("_", " "),
            value,
            sources=(f"d{number}",),
            documents=(f"d{number}",),
            latest_at=time_of,
        )
        for name, value in stated.items()
    )
    return child(node_id, latest_at=time_of, facets=facets)


def test_values_are_counted_whatever_their_case_and_the_newest_change_is_named() -> None:
    hybrids = [project(n, month=n, work_mode="hybrid" if n % 2 else "Hybrid") for n in range(1, 6)]
    given = node(*hybrids, *(project(n, month=n, work_mode="on-site") for n in (6, 7)))

    fields = write(given)

    assert values(fields, "work mode") == ["hybrid", "on-site"]
    assert answers(fields)["What is the typical work mode at seat s1?"] == (
        "hybrid in 5 of 7 projects; on-site since June 2026"
    )


def test_one_newest_exception_is_no_change() -> None:
    given = node(
        *(project(n, month=n, work_mode="hybrid") for n in (1, 2, 3)),
        project(4, month=9, work_mode="remote"),
    )

    fields = write(given)

    assert values(fields, "work mode") == ["hybrid"]
    assert answers(fields)["What is the typical work mode at seat s1?"] == (
        "hybrid in 3 of 4 projects; most recently remote (September 2026)"
    )


def test_a_value_below_the_support_is_dropped_unless_few_state_any() -> None:
    towns = ["Oulu", "Oulu", "Turku", "Pori"]
    many = node(*(project(n, location=town) for n, town in enumerate(towns)))
    few = node(project(1, location="Turku"), project(2, location="Pori"))

    assert values(write(many), "location") == ["Oulu"]
    assert values(write(few), "location") == ["Pori"]


def test_values_that_all_differ_are_told_but_kept_as_no_facet() -> None:
    given = node(*(project(n, location=f"Town {n}") for n in range(1, 6)))

    fields = write(given)

    assert values(fields, "location") == []
    assert answers(fields)["What is the typical location at seat s1?"] == (
        "varies over 5 projects: from Town 1 to Town 5"
    )


def test_a_facet_stands_on_exactly_the_children_that_state_it() -> None:
    given = node(*(project(n, work_mode="hybrid" if n < 3 else "remote") for n in range(1, 5)))

    views = assemble_views(given, write(given))

    hybrid = next(f for f in views.facets if f.value == "hybrid")
    assert hybrid.sources == ("acme/s1/p1", "acme/s1/p2")
    assert (hybrid.support, hybrid.total) == (2, 4)


def test_a_newer_document_of_the_seat_itself_goes_first() -> None:
    projects = [project(n, month=n, work_mode="hybrid") for n in (1, 2, 3)]
    given = node(
        *projects,
        document("g1", text="Work mode: hybrid", event_time="2025-01-01T00:00:00Z"),
        document("g2", text="Work mode: on-site", event_time="2026-03-04T00:00:00Z"),
    )

    fields = write(given)

    assert answers(fields)["What is the typical work mode at seat s1?"] == (
        "on-site since 4 March 2026 (by the seat's own documents; earlier: hybrid); "
        "hybrid in all 3 projects"
    )
    assert [f["sources"] for f in fields["facets"] if f["value"] == "on-site"] == [["g2"]]


def test_an_agreeing_document_of_the_seat_is_named_once() -> None:
    given = node(
        *(project(n, location="Oulu") for n in (1, 2)), document("g1", text="Office: Oulu")
    )

    fields = write(given)

    assert answers(fields)["What is the typical location at seat s1?"] == (
        "Oulu in both projects and in the seat's own documents"
    )
    assert fields["facets"][0]["sources"] == ["acme/s1/p1", "acme/s1/p2", "g1"]


def test_what_only_the_own_documents_state_is_asked_before_the_counts() -> None:
    given = node(project(1, location="Oulu"), document("g1", text="Reply deadline: three days"))

    first = write(given)["question_answers"][0]

    assert (first["question"], first["answer"]) == (
        "What is the reply deadline of seat s1?",
        "three days",
    )


def test_projects_are_counted_through_seats_without_the_seats_own_documents() -> None:
    def seat(name: str, support: int, *sources: str) -> Child:
        stated = facet("work mode", "hybrid", sources=sources, support=support, total=support)
        return child(f"acme/{name}", facets=(stated,))

    given = node(
        seat("s1", 3, "acme/s1/p1", "acme/s1/p2", "policy"),
        seat("s2", 2, "acme/s2/p1", "acme/s2/p2"),
        node_id="acme",
        level="contract",
    )

    fields = write(given)

    assert answers(fields)["What is the typical work mode at contract acme?"] == (
        "hybrid in all 4 projects"
    )


def test_a_seats_own_document_is_no_project_whichever_value_it_states() -> None:
    own = facet("work mode", "remote", sources=("policy",), support=1, total=4)
    projects = ("acme/s1/p1", "acme/s1/p2", "acme/s1/p3")
    below = facet("work mode", "hybrid", sources=projects, support=3, total=4)
    others = facet("work mode", "hybrid", sources=("acme/s2/p1", "acme/s2/p2"), support=2, total=2)
    seats = (child("acme/s1", facets=(own, below)), child("acme/s2", facets=(others,)))

    fields = write(node(*seats, node_id="acme", level="contract"))

    assert answers(fields)["What is the typical work mode at contract acme?"] == (
        "hybrid in all 5 projects"
    )


def test_a_list_facet_names_its_values_by_frequency() -> None:
    skills = [("Go", "SQL"), ("Go", "Rust"), ("Go", "SQL")]
    given = node(
        *(
            child(
                f"acme/s1/p{n}",
                facets=tuple(
                    facet("must-have skills", skill, documents=(f"d{n}",)) for skill in both
                ),
            )
            for n, both in enumerate(skills)
        )
    )

    fields = write(given)

    assert values(fields, "must-have skills") == ["Go", "SQL"]
    assert answers(fields)["What are the most frequent must-have skills at seat s1?"] == (
        "Go in all 3 projects, SQL in 2"
    )


def test_hints_are_obeyed_at_a_parent() -> None:
    given = node(*(project(n, parking="free") for n in (1, 2)))
    hints = {"questions": ["How is parking at this seat?"]}

    first = write(given, hiring(hints=hints))["question_answers"][0]

    assert (first["question"], first["answer"]) == (
        "How is parking at seat s1?",
        "free in both projects",
    )


def test_pairs_of_children_fill_the_room_that_is_left() -> None:
    asked = pair("On project p1: How long is lunch?", "An hour.", documents=("d1",))
    given = node(child("acme/s1/p1", question_answers=(pair("Who talks in p1?"), asked)))

    fields = write(given)

    assert answers(fields)["On project p1: How long is lunch?"] == "An hour."


def test_children_without_any_view_still_give_every_view() -> None:
    fields = write(node(child("acme/s1/p1", summary=""), child("acme/s1/東京", summary="")))

    assert fields["facets"] == []
    assert fields["summary"] == "Seat s1 has 2 projects: project p1 and project 東京."
    assert fields["one_sentence_summary"]
    assert fields["question_answers"]


def test_a_level_that_conf_does_not_name_is_written_all_the_same() -> None:
    assert write(node(project(1, location="Oulu"), level="group"))["summary"]


def test_both_layouts_write_the_same_parent() -> None:
    given = node(
        *(project(n, location="Oulu") for n in (1, 2)), document("g1", text="Be kind to all.")
    )
    fused = json.loads(raw_text("parent/fused", "fused", given.to_dict(), hiring()))

    apart: dict[str, object] = {}
    for task in ("facets", "question_answers", "summary", "one_sentence_summary"):
        apart |= json.loads(raw_text(f"parent/{task}", task, given.to_dict(), hiring()))

    assert apart == fused


@pytest.mark.timeout(60)  # what grows with the square of the children never ends
def test_two_thousand_children_are_counted() -> None:
    names = [f"name {chr(97 + n)}" for n in range(15)]
    payload = _wide(2000, names).to_dict()

    fields = json.loads(raw_text("parent/fused", "fused", payload, hiring()))

    assert len(values(fields, names[0])) == 5


def _wide(count: int, names: list[str]) -> NodeInput:
    return node(
        *(
            child(
                f"acme/s1/p{n:05}",
                facets=tuple(facet(name, f"value {n % 5}", documents=(f"d{n}",)) for name in names),
            )
            for n in range(count)
        )
    )
