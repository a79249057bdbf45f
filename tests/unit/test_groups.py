import random
import re
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hltm_spark.core.escaping import escape_text
from hltm_spark.core.groups import SizedItem, assign_groups, split_document
from hltm_spark.core.records import Document
from hltm_spark.core.tokens import estimate_tokens
from tests.builders import document

ITEMS = st.lists(
    st.tuples(st.text(min_size=1, max_size=6), st.integers(1, 40)),
    unique_by=lambda pair: pair[0],
    max_size=60,
)


def children(count: int, *, tokens: int = 10, **sizes: int) -> list[SizedItem]:
    """Return children c0, c1, ... of one size; `sizes` gives others by id."""
    ids = [f"c{n}" for n in range(count)]
    return [SizedItem(i, sizes.get(i, tokens), is_document=False) for i in ids]


def members(items: list[SizedItem], room: int) -> list[tuple[str, ...]]:
    keyed = zip(assign_groups(items, room), items, strict=True)
    return [tuple(i.item_id for _, i in found) for _, found in groupby(keyed, key=lambda k: k[0])]


def flat(text: str) -> str:
    return re.sub(r"\s+", "", text)


@settings(max_examples=60)
@given(ITEMS, st.integers(1, 100))
def test_a_group_fits_or_is_one_item_and_a_key_names_one_group(
    pairs: list[tuple[str, int]], room: int
) -> None:
    items = [SizedItem(name, size, is_document=False) for name, size in pairs]
    sizes = dict(pairs)

    groups = members(items, room)

    assert [name for group in groups for name in group] == [name for name, _ in pairs]
    assert all(len(g) == 1 or sum(sizes[name] for name in g) <= room for g in groups)
    assert len(set(assign_groups(items, room))) == len(groups)
    assert all(re.fullmatch("[0-9a-f]{8,}", key) for key in assign_groups(items, room))


@settings(max_examples=60)
@given(st.lists(st.integers(1, 33), min_size=4, max_size=80))
def test_where_any_three_items_fit_some_group_has_two(sizes: list[int]) -> None:
    items = [SizedItem(f"c{n}", size, is_document=False) for n, size in enumerate(sizes)]

    assert len(members(items, 100)) < len(items)


def test_children_own_groups_and_documents_are_never_read_together() -> None:
    items = [
        SizedItem("a", 1, is_document=False),
        SizedItem("g", 1, is_document=False, is_own=True),
        SizedItem("a", 1, is_document=True),
    ]

    assert len(set(assign_groups(items, 100))) == 3


def test_a_growing_item_moves_no_boundary_outside_its_own_group() -> None:
    before = members(children(2000), 300)
    at = next(n for n, group in enumerate(before) if len(group) > 5)

    after = members(children(2000, **{before[at][2]: 290}), 300)

    assert [g for g in before if g not in after] == [before[at]]


def test_a_new_item_changes_a_group_or_two() -> None:
    items = children(2000)
    before = set(members(items, 300))

    for place in (0, 700, 2000):
        more = [*items[:place], SizedItem("new", 10, is_document=False), *items[place:]]
        assert len(set(members(more, 300)) - before) <= 6


@settings(max_examples=20)
@given(st.permutations(range(120)), st.integers(0, 119))
def test_groups_do_not_depend_on_what_came_and_went(order: list[int], gone: int) -> None:
    held: dict[int, SizedItem] = {}
    all_items = children(121)
    for n in order:
        held[n] = all_items[n]
        members([held[k] for k in sorted(held)], 100)
    del held[gone]

    assert members([held[k] for k in sorted(held)], 100) == members(
        [item for n, item in enumerate(all_items[:120]) if n != gone], 100
    )


def test_an_empty_node_has_no_groups() -> None:
    assert assign_groups([], 10) == []


@pytest.mark.timeout(60)  # what grows with the square of the items never ends
def test_twenty_thousand_items_are_grouped() -> None:
    assert len(members(children(20_000), 200)) > 1000


@pytest.mark.parametrize(
    "text",
    [
        "\n\n".join(f"Paragraph {n} says this. And that." for n in range(200)),
        " ".join(f"Sentence {n} is short." for n in range(400)),
        " ".join(f"word{n}" for n in range(800)),
        "x" * 5000,
        "".join(random.Random(1).choices("0123456789abcdef", k=5000)),
        "漢字の文。" * 500,
        "漢字" * 1000,
        "same paragraph\n\n" * 500,
        "<document " * 300,
        "\n \n".join("a" * n for n in range(90)),
    ],
    ids=lambda text: text[:12],
)
def test_parts_fit_and_join_to_the_text(text: str) -> None:
    parts = split_document(document("d", text=text, kind="note"), 100)

    assert flat("".join(p.text for p in parts)) == flat(text)
    assert all(estimate_tokens(escape_text(p.text)) <= 104 for p in parts)
    assert len(parts) < estimate_tokens(escape_text(text)) / 25
    assert len({p.part for p in parts}) == len(parts)
    assert {(p.doc_id, p.kind) for p in parts} == {("d", "note")}
    assert [p.is_start for p in parts] == [True] + [False] * (len(parts) - 1)


@settings(max_examples=40)
@given(st.text(alphabet="ab c.\n漢😀<", max_size=300), st.integers(1, 40))
def test_any_text_is_kept_but_for_blanks(text: str, limit: int) -> None:
    parts = split_document(document("d", text=text), limit)

    assert flat("".join(p.text for p in parts)) == flat(text)
    assert parts


def test_a_short_document_is_no_part() -> None:
    given_one = document("d", text="short")

    assert split_document(given_one, 100) == (given_one,)
    assert given_one.to_dict().keys() == Document(doc_id="d", text="").to_dict().keys()
    assert "part" not in given_one.to_dict()


def test_an_edit_changes_few_parts() -> None:
    paragraphs = [f"Paragraph {n} says {n * n} things of note." for n in range(2000)]
    before = split_document(document("d", text="\n\n".join(paragraphs)), 200)
    paragraphs[1000] = "Paragraph 1000 says something else."
    paragraphs.insert(400, "A paragraph that was not there.")

    after = split_document(document("d", text="\n\n".join(paragraphs)), 200)

    assert len(set(map(str, after)) - set(map(str, before))) <= 6


@pytest.mark.timeout(60)  # as above
def test_a_long_document_without_a_paragraph_is_split() -> None:
    text = " ".join(f"word{n}" for n in range(100_000))

    parts = split_document(document("d", text=text), 5000)

    assert 60 < len(parts) < 700
