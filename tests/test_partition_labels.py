"""What each rule about labels and sizes promises beyond what all of them do."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.clients import Clients
from fedstrata.errors import DataError
from fedstrata.partition import Dealt, Dirichlet, DirichletEqual, Holders, IIDMix, Quantity, Shards, describe

MNIST = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
"""Examples of each class in MNIST's training set."""


def mnist(count: int = 60_000) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(10), MNIST))[:count]


def split(partition: Dealt, y: np.ndarray, seed: int = 0) -> Clients:
    return partition.split(np.zeros((len(y), 1)), y, seed=seed)


def counts(partition: Dealt, y: np.ndarray, seed: int = 0) -> np.ndarray:
    return split(partition, y, seed).labels().numpy().astype(int)  # [N, C]


# DirichletEqual


@given(st.integers(1, 40), st.integers(40, 300), st.integers(1, 12), st.floats(-300, 300), st.integers(0, 99))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_dirichlet_equal_has_equal_sizes_for_any_alpha(clients: int, count: int, classes: int, log: float, seed: int):
    y = np.random.default_rng(seed).integers(classes, size=count)
    found = counts(DirichletEqual(clients, alpha=10**log), y, seed)
    assert np.ptp(found.sum(1)) <= 1
    assert found.sum(0).tolist() == np.bincount(y).tolist()


def test_dirichlet_equal_goes_from_single_classes_to_the_prior():
    y = mnist(6000)
    facts = [describe(split(DirichletEqual(100, alpha=alpha), y)) for alpha in (1e-3, 1.0, 10.0, 1e3, 1e9)]
    distances = [f["label_distance"] for f in facts]
    assert distances == sorted(distances, reverse=True)
    assert facts[0]["effective_classes"] < 2
    assert distances[-1] < 0.2, "60 examples each"


def test_a_client_of_dirichlet_equal_has_the_prior_on_average():
    y = np.repeat([0, 1, 2], [60, 30, 10])
    mean = np.mean([counts(DirichletEqual(10, alpha=1.0), y, seed) for seed in range(300)], axis=0)  # [N, C]
    np.testing.assert_allclose(mean, np.tile([6, 3, 1], (10, 1)), atol=0.6)  # deviations of these means are below 0.2


@pytest.mark.parametrize("alpha", [0.5, 1.0, 10.0])
def test_both_readings_of_dirichlet_agree_when_alpha_counts_the_classes(alpha: float):
    y = mnist()
    rules = (Dirichlet(100, alpha=alpha), DirichletEqual(100, alpha=10 * alpha), DirichletEqual(100, alpha=alpha))
    per_class, equal, literal = (describe(split(rule, y))["effective_classes"] for rule in rules)
    assert equal == pytest.approx(per_class, rel=0.1)
    assert literal < 0.9 * per_class


# Holders


@pytest.mark.parametrize("seed", range(3))
def test_holders_gives_250_clients_two_digits_each_and_loses_none(seed: int):
    y = mnist(48_000)
    found = counts(Holders(), y, seed)
    assert found.shape == (250, 10)
    assert found.sum(0).tolist() == np.bincount(y).tolist()
    assert ((found > 0).sum(1) == 2).all()
    assert found.sum(1).std() > 100, "shards are of unequal size"


@given(st.integers(1, 40), st.integers(1, 4), st.integers(0, 6), st.integers(1, 10), st.integers(0, 999))
@settings(max_examples=120, deadline=None, derandomize=True)
def test_no_client_of_holders_ever_has_more_than_its_classes(
    clients: int, classes: int, min_size: int, kinds: int, seed: int
):
    y = np.random.default_rng(seed).integers(kinds, size=250)
    try:
        found = counts(Holders(clients, min_size, classes, alpha=0.2), y, seed)
    except DataError:
        assert classes > kinds or clients * classes < kinds or min_size * clients > 100
        return
    assert ((found > 0).sum(1) <= classes).all()
    assert found.sum(1).min() >= min_size
    assert found.sum(0).tolist() == np.bincount(y, minlength=kinds).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_every_class_has_a_holder_even_where_there_is_just_one_for_each(seed: int):
    found = counts(Holders(5, classes=2), mnist(1000), seed)
    assert ((found > 0).sum(0) == 1).all()
    assert ((found > 0).sum(1) == 2).all()


def test_the_holders_of_a_class_share_it_as_dirichlet_says():
    y = np.zeros(100, dtype=np.int64)
    sizes = np.stack([split(Holders(4, classes=1, alpha=1.0), y, seed).sizes for seed in range(400)])
    np.testing.assert_allclose(sizes.mean(0), 25, atol=4)
    np.testing.assert_allclose(sizes.std(0), 100 * np.sqrt(3 / 16 / 5), atol=3)  # that of Dir(1, 1, 1, 1)


def test_holders_tops_up_within_the_classes_of_a_client():
    y = mnist(2500)
    found = counts(Holders(50, min_size=40, classes=2, alpha=0.1), y)
    assert found.sum(1).min() == 40
    assert ((found > 0).sum(1) <= 2).all()


def test_holders_says_what_it_cannot_do():
    y = np.repeat([0, 1], [95, 5])
    with pytest.raises(DataError, match="nobody can spare more of its classes; ask for a smaller min_size"):
        split(Holders(10, min_size=10, classes=1), y)
    with pytest.raises(DataError, match="Holders gives 3 classes to each client, but the labels have 2"):
        split(Holders(10, classes=3), y)
    with pytest.raises(DataError, match="4 clients with 2 classes each cannot hold all 10; ask for 5 clients or more"):
        split(Holders(4, classes=2), mnist(100))


# Shards


def test_shards_are_those_of_fedavg():
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
    found = counts(Shards(100, shards=2), y)
    assert (found.sum(1) == 600).all()
    assert set(found.flatten().tolist()) == {0, 300, 600}
    assert ((found > 0).sum(1) <= 2).all()


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 8), st.integers(150, 400), st.integers(0, 99))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_shards_straddle_no_more_classes_than_there_are_borders(
    clients: int, shards: int, classes: int, count: int, seed: int
):
    y = np.random.default_rng(seed).integers(classes, size=count)
    found = counts(Shards(clients, shards=shards), y, seed)
    assert (found > 0).sum() <= clients * shards + classes - 1
    assert np.ptp(found.sum(1)) <= shards


def test_shards_sort_any_target():
    y = np.random.default_rng(0).random(100)
    clients = split(Shards(5, shards=1), y)
    spans = sorted((y[r].min(), y[r].max()) for r in clients.rows)
    assert all(high < low for (_, high), (low, _) in pairwise(spans))


def test_shards_say_what_they_cannot_do():
    with pytest.raises(DataError, match=r"min_size = 1: 150 examples in 200 shards are 0 a client in places; ask for"):
        split(Shards(100, shards=2), mnist(150))
    with pytest.raises(DataError, match=r"Shards sorts by label and needs one for each example; got float64 \(40, 2\)"):
        split(Shards(2), np.zeros((40, 2)))


# IIDMix


@pytest.mark.parametrize("iid", [5, 2])
@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_both_mixes_have_iid_clients_first_and_classes_in_equal_parts(iid: int, classes: int, seed: int):
    clients = split(IIDMix(iid=iid, classes=classes), mnist(), seed)
    found = clients.labels().numpy()
    assert (clients.sizes == 600).all()
    assert ((found[:iid] > 0).sum(1) == 10).all()
    assert ((found[iid:] > 0).sum(1) == classes).all()
    assert (found[iid:].max(1) == 600 / classes).all()
    assert describe(clients)["left_out"] == 54_000
    assert len(set(np.concatenate(clients.rows).tolist())) == 6000


def test_the_classes_of_skewed_clients_are_drawn_among_those_that_have_enough():
    y = np.repeat([0, 1], [90, 10])
    assert counts(IIDMix(4, iid=0, size=20), y)[:, 0].tolist() == [20] * 4
    with pytest.raises(DataError, match="classes with 20 examples left are 0, and a client needs 1"):
        split(IIDMix(5, iid=0, size=20), y)
    with pytest.raises(DataError, match=r"10 clients of 600 need 6000 examples; there are 100. Ask for fewer clients"):
        split(IIDMix(), y)


# Quantity


def test_quantity_makes_unequal_clients_of_the_same_kind():
    y = mnist()
    facts = describe(split(Quantity(20, min_size=200, alpha=1.0), y))
    assert facts["largest"] > 10 * facts["smallest"]
    assert facts["label_distance"] < 0.05
    assert describe(split(Dirichlet(20, alpha=1.0), y))["label_distance"] > 0.2


def test_quantity_has_the_sizes_of_dirichlet_and_takes_any_target():
    sizes = np.stack([split(Quantity(4, 0, 1.0), np.linspace(0, 1, 100), s).sizes for s in range(400)])
    np.testing.assert_allclose(sizes.mean(0), 25, atol=4)
    np.testing.assert_allclose(sizes.std(0), 100 * np.sqrt(3 / 16 / 5), atol=3)
