"""CCVR: the Gaussians of all clients' features together, and a classifier trained again on what they give."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata import train as training
from fedstrata.clients import Clients
from fedstrata.descent import Errand, Federation
from fedstrata.layout import Arrays
from fedstrata.parts import Calibrate
from fedstrata.parts.finish.calibrate import gaussian
from fedstrata.task import Task, buffers_of
from fedstrata.train import survey
from tests.federations import mlp, unequal_clients
from tests.slow import FIVE, Named, bn_mlp, features, library

R, CLIENTS = fs.recipes, unequal_clients(FIVE)
QUIET = fs.SGD(lr=1e-12, batch=None)


def moments(model: nn.Module, clients: Clients, names: frozenset[str] = frozenset({"class_moments"})) -> Arrays:
    """What every client tells of itself at this model."""
    task, ids = Task.of(model), list(range(len(clients)))
    fed = Federation(R.ccvr(), task, clients, fs.SGD())
    buffers = {n: b.expand(len(ids), *b.shape) for n, b in buffers_of(model).items()}
    start = task.layout.flatten(dict(model.named_parameters(remove_duplicate=False)))
    return survey(fed, Errand(ids, 0, start, buffers, {}, {}, {}, names))


def pooled(model: nn.Module, clients: Clients) -> Tensor:
    told = moments(model, clients)["class_moments"]
    return (told * torch.from_numpy(clients.sizes).double()[:, None, None]).sum(0)


@pytest.mark.parametrize("make", [mlp, bn_mlp], ids=lambda m: m.__name__)
@pytest.mark.parametrize("at_once", [256, 4])
def test_pooled_moments_are_those_of_all_features_together(make, at_once, monkeypatch):
    monkeypatch.setattr(training, "EXAMPLES_AT_ONCE", at_once)
    model = make()
    z = features(model.eval(), CLIENTS.x).detach()
    for c, told in enumerate(pooled(model, CLIENTS)):
        mean, root = gaussian(told)
        mine = z[CLIENTS.y == c]
        assert float(told[0]) == pytest.approx(len(mine))
        torch.testing.assert_close(mean, mine.mean(0))
        torch.testing.assert_close(root.T @ root, torch.cov(mine.T), rtol=0, atol=1e-12)


def test_drawn_features_have_that_mean_and_covariance():
    told = pooled(mlp(), CLIENTS)
    z, y = Calibrate(samples=100_000)._draw(told, np.random.default_rng(0))
    assert torch.bincount(y).tolist() == [100_000] * 3
    for c in range(3):
        mean, root = gaussian(told[c])
        torch.testing.assert_close(z[y == c].mean(0), mean, rtol=0, atol=0.01)
        torch.testing.assert_close(torch.cov(z[y == c].T), root.T @ root, rtol=0, atol=0.02)


def test_a_class_of_one_example_gives_that_example_and_a_class_of_none_gives_none():
    clients = Clients.of([(CLIENTS.x[:5], torch.tensor([0, 0, 0, 2, 0])), (CLIENTS.x[5:9], torch.zeros(4).long())])
    model = mlp(classes=5)
    z, y = Calibrate(samples=10)._draw(pooled(model, clients), np.random.default_rng(0))
    assert torch.bincount(y, minlength=5).tolist() == [10, 0, 10, 0, 0]
    alone = features(model, clients.x[3:4]).detach()
    torch.testing.assert_close(z[y == 2], alone.expand(10, -1), rtol=0, atol=1e-6)


FEW = Calibrate(samples=30, epochs=4, lr=0.05, batch=16)


def finished(model: nn.Module, task: Task) -> Tensor:
    stats = moments(model, CLIENTS) | {"examples": torch.from_numpy(CLIENTS.sizes)}
    start = task.layout.flatten(dict(model.named_parameters(remove_duplicate=False)))
    return FEW.finish(start, {}, stats, task, np.random.default_rng(7))


def by_hand(model: nn.Module, head: nn.Module, trained: list[nn.Parameter]) -> None:
    """Train these parameters of a model on the features that would be drawn."""
    draw = np.random.default_rng(7)
    z, y = FEW._draw(pooled(model, CLIENTS), draw)
    sgd = torch.optim.SGD(trained, 0.05, momentum=0.9)
    for _ in range(4):
        for rows in np.array_split(draw.permutation(90), range(16, 90, 16)):
            sgd.zero_grad()
            nn.functional.cross_entropy(head(z[rows]), y[rows]).backward()
            sgd.step()


def test_the_classifier_alone_is_trained_on_the_drawn_features():
    model = mlp()
    task = Task.of(model)
    start = task.layout.flatten(dict(model.named_parameters()))
    got = finished(model, task)
    by_hand(model, model.get_submodule("2"), list(model.get_submodule("2").parameters()))
    torch.testing.assert_close(got, task.layout.flatten(dict(model.named_parameters())), rtol=0, atol=1e-12)
    assert torch.equal(got[:35], start[:35])
    assert not torch.equal(got[35:], start[35:])


def corners(n: int = 60) -> Clients:
    """Three classes far apart, and clients that have one each."""
    draw = np.random.default_rng(0)
    centres = 6 * np.eye(3, 6)
    return Clients.of([(centres[c] + draw.standard_normal((n, 6)), np.full(n, c)) for c in range(3)])


def spoiled() -> nn.Module:
    """It hands the features on; its classifier takes every class for the next one."""
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    for p in model.parameters():
        nn.init.zeros_(p)
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.eye(6))
        model.get_parameter("2.weight")[[1, 2, 0], [0, 1, 2]] = 3.0
    return model


def test_a_spoiled_classifier_is_repaired():
    before = fs.simulate(R.fedavg(), spoiled(), corners(), rounds=1, training=QUIET)
    after = fs.simulate(R.ccvr(), spoiled(), corners(), rounds=1, training=QUIET)
    assert before.final["train"]["accuracy"] < 0.05
    assert after.final["train"]["accuracy"] > 0.99
    assert after.rounds[-1]["finish"]
    torch.testing.assert_close(after.model.get_parameter("0.weight"), before.model.get_parameter("0.weight"))


def test_a_class_that_nobody_has_does_not_stop_it():
    two = Clients.of([(corners().x[:60], corners().y[:60]), (corners().x[60:120], corners().y[60:120])])
    assert fs.simulate(R.ccvr(), spoiled(), two, rounds=1, training=QUIET).final["train"]["accuracy"] > 0.99


def test_running_statistics_within_the_classifier_are_the_federations():
    """A classifier that normalises: what it was initialised with would give other logits."""
    model = Named(nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)))
    norm = model.get_submodule("classifier.0")
    assert isinstance(norm, nn.BatchNorm1d)
    task, part = Task.of(model), Calibrate(epochs=1, samples=40, batch=1000, lr=0.1)
    start = task.layout.flatten(dict(model.named_parameters()))
    buffers = {n: b + 2 for n, b in buffers_of(model).items()}
    stats = moments(model, CLIENTS) | {"examples": torch.from_numpy(CLIENTS.sizes)}
    got = part.finish(start, buffers, stats, task, np.random.default_rng(0))
    z, y = part._draw(pooled(model, CLIENTS), np.random.default_rng(0))
    model.load_state_dict(model.state_dict() | buffers)
    nn.functional.cross_entropy(model.eval().classifier(z), y).backward()
    assert model.body.weight.grad is None
    moved = [p - 0.1 * p.grad if p.grad is not None else p for p in model.parameters()]
    torch.testing.assert_close(got, torch.cat([p.detach().reshape(-1) for p in moved]), rtol=0, atol=1e-12)


class Shared(nn.Module):
    """Its classifier has the weight of an earlier layer."""

    def __init__(self, bias: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 6).double(), nn.Linear(6, 6, bias=bias).double()
        self.head.weight = self.body.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def test_a_weight_that_the_classifier_shares_stays_and_the_rest_fits_it():
    model = Shared()
    task = Task.of(model)
    got = task.layout.unflatten(finished(model, task))
    by_hand(model, model.head, [model.head.bias])
    torch.testing.assert_close(got, {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False)})


def test_a_classifier_of_nothing_else_is_left_as_it_is():
    one, other = (library(r, 1, FIVE, model=Shared(bias=False)).model.state_dict() for r in (R.ccvr(), R.fedavg()))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("make", [mlp, Named], ids=lambda m: m.__name__)
def test_a_fixed_classifier_keeps_its_corners_and_its_projection_is_calibrated(make):
    recipe = R.combine(R.fedetf(), R.ccvr(epochs=30))
    plain, run = (library(r, 2, FIVE, model=make()).model for r in (R.fedetf(), recipe))
    name = "classifier" if isinstance(run, Named) else "2"
    assert torch.equal(run.get_parameter(f"{name}.corners"), plain.get_parameter(f"{name}.corners"))
    for n, p in run.named_parameters():
        assert torch.equal(p, plain.get_parameter(n)) == (not n.startswith(name) or n.endswith("corners")), n


def test_the_average_that_afl_shows_is_what_is_calibrated():
    recipe = R.combine(R.afl(), R.ccvr())
    shown, run = (library(r, 3, FIVE).model for r in (R.afl(), recipe))
    torch.testing.assert_close(run.get_parameter("0.weight"), shown.get_parameter("0.weight"), rtol=0, atol=0)
    assert not torch.equal(run.get_parameter("2.weight"), shown.get_parameter("2.weight"))


def test_nothing_is_left_of_a_far_off_mean_in_the_covariance():
    """Features at 1e5 with deviation 1: sums of squares are 1e10 times the variance."""
    z = 1e5 + torch.randn(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    told = torch.cat([torch.tensor([300.0]).double(), z.sum(0), (z.T @ z).flatten()])
    _, root = gaussian(told)
    torch.testing.assert_close(root.T @ root, torch.cov(z.T), rtol=1e-4, atol=1e-4)
