import json

import pytest

from hltm_spark.core.records import NodeInput
from tests.builders import document, node
from tests.builders import settings as make_settings
from tests.unit.models.extractive.asking import answers, hiring, raw_text, values, write

TASKS = ("facets", "question_answers", "summary", "one_sentence_summary")


def leaf(*texts: str, **fields: object) -> NodeInput:
    """Return a project whose documents have these texts, a day apart."""
    documents = [
        document(f"d{n}", text=text, event_time=f"2026-03-{n:02}T09:00:00Z")
        for n, text in enumerate(texts, start=1)
    ]
    return node(*documents, **{"node_id": "acme/s1/007", "level": "project", **fields})


def test_labels_become_declared_facets_by_name_or_alias_whatever_their_case() -> None:
    fields = write(leaf("ROLE: Data Engineer.\nOffice: Oulu\n**Work Mode:** hybrid"))

    assert values(fields, "title") == ["Data Engineer"]
    assert values(fields, "location") == ["Oulu"]
    assert values(fields, "work mode") == ["hybrid"]


def test_an_undeclared_label_is_a_facet_of_its_own_but_prose_is_not() -> None:
    fields = write(leaf("Reply deadline: three days\nNote: we met on Monday and had a long talk."))

    assert values(fields, "reply deadline") == ["three days"]
    assert values(fields, "note") == []


def test_a_link_and_a_clock_time_are_no_labels() -> None:
    fields = write(leaf("See https://example.org/x for more.\nThe call is at 10:30 on Monday."))

    assert fields["facets"] == []


def test_of_conflicting_values_the_newest_wins_and_the_text_names_the_older() -> None:
    fields = write(leaf("Work mode: on-site", "Work mode: on-site", "Workplace: hybrid"))

    assert values(fields, "work mode") == ["hybrid"]
    assert fields["facets"][0]["sources"] == ["d3"]
    assert "hybrid, since 3 March 2026 (earlier: on-site)" in answers(fields).values()
    assert "hybrid, since 3 March 2026 (earlier: on-site) [d3, d1, d2]" in fields["summary"]


def test_an_undated_document_is_older_than_any_dated_one() -> None:
    given = node(
        document("dated", text="Location: Oulu", event_time="2020-01-01T00:00:00Z"),
        document("undated", text="Location: Turku"),
        node_id="acme/s1/007",
        level="project",
    )

    assert values(write(given), "location") == ["Oulu"]


def test_a_list_facet_keeps_all_values_the_most_frequent_first() -> None:
    fields = write(
        leaf("Stack: Go, Kafka and SQL", "Stack: SQL", "Stack: sql, Rust (nightly, beta)")
    )

    assert values(fields, "must-have skills") == ["SQL", "Go", "Kafka", "Rust (nightly, beta)"]


def test_bullets_below_a_bare_label_are_its_values() -> None:
    fields = write(leaf("Must-have skills:\n- Go\n- SQL\n\nBring lunch."))

    assert values(fields, "must-have skills") == ["Go", "SQL"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Sponsorship: never for this seat.", ["no"]),
        ("Visa: offered", ["yes"]),
        ("Visa sponsorship: to be discussed", ["to be discussed"]),
        ("From March on we sponsor visas for everybody.", ["yes"]),
        ("We no longer sponsor visas.", ["no"]),
        ("Would you sponsor a visa?", []),
        ("If the budget holds we sponsor visas.", []),
    ],
)
def test_yes_and_no_are_read_from_labels_and_plain_sentences(
    text: str, expected: list[str]
) -> None:
    assert values(write(leaf(text)), "visa sponsorship") == expected


def test_a_sentence_states_a_declared_name_of_two_words() -> None:
    assert values(write(leaf("The work mode is now on-site.")), "work mode") == ["on-site"]
    assert values(write(leaf("The work mode should be on-site.")), "work mode") == []


def test_a_reason_beside_a_decision_says_why_somebody_was_rejected() -> None:
    given = node(
        document(
            "d1", text="Reason: no Go.", metadata={"decision": "Rejected", "role": "recruiter"}
        ),
        node_id="acme/s1/007",
        level="project",
    )

    fields = write(given)

    assert values(fields, "rejected because") == ["no Go"]
    assert values(fields, "title") == []  # the author's role is not the title


def test_questions_name_their_node_and_its_title() -> None:
    fields = write(leaf("Title: Data Engineer\nLocation: Oulu"))

    assert answers(fields)["What is the location of project 007 (Data Engineer)?"] == "Oulu"


def test_a_question_and_its_reply_become_a_pair_without_you() -> None:
    text = (
        "Recruiter (Ada Lind): How often do you meet in the office?\n"
        "Manager (Bo Ek): Two days a week. Is that fine?\n"
        "Recruiter (Ada Lind): Sure.\n\nAgreed:\nWork mode: hybrid"
    )

    fields = write(leaf(text))

    assert answers(fields)["On project 007: How often does Bo Ek meet in the office?"] == (
        "Bo Ek (1 March 2026): Two days a week."
    )
    assert values(fields, "work mode") == ["hybrid"]
    assert values(fields, "Recruiter (Ada Lind)") == []


@pytest.mark.parametrize(
    "leaning",
    [
        "How often do you want to see them in the office?",
        "Do you sponsor visas for this one?",
        "Why would someone leave a good job for this?",
        "What would go wrong if that stayed open?",
        "Could it be done from home on Fridays?",
    ],
)
def test_a_question_that_leans_on_what_was_said_before_is_not_kept(leaning: str) -> None:
    text = (
        f"Recruiter (Ada Lind): {leaning}\n"
        "Manager (Bo Ek): Two days a week at most.\n"
        f"Recruiter (Ada Lind): {leaning} How big is the platform team these days?\n"
        "Manager (Bo Ek): Seven engineers.\n"
    )
    call = document("call", text=text)

    asked = answers(write(node(call, node_id="acme/s1/007", level="project")))

    assert [q for q in asked if q.startswith("On project")] == [
        "On project 007: Ada Lind to Bo Ek: How big is the platform team these days?"
    ]


def test_a_repeated_label_with_sentences_is_no_speaker_without_a_second_one() -> None:
    fields = write(leaf("Candidate: Cy\nReason: too junior.\nCandidate: Di\nReason: too far."))

    assert values(fields, "candidate") == ["Di"]


def test_turns_that_are_documents_make_pairs_and_facts_of_each_speaker() -> None:
    turns = [
        ("Mel", "Hey! What did you paint last weekend?"),
        ("Caro", "Well, I painted the harbour of Leeds yesterday."),
        ("Mel", "That sounds great."),
        ("Caro", "I felt very welcome there among friends."),
    ]
    given = node(
        *(
            document(f"t{n}", text=text, author=author, event_time=f"2023-05-08T10:00:{n:02}Z")
            for n, (author, text) in enumerate(turns)
        ),
        node_id="u1/session_01",
        level="session",
    )

    fields = write(given, make_settings("user", "session", input={"author": "speaker"}))

    assert values(fields, "speaker") == ["Mel", "Caro"]
    assert "I painted the harbour of Leeds yesterday (7 May 2023)" in values(fields, "Caro")
    assert answers(fields)["What did Caro paint last weekend?"] == (
        "Caro (8 May 2023; yesterday is 7 May 2023): "
        "Well, I painted the harbour of Leeds yesterday."
    )
    assert fields["one_sentence_summary"].startswith(
        "Mel and Caro talk in session_01 on 8 May 2023"
    )


def test_letters_of_several_authors_are_no_dialogue() -> None:
    letter = "Dear Ada,\n\nwould you like to join us in Oulu this year?\n\nBo"
    given = node(
        document("d1", text=letter, author="Bo"),
        document("d2", text=letter, author="Cy"),
        node_id="acme/s1/007",
        level="project",
    )

    assert values(write(given), "author") == []


def test_hints_come_first_and_add_facet_names() -> None:
    hints = {"facets": ["parking"], "questions": ["Is there parking at this project?", "Any dogs?"]}

    fields = write(leaf("Location: Oulu\nParking: behind the house"), hiring(hints=hints))

    first = fields["question_answers"][0]
    assert (first["question"], first["answer"]) == (
        "Is there parking at project 007?",
        "behind the house",
    )
    assert not any("dogs" in question for question in answers(fields))


def test_questions_stay_below_the_maximum() -> None:
    labels = "\n".join(f"Label {chr(65 + n)}: value {n}" for n in range(20))

    fields = write(leaf(labels), hiring(views={"min_questions": 2, "max_questions": 4}))

    assert len(fields["question_answers"]) == 4


def test_the_summary_cites_each_sentence_and_repeats_none() -> None:
    text = (
        "The queue floods after storms. The queue floods after storms. Four people run the service."
    )

    lines = write(leaf(text, text))["summary"].splitlines()

    cited = [line for line in lines if "queue floods" in line]
    assert len(cited) == 1
    assert cited[0].endswith(("[d1]", "[d2]"))


def test_text_of_any_script_passes_unharmed() -> None:
    prose = "壊れたときにどうなるかを先に考える。テストを書く習慣は必須であり、課題でも確認する。🍵"
    text = f"勤務地：東京\n{prose}"

    fields = write(leaf(text, node_id="acme/s1/予約"))

    assert values(fields, "location") == ["東京"]
    assert answers(fields)["What is the location of project 予約?"] == "東京"
    assert "壊れたときにどうなるかを先に考える。 [d1]" in fields["summary"]


@pytest.mark.parametrize("text", ["", " \n ", ":", "Label:", "??", "🍵", "a" * 5000, "[x] ] ["])
def test_odd_documents_still_give_every_view(text: str) -> None:
    fields = write(leaf(text))

    assert fields["question_answers"]
    assert fields["summary"]
    assert fields["one_sentence_summary"]


def test_both_layouts_write_the_same_views() -> None:
    given = leaf("Title: Data Engineer\nWork mode: hybrid\nThe team of four sits by the lake.")
    fused = json.loads(raw_text("leaf/fused", "fused", given.to_dict(), hiring()))

    apart: dict[str, object] = {}
    for task in TASKS:
        payload = {**given.to_dict(), "summary": "written before"}
        apart |= json.loads(raw_text(f"leaf/{task}", task, payload, hiring()))

    assert apart == fused


def test_the_same_input_gives_the_same_bytes() -> None:
    given = leaf(
        "Stack: b, a, c\nWork mode: hybrid\nOne. Two is more. Three is most of all."
    ).to_dict()

    texts = {raw_text("leaf/fused", "fused", given, hiring()) for _ in range(3)}

    assert len(texts) == 1
