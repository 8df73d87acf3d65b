"""FedDF and FedBE: what the teachers say together, and a student that learns it, by torch's own means."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata.buffers import Buffers
from fedstrata.core import Cohort, Round
from fedstrata.layout import Layout
from fedstrata.parts import Distill
from fedstrata.parts.server import distill
from fedstrata.parts.server.distill import around
from tests.federations import mlp
from tests.slow import bn_mlp

SIZES, R = (10, 25, 40), fs.recipes
X = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(20) % 3


def clients(net: nn.Module, count: int = 3, away: float = 0.6) -> list[nn.Module]:
    """Models around this one, running statistics included."""
    draw, made = torch.Generator().manual_seed(1), []
    for k in range(count):
        mine = deepcopy(net)
        for n, v in mine.state_dict().items():
            v.add_(away * torch.randn(v.shape, generator=draw).abs() if v.is_floating_point() else k, alpha=(-1) ** k)
            v.abs_() if n.endswith("running_var") else None
        made.append(mine)
    return made


def distilled(part: Distill, net: nn.Module, models: list[nn.Module], y: Tensor = Y) -> fs.Outcome:
    replies = [fs.Reply(client=k, model=m.state_dict(), examples=SIZES[k]) for k, m in enumerate(models)]
    proxy = fs.Proxy.of(net, X.to(next(net.parameters()).dtype), y)
    return fs.server_step(R.fedavg(server=part), net.state_dict(), replies, proxy=proxy)


def average(net: nn.Module, models: list[nn.Module]) -> dict[str, Tensor]:
    replies = [fs.Reply(client=k, model=m.state_dict(), examples=SIZES[k]) for k, m in enumerate(models)]
    return fs.server_step(R.fedavg(), net.state_dict(), replies).model


def student(net: nn.Module, models: list[nn.Module], epochs: int, swa: bool = False) -> dict[str, Tensor]:
    """The average, taught by the mean of the models' logits in batches of 7."""
    mine = deepcopy(net).eval()
    mine.load_state_dict(average(net, models))
    adam, path = torch.optim.Adam(mine.parameters(), 0.02), []
    for _ in range(epochs):
        for x in X.split(7):
            with torch.no_grad():
                p = torch.softmax(sum(m.eval()(x) for m in models) / len(models), 1)  # pyright: ignore
            adam.zero_grad()
            (p * (p.log() - torch.log_softmax(mine(x), 1))).sum(1).mean().backward()
            adam.step()
        path.append({n: v.clone() for n, v in mine.state_dict().items()})
    late = path[epochs // 2 :] if swa else path[-1:]
    return {n: torch.stack([p[n] for p in late]).mean(0) if late[0][n].is_floating_point() else late[-1][n]
            for n in path[0]}  # fmt: skip


def divergence(model: dict[str, Tensor], net: nn.Module, teachers: list[nn.Module]) -> float:
    taught = deepcopy(net).eval()
    taught.load_state_dict(model)
    with torch.no_grad():
        p = torch.softmax(torch.stack([m.eval()(X) for m in teachers]).mean(0), 1)
        return float((p * (p.log() - torch.log_softmax(taught(X), 1))).sum(1).mean())


@pytest.mark.parametrize("make", [mlp, bn_mlp], ids=lambda m: m.__name__)
@pytest.mark.parametrize("swa", [False, True])
def test_the_average_learns_what_the_clients_say_together(make, swa):
    net = make()
    models = clients(net)
    out = distilled(Distill(epochs=5, lr=0.02, batch=7, swa=swa), net, models)
    torch.testing.assert_close(out.model, student(net, models, 5, swa), rtol=0, atol=1e-9)


def test_running_statistics_stay_those_of_the_average():
    net = bn_mlp()
    models = clients(net)
    out, plain = distilled(Distill(epochs=5, lr=0.02), net, models).model, average(net, models)
    assert all(torch.equal(out[n], plain[n]) for n in plain if "running" in n or "tracked" in n)
    assert not torch.equal(out["0.weight"], plain["0.weight"])


@pytest.mark.parametrize("teachers", ["clients", "bayes"])
def test_the_divergence_from_the_teachers_falls(teachers):
    net = bn_mlp()
    models = clients(net)
    part = Distill(teachers, epochs=60, lr=0.02)
    before, after = (divergence(m, net, models) for m in (average(net, models), distilled(part, net, models).model))
    assert after < before / 3


@pytest.mark.parametrize("teachers", ["clients", "bayes"])
def test_without_epochs_it_is_fedavg(teachers):
    net = bn_mlp()
    for models in (clients(net), clients(net, 1)):
        out = distilled(Distill(teachers, epochs=0), net, models)
        torch.testing.assert_close(out.model, average(net, models), rtol=0, atol=0)


PARTS = [Distill(), Distill("bayes"), Distill("bayes", draw="dirichlet", swa=True)]


@pytest.mark.parametrize("part", PARTS, ids=lambda p: f"{p.teachers} {p.draw}")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_single_client_or_the_same_client_thrice_has_nothing_to_learn(part, dtype):
    net = bn_mlp().to(dtype)
    (one,) = clients(net, 1)
    for models in ([one], [one] * 3):
        out = distilled(part, net, models).model
        torch.testing.assert_close(out, one.state_dict(), rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-6)


def test_labels_are_not_looked_at():
    net = mlp()
    one, other = (distilled(Distill(epochs=3), net, clients(net), y).model for y in (Y, (Y + 1) % 3))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def a_round(k: int = 4) -> tuple[Round, Layout]:
    draw = torch.Generator().manual_seed(3)
    layout = Layout.of_tensors({"a.weight": torch.zeros(3, dtype=torch.float64), "a.bias": torch.zeros(2)})
    old, delta = (torch.randn(n, 5, generator=draw, dtype=torch.float64) for n in (1, k))
    cohort = Cohort(layout, torch.arange(k), {"examples": torch.arange(1.0, k + 1)}, old[0], population=k, number=2)
    return Round(cohort, delta, buffers=Buffers(), seed=5), layout


def test_models_are_drawn_around_the_mean_direction_of_every_tensor():
    round, _ = a_round()
    noise = torch.randn(200_000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = around(round, noise)
    for tensor in (slice(0, 3), slice(3, 5)):
        d = round.delta[:, tensor].numpy()
        length = np.linalg.norm(d, axis=1)
        u = d / length[:, None]
        np.testing.assert_allclose(
            drawn[:, tensor].mean(0), round.old[tensor].numpy() + length.mean() * u.mean(0), atol=0.01
        )
        np.testing.assert_allclose(drawn[:, tensor].var(0), (length.mean() * u.std(0)) ** 2, rtol=0.02)


def test_a_tensor_that_nobody_moved_is_drawn_where_it_was():
    round, _ = a_round()
    round.delta[:, 3:] = 0
    drawn = around(round, torch.ones(2, 5, dtype=torch.float64))
    assert torch.equal(drawn[:, 3:], round.old[3:].expand(2, 2))
    assert drawn.isfinite().all()


@pytest.mark.parametrize("draw", ["gaussian", "dirichlet"])
def test_fedbes_teachers_are_the_clients_the_average_and_as_many_samples(draw):
    round, _ = a_round()
    proposal = round.old + round.share @ round.delta
    part = Distill("bayes", samples=4000, draw=draw)
    models = torch.stack([w for w, _ in part._faculty(proposal, round)])
    assert len(models) == 4 + 1 + 4000
    torch.testing.assert_close(models[:4], round.old + round.delta)
    torch.testing.assert_close(models[4], proposal)
    assert len(models[5:].unique(dim=0)) == 4000
    again = torch.stack([w for w, _ in part._faculty(proposal, round)])
    assert torch.equal(models, again)


def test_dirichlet_samples_are_mixtures_of_the_clients():
    round, _ = a_round()
    drawn = torch.stack([w for w, _ in Distill("bayes", samples=4000, draw="dirichlet")._faculty(round.old, round)][5:])
    shares = torch.linalg.lstsq(round.delta.T, (drawn - round.old).T).solution.T
    assert (shares > -1e-9).all()
    torch.testing.assert_close(shares.sum(1), torch.ones(4000, dtype=torch.float64))
    torch.testing.assert_close(shares.mean(0), torch.full((4,), 0.25, dtype=torch.float64), rtol=0, atol=0.01)
    torch.testing.assert_close(shares.var(0), torch.full((4,), 3 / 80, dtype=torch.float64), rtol=0.1, atol=0)


def test_teachers_are_drawn_once_whatever_the_number_of_batches(monkeypatch):
    asked = []
    monkeypatch.setattr(distill, "around", lambda round, noise: asked.append(1) or around(round, noise))
    net = mlp()
    distilled(Distill("bayes", batch=4, epochs=1, samples=2), net, clients(net))
    assert asked == [1]
