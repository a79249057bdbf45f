import re
from typing import Any

import pytest

from hltm_spark.core.errors import LlmError
from hltm_spark.core.prompts import OUTPUTS
from hltm_spark.models.llm import FAILURE_KINDS
from hltm_spark.models.parsing import parse_answer
from tests.malformed import (
    IDS,
    KINDS,
    MAX_QUESTIONS,
    REFUSED_REASONS,
    RIGHT,
    STYLES,
    WORDS,
    cases,
)

COUNT = 42
"""Answers of each kind for each output: 42 x 20 x 6 = 5,040."""


def read(text: str, output: str, reason: str = "stop") -> dict[str, Any] | None:
    """Return the record of an answer, or None where it is refused as it has to be."""
    try:
        parsed = parse_answer(
            text, reason, output=output, source_ids=IDS, max_questions=MAX_QUESTIONS
        )
    except LlmError as error:
        told = str(error)
        assert told.partition(": ")[0] in FAILURE_KINDS
        assert not [word for word in WORDS if word in told.lower()]
        return None
    check_record(parsed.fields, output)
    assert all(count > 0 for count in parsed.dropped.values())
    return parsed.fields


def check_record(fields: dict[str, Any], output: str) -> None:
    assert tuple(fields) == OUTPUTS[output]
    for facet in fields.get("facets", []):
        check_item(facet, "name", "value")
    pairs = fields.get("question_answers", [])
    assert len(pairs) <= MAX_QUESTIONS
    assert pairs or "question_answers" not in fields
    for pair in pairs:
        check_item(pair, "question", "answer")
    check_sources(fields.get("citation", []))
    for key in {"summary", "one_sentence_summary", "answer"} & fields.keys():
        check_text(fields[key])
    if fields.get("rationale"):
        check_text(fields["rationale"])


def check_item(item: dict[str, Any], *names: str) -> None:
    assert tuple(item) == (*names, "sources")
    for name in names:
        check_text(item[name])
        assert "\n" not in item[name]
    check_sources(item["sources"])


def check_sources(sources: Any) -> None:
    assert isinstance(sources, list)
    assert set(sources) <= set(IDS)
    assert len(sources) == len(set(sources))


def check_text(text: Any) -> None:
    assert isinstance(text, str)
    assert text == text.strip() != ""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
    text.encode("utf-8")


def words(value: Any) -> set[str]:
    """Return the plain words of every text in a record, but for its ids."""
    if isinstance(value, dict):
        return set().union(
            *(words(v) for k, v in value.items() if k not in {"sources", "citation"})
        )
    if isinstance(value, list):
        return set().union(*map(words, value))
    return set(re.findall(r"[A-Za-z]{4,}", value))


@pytest.mark.timeout(120)  # what backtracks never ends
@pytest.mark.parametrize("output", sorted(OUTPUTS))
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_malformed_answer_becomes_a_right_record_or_an_llm_error(kind: str, output: str) -> None:
    for number, (text, reason) in enumerate(cases(kind, output, COUNT)):
        try:
            record = read(text, output, reason)
        except Exception as error:
            error.add_note(f"{kind}, {output}, number {number}: {text[:200]!r}, {reason!r}")
            raise
        if record is not None:
            assert reason not in REFUSED_REASONS
            if "\\u00" not in text:
                assert not [word for word in words(record) if word not in text], (kind, number)


@pytest.mark.parametrize("output", sorted(OUTPUTS))
@pytest.mark.parametrize("style", sorted(STYLES))
def test_every_usual_style_is_read(style: str, output: str) -> None:
    plain = read(STYLES["one line"](RIGHT[output]), output)

    assert plain is not None
    assert read(STYLES[style](RIGHT[output]), output) == plain


@pytest.mark.parametrize("output", sorted(OUTPUTS))
@pytest.mark.parametrize("style", sorted(STYLES))
def test_an_answer_cut_anywhere_is_the_whole_one_or_none(style: str, output: str) -> None:
    text = STYLES[style](RIGHT[output])
    whole = read(text, output)

    for end in range(len(text)):
        assert read(text[:end], output) in (None, whole), f"cut at {end}: {text[:end][-60:]!r}"


@pytest.mark.parametrize("output", sorted(OUTPUTS))
@pytest.mark.parametrize("style", ["one line", "indented", "bare names"])
def test_a_mark_that_is_missing_doubled_or_moved_changes_no_record(style: str, output: str) -> None:
    text = STYLES[style](RIGHT[output])
    right = read(text, output)

    marks = [
        m.start() for m in re.finditer(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]', text) if len(m[0]) == 1
    ]
    for at in marks:
        before, mark, after = text[:at], text[at], text[at + 1 :]
        for damaged in (
            before + after,
            before + mark + mark + after,
            before + after[:1] + mark + after[1:],
        ):
            assert read(damaged, output) in (None, right), (
                f"at {at}: {damaged[at - 30 : at + 30]!r}"
            )


@pytest.mark.parametrize("reason", REFUSED_REASONS)
@pytest.mark.parametrize("output", sorted(OUTPUTS))
def test_a_whole_answer_is_not_read_where_the_provider_says_it_was_stopped(
    output: str, reason: str
) -> None:
    for write in STYLES.values():
        assert read(write(RIGHT[output]), output, reason) is None
