import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hltm_spark.core.errors import LlmError
from hltm_spark.core.prompts import OUTPUTS
from hltm_spark.models.parsing import ParsedAnswer, json_schema_of, parse_answer

IDS = ("P-100", "P-101")


def parse(answer: Any, *, output: str = "facets", **options: Any) -> ParsedAnswer:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return parse_answer(text, "stop", output=output, **{"source_ids": IDS, **options})


def values(parsed: ParsedAnswer) -> list[tuple[str, str]]:
    return [(facet["name"], facet["value"]) for facet in parsed.fields["facets"]]


def pairs(*items: Any) -> dict[str, Any]:
    return {"rationale": "because", "question_answers": list(items)}


# ---- before the text is read


@pytest.mark.parametrize(
    ("text", "finish_reason", "kind"),
    [
        ('{"facets": {"city": "Oulu"}}', "length", "truncated"),
        ('{"facets": {"title": "Boiler operator", "site": "Nor', "length", "truncated"),
        ('{"facets": {}}', "MAX_TOKENS", "truncated"),
        ('{"facets": {}}', "content_filter", "filtered"),
        ("", "content_filter", "filtered"),
        ('{"facets": {}}', "refusal", "refused"),
        ("I'm sorry, I can't help with that.", "stop", "refused"),
        ("I cannot help with that.", "stop", "refused"),
        ("", "stop", "malformed"),
        ("  \n", "stop", "malformed"),
        ("Oulu and Vaasa", "stop", "malformed"),
        ('{"facets": {"city": "Oulu"}', "stop", "malformed"),
    ],
)
def test_the_finish_reason_and_then_the_text_decide_how_an_answer_fails(
    text: str, finish_reason: str, kind: str
) -> None:
    with pytest.raises(LlmError, match=rf"^{kind}: ") as raised:
        parse_answer(text, finish_reason, output="facets", source_ids=IDS)

    assert "Oulu" not in str(raised.value)
    assert "Boiler" not in str(raised.value)


def test_an_answer_without_a_finish_reason_is_read_but_not_mended() -> None:
    read = parse_answer('{"facets": {"a": "b"}}', "", output="facets", source_ids=IDS)

    assert values(read) == [("a", "b")]
    with pytest.raises(LlmError, match=r"^malformed: damaged"):
        parse_answer('{"facets": {"a": "b",}}', "", output="facets", source_ids=IDS)


# ---- facets


def test_every_type_of_facet_value_has_its_rule() -> None:
    parsed = parse(
        '{"facets": {"seats": 12, "share": 0.5, "whole": 3.0, "remote": true, "car": false, '
        '"salary": null, "cities": ["Oulu", " Vaasa\\n"], "req": {"lang": "fi", '
        '"years": {"min": 2}}, "": "x", "blank": "  ", "none": [], "a": NaN, "big": 1e999}}'
    )

    assert values(parsed) == [
        ("car", "no"),
        ("cities", "Oulu"),
        ("cities", "Vaasa"),
        ("remote", "yes"),
        ("req.lang", "fi"),
        ("req.years.min", "2"),
        ("seats", "12"),
        ("share", "0.5"),
        ("whole", "3"),
    ]
    assert parsed.dropped == {"empty": 4, "not_a_number": 2}


def test_repeated_keys_keep_all_their_values_and_are_counted() -> None:
    parsed = parse('{"facets": {"city": "Oulu", "city": "Turku", "city": "Oulu"}}')

    assert values(parsed) == [("city", "Oulu"), ("city", "Turku")]
    assert parsed.dropped == {"duplicate_key": 2, "duplicate_value": 1}


def test_facets_may_carry_sources_in_every_form() -> None:
    parsed = parse(
        {
            "facets": {
                "city": {"value": "Oulu", "sources": ["P-101"]},
                "skills": {"value": ["Go", "SQL"], "sources": "P-100, P-101", "confidence": 0.9},
                "pay": [{"value": 5, "source": "P-100"}, {"values": [6, 7], "sources": []}],
            }
        }
    )

    assert parsed.fields["facets"] == [
        {"name": "city", "value": "Oulu", "sources": ["P-101"]},
        {"name": "pay", "value": "5", "sources": ["P-100"]},
        {"name": "pay", "value": "6", "sources": []},
        {"name": "pay", "value": "7", "sources": []},
        {"name": "skills", "value": "Go", "sources": ["P-100", "P-101"]},
        {"name": "skills", "value": "SQL", "sources": ["P-100", "P-101"]},
    ]
    assert parsed.dropped == {"extra_key": 1}


def test_facets_may_be_a_list() -> None:
    parsed = parse(
        {
            "facets": [
                {"name": "b", "value": "1", "sources": ["P-100"]},
                {"name": "a", "values": ["2", "3"], "sources": []},
                "city: Oulu",
                {"land": "Finland"},
                "no colon",
                7,
            ]
        }
    )

    assert values(parsed) == [
        ("a", "2"), ("a", "3"), ("b", "1"), ("city", "Oulu"), ("land", "Finland")
    ]  # fmt: skip
    assert parsed.dropped == {"wrong_shape": 2}


def test_a_facet_stated_twice_stands_on_the_sources_of_both() -> None:
    twice = [{"name": "a", "value": "x", "sources": [source]} for source in IDS]

    assert parse({"facets": twice}).fields["facets"] == [
        {"name": "a", "value": "x", "sources": list(IDS)}
    ]


def test_facets_may_be_empty_but_not_all_unusable() -> None:
    assert parse({"facets": {}}).fields == {"facets": []}
    with pytest.raises(LlmError, match=r"^malformed: none of 2 facets"):
        parse({"facets": {"a": None, "b": ""}})


def test_a_value_nested_too_deep_is_left_out() -> None:
    deep: Any = "x"
    for _ in range(30):
        deep = {"k": deep}

    parsed = parse({"facets": {"deep": deep, "flat": 1}})

    assert values(parsed) == [("flat", "1")]
    assert parsed.dropped == {"wrong_shape": 1}


def test_values_are_text_that_every_store_takes() -> None:
    parsed = parse('{"facets": {"a\\u0000b": "x\\ud800y\\u0007z"}}')

    assert values(parsed) == [("a b", "x\ufffdy z")]


# ---- sources


def test_only_ids_of_the_prompt_are_kept() -> None:
    cited = ["P-100", "P-999", "p-101", " P-101 ", "node:P-101", 101, "T2/P-7"]
    item = {"question": "Where?", "answer": "Oulu.", "sources": cited}

    parsed = parse(pairs(item), output="question_answers")

    assert parsed.fields["question_answers"][0]["sources"] == ["P-100", "P-101"]
    assert parsed.dropped == {"unknown_source": 4}


@pytest.mark.parametrize(
    ("ids", "cited", "kept"),
    [
        (["a,b", "a"], "a,b", ["a,b"]),
        (["a", "b"], "a, b", ["a", "b"]),
        (["a", "b"], '["a", "b"]', ["a", "b"]),
        (["a", "b"], "[a]; [b]", ["a", "b"]),
        (["7", "8"], [7, "8"], ["7", "8"]),
        (["7"], 7, ["7"]),
        (["R&D/1"], "R&amp;D/1", ["R&D/1"]),
        (["two  blanks"], "two blanks", ["two  blanks"]),
        (["two  blanks", "two blanks"], "two blanks", ["two blanks"]),
        (["a"], "[document: a]", ["a"]),
        (["document:a", "a"], "document:a", ["document:a"]),
        (["acme/s/1"], "1", []),
        (["A"], "a", []),
        (["a"], [{"id": "a"}, None, True, 1.5, ["a"]], ["a"]),
        (["a"], None, []),
    ],
)
def test_a_cited_id_is_matched_with_as_little_change_as_possible(
    ids: list[str], cited: Any, kept: list[str]
) -> None:
    answer = {"rationale": "r", "answer": "a", "citation": cited}

    parsed = parse(answer, output="answer", source_ids=ids)

    assert parsed.fields["citation"] == kept


# ---- question-answer pairs


def test_pairs_come_back_in_order_with_text_and_sources() -> None:
    parsed = parse(
        pairs(
            {"question": " Where\nis it? ", "answer": ["Oulu", "Vaasa"], "source": "P-101"},
            {"question": "How many?", "answer": 3},
            "Is it remote? Yes.",
        ),
        output="question_answers",
    )

    assert parsed.fields == {
        "rationale": "because",
        "question_answers": [
            {"question": "Where is it?", "answer": "Oulu, Vaasa", "sources": ["P-101"]},
            {"question": "How many?", "answer": "3", "sources": []},
            {"question": "Is it remote?", "answer": "Yes.", "sources": []},
        ],
    }


def test_blank_pairs_are_dropped_and_those_over_the_limit_cut() -> None:
    good = [{"question": f"Q{i}?", "answer": "A"} for i in range(5)]
    blank = [{"question": "", "answer": "A"}, {"question": "Q?"}, "only words", 5]

    parsed = parse(pairs(*blank, *good), output="question_answers", max_questions=3)

    assert [p["question"] for p in parsed.fields["question_answers"]] == ["Q0?", "Q1?", "Q2?"]
    assert parsed.dropped == {"empty": 3, "wrong_shape": 1, "over_limit": 2}


def test_pairs_may_be_an_object_of_questions() -> None:
    parsed = parse({"question_answers": {"Where?": "Oulu."}}, output="question_answers")

    assert parsed.fields["question_answers"] == [
        {"question": "Where?", "answer": "Oulu.", "sources": []}
    ]


# ---- summaries and the whole


def test_summaries_have_their_blanks_set_right() -> None:
    fused = {
        "facets": {},
        **pairs({"question": "Q?", "answer": "A"}),
        "summary": "  One.\t\tTwo. \n\n\n\n Three.  ",
        "one_sentence_summary": "One\n\nsentence.",
    }

    fields = parse(fused, output="fused").fields

    assert tuple(fields) == OUTPUTS["fused"]
    assert fields["summary"] == "One. Two.\n\nThree."
    assert fields["one_sentence_summary"] == "One sentence."


@pytest.mark.parametrize(
    ("output", "answer", "names"),
    [
        ("summary", {"summary": ""}, "summary"),
        ("summary", {"summary": None}, "summary"),
        ("summary", {"summary": {"text": "x"}}, "summary"),
        ("facets", {"facets": "city is Oulu"}, "facets"),
        ("facets", {"facets": None}, "facets"),
        ("question_answers", {"rationale": "r"}, "question_answers"),
        ("question_answers", {"rationale": "r", "question_answers": []}, "question_answers"),
        ("question_answers", {"rationale": "r", "question_answers": "Q? A"}, "question_answers"),
        ("fused", {"facets": {}, "summary": "s"}, "one_sentence_summary"),
        ("answer", {"rationale": "r", "citation": []}, "answer"),
    ],
)
def test_a_required_key_that_is_missing_or_has_nothing_is_malformed(
    output: str, answer: Any, names: str
) -> None:
    with pytest.raises(LlmError, match=rf"^malformed: .*{names}") as raised:
        parse(answer, output=output)

    assert "Oulu" not in str(raised.value)


def test_keys_that_were_not_asked_for_are_counted() -> None:
    parsed = parse({"facets": {"a": 1}, "note": "x", "more": 1})

    assert parsed.fields == {"facets": [{"name": "a", "value": "1", "sources": []}]}
    assert parsed.dropped == {"extra_key": 2}


def test_an_answer_may_say_that_it_is_not_in_memory() -> None:
    parsed = parse({"answer": "This is not in memory."}, output="answer")

    assert parsed.fields == {"rationale": "", "answer": "This is not in memory.", "citation": []}


def test_citations_keep_their_rank() -> None:
    answer = {"answer": "Oulu", "citations": ["P-101", "P-100", "P-101"]}

    parsed = parse(answer | {"citation": answer.pop("citations")}, output="answer")

    assert parsed.fields["citation"] == ["P-101", "P-100"]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.sampled_from(sorted(OUTPUTS)), st.lists(json_values, min_size=6, max_size=6), st.text())
def test_any_answer_is_either_valid_or_an_llm_error(
    output: str, drawn: list[Any], around: str
) -> None:
    answer = json.dumps(dict(zip(OUTPUTS[output], drawn, strict=False)))

    try:
        parsed = parse(around + answer, output=output)
    except LlmError:
        return

    assert tuple(parsed.fields) == OUTPUTS[output]
    json.dumps(parsed.fields, ensure_ascii=False).encode()
    for item in parsed.fields.get("facets", []):
        assert item["name"].strip()
        assert item["value"].strip()
        assert set(item["sources"]) <= set(IDS)


# ---- schemas


@pytest.mark.parametrize("output", sorted(OUTPUTS))
def test_schemas_are_strict_in_every_object(output: str) -> None:
    schema = json_schema_of(output)

    def check(part: dict[str, Any]) -> None:
        if part["type"] == "object":
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"])
            for inner in part["properties"].values():
                check(inner)
        elif part["type"] == "array":
            check(part["items"])

    check(schema)
    assert tuple(schema["properties"]) == OUTPUTS[output]


def test_an_answer_in_schema_form_is_read() -> None:
    parsed = parse({"facets": [{"name": "city", "values": ["Oulu"], "sources": ["P-100"]}]})

    assert parsed.fields["facets"] == [{"name": "city", "value": "Oulu", "sources": ["P-100"]}]
