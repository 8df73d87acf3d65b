"""Two names for one tensor are one tensor."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.properties.cases import (
    METHODS,
    PROFILE,
    Case,
    Model,
    bits,
    cases_of_any_kind,
    each,
    is_parameter,
    step,
    two_rounds,
)


def tie(case: Case, data):
    """What gives a model a second name for one of its parameters."""
    first_name = data.draw(st.sampled_from([n for n, v in case.start.items() if is_parameter(n, v)]))

    def tied(model: Model) -> Model:
        return model | {"decoder.weight": model[first_name]}

    return tied


@PROFILE
@given(case=cases_of_any_kind, data=st.data())
def test_a_second_name_changes_nothing_and_has_the_same_values(case: Case, data):
    tied = tie(case, data)
    both = case.remade(tied)
    for name in each(METHODS):
        one, two = step(name, case), step(name, both)
        assert bits(two.model) == bits(tied(one.model))
        one = step(name, replace(case, start=one.model), one.state)
        two = step(name, replace(both, start=tied(two.model)), two.state)
        assert bits(two.model) == bits(tied(one.model))


@PROFILE
@given(case=cases_of_any_kind, data=st.data())
def test_a_model_that_is_handed_back_is_still_tied(case: Case, data):
    tied = tie(case, data)
    both = case.remade(tied)
    for name in each(METHODS):
        assert bits(two_rounds(name, both)[-1].model) == bits(tied(two_rounds(name, case)[-1].model))
