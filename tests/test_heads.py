"""FedETF's fixed classifier and MOON's projection head: what is put into a model, and what clients then minimise."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata.clients import Clients
from fedstrata.parts import ETF, Moon, Sample
from fedstrata.surgery import ETFHead, Projected, simplex_etf, with_head
from fedstrata.task import classifier_of
from tests.federations import mlp, unequal_clients
from tests.slow import FIVE, Named, Objective, averaged, bn_mlp, both, cohorts, descend, library, own_data, shares

R, K, CLIENTS = fs.recipes, Sample(k=3), unequal_clients(FIVE)
CLIENTS.y[CLIENTS.rows[1]] = CLIENTS.y[CLIENTS.rows[1]].clamp(max=1)  # it lacks a class


def headed(part: fs.Local, model: nn.Module, seed: int = 0) -> nn.Module:
    return part.adapt_model(model, seed)


def same(run: fs.Run, world: nn.Module) -> None:
    torch.testing.assert_close(run.model.state_dict(), world.state_dict(), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("width", "classes"), [(3, 3), (7, 3), (10, 10), (5, 2)])
def test_the_corners_are_a_simplex(width, classes):
    v = simplex_etf(width, classes)
    gram = (torch.eye(classes, dtype=torch.float64) - 1 / classes) * classes / (classes - 1)
    torch.testing.assert_close(v.T @ v, gram, rtol=0, atol=1e-14)
    torch.testing.assert_close(v.sum(1), torch.zeros(width, dtype=torch.float64), rtol=0, atol=1e-14)


def test_logits_are_the_scaled_cosines_with_the_corners():
    head, h = ETFHead(nn.Linear(4, 3), 2.5, 6).double(), torch.randn(5, 4, dtype=torch.float64)
    z = h @ head.projection.weight.T + head.projection.bias
    cosines = torch.stack([torch.cosine_similarity(z, c[None]) for c in head.corners.T], 1)
    torch.testing.assert_close(head(h), 2.5 * cosines)
    assert head.corners.shape == (6, 3)
    assert ETFHead(nn.Linear(2, 3), 1.0).corners.shape == (3, 3)  # never narrower than the classes
    assert headed(ETF(scale=0.1), mlp()).get_parameter("2.scale").item() == 0.1


def test_everyone_has_the_same_corners_and_nobody_moves_them():
    first = headed(ETF(), mlp(), seed=3).get_parameter("2.corners")
    for rounds in (1, 4):
        run = library(R.fedetf(select=K), rounds, FIVE, seed=3)
        assert torch.equal(run.model.get_parameter("2.corners"), first)
        assert run.layout.layers == ("0", "2", "2.projection")
        assert not torch.equal(run.model.get_parameter("2.scale"), torch.tensor(10.0, dtype=torch.float64))
    assert not torch.allclose(headed(ETF(), mlp(), seed=4).get_parameter("2.corners"), first)


@pytest.mark.parametrize("make", [mlp, bn_mlp, Named], ids=lambda m: m.__name__)
def test_fedetf_balances_the_softmax_by_each_clients_own_counts(make):
    run = library(R.fedetf(scale=4.0, width=6, select=K), 4, FIVE, model=make(), clients=CLIENTS)
    world = headed(ETF(4.0, 6), make())
    for t, cohort in enumerate(cohorts(run)):
        new = []
        for k in cohort:
            prior = np.log(np.maximum(np.bincount(own_data(CLIENTS, k)[1], minlength=3), 1))

            def balanced(m: nn.Module, x: Tensor, y: Tensor, prior=prior) -> Tensor:
                e = (m(x) + torch.from_numpy(prior)).exp()
                return -(e[range(len(y)), y] / e.sum(1)).log().mean()

            new.append(descend(world, CLIENTS, k, t, balanced))
        world = averaged(new, shares(CLIENTS, cohort))
    same(run, world)


def test_the_gradient_by_logits_is_the_balanced_softmax_less_the_label():
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    counts, y = torch.tensor([3.0, 0, 1], dtype=torch.float64), torch.tensor([0, 2, 2, 0])
    turn: Any = SimpleNamespace(stats={"labels": counts})
    shifted = ETF().outputs(logits, turn)
    nn.functional.cross_entropy(shifted, y, reduction="sum").backward()
    n = torch.tensor([3.0, 1, 1, 1, 1], dtype=torch.float64)  # no example is read as one, of classes unheard of too
    share = n * logits.detach().exp()
    torch.testing.assert_close(logits.grad, share / share.sum(1, keepdim=True) - torch.eye(5, dtype=torch.float64)[y])


class OnlyConvolutions(nn.Module):
    """No linear layer at all."""

    def __init__(self, classifier: nn.Module | None = None):
        super().__init__()
        self.body = nn.Conv1d(1, 3, 6)
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x[:, None])[..., 0]


@pytest.mark.parametrize("recipe", [R.fedetf(), R.moon(head=4)], ids=["ETF", "Moon"])
def test_a_model_without_a_linear_classifier_is_refused_in_a_sentence(recipe):
    with pytest.raises(fs.FedstrataError, match="OnlyConvolutions has none: it has no linear layer; give a model that"):
        fs.simulate(recipe, OnlyConvolutions(), CLIENTS, rounds=1)
    with pytest.raises(fs.FedstrataError, match="its classifier is a Sequential without a linear layer"):
        fs.simulate(recipe, OnlyConvolutions(nn.Sequential(nn.Conv1d(1, 3, 6))), CLIENTS, rounds=1)
    with pytest.raises(fs.FedstrataError, match="two classes or more; this one has 1"):
        fs.simulate(R.fedetf(), nn.Linear(6, 1), [(CLIENTS.x, torch.zeros(55, dtype=torch.long))], rounds=1)


def deep() -> nn.Module:
    return Named(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3), nn.Dropout(0.0)))


def test_of_a_classifier_of_several_layers_the_last_linear_one_is_replaced():
    model = headed(ETF(), deep())
    assert isinstance(model.get_submodule("classifier.2"), ETFHead)
    assert isinstance(model.get_submodule("classifier.0"), nn.Linear)
    run = library(R.fedetf(), 2, FIVE, model=deep())
    assert not torch.equal(run.model.get_parameter("classifier.0.weight"), deep().get_parameter("classifier.0.weight"))


@pytest.mark.parametrize("make", [mlp, Named, deep], ids=lambda m: m.__name__)
def test_moons_features_are_what_its_projection_puts_out(make):
    model = headed(Moon(head=7), make())
    (place, head), *more = [(n, m) for n, m in model.named_modules() if isinstance(m, Projected)]
    assert not more
    assert classifier_of(model) == f"{place}.classify"
    shapes = [tuple(p.shape) for p in head.parameters()]
    d = shapes[0][1]
    assert shapes == [(d, d), (d,), (7, d), (7,), (3, 7), (3,)]


@pytest.mark.parametrize("by", ["parameter", "storage"])
def test_tied_weights_stay_tied_in_a_model_with_another_head(by):
    from tests.runtimes.test_models import Tied

    changed = with_head(Tied(by), 0, lambda old: Projected(old, 4), "Moon")
    first, second = (changed.get_parameter(f"{n}.weight") for n in ("first", "second"))
    assert first.data_ptr() == second.data_ptr()
    assert first.data_ptr() != Tied(by).first.weight.data_ptr()
    run = library(R.moon(head=4), 2, FIVE, model=Tied(by))
    assert torch.equal(run.model.get_parameter("first.weight"), run.model.get_parameter("second.weight"))


def test_the_model_given_keeps_its_own_head():
    model = mlp()
    library(R.fedetf(), 1, FIVE, model=model)
    assert isinstance(model.get_submodule("2"), nn.Linear)


@pytest.mark.parametrize("make", [mlp, bn_mlp, Named], ids=lambda m: m.__name__)
@pytest.mark.parametrize(("buffer", "head"), [(1, 4), (2, None), (3, 4)])
def test_moon_pushes_away_from_as_many_previous_models_as_it_keeps(make, buffer, head):
    part = Moon(mu=2.0, tau=0.4, buffer=buffer, head=head)
    run, world = library(R.fedavg(local=part, select=K), 6, FIVE, model=make(), clients=CLIENTS), headed(part, make())
    kept: dict[int, list[nn.Module]] = {k: [] for k in range(len(FIVE))}
    for t, cohort in enumerate(cohorts(run)):
        new = {k: descend(world, CLIENTS, k, t, contrast(world.eval(), kept[k])) for k in cohort}
        kept |= {k: [m.eval(), *kept[k]][:buffer] for k, m in new.items()}
        world = averaged(list(new.values()), shares(CLIENTS, cohort))
    same(run, world)


def contrast(world: nn.Module, kept: list[nn.Module]) -> Objective:
    """What a client minimises that has kept these models."""

    def objective(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits, z = both(m, x)
        pull, *push = ((torch.cosine_similarity(z, both(o, x)[1].detach()) / 0.4).exp() for o in (world, *kept))
        away = -(pull / (pull + sum(push))).log().mean()
        return nn.functional.cross_entropy(logits, y) + (2.0 * away if kept else 0.0)

    return objective


def test_a_clients_first_turn_under_moon_is_fedavgs():
    one, other = (library(r, 1, FIVE).model.state_dict() for r in (R.moon(mu=5.0), R.fedavg()))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_representation_of_zero_does_no_harm():
    dead = mlp()
    nn.init.constant_(dead.get_parameter("0.bias"), -1e3)
    one, other = (library(r, 3, FIVE, model=dead).model.state_dict() for r in (R.moon(mu=5.0), R.fedavg()))
    torch.testing.assert_close(one, other)


def test_labels_may_stop_short_of_the_models_classes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 8)).double()
    run = fs.simulate(R.fedetf(), model, Clients.of([own_data(CLIENTS, k) for k in (0, 4)]), rounds=2)
    assert run.model.get_parameter("2.corners").shape == (8, 8)
    assert np.isfinite(run.final["train"]["loss"])
