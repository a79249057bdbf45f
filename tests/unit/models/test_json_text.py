import pytest

from hltm_spark.models.json_text import NoJsonError, find_object

RIGHT = '{"facets": {"city": "Turku"}}'


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        f"```json\n{RIGHT}\n```",
        f"```json\r\n{RIGHT}\r\n```\r\n",
        f"\ufeff{RIGHT}",
        f"Sure!\n{RIGHT}",
        f'Here is what I found in "the documents: {RIGHT}\nSee [docs].',
        f"<think>Should it be {{'facets': 1}}? No.</think>\n{RIGHT}",
        f"<THINKING>a</THINKING><think>b</think>{RIGHT}",
        f'I think {{"facets": {{}}}} is wrong</think>{RIGHT}',
        f"Use {{curly braces}} like this: {RIGHT}",
        '{"facets": {"city": "Turku",},}',
        f"<reasoning>{{a: 1}}</reasoning>[THINK]b[/THINK]<thought>c</thought>{RIGHT}",
        f"Well. <think>{{</think> {RIGHT}",
        f"<think>It is {{'facets': {{}}</think>{RIGHT}",
        f"b'{RIGHT}'",
        "{'facets': {'city': 'Turku'}}",
        '{facets: {"city": "Turku"}}',
        '{"Facets": {"city": "Turku"}}',
        f"[{RIGHT}]",
    ],
)
def test_the_object_is_found_in_whatever_stands_around_it(text: str) -> None:
    found, _ = find_object(text, keys=["facets"], may_repair=True)

    assert found == {"facets": {"city": "Turku"}}


def test_a_think_tag_inside_a_value_stays() -> None:
    found, _ = find_object('{"summary": "a</think>b"}', keys=["summary"], may_repair=True)

    assert found == {"summary": "a</think>b"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json at all",
        '{"facets": {"city": "Turku"}',
        '{"facets": {"city": "Tu',
        '{"facets": {}, "question_answers": [{"question": "a", "answer": "b"},',
        '{"rationale": "x", "inner": {"facets": {}}',
        '{"other": 1}',
        "[1, 2]",
        f"<think>Perhaps {RIGHT}? Or is it",
        f"<think>Perhaps</think><think>{RIGHT}",
        f"It is {RIGHT}. No, it is {{",
        f"It is {RIGHT}. No, it is {{facets: ",
        '{"facets": {"city": "in {Turku} and }, or',
        '{"facets": {"city": "so "}}" said Turku"}}',
        '{"facets": {"city": "Turku"}}, "area": "big"}}',
        '{"facets": {"city": "Turku"}}}',
        '{"facets": {"city": "Turku"}} or {"facets": {"city": "so "said" Oulu"}}',
        "{x} " * 40 + RIGHT,
        '{"a":' * 3000 + "1" + "}" * 3000,
    ],
)
def test_what_is_not_a_closed_object_with_a_wanted_key_is_no_answer(text: str) -> None:
    with pytest.raises(NoJsonError):
        find_object(text, keys=["facets"], may_repair=True)


def test_damaged_json_is_left_damaged_where_the_answer_did_not_end_by_itself() -> None:
    with pytest.raises(NoJsonError, match="damaged JSON in 19 characters"):
        find_object('{"facets": {"a":,}}', keys=["facets"], may_repair=False)


def test_of_several_objects_the_fullest_is_taken_and_the_others_are_counted() -> None:
    text = '{"summary": "draft"} then {"facets": {}, "summary": "right"} and {"summary": "later"}'

    found, others = find_object(text, keys=["facets", "summary"], may_repair=True)

    assert (found["summary"], others) == ("right", 2)


def test_repeated_keys_are_all_known() -> None:
    found, _ = find_object('{"facets": {"a": 1, "a": 2}}', keys=["facets"], may_repair=True)

    assert found["facets"].pairs == [("a", 1), ("a", 2)]


@pytest.mark.timeout(60)  # what backtracks never ends
@pytest.mark.parametrize("text", ["{" * 20_000, '{"a"' * 5_000, '"' * 20_001, "{x" * 9_000])
def test_a_hostile_text_holds_no_object(text: str) -> None:
    with pytest.raises(NoJsonError):
        find_object(text, keys=["facets"], may_repair=True)
