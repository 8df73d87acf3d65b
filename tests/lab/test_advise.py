"""Advice on planted federations: what is planted is seen, and nothing is recommended that chance explains."""

from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

import fedstrata as fs
from fedstrata.clients import Clients
from fedstrata.lab.advise import halvings
from fedstrata.lab.shortlist import shortlist
from fedstrata.lab.skew import Skew, feature_shift, skew
from fedstrata.partition import IID, Dirichlet, Noisy, Quantity, Rotated
from tests.patience import PATIENCE

COMMON = {"model": "logreg", "rounds": 8, "training": {"epochs": 2}}


def digits_split(partition: fs.Partition, seed: int = 0) -> Skew:
    data = fs.data.dataset("digits")
    return skew(partition.split(*data.train, seed=seed))


@pytest.mark.parametrize("seed", range(3))
def test_each_kind_of_heterogeneity_is_seen_where_it_is_planted(seed):
    assert digits_split(IID(10), seed).kinds == ()
    assert digits_split(Quantity(10, alpha=0.5), seed).kinds == ("size",)
    assert "label" in digits_split(Dirichlet(10, alpha=0.1), seed).kinds
    assert digits_split(Rotated(IID(10)), seed).kinds == ("feature",)
    assert digits_split(Noisy(IID(10), levels=(0.0, 1.0)), seed).kinds == ("feature",)


def test_small_clients_are_not_skewed_because_they_are_small():
    """Sixty clients of twenty digits each have 0.26 between their labels and the whole by chance alone."""
    found = digits_split(IID(60))
    assert found.facts["label_distance"] > 0.2
    assert abs(found.labels) < 0.03
    assert found.kinds == ()


def test_feature_shift_worked_by_hand():
    """Two clients of one class at 0 and at 2, each with values one below and one above."""
    x = np.array([[-1.0], [1.0], [1.0], [3.0]])
    clients = Clients.of([(x[:2], np.zeros(2, int)), (x[2:], np.zeros(2, int))])
    # SST = 8, SSW = 4 of 2 degrees, so MSW = 2: (8 - 4 - 2) / (8 + 2)
    assert feature_shift(clients) == pytest.approx(0.2)


def test_words_are_no_quantities():
    clients = Clients.of([(np.array([[1], [2]]), np.zeros(2, int)), (np.array([[900], [901]]), np.zeros(2, int))])
    assert skew(clients).features > 0.5
    assert skew(clients, numbers=False).features == 0


def test_the_shortlist_follows_the_kinds_and_starts_with_fedavg():
    of = {kind: [c.method for c in shortlist(Skew({}, *values))] for kind, values in (
        ("none", (0, 0, 0)), ("label", (0.5, 0, 0)), ("size", (0, 2, 0)), ("all", (0.5, 2, 0.5)))}  # fmt: skip
    assert all(methods[0] == "fedavg" and len(set(methods)) == len(methods) <= 7 for methods in of.values())
    assert {"scaffold", "fedlws", "feddisco", "fedlayerwise", "fedprox"} < set(of["label"])
    assert "fednova" in of["size"]
    assert {"scaffold", "fednova", "fedadp"} < set(of["all"])
    for methods in of.values():
        for method in methods:
            assert not fs.parse_recipe(method).needs & {"proxy", "features"}


def test_halvings_end_with_two_on_more_seeds_and_all_rounds():
    assert halvings(6) == [(6, 2, 0.25), (3, 3, 0.5), (2, 5, 1.0)]
    assert halvings(2) == [(2, 5, 1.0)]
    for count in range(1, 20):
        counts, seeds, share = zip(*halvings(count), strict=True)
        assert list(counts) == sorted(counts, reverse=True)
        assert list(seeds) == sorted(seeds)
        assert list(share) == sorted(share)


@pytest.mark.slow
def test_on_an_iid_split_there_is_no_real_difference():
    advice = fs.advise(COMMON | {"partition": {"kind": "IID", "clients": 8}}, budget=60, jobs=1)
    assert advice.skew.kinds == ()
    assert advice.method == "fedavg"
    assert "No real difference" in advice.words[-1]
    assert advice.command.startswith("fedstrata run --method fedavg ")


@pytest.mark.slow
def test_under_strong_label_skew_something_made_for_it_wins(tmp_path):
    said: list[str] = []
    split = {"kind": "Shards", "clients": 10}  # two classes each
    advice = fs.advise(COMMON | {"partition": split}, budget=60, jobs=1, out=tmp_path / "a", say=said.append)
    assert "label" in advice.skew.kinds
    assert said == [w for w in said if w in advice.words or w.startswith("Race ")]
    assert advice.method == "scaffold"
    row = next(r for r in advice.final.rows if r["method"] == advice.method)
    assert row["against_first"]["verdict"] == "real"
    assert row["against_first"]["difference"] > 0
    assert "a real difference" in advice.words[-1]
    tried = {s for r in advice.rungs[:-1] for s in r.seeds}
    assert tried.isdisjoint(advice.rungs[-1].seeds)  # who won the races must win again
    assert isinstance(advice.final.folder, Path)


@pytest.mark.slow
def test_under_feature_shift_what_undoes_drift_wins():
    split, training = {"kind": "Rotated", "base": {"kind": "IID", "clients": 8}}, {"epochs": 5, "lr": 0.5}
    advice = fs.advise(COMMON | {"partition": split, "training": training}, budget=60, jobs=1)
    assert advice.skew.kinds == ("feature",)
    assert {c.method for c in advice.candidates} == {"fedavg", "fedadp", "fedlws", "scaffold"}
    assert advice.method == "scaffold"
    row = next(r for r in advice.final.rows if r["method"] == "scaffold")
    assert row["against_first"]["low"] > 0.05


@pytest.mark.slow
def test_with_little_time_there_are_fewer_rounds_and_it_says_so():
    """A hundred thousand rounds do not fit into twenty seconds, of which a busy machine takes some for itself."""
    plan = COMMON | {"rounds": 100_000, "partition": {"kind": "IID", "clients": 3}}
    began = perf_counter()
    advice = fs.advise(plan, budget=20 / 60, jobs=1)
    assert perf_counter() - began < PATIENCE
    assert 3 <= advice.rungs[-1].rounds < 100_000
    assert f"after {advice.rungs[-1].rounds} rounds (of 100000, for want of time)" in advice.words[-1]
    assert "--rounds 100000" in advice.command
