"""Parts compose: shrinking by nothing is nothing, other parts' memories are left alone, a recipe is its text."""

from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import fedstrata as fs
from fedstrata.core import Part
from fedstrata.errors import SettingError
from fedstrata.parts import LWS, PerLayer
from fedstrata.values import kinds as classes
from tests.properties.cases import METHODS, PROFILE, SETTLES, Case, bits, cases_of_any_kind, each, memory, others, step

R = fs.recipes


@PROFILE
@given(case=cases_of_any_kind, grain=st.sampled_from(("tensor", "layer", "model")))
def test_shrinking_with_beta_zero_changes_not_one_bit(case: Case, grain):
    for name in each(METHODS):
        plain, same = step(name, case), step(R.combine(R.METHODS[name](), LWS(0.0, grain)), case)
        assert bits(plain.model) == bits(same.model)


@PROFILE
@given(case=cases_of_any_kind, beta=st.floats(0.01, 10))
def test_shrinking_leaves_the_memories_of_the_other_parts_alone(case: Case, beta: float):
    for name in each(others(SETTLES)):
        plain, shrunk = step(name, case), step(R.combine(R.METHODS[name](), LWS(beta)), case)
        assert bits(memory(plain)).items() <= bits(memory(shrunk)).items()


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Settings of this type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(args)
    if origin is UnionType:
        return st.one_of(*map(values, args))
    if origin is tuple:
        return st.lists(values(args[0]), min_size=1, max_size=4).map(tuple)
    numbers = st.floats(0, 1, exclude_min=True, exclude_max=True)
    known = {int: st.integers(1, 9), float: numbers, bool: st.booleans(), NoneType: st.none()}
    return known[hint] if hint in known else st.builds(PerLayer, st.lists(numbers, min_size=1, max_size=4).map(tuple))


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """Any part of the library, with any of its settings."""
    ours = [c for c in classes(Part).values() if c.__module__.startswith("fedstrata.parts")]
    kind: Any = draw(st.sampled_from(ours))
    hints = get_type_hints(kind)
    settings = draw(st.fixed_dictionaries({}, optional={f.name: values(hints[f.name]) for f in fields(kind)}))
    try:
        return kind(**settings)
    except SettingError:
        reject()


@settings(PROFILE, max_examples=150)
@given(terms=st.lists(parts(), max_size=5))
def test_the_text_of_a_recipe_is_that_recipe(terms: list[Part]):
    try:
        recipe = R.combine(*terms)
    except SettingError:
        reject()
    assert fs.parse_recipe(fs.recipe_text(recipe)) == recipe
    assert fs.Recipe.from_dict(recipe.to_dict()) == recipe


@pytest.mark.parametrize("name", R.METHODS)
def test_the_text_of_a_method_is_that_method(name):
    recipe = R.METHODS[name]()
    assert fs.parse_recipe(fs.recipe_text(recipe)) == recipe == fs.parse_recipe(name)
