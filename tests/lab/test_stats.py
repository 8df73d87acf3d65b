"""Intervals, paired tests and Holm's correction, by hand and against scipy."""

from math import sqrt

import numpy as np
import pytest
from scipy import stats

from fedstrata.lab.stats import holm, interval, paired


def test_an_interval_worked_by_hand():
    found = interval([1.0, 2.0, 3.0])  # s = 1, t(0.975, 2) = 4.302653
    assert found.mean == 2.0
    assert found.high == pytest.approx(2 + 4.302653 / sqrt(3), abs=1e-6)
    assert found.low == pytest.approx(2 - 4.302653 / sqrt(3), abs=1e-6)


@pytest.mark.parametrize("count", [2, 3, 5, 40])
def test_an_interval_is_scipys(count):
    values = np.random.default_rng(count).normal(size=count)
    low, high = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    found = interval(values.tolist())
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


def test_one_value_has_no_interval_and_one_pair_no_test():
    assert (interval([0.5]).mean, interval([0.5]).low, interval([0.5]).high) == (0.5, None, None)
    alone = paired([0.5], [0.4])
    assert alone.difference == pytest.approx(0.1)
    assert (alone.low, alone.high, alone.p) == (None, None, None)


def test_intervals_hold_the_truth_in_about_95_of_100_cases():
    draw = np.random.default_rng(0)
    found = [interval(draw.normal(3, 2, size=5).tolist()) for _ in range(1000)]
    assert 930 <= sum(f.low < 3 < f.high for f in found if f.low is not None and f.high is not None) <= 970


@pytest.mark.parametrize("seed", range(5))
def test_a_paired_test_is_scipys(seed):
    draw = np.random.default_rng(seed)
    b = draw.normal(size=6)
    a = b + 0.3 + 0.2 * draw.normal(size=6)
    found = paired(a.tolist(), b.tolist())
    theirs = stats.ttest_rel(a, b)
    low, high = theirs.confidence_interval(0.95)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.difference == pytest.approx((a - b).mean())


def test_a_paired_test_worked_by_hand():
    found = paired([3.0, 4.0, 8.0], [2.0, 2.0, 5.0])  # differences 1, 2, 3: t = 2 sqrt(3) with 2 degrees of freedom
    assert found.difference == 2.0
    t = 2 * sqrt(3)
    assert found.p == pytest.approx(1 - t / sqrt(2 + t * t))  # the distribution of t with 2 degrees, in closed form


def test_series_that_are_the_same_do_not_differ():
    found = paired([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert (found.difference, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_a_difference_that_never_varies_is_judged_by_its_sign():
    assert paired([0.2, 0.3], [0.1, 0.2]).p == 0.5
    assert paired([0.2] * 6, [0.1] * 6).p == 2.0**-5


def test_holm_worked_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@pytest.mark.parametrize("seed", range(3))
def test_holm_rejects_what_the_stepwise_rule_rejects(seed):
    p = np.random.default_rng(seed).uniform(0, 0.05, size=6)
    rejected = np.zeros(6, bool)
    for rank, i in enumerate(np.argsort(p)):
        if p[i] >= 0.05 / (6 - rank):
            break
        rejected[i] = True
    assert ((np.array(holm(p.tolist())) < 0.05) == rejected).all()
