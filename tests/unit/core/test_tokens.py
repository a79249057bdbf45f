import pytest
from hypothesis import given
from hypothesis import strategies as st

from hltm_spark.core.tokens import cut_to_tokens, estimate_tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("word", 1),
        ("engineers", 3),
        ("a b c", 3),
        ("2024-01-05", 6),
        ("東京で募集", 5),
        ("удалённая", 5),
        ("😀", 3),
        ("a\n\n\nb", 3),
        ("{}[]", 4),
    ],
)
def test_each_kind_of_character_has_its_price(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "true_count"),  # o200k_base
    [
        ("Die Bundesregierung hat die Arbeitsmarktförderungsgesetze überarbeitet.", 13),
        ("Мы ищем опытного инженера по машинному обучению в Москве.", 14),
        ("我们正在上海招聘一名有经验的机器学习工程师，可以远程工作，薪资面议。", 23),
        ("서울에서 경험이 풍부한 머신러닝 엔지니어를 모집합니다. 원격 근무 가능합니다.", 24),
    ],
)
def test_the_estimate_is_not_below_the_true_count(text: str, true_count: int) -> None:
    assert true_count <= estimate_tokens(text) <= 2 * true_count


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_a_long_text_costs_what_its_lines_cost(line: str) -> None:
    text = f"<{line}>"  # no run of blanks or line ends reaches from one to the next

    assert estimate_tokens(text * 2000) == 2000 * estimate_tokens(text)


@pytest.mark.parametrize("text", ["word " * 500, "漢字" * 500, "😀" * 300, "a" * 5000])
@pytest.mark.parametrize("limit", [1, 10, 333])
def test_a_cut_text_is_as_long_as_the_limit_allows(text: str, limit: int) -> None:
    cut = cut_to_tokens(text, limit)

    assert text.startswith(cut)
    assert estimate_tokens(cut) <= limit
    assert estimate_tokens(text[: len(cut) + 1]) > limit


def test_a_text_within_the_limit_is_not_cut() -> None:
    assert cut_to_tokens("short text", 100) == "short text"
