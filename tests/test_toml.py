import math
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.toml import dumps

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TEXT = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF, exclude_characters="\x7f"), max_size=5)
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
LISTS = st.recursive(SCALARS, lambda v: st.lists(v | st.dictionaries(TEXT, v, max_size=2), max_size=3), max_leaves=5)
TABLES = st.recursive(
    st.dictionaries(TEXT, LISTS, max_size=3), lambda t: st.dictionaries(TEXT, t | LISTS, max_size=3), max_leaves=6
)


@given(TABLES)
@settings(max_examples=100, deadline=None)
def test_python_reads_what_is_written(data: dict[str, Any]):
    assert tomllib.loads(dumps(data)) == data


@given(ANY_TEXT)
@settings(max_examples=200, deadline=None)
def test_any_text_survives_as_a_value(text: str):
    assert tomllib.loads(dumps({"a": text, "b": [text]})) == {"a": text, "b": [text]}


@given(ANY_TEXT)
@settings(max_examples=200, deadline=None)
def test_any_text_survives_as_a_name(text: str):
    assert tomllib.loads(dumps({text: {text: 1}})) == {text: {text: 1}}


@pytest.mark.parametrize(
    "text", ["", 'a "quoted" one', "back\\slash", "two\nlines\t", "\x00\x1f", "\x7f", "é 漢", "😀"]
)
def test_awkward_texts_survive_as_values_and_as_names(text: str):
    assert tomllib.loads(dumps({"a": text, "b": [text]})) == {"a": text, "b": [text]}
    assert tomllib.loads(dumps({text: {text: 1}})) == {text: {text: 1}}


@pytest.mark.parametrize("number", [0.1, 1e16, 1e-7, 1e300, -0.0, math.inf, -math.inf, 5e-324])
def test_numbers_survive_to_the_last_bit(number: float):
    back = tomllib.loads(dumps({"a": number}))["a"]
    assert (back, math.copysign(1, back)) == (number, math.copysign(1, number))
    assert type(back) is float


def test_not_a_number_survives():
    assert math.isnan(tomllib.loads(dumps({"a": math.nan}))["a"])


def test_true_is_not_one():
    assert dumps({"a": True, "b": 1}) == "a = true\nb = 1\n"


def test_values_come_before_tables():
    assert dumps({"table": {"x": 1}, "value": 2}) == "value = 2\n\n[table]\nx = 1\n"


def test_tables_are_nested_by_dotted_names():
    assert dumps({"a": {"b": {"c": 1}}}) == "[a.b]\nc = 1\n"
    assert dumps({"a": {"n": 0, "b": {"c": 1}}}) == "[a]\nn = 0\n\n[a.b]\nc = 1\n"


def test_tuples_are_lists_and_dictionaries_in_them_are_inline():
    assert dumps({"a": ({"kind": "Prox", "mu": 0.1}, 2)}) == 'a = [{kind = "Prox", mu = 0.1}, 2]\n'


def test_empty_tables_and_lists_are_kept():
    data = {"a": {}, "b": [], "c": {"d": {}}}
    assert tomllib.loads(dumps(data)) == data
    assert tomllib.loads(dumps({})) == {}


def test_names_that_need_quotes_get_them():
    assert (
        dumps({"with space": 1, "with.dot": 2, "plain-1_a": 3}) == '"with space" = 1\n"with.dot" = 2\nplain-1_a = 3\n'
    )
