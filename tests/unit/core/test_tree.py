import pytest
from hypothesis import given
from hypothesis import strategies as st

from hltm_spark.core.errors import DataError
from hltm_spark.core.tree import (
    ancestors,
    encode_key,
    parent_keys,
    salted_hash,
    to_keys,
    to_node_id,
)

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize(
    ("keys", "node_id"),
    [
        (["007"], "007"),
        (["acme", "a/b"], "acme/a%2Fb"),
        (["é", "東京", "😀"], "é/東京/😀"),
        (["100%"], "100%25"),
        ([".", ".."], "%2E/%2E%2E"),
        (["a\nb"], "a%0Ab"),
    ],
)
def test_keys_are_encoded_only_where_they_would_break_the_path(
    keys: list[str], node_id: str
) -> None:
    assert to_node_id(keys) == node_id
    assert to_keys(node_id) == tuple(keys)


@given(st.lists(KEYS, min_size=1, max_size=5))
def test_a_node_id_gives_its_keys_back(keys: list[str]) -> None:
    assert to_keys(to_node_id(keys)) == tuple(keys)


@given(st.lists(KEYS, min_size=2, max_size=4))
def test_a_parents_id_is_a_prefix_of_its_childs(keys: list[str]) -> None:
    assert to_node_id(keys).startswith(to_node_id(keys[:-1]) + "/")


@pytest.mark.parametrize("text", ["", "/", "a//b", "a/", "..", "a/.", "a%2f", "a%zz", "%FF", "a\n"])
def test_text_that_is_not_a_node_id_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="not a node id"):
        to_keys(text)


def test_an_empty_key_is_an_error() -> None:
    with pytest.raises(DataError, match="must not be empty"):
        encode_key("")


def test_ancestors_run_from_the_tenant_to_the_node() -> None:
    assert ancestors(("a", "b", "c")) == [("a",), ("a", "b"), ("a", "b", "c")]
    assert parent_keys(("a", "b")) == ("a",)
    assert parent_keys(("a",)) is None


def test_equal_ids_hash_differently_under_another_salt() -> None:
    assert salted_hash("acme", salt="1") != salted_hash("acme", salt="2")
    assert salted_hash("acme", salt="1") == salted_hash("acme", salt="1")
