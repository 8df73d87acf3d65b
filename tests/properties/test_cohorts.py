"""Who replied matters by what they sent: not in which order, not under which number, not if they cannot count."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedstrata as fs
from fedstrata.parts import AFL, DC, FOLB, LWS, FairFed, OfficialLWS, Q, Scaffold
from tests.properties.cases import (
    GUEST,
    METHODS,
    POPULATION,
    PROFILE,
    UNTIL_MENDED,
    Case,
    assert_near,
    bits,
    cases,
    cases_of_any_kind,
    each,
    having,
    is_whole,
    memory,
    others,
    step,
    two_rounds,
)


def assert_same(one: fs.Outcome, other: fs.Outcome) -> None:
    """To the last bit, in the model and in what the parts remember."""
    assert bits(one.model) == bits(other.model)
    assert bits(memory(one)) == bits(memory(other))


@PROFILE
@given(case=cases_of_any_kind, data=st.data())
def test_the_order_of_replies_changes_not_one_bit(case: Case, data):
    shuffled = case.sent_by(data.draw(st.permutations(case.replies)))
    for name in each(METHODS):
        for one, other in zip(two_rounds(name, case), two_rounds(name, shuffled), strict=True):
            assert_same(one, other)


@PROFILE
@given(case=cases_of_any_kind, gap=st.integers(1, 4), first=st.integers(0, 9))
def test_other_numbers_for_the_clients_change_nothing(case: Case, gap: int, first: int):
    renamed = case.sent_by([replace(r, client=first + gap * r.client) for r in case.replies])
    many = POPULATION * 5
    for name in each(METHODS):
        for one, other in zip(two_rounds(name, case, many), two_rounds(name, renamed, many), strict=True):
            assert bits(one.model) == bits(other.model)


@PROFILE
@given(case=cases_of_any_kind, value=st.sampled_from((np.nan, np.inf, -np.inf)), data=st.data())
def test_a_client_that_is_not_finite_might_as_well_not_have_replied(case: Case, value: float, data):
    last = case.replies[-1]
    where = data.draw(st.sampled_from([n for n, v in last.model.items() if not is_whole(v)]))
    broken = deepcopy(last.model[where])
    broken.reshape(-1)[-1] = value
    bad = replace(last, client=GUEST, model=dict(last.model) | {where: broken})
    for name in each(METHODS):
        out = step(name, case.sent_by([bad, *case.replies]))
        assert out.dropped == [GUEST]
        assert_same(out, step(name, case))


@PROFILE
@given(case=cases_of_any_kind)
def test_where_nobody_is_usable_all_stays_as_it_was(case: Case):
    bad = [replace(r, model={n: v * np.nan for n, v in r.model.items()}) for r in case.replies]
    for name in each(METHODS):
        first = step(name, case)
        for replies in (bad, []):
            assert_same(step(name, Case(first.model, tuple(replies)), first.state), first)


COUNTED = having(Scaffold, DC, Q, AFL, FairFed, FOLB, LWS, OfficialLWS) | {"feddyn", "ldawa"}
"""Their sums, means or weights have a place for a client without examples."""


def assert_idle_client_changes_nothing(name: str, case: Case) -> None:
    last = case.replies[-1]
    far = {n: v + 1 for n, v in last.model.items()}
    nothing = {"labels": np.zeros(4), "steps": 0, "class_features": np.zeros((4, 3))}
    stats = dict(last.stats) | nothing | {"loss": 3.0, "accuracy": 0.0}
    idle = replace(last, client=GUEST, model=far, examples=0, stats=stats)
    for one, both in zip(two_rounds(name, case), two_rounds(name, case.sent_by([*case.replies, idle])), strict=True):
        assert_near(one.model, both.model, case)
        assert not any(v.isnan().any() for v in memory(both).values())


@PROFILE
@given(case=cases(fewest_examples=1))
def test_a_client_without_examples_changes_nothing(case: Case):
    for name in each(others(COUNTED)):
        assert_idle_client_changes_nothing(name, case)


@pytest.mark.xfail(strict=True, reason="a client without examples counts")
@pytest.mark.parametrize("name", sorted(COUNTED))
@UNTIL_MENDED
@given(case=cases(fewest_examples=1))
def test_a_client_without_examples_changes_nothing_here_either(name, case: Case):
    assert_idle_client_changes_nothing(name, case)
