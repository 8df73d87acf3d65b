"""Buffers of a round: one mean, in whatever way it is asked for."""

import pytest
import torch

import fedstrata as fs
from fedstrata.buffers import Buffers

OLD = {
    "mean": torch.zeros(3),
    "half": torch.zeros(2, 2, dtype=torch.float16),
    "count": torch.tensor(0),
    "wide": torch.zeros(4, dtype=torch.float64),
}


@pytest.fixture
def buffers() -> Buffers:
    draw = torch.Generator().manual_seed(0)
    clients = {n: torch.randn(5, *b.shape, generator=draw).to(b.dtype) for n, b in OLD.items() if n != "count"}
    return Buffers(OLD, clients | {"count": torch.tensor([3, 4, 4, 5, 9])})


def test_the_rounded_mean_is_the_mean_settled(buffers):
    weights, examples = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2]), torch.tensor([10.0, 20, 30, 5, 35])
    slow, quick = buffers.settled(buffers.mean(weights, examples)), buffers.mean(weights, examples, rounded=True)
    assert list(quick) == list(buffers.clients)
    for name, old in OLD.items():
        assert quick[name].dtype == old.dtype
        assert quick[name].shape == old.shape
        assert torch.equal(quick[name], slow[name])


def test_whole_numbers_are_weighed_by_size_and_rounded_half_to_even(buffers):
    even = torch.full((5,), 0.2)
    assert buffers.mean(even, torch.tensor([1.0, 1, 0, 0, 0]))["count"] == 3.5
    assert buffers.mean(even, torch.tensor([1.0, 1, 0, 0, 0]), rounded=True)["count"] == 4
    assert buffers.mean(even, torch.tensor([0.0, 1, 0, 1, 0]), rounded=True)["count"] == 4


def test_what_has_no_finite_mean_stays_as_it_was():
    old = {"mask": torch.tensor([0, -torch.inf, torch.nan]), "lowest": torch.tensor(torch.inf)}
    sent = {"mask": old["mask"].expand(2, -1), "lowest": torch.tensor([4.0, 2.0])}
    for weights in ([0.5, 0.5], [1.0, 0.0]):
        mean = Buffers(old, sent).mean(torch.tensor(weights), torch.ones(2), rounded=True)
        assert torch.equal(mean["mask"].nan_to_num(7, 7, 7), torch.tensor([0.0, 7, 7]))
        assert mean["mask"].isneginf().tolist() == [False, True, False]
        assert float(mean["lowest"]) == torch.tensor([4.0, 2.0]) @ torch.tensor(weights)


def test_complex_buffers_keep_their_imaginary_parts():
    old = {"turn": torch.tensor([1j, 2.0]), "mean": torch.zeros(3)}
    sent = {"turn": torch.tensor([[1j, 2.0], [3j, 4 - 2j]]), "mean": torch.ones(2, 3)}
    mean = Buffers(old, sent).mean(torch.tensor([0.5, 0.5]), torch.ones(2), rounded=True)
    assert torch.equal(mean["turn"], torch.tensor([2j, 3 - 1j]))
    assert torch.equal(mean["mean"], torch.ones(3))


def test_recipes_know_whether_a_part_treats_buffers():
    assert not fs.recipes.fedavg().treats
    assert not fs.recipes.fedlws().treats
    assert fs.recipes.fedlws_official().treats
    assert fs.recipes.fedlaw().treats
