import pytest

from hltm_spark.models.extractive.dates import day_words, meant_date, month_words

TUESDAY = "2023-06-27T10:37:00Z"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("I went yesterday", "26 June 2023"),
        ("We meet tomorrow", "28 June 2023"),
        ("It is today", "27 June 2023"),
        ("last Friday was fun", "23 June 2023"),
        ("last Tuesday was fun", "20 June 2023"),
        ("see you next Monday", "3 July 2023"),
        ("see you next Tuesday", "4 July 2023"),
        ("camping last week", "the week before 27 June 2023"),
        ("a fair next weekend", "the weekend after 27 June 2023"),
        ("painted last year", "2022"),
        ("planned for next month", "July 2023"),
        ("two weeks ago", "13 June 2023"),
        ("7 months ago", "November 2022"),
        ("3 years ago", "2020"),
        ("last year's report", ""),
        ("some day", ""),
    ],
)
def test_a_relative_time_is_resolved_on_the_day_it_was_said(text: str, meant: str) -> None:
    assert meant_date(text, TUESDAY)[1] == meant


@pytest.mark.parametrize("time", ["", "soon", "2023"])
def test_nothing_is_resolved_without_a_day(time: str) -> None:
    assert meant_date("yesterday", time) == ("", "")
    assert (day_words(time), month_words(time)) == ("", "")
