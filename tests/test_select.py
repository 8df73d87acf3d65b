"""Who takes part."""

import numpy as np
import pytest
import torch

import fedstrata as fs
from fedstrata.parts import Calmest, Everyone, Sample

STATS = {"examples": torch.tensor([10.0, 1.0, 1.0, 8.0]), "gradient_variance": torch.tensor([3.0, 1.0, 1.0, torch.nan])}


def draws(part: fs.Select, times: int = 2000) -> np.ndarray:
    """How often each client is chosen."""
    chosen = [part.pick({}, STATS, np.random.default_rng(i))[0] for i in range(times)]
    return torch.bincount(torch.cat(chosen), minlength=4).numpy() / times


def test_everyone_is_everyone():
    assert Everyone().pick({}, STATS, np.random.default_rng(0))[0].tolist() == [0, 1, 2, 3]


def test_a_sample_has_k_different_clients_or_a_fraction_of_them():
    for part, k in ((Sample(k=3), 3), (Sample(fraction=0.5), 2), (Sample(fraction=0.01), 1), (Sample(k=99), 4)):
        ids = part.pick({}, STATS, np.random.default_rng(0))[0]
        assert len(set(ids.tolist())) == len(ids) == k


def test_a_uniform_sample_is_uniform():
    assert np.abs(draws(Sample(k=2)) - 0.5).max() < 0.04


def test_a_sample_by_size_draws_in_proportion_without_replacement():
    assert np.abs(draws(Sample(k=1, by="size")) - np.array([0.5, 0.05, 0.05, 0.4])).max() < 0.04
    # two draws, one after the other without the first: P(i) = p_i + sum_j p_j p_i / (1 - p_j)
    p = np.array([0.5, 0.05, 0.05, 0.4])
    both = [p[i] + sum(p[j] * p[i] / (1 - p[j]) for j in range(4) if j != i) for i in range(4)]
    assert np.abs(draws(Sample(k=2, by="size")) - both).max() < 0.04


def test_the_calmest_have_the_smallest_variance_ties_to_the_lower_id_and_never_nan():
    assert Calmest(1).pick({}, STATS, np.random.default_rng(0))[0].tolist() == [1]
    assert Calmest(2).pick({}, STATS, np.random.default_rng(0))[0].tolist() == [1, 2]
    assert Calmest(None).pick({}, STATS, np.random.default_rng(0))[0].tolist() == [1, 2, 0]


def test_the_calmest_by_size_weighs_variance_with_the_share():
    assert Calmest(1, by="size").pick({}, STATS | {"gradient_variance": torch.tensor([1.0, 9, 11, 2])},
                                      np.random.default_rng(0))[0].tolist() == [1]  # fmt: skip


def test_the_cohort_depends_on_seed_and_round_alone():
    from tests.federations import mlp, unequal_clients

    def cohorts(seed: int, **settings) -> list[list[int]]:
        recipe = fs.recipes.fedprox(mu=settings.pop("mu", 0.1), select=Sample(k=3))
        run = fs.simulate(recipe, mlp(), unequal_clients(), rounds=6, seed=seed, **settings)
        return [r["cohort"] for r in run.rounds]

    assert cohorts(0) == cohorts(0, mu=0.9, chunk=1, training=fs.Adam())
    assert cohorts(0) != cohorts(1)
    assert all(c == sorted(c) for c in cohorts(0))


@pytest.mark.parametrize("wrong", [{}, {"k": 2, "fraction": 0.5}, {"k": 0}, {"fraction": 1.5}])
def test_a_sample_needs_k_or_a_fraction(wrong):
    with pytest.raises(fs.FedstrataError, match="Sample"):
        Sample(**wrong)
