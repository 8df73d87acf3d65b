"""Counters are rounded means, running statistics lie between the clients', and nothing shrinks either."""

from fractions import Fraction

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

import fedstrata as fs
from tests.properties.cases import (
    OFFICIAL,
    PROFILE,
    Case,
    cases_of_any_kind,
    each,
    is_parameter,
    is_whole,
    others,
    step,
)


def rounded_mean(case: Case, name: str) -> np.ndarray:
    """The mean by examples in exact arithmetic, rounded half to even."""
    total = Fraction(sum(r.examples for r in case.replies))
    summed = np.asarray(sum(np.asarray(r.model[name]) * int(r.examples) for r in case.replies))
    return np.vectorize(lambda v: round(int(v) / total))(summed)


@PROFILE
@given(case=cases_of_any_kind)
def test_whole_numbers_become_their_mean_by_examples_rounded_half_to_even(case: Case):
    wanted = {n: rounded_mean(case, n) for n, v in case.start.items() if is_whole(v)}
    for name in each(others(OFFICIAL)):
        model = step(name, case).model
        assert all(np.array_equal(model[n], v) for n, v in wanted.items())


@PROFILE
@given(case=cases_of_any_kind)
def test_running_statistics_stay_between_the_clients(case: Case):
    buffers = [n for n, v in case.start.items() if not is_parameter(n, v) and not is_whole(v)]
    for name in each(others(OFFICIAL)):
        model = step(name, case).model
        for n in buffers:
            sent, slack = np.stack([np.asarray(r.model[n]) for r in case.replies]), 1e-6 * case.size(n)
            assert (np.asarray(model[n]) >= sent.min(0) - slack).all()
            assert (np.asarray(model[n]) <= sent.max(0) + slack).all()


@PROFILE
@example(counts=[(3, 2), (7, 7)])
@given(counts=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=6))
def test_a_half_is_a_half_whatever_the_shares(counts: list[tuple[int, int]]):
    start = {"weight": np.ones(1), "num_batches_tracked": np.array(0)}
    replies = [fs.Reply(k, start | {"num_batches_tracked": np.array(b)}, n) for k, (n, b) in enumerate(counts)]
    exact = round(Fraction(sum(n * b for n, b in counts), sum(n for n, _ in counts)))
    assert fs.server_step(fs.recipes.fedavg(), start, replies).model["num_batches_tracked"] == exact
