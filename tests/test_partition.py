from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.errors import DataError, SettingError
from fedstrata.partition import (
    IID,
    ByOwner,
    Dealt,
    Dirichlet,
    DirichletEqual,
    Holders,
    IIDMix,
    Noisy,
    Partition,
    Quantity,
    Rotated,
    Shards,
    describe,
)
from fedstrata.partition.dealing import at_least, topped_up

Rows = list[list[int]]


def labels(count: int, classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(classes, size=count)


def rows(partition: Partition, y: np.ndarray, seed: int = 0) -> Rows:
    return [r.tolist() for r in partition.split(np.zeros((len(y), 1)), y, seed=seed).rows]


def rows_or_refusal(partition: Partition, y: np.ndarray, seed: int) -> Rows | str:
    try:
        return rows(partition, y, seed)
    except DataError as e:
        return str(e)


def distance(alpha: float, clients: int = 10) -> float:
    """Mean label distance over a few seeds."""
    y = labels(2000)
    splits = [Dirichlet(clients=clients, alpha=alpha).split(np.zeros((len(y), 1)), y, seed=s) for s in range(5)]
    return float(np.mean([describe(s)["label_distance"] for s in splits]))


KINDS = (IID, Dirichlet, DirichletEqual, Quantity, Shards, Holders, IIDMix)


@st.composite
def partitions(draw: st.DrawFn) -> Dealt:
    both = {"clients": draw(st.integers(1, 60)), "min_size": draw(st.integers(0, 4))}
    kind = draw(st.sampled_from(KINDS))
    alpha, few = 10 ** draw(st.floats(-3, 2)), draw(st.integers(1, 3))
    own = {"Shards": {"shards": few}, "Holders": {"classes": few, "alpha": alpha}, "IID": {}}
    own["IIDMix"] = {"iid": draw(st.integers(0, both["clients"])), "classes": few, "size": draw(st.integers(4, 9))}
    return kind(**both, **own.get(kind.__name__, {"alpha": alpha}))


def refusal(p: Dealt, count: int, classes: int) -> str | None:
    """What a partition must say about so many examples and classes; it may say so where it need not: "(may)"."""
    if count < p.clients * p.min_size:
        return f"need {p.clients * p.min_size} examples; there are"
    if isinstance(p, IIDMix):
        short = count < p.clients * p.size
        return f"need {p.clients * p.size} examples" if short else "(may) IIDMix runs out of examples"
    if isinstance(p, Shards) and p.shards * (count // (p.clients * p.shards)) < p.min_size:
        return "Shards cannot give every client min_size"
    if isinstance(p, Holders):
        if p.classes > classes:
            return f"Holders gives {p.classes} classes to each client, but the labels have {classes}"
        short = p.clients * p.classes < classes
        return "cannot hold all" if short else "(may) Holders cannot give every client min_size"
    return None


@given(partitions(), st.integers(1, 300), st.integers(1, 12), st.integers(0, 2**32))
@settings(max_examples=250, deadline=None, derandomize=True)
def test_a_partition_ends_loses_and_repeats_nothing_and_heeds_min_size(
    partition: Dealt, count: int, classes: int, seed: int
):
    y = labels(count, classes, seed)
    said = refusal(partition, count, len(np.unique(y)))
    found = rows_or_refusal(partition, y, seed)
    if isinstance(found, str):
        assert said is not None
        assert said.removeprefix("(may) ") in found
        return
    assert said is None or said.startswith("(may)")
    owned = sorted(i for r in found for i in r)
    assert len(found) == partition.clients
    assert len(set(owned)) == len(owned), "nothing twice"
    assert len(owned) == (partition.clients * partition.size if isinstance(partition, IIDMix) else count)
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


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_is_another_split(kind: type[Dealt]):
    y = labels(200)
    partition = IIDMix(clients=7, iid=3, size=9) if kind is IIDMix else kind(clients=7)
    found = [rows(partition, y, seed) for seed in range(5)]
    assert all(one != other for i, one in enumerate(found) for other in found[:i])


SAME: list[tuple[Dealt, Rows]] = [
    (IID(3), [[5, 6, 10, 11], [3, 4, 7, 8], [0, 1, 2, 9]]),
    (Dirichlet(3, alpha=0.5), [[1, 2, 5, 6, 9, 10], [0, 3, 4, 7, 11], [8]]),
    (DirichletEqual(3, alpha=0.5), [[3, 6, 9, 10], [0, 2, 4, 7], [1, 5, 8, 11]]),
    (Quantity(3, alpha=0.5), [[0, 1, 2, 4, 5, 6, 7, 8, 9, 10], [3], [11]]),
    (Shards(3, shards=2), [[0, 4, 9, 10], [1, 3, 6, 7], [2, 5, 8, 11]]),
    (Holders(3, classes=2, alpha=0.5), [[1, 5, 7], [2, 4, 10], [0, 3, 6, 8, 9, 11]]),
    (IIDMix(3, iid=1, size=3), [[5, 10, 11], [1, 4, 7], [3, 6, 9]]),
]


@pytest.mark.parametrize(("partition", "expected"), SAME, ids=lambda v: type(v).__name__)
def test_a_split_is_the_same_in_every_release(partition: Dealt, expected: Rows):
    """Should these change, so does everybody's old experiment."""
    assert rows(partition, np.arange(12) % 3) == expected


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


@pytest.mark.parametrize("kind", [Dirichlet, DirichletEqual, Holders, IIDMix])
@pytest.mark.parametrize("y", [np.linspace(0, 1, 40), np.zeros((40, 2), dtype=np.int64)])
def test_rules_about_classes_refuse_what_are_not_labels(kind: type[Dealt], y: np.ndarray):
    partition = IIDMix(2, iid=1, size=9) if kind is IIDMix else kind(clients=2)
    with pytest.raises(DataError, match=f"{kind.__name__} splits by class and needs whole-number labels; got"):
        partition.split(np.zeros((40, 1)), y)


def test_tensors_are_split_as_arrays_are():
    y = labels(60)
    partition = Dirichlet(clients=4, alpha=0.3)
    arrays = partition.split(np.zeros((60, 1)), y)
    tensors = partition.split(torch.zeros(60, 1), torch.from_numpy(y))
    assert [r.tolist() for r in arrays.rows] == [r.tolist() for r in tensors.rows]


@pytest.mark.parametrize("kind", KINDS)
def test_no_examples_at_all_are_a_sentence(kind: type[Dealt]):
    with pytest.raises(DataError, match="there are no examples: none of the 3 clients has an example"):
        rows(kind(clients=3, min_size=0) if kind is not IIDMix else IIDMix(3, 0, 1), labels(0))


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
        (lambda: DirichletEqual(alpha=0), "DirichletEqual.alpha must be above 0; got 0.0"),
        (lambda: Quantity(alpha=0), "Quantity.alpha must be above 0; got 0.0"),
        (lambda: Holders(alpha=0), "Holders.alpha must be above 0; got 0.0"),
        (lambda: Holders(classes=0), "Holders.classes must be at least 1; got 0"),
        (lambda: Shards(shards=0), "Shards.shards must be at least 1; got 0"),
        (lambda: IIDMix(iid=11), "IIDMix.iid must be from 0 to clients = 10; got 11"),
        (lambda: IIDMix(classes=0), "IIDMix.classes must be from 1 to size = 600; got 0"),
        (lambda: IIDMix(min_size=601), "IIDMix.size must be at least min_size = 601; got 600"),
        (lambda: ByOwner(min_size=0), "ByOwner.min_size must be at least 1; got 0"),
        (lambda: ByOwner(max_clients=0), "ByOwner.max_clients must be at least 1, or nothing; got 0"),
        (lambda: Rotated(angles=()), "Rotated.angles needs an angle at least"),
        (lambda: Noisy(levels=()), "Noisy.levels needs a level at least"),
        (lambda: Noisy(levels=(0.1, -1)), "Noisy.levels must not be negative; got -1.0"),
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


def test_counts_are_topped_up_from_the_largest_as_long_as_it_has_more():
    assert at_least(2, np.array([4, 0, 3])).tolist() == [2, 2, 3]
    assert at_least(1, np.array([0, 1, 0, 2])).tolist() == [1, 1, 0, 1]
    assert at_least(0, np.array([0, 3])).tolist() == [0, 3]
