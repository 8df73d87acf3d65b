"""Who replied matters by what they sent: not in which order, not under which number, not if they cannot count."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import fedstrata as fs
from tests.properties.cases import (
    GUEST,
    METHODS,
    POPULATION,
    PROFILE,
    Case,
    assert_near,
    bits,
    cases,
    cases_of_any_kind,
    each,
    is_whole,
    memory,
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
        out, without = step(name, case.sent_by([bad, *case.replies])), step(name, case)
        assert out.dropped == sorted([GUEST, *without.dropped])
        assert_same(out, without)


@PROFILE
@given(case=cases_of_any_kind)
def test_where_nobody_is_usable_all_stays_as_it_was(case: Case):
    bad = [replace(r, model={n: v * np.nan for n, v in r.model.items()}) for r in case.replies]
    for name in each(METHODS):
        first = step(name, case)
        for replies in (bad, []):
            assert_same(step(name, Case(first.model, tuple(replies)), first.state), first)


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
    for name in each(METHODS):
        assert_idle_client_changes_nothing(name, case)
