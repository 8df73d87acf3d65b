from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.clients import Clients
from fedstrata.errors import DataError, SettingError
from fedstrata.partition import IID, Dirichlet, Partition, describe
from fedstrata.partition.base import topped_up

Rows = list[list[int]]


def labels(count: int, classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(classes, size=count)


def rows(partition: Partition, y: np.ndarray, seed: int = 0) -> Rows:
    return [r.tolist() for r in partition.split(np.zeros((len(y), 1)), y, seed=seed).rows]


def distance(alpha: float, clients: int = 10) -> float:
    """Mean label distance over a few seeds."""
    y = labels(2000)
    splits = [Dirichlet(clients=clients, alpha=alpha).split(np.zeros((len(y), 1)), y, seed=s) for s in range(5)]
    return float(np.mean([describe(s)["label_distance"] for s in splits]))


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    clients, min_size = draw(st.integers(1, 60)), draw(st.integers(0, 4))
    if draw(st.booleans()):
        return IID(clients, min_size)
    return Dirichlet(clients, min_size, 10 ** draw(st.floats(-3, 2)))


@given(partitions(), st.integers(1, 300), st.integers(1, 12), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_a_partition_ends_loses_and_repeats_nothing_and_heeds_min_size(
    partition: Partition, count: int, classes: int, seed: int
):
    y = labels(count, classes, seed)
    if count < partition.clients * partition.min_size:
        with pytest.raises(DataError, match=f"need {partition.clients * partition.min_size} examples; there are"):
            rows(partition, y, seed)
        return
    found = rows(partition, y, seed)
    assert len(found) == partition.clients
    assert sorted(i for r in found for i in r) == list(range(count))
    assert min(map(len, found)) >= partition.min_size
    assert found == rows(partition, y, seed), "the same seed, the same split"


@pytest.mark.parametrize("alpha", [1e-300, 1e-8, 1e-3, 1e6])
def test_dirichlet_ends_for_any_alpha(alpha: float):
    found = rows(Dirichlet(clients=60, min_size=5, alpha=alpha), labels(300))
    assert sorted(i for r in found for i in r) == list(range(300))
    assert [len(r) for r in found] == [5] * 60


def test_an_infinite_alpha_is_refused_or_even():
    try:
        partition = Dirichlet(clients=4, alpha=np.inf)
    except SettingError:
        return
    assert describe(partition.split(np.zeros((400, 1)), labels(400)))["label_distance"] < 0.1


@pytest.mark.parametrize("partition", [IID(clients=7), Dirichlet(clients=7, alpha=0.5)])
def test_another_seed_is_another_split(partition: Partition):
    y = labels(200)
    found = [rows(partition, y, seed) for seed in range(5)]
    assert all(one != other for i, one in enumerate(found) for other in found[:i])


def test_a_split_is_the_same_in_every_release():
    """Should these change, so does everybody's old experiment."""
    y = np.arange(12) % 3
    assert rows(IID(clients=3), y) == [[5, 6, 10, 11], [3, 4, 7, 8], [0, 1, 2, 9]]
    assert rows(Dirichlet(clients=3, alpha=0.5), y) == [[1, 2, 5, 6, 9, 10], [0, 3, 4, 7, 11], [8]]


@given(st.integers(1, 60), st.integers(60, 300))
@settings(max_examples=30, deadline=None)
def test_iid_sizes_differ_by_one_at_most(clients: int, count: int):
    sizes = [len(r) for r in rows(IID(clients=clients), labels(count))]
    assert max(sizes) - min(sizes) <= 1


def test_iid_is_shuffled():
    assert rows(IID(clients=2), labels(100))[0] != list(range(50))


def test_iid_takes_targets_of_any_kind():
    x = np.zeros((20, 1))
    assert IID(clients=4).split(x, np.linspace(0, 1, 20)).sizes.tolist() == [5] * 4
    assert IID(clients=4).split(x, np.zeros((20, 3))).sizes.tolist() == [5] * 4


def test_label_skew_falls_with_alpha():
    distances = [distance(alpha) for alpha in (1e-3, 0.1, 1.0, 10.0, 1000.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.75
    assert distances[-1] < 0.1


def test_one_client_has_everything_and_no_skew():
    y = labels(50)
    clients = Dirichlet(clients=1, alpha=0.1).split(np.zeros((50, 1)), y)
    assert clients.rows[0].tolist() == list(range(50))
    assert describe(clients)["label_distance"] == pytest.approx(0.0)


def test_the_mean_share_of_a_client_is_even():
    y = np.zeros(100, dtype=np.int64)
    sizes = np.stack([Dirichlet(4, 0, 1.0).split(np.zeros((100, 1)), y, seed=s).sizes for s in range(400)])
    np.testing.assert_allclose(sizes.mean(0), 25, atol=4)  # the deviation of a mean of 400 is 0.97
    np.testing.assert_allclose(sizes.std(0), 100 * np.sqrt(3 / 16 / 5), atol=3)  # that of Dir(1, 1, 1, 1) is 19.4


@pytest.mark.parametrize("y", [np.linspace(0, 1, 40), np.zeros((40, 2), dtype=np.int64)])
def test_dirichlet_refuses_what_are_not_labels(y: np.ndarray):
    with pytest.raises(DataError, match="Dirichlet splits by class and needs whole-number labels; got"):
        Dirichlet(clients=2).split(np.zeros((40, 1)), y)


def test_tensors_are_split_as_arrays_are():
    y = labels(60)
    partition = Dirichlet(clients=4, alpha=0.3)
    arrays = partition.split(np.zeros((60, 1)), y)
    tensors = partition.split(torch.zeros(60, 1), torch.from_numpy(y))
    assert [r.tolist() for r in arrays.rows] == [r.tolist() for r in tensors.rows]


@pytest.mark.parametrize("partition", [IID(clients=3, min_size=0), Dirichlet(clients=3, min_size=0)])
def test_no_examples_at_all_are_a_sentence(partition: Partition):
    with pytest.raises(DataError, match="none of the 3 clients has an example"):
        rows(partition, labels(0))


def test_examples_and_labels_must_be_as_many():
    with pytest.raises(DataError, match="the data has 5 examples but 40 targets"):
        IID(clients=2).split(np.zeros((5, 1)), labels(40))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: IID(clients=0), "IID.clients must be at least 1; got 0"),
        (lambda: IID(min_size=-1), "IID.min_size must not be negative; got -1"),
        (lambda: Dirichlet(clients=0), "Dirichlet.clients must be at least 1; got 0"),
        (lambda: Dirichlet(alpha=-1), "Dirichlet.alpha must be above 0; got -1.0"),
    ],
)
def test_an_impossible_setting_is_a_sentence(make: Callable[[], Partition], sentence: str):
    with pytest.raises(SettingError, match=sentence):
        make()


def test_topping_up_takes_from_the_largest_one_at_a_time():
    given_ = [np.array([0, 1, 2, 3]), np.array([], dtype=np.int64), np.array([4, 5, 6])]
    assert [r.tolist() for r in topped_up(given_, 2)] == [[0, 1], [3, 2], [4, 5, 6]]
    assert [r.tolist() for r in topped_up(given_, 1)] == [[0, 1, 2], [3], [4, 5, 6]]
    assert [r.tolist() for r in topped_up(given_, 0)] == [r.tolist() for r in given_]


def test_a_description_counts_sizes_classes_and_distance():
    y = np.array([0, 0, 0, 1, 1, 1, 0, 1])
    clients = Clients.split(np.zeros((8, 1)), y, [np.arange(3), np.arange(3, 6), np.arange(6, 8), np.arange(0)])
    facts = describe(clients)
    assert (facts["clients"], facts["examples"]) == (4, 8)
    assert (facts["smallest"], facts["median"], facts["largest"]) == (0, 2.5, 3)
    assert facts["effective_classes"] == pytest.approx((1 + 1 + 2) / 3)
    assert facts["label_distance"] == pytest.approx((0.5 + 0.5 + 0) / 3)


def test_a_description_of_targets_says_nothing_about_classes():
    facts = describe(IID(clients=2).split(np.zeros((10, 1)), np.linspace(0, 1, 10)))
    assert facts == {"clients": 2, "examples": 10, "smallest": 5, "median": 5.0, "largest": 5}
