import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hltm_spark.models.lenient_json import to_json


def read(piece: str) -> Any:
    made = to_json(piece)
    assert made is not None
    return json.loads(made, strict=False)


@pytest.mark.parametrize(
    ("piece", "value"),
    [
        ('{"a": [1, 2,], "b": {},}', {"a": [1, 2], "b": {}}),
        ('{"a": [{"b": 1} {"b": 2}] "c": 3}', {"a": [{"b": 1}, {"b": 2}], "c": 3}),
        ("{'a': 'it\\'s', 'b': \"it's\"}", {"a": "it's", "b": "it's"}),
        ("{'a': 'it's O'Neil's'}", {"a": "it's O'Neil's"}),
        ("{'a': 'say \"so\"'}", {"a": 'say "so"'}),
        ("{'a': '\\xe9\\U0001f600\\n'}", {"a": "é😀\n"}),
        (r'{"a": "it\'s a_b\_c \d \u12"}', {"a": r"it's a_b\_c \d \u12"}),
        ("{a: 1, b-c: 2, städte: 3}", {"a": 1, "b-c": 2, "städte": 3}),
        ("{'a': True, 'b': None, 'c': FALSE, 'd': undefined}",
         {"a": True, "b": None, "c": False, "d": None}),
        ("{'a': +5, 'b': .5, 'c': -1e3, 'd': -.5}", {"a": 5, "b": 0.5, "c": -1000.0, "d": -0.5}),
        ('{// one\n"a": 1, # two\n/* three\n */ "b": "// no # comment"}',
         {"a": 1, "b": "// no # comment"}),
        ('{"a": "x\ny"}', {"a": "x\ny"}),
    ],
)  # fmt: skip
def test_what_can_be_read_in_one_way_is_read(piece: str, value: Any) -> None:
    assert read(piece) == value


@pytest.mark.parametrize(
    "piece",
    [
        '{"a": "he said "yes" to it"}',
        '{"a": "x, "b": "y"}',
        '{"a" "x"}',
        '{"a": "x" "b": "y"}',
        '{"a": "x", b"}',
        "{'a': 'the boys' books'}",
        "{'a: True, 'b': None}",
        '{"a": Oulu}',
        '{"a": }',
        '{"a": 1,, "b": 2}',
        '{"a": [1}',
        '{"a": 1_000}',
        '{"a": ...}',
    ],
)
def test_what_could_be_a_value_that_is_cut_stays_damaged(piece: str) -> None:
    made = to_json(piece)

    with pytest.raises(json.JSONDecodeError):
        json.loads(made or "")


flat = st.none() | st.booleans() | st.integers() | st.text(max_size=12)
nested = st.recursive(
    flat,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
)


@given(st.dictionaries(st.text(max_size=6), nested, max_size=5))
def test_json_stays_what_it_is(value: dict[str, Any]) -> None:
    assert read(json.dumps(value, ensure_ascii=False, indent=1)) == value
    assert read(json.dumps(value)) == value


@given(st.dictionaries(st.text(max_size=6), nested, max_size=5))
def test_what_python_writes_is_read_as_python_reads_it(value: dict[str, Any]) -> None:
    assert read(repr(value)) == ast.literal_eval(repr(value))
