"""Natural clients, and clients whose inputs look different."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata import toml
from fedstrata.errors import DataError
from fedstrata.experiment import SPLIT, Experiment
from fedstrata.partition import IID, ByOwner, Dirichlet, IIDMix, Noisy, Rotated, describe
from fedstrata.partition.shift import rotated

PEOPLE = np.array(["eve", "ann", "bob", "ann", "bob", "ann", "cat"])


def numbers(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(count, dtype=np.float32)[:, None], np.arange(count) % 3


def images(count: int = 40, height: int = 9, width: int = 9, channels: int = 1) -> torch.Tensor:
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(0))


# ByOwner


def rows(partition: ByOwner, owner: np.ndarray, seed: int = 0) -> list[list[int]]:
    return [r.tolist() for r in partition.split(*numbers(len(owner)), seed=seed, owner=owner).rows]


def test_every_owner_is_a_client_in_the_order_of_names():
    assert rows(ByOwner(), PEOPLE) == [[1, 3, 5], [2, 4], [6], [0]]
    assert rows(ByOwner(), np.array([30, 4, 4, 30, 5])) == [[1, 2], [4], [0, 3]]


def test_owners_with_too_few_are_left_out_and_counted():
    clients = ByOwner(min_size=2).split(*numbers(7), owner=PEOPLE.tolist())
    assert [r.tolist() for r in clients.rows] == [[1, 3, 5], [2, 4]]
    assert describe(clients)["left_out"] == 2


def test_so_many_owners_are_drawn_and_keep_their_order():
    owner = np.arange(100) % 20
    found = [rows(ByOwner(max_clients=5), owner, seed) for seed in range(4)]
    assert all(len(f) == 5 and sorted(f) == f for f in found)
    assert all(one != other for i, one in enumerate(found) for other in found[:i])
    assert found[0] == rows(ByOwner(max_clients=5), owner, 0)
    assert rows(ByOwner(max_clients=50), owner) == rows(ByOwner(), owner)


@given(st.lists(st.integers(-3, 9), min_size=1, max_size=80), st.integers(1, 4))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_natural_clients_own_what_is_theirs(owner: list[int], min_size: int):
    sizes = {o: owner.count(o) for o in sorted(set(owner))}
    if max(sizes.values()) < min_size:
        with pytest.raises(DataError, match=f"no owner has min_size = {min_size} examples; the largest of"):
            rows(ByOwner(min_size), np.array(owner))
        return
    expected = [[i for i, o in enumerate(owner) if o == name] for name, n in sizes.items() if n >= min_size]
    assert rows(ByOwner(min_size), np.array(owner)) == expected


def test_what_is_missing_about_owners_is_a_sentence():
    with pytest.raises(DataError, match=r"ByOwner needs the owner of each example, .* and this data has none; choose"):
        ByOwner().split(*numbers(4))
    with pytest.raises(DataError, match=r"needs one owner for each of the 4 examples; got \(3,\)"):
        ByOwner().split(*numbers(4), owner=[1, 2, 3])
    with pytest.raises(DataError, match="no owner has min_size = 1 examples; there are no examples"):
        ByOwner().split(*numbers(0), owner=[])


def test_other_partitions_do_not_mind_owners():
    owned, plain = (IID(3).split(*numbers(9), owner=o) for o in (np.arange(9), None))
    assert [r.tolist() for r in owned.rows] == [r.tolist() for r in plain.rows]


# Rotated


def test_clients_are_turned_in_turn_and_exactly():
    x, y = images(), np.arange(40) % 3
    before = x.clone()
    base = Dirichlet(6, alpha=0.5)
    plain, turned = base.split(x, y, seed=3), Rotated(base).split(x, y, seed=3)
    assert [r.tolist() for r in turned.rows] == [r.tolist() for r in plain.rows]
    for k, mine in enumerate(turned.rows):
        expected = np.rot90(x[mine].numpy(), k % 4, axes=(2, 3))
        np.testing.assert_array_equal(turned.x[mine].numpy(), expected)
    torch.testing.assert_close(x, before, rtol=0, atol=0)


def test_interpolated_turns_agree_with_exact_ones_in_direction_and_centre():
    x = images(channels=3)
    torch.testing.assert_close(rotated(x, 90.001), x.rot90(1, (2, 3)), rtol=0, atol=1e-2)
    assert (rotated(x, 90.001) - x.rot90(-1, (2, 3))).abs().max() > 0.5
    torch.testing.assert_close(rotated(x, -270.0), x.rot90(1, (2, 3)), rtol=0, atol=0)
    torch.testing.assert_close(rotated(x[:, 0], 30.0), rotated(x, 30.0)[:, 0])


def test_pictures_that_are_not_square_keep_their_shape_and_are_not_bent():
    x = torch.zeros(1, 9, 15)
    x[0, 4, 7 + 3] = 1.0  # to the right of the centre
    turned = rotated(x, 90.0)
    assert turned.shape == x.shape
    assert turned[0].argmax() == (4 - 3) * 15 + 7, "counter-clockwise, it is above it"
    torch.testing.assert_close(rotated(x, 180.0), x.flip(1, 2), rtol=0, atol=0)


def test_corners_repeat_the_border():
    x = torch.full((2, 1, 8, 8), -0.8)
    torch.testing.assert_close(rotated(x, 45.0), x)


def test_only_images_are_turned_and_whole_pixels_by_right_angles():
    with pytest.raises(DataError, match=r"Rotated needs images, \[n, H, W\] or \[n, C, H, W\]; got \[2, 1\]"):
        Rotated(IID(2)).split(*numbers(4))
    whole = (images() * 255).byte()
    assert Rotated(IID(4)).split(whole, np.zeros(40, int)).x.dtype == torch.uint8
    with pytest.raises(DataError, match=r"turning images by 10 degrees needs floating-point pixels; got torch.uint8"):
        Rotated(IID(4), angles=(10,)).split(whole, np.zeros(40, int))


# Noisy


def test_noise_has_the_deviation_of_the_level():
    x, y = torch.zeros(4000, 5), np.zeros(4000, int)
    clients = Noisy(IID(4), levels=(0.0, 0.5, 2.0)).split(x, y)
    deviations = [clients.x[r].std().item() for r in clients.rows]
    assert deviations[0] == deviations[3] == 0
    assert deviations[1:3] == pytest.approx([0.5, 2.0], rel=0.05)
    assert clients.x.dtype == torch.float32


def test_noise_depends_on_seed_and_client_alone():
    x, y = torch.zeros(30, 5), np.zeros(30, int)
    one, again, other = (Noisy(IID(3), levels=(1,)).split(x, y, seed=s) for s in (0, 0, 1))
    torch.testing.assert_close(one.x, again.x, rtol=0, atol=0)
    assert not torch.equal(one.x[one.rows[0]], other.x[other.rows[0]])
    assert not torch.equal(one.x[one.rows[0]], one.x[one.rows[1]])
    natural = Noisy(ByOwner(), levels=(1,)).split(x, y, owner=np.arange(30) // 10)
    torch.testing.assert_close(natural.x[natural.rows[2]], one.x[one.rows[2]], rtol=0, atol=0)


def test_noise_needs_numbers_that_are_not_whole():
    with pytest.raises(DataError, match=r"Noisy needs floating-point features; got torch.int64. Convert them first"):
        Noisy(IID(2)).split(np.zeros((4, 2), dtype=np.int64), np.zeros(4, int))


# All together


def test_shifts_nest_and_leave_alone_what_nobody_owns():
    x, y = images(), np.arange(40) % 2
    mix = IIDMix(3, iid=1, size=5)
    clients = Rotated(Noisy(mix, levels=(0, 1)), angles=(0, 0, 180)).split(x, y)
    left = np.setdiff1d(np.arange(40), np.concatenate(clients.rows))
    torch.testing.assert_close(clients.x[left], x[left], rtol=0, atol=0)
    changed = [not torch.equal(clients.x[r], x[r]) for r in clients.rows]
    assert changed == [False, True, True]
    assert describe(clients)["left_out"] == 25


def test_a_client_without_examples_is_nobody_to_turn():
    clients = Rotated(Dirichlet(30, min_size=0, alpha=0.01), angles=(45,)).split(images(), np.arange(40) % 3)
    assert clients.sizes.min() == 0


@pytest.mark.parametrize("partition", [Rotated(Noisy(Dirichlet(7, alpha=0.1), levels=(0, 3))), ByOwner(2, 30)])
def test_an_experiment_with_a_nested_partition_survives_a_journey_as_text(partition: Rotated | ByOwner):
    experiment = replace(Experiment.of({"method": "fedavg"}), partition=partition)
    assert Experiment.of(tomllib.loads(toml.dumps(experiment.settings()))) == experiment
    assert experiment.settings()["partition"] != SPLIT.to_dict()


def test_an_experiment_sees_turned_digits():
    kinds = [{"method": "fedavg", "partition": {"kind": kind}} for kind in ("IID", "Rotated")]
    plain, turned = (Experiment.of(s).clients() for s in kinds)
    assert turned.x.shape == plain.x.shape
    assert not torch.equal(turned.x, plain.x)
    torch.testing.assert_close(turned.x[turned.rows[4]], plain.x[plain.rows[4]], rtol=0, atol=0)
