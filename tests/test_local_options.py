"""The other settings of the client halves against plain loops, with clients that sit rounds out."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata.clients import Clients, probe_batches
from fedstrata.descent import Federation
from fedstrata.parts import Sample, SelectiveProx
from fedstrata.server import open_round
from fedstrata.simulate import first_server, first_stats
from fedstrata.task import Task
from tests.federations import mlp, unequal_clients
from tests.slow import (
    FIVE,
    LR,
    TRAIN,
    averaged,
    bn_mlp,
    both,
    cohorts,
    descend,
    features,
    flat,
    library,
    load,
    local,
    own_data,
    shares,
    steps,
    vector,
)  # fmt: skip

R, K, N = fs.recipes, Sample(k=3), len(FIVE)
CLIENTS = unequal_clients(FIVE)


def same(run: fs.Run, world: nn.Module, atol: float = 1e-11) -> None:
    torch.testing.assert_close(flat(run.model), flat(world), rtol=0, atol=atol)


def mean(models: list[Tensor], p: list[float]) -> Tensor:
    return torch.tensor(p, dtype=torch.float64) @ torch.stack(models)


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(nn.functional.cross_entropy(model(x), y),
                                                                 list(model.parameters()))])  # fmt: skip


@pytest.mark.parametrize(("recipe", "share"), [
    (R.feddc(), lambda brief: brief["omega"]), (R.feddyn(alpha=0.3, by_size=True), lambda brief: 0.3 / brief["alpha"]),
])  # fmt: skip
def test_the_mean_of_n_is_over_all_clients_also_those_without_data(recipe, share):
    """So that the mean of omega_k = n_k / mean(n) over all N is 1."""
    fed = Federation(recipe, Task.of(mlp()), unequal_clients((8, 0, 5, 0, 9)), TRAIN)
    server = first_server(fed, mlp(), first_stats(fed))
    _, cohort, brief = open_round(recipe, server, np.random.default_rng(0), lambda *_: {})
    assert cohort.ids.tolist() == [0, 2, 4]
    assert float(share(brief["local.0"]).sum() / 5) == pytest.approx(1)


def test_some_client_sits_out_and_comes_back():
    turns = [["-x"[k in c] for c in cohorts(library(R.fedavg(select=K), 6, FIVE))] for k in range(N)]
    assert any(re.search("x-+x", "".join(mine)) for mine in turns)


def test_scaffolds_option_one_keeps_the_full_gradient_and_the_server_has_a_rate():
    run = library(R.scaffold(option=1, lr=0.6, select=K), 6, FIVE)
    world, zero = mlp(), torch.zeros_like(flat(mlp()))
    c_k, c = [zero] * N, zero
    for t, cohort in enumerate(cohorts(run)):
        w, new, moved = flat(world), [], zero
        for k in cohort:
            drift = c - c_k[k]
            new.append(flat(local(world, CLIENTS, k, t, lambda m, _, drift=drift: (drift * vector(m)).sum())))
            after = gradient(world, *own_data(CLIENTS, k))
            moved, c_k[k] = moved + after - c_k[k], after
        c = c + moved / N
        world = load(w + 0.6 * torch.stack([n - w for n in new]).mean(0))
    same(run, world)


def test_fedavg_with_a_server_rate_goes_that_far_along_the_mean_update():
    run, world = library(R.fedavg(lr=1.7, select=K), 3, FIVE), mlp()
    for t, cohort in enumerate(cohorts(run)):
        new = [flat(descend(world, CLIENTS, k, t)) for k in cohort]
        world = load(flat(world) + 1.7 * (mean(new, shares(CLIENTS, cohort)) - flat(world)))
    same(run, world)


@pytest.mark.parametrize(("by_size", "clip"), [(True, None), (False, 0.3), (True, 0.5)])
def test_feddyn_by_size_and_clipped_is_the_form_of_its_authors_code(by_size, clip):
    """alpha_k/2 |u|^2 + alpha_k <u, H_k - w>, H_k' = H_k + w_k - w, w' = mean_S w_k + mean over all of H."""
    run = library(R.feddyn(alpha=0.3, by_size=by_size, clip=clip, select=K), 6, FIVE)
    world, h = mlp(), [torch.zeros_like(flat(mlp()))] * N
    train = fs.SGD(lr=LR, batch=5, epochs=2, clip=clip)
    for t, cohort in enumerate(cohorts(run)):
        w, new = flat(world), []
        for k in cohort:
            alpha = 0.3 * (CLIENTS.sizes.mean() / CLIENTS.sizes[k] if by_size else 1.0)

            def penalty(m: nn.Module, _x: Tensor, w=w, h=h[k], alpha=alpha) -> Tensor:
                return alpha / 2 * vector(m).square().sum() + alpha * (vector(m) * (h - w)).sum()

            new.append(flat(local(world, CLIENTS, k, t, penalty, train)))
            h[k] = h[k] + new[-1] - w
        world = load(torch.stack(new).mean(0) + torch.stack(h).mean(0))
    same(run, world)


def test_clipping_bites_in_these_federations():
    for recipe in (R.feddyn(alpha=0.3, select=K), R.feddc(alpha=0.2, select=K)):
        (part,) = recipe.local
        clipped = replace(recipe, local=(replace(part, clip=0.3),))  # pyright: ignore[reportCallIssue]
        assert not torch.allclose(flat(library(recipe, 2, FIVE).model), flat(library(clipped, 2, FIVE).model))


@pytest.mark.parametrize("show", ["participants", "all"])
def test_feddyn_shows_the_mean_of_the_cohort_or_of_every_clients_last_model(show):
    recipe = R.feddyn(alpha=0.3, show=show, select=K)
    last, world, zero = [flat(mlp())] * N, mlp(), torch.zeros_like(flat(mlp()))
    g, h, shown = [zero] * N, zero, mlp()
    for t, cohort in enumerate(cohorts(library(recipe, 4, FIVE))):
        w, new = flat(world), []
        for k in cohort:

            def penalty(m: nn.Module, _x: Tensor, w=w, g=g[k]) -> Tensor:
                return -(g * vector(m)).sum() + 0.15 * (vector(m) - w).square().sum()

            last[k] = flat(local(world, CLIENTS, k, t, penalty))
            new.append(last[k])
            g[k] = g[k] - 0.3 * (last[k] - w)
        h = h - 0.3 / N * torch.stack([n - w for n in new]).sum(0)
        world = load(torch.stack(new).mean(0) - h / 0.3)
        shown = load(torch.stack(new if show == "participants" else last).mean(0))
        same(library(recipe, t + 1, FIVE), shown)
    loss = nn.functional.cross_entropy(shown(CLIENTS.x), CLIENTS.y).detach()
    assert library(recipe, 4, FIVE).final["train"]["loss"] == pytest.approx(float(loss), rel=1e-9)


def test_feddyn_of_fedlaws_code_does_not_square_and_takes_shares():
    run, alpha = library(R.feddyn_fedlaw(alpha=0.4, select=K), 4, FIVE), 0.4
    world, zero = mlp(), torch.zeros_like(flat(mlp()))
    g, h = [zero] * N, zero
    for t, cohort in enumerate(cohorts(run)):
        w, p, new = flat(world), shares(CLIENTS, cohort), []
        for k in cohort:

            def penalty(m: nn.Module, _x: Tensor, w=w, g=g[k]) -> Tensor:
                return -(g * vector(m)).sum() + alpha / 2 * torch.linalg.vector_norm(vector(m) - w)

            new.append(flat(local(world, CLIENTS, k, t, penalty)))
            g[k] = g[k] - alpha * (new[-1] - w)
        h = h - alpha * (mean(new, p) - w)
        world = load(mean(new, p) - h / alpha)
    same(run, world)


def test_feddc_clipped_is_its_authors_code_when_clients_sit_out():
    run, alpha = library(R.feddc(alpha=0.2, clip=0.6, select=K), 6, FIVE), 0.2
    omega, train = torch.tensor(CLIENTS.sizes / CLIENTS.sizes.mean()), fs.SGD(lr=LR, batch=5, epochs=2, clip=0.6)
    world, zero = mlp(), torch.zeros_like(flat(mlp()))
    h, g_k, g = [zero] * N, [zero] * N, zero
    for t, cohort in enumerate(cohorts(run)):
        w, new, moved = flat(world), [], zero
        for k in cohort:

            def penalty(m: nn.Module, _x: Tensor, w=w, k=k, h=h[k], g_k=g_k[k], g=g) -> Tensor:
                held = alpha / (2 * omega[k]) * (vector(m) - w + h).square().sum()
                return held + (vector(m) * (g / omega[k] - g_k)).sum()

            new.append(flat(local(world, CLIENTS, k, t, penalty, train)))
            after = g_k[k] - g / omega[k] + (w - new[-1]) / (steps(CLIENTS, k, t) * LR)
            moved, g_k[k], h[k] = moved + omega[k] * (after - g_k[k]), after, h[k] + new[-1] - w
        g = g + moved / N
        world = load(torch.stack(new).mean(0) + torch.stack(h).mean(0))
    same(run, world)


@pytest.mark.parametrize("plain", [False, True])
def test_fedprox_adds_its_term_before_momentum_or_trains_plainly(plain):
    heavy = fs.SGD(lr=LR, batch=5, epochs=2, momentum=0.8, weight_decay=0.05)
    run, world = library(R.fedprox(mu=0.7, plain_sgd=plain, select=K), 3, FIVE, training=heavy), mlp()
    for t, cohort in enumerate(cohorts(run)):
        w = flat(world)
        held = lambda m, _, w=w: 0.35 * (vector(m) - w).square().sum()  # noqa: E731
        new = [flat(local(world, CLIENTS, k, t, held, TRAIN if plain else heavy)) for k in cohort]
        world = load(mean(new, shares(CLIENTS, cohort)))
    same(run, world)


def probed(k: int, number: int) -> tuple[Tensor, Tensor]:
    """The mini-batch on which a client measures itself."""
    rows = probe_batches(CLIENTS, [k], TRAIN, 0, number)
    mine = rows.index[0, 0, : rows.count[0, 0]]
    return CLIENTS.x[mine], CLIENTS.y[mine]


def loss_variance(model: nn.Module, x: Tensor, y: Tensor) -> float:
    losses = [nn.functional.cross_entropy(model(a[None]), b[None]).item() for a, b in zip(x, y, strict=True)]
    return float(np.var(losses))


@pytest.mark.parametrize("two_phase", [False, True])
@pytest.mark.parametrize("resources", [None, (1.0, 1.0, 0.5, 1.0, 0.9)])
def test_fedpbs_holds_back_whoever_has_small_batches_or_is_noisier_than_the_median(two_phase, resources):
    part = SelectiveProx(mu=0.9, two_phase=two_phase, resources=resources)
    run, world, last = library(R.fedpbs(local=part, select=K), 4, FIVE), mlp(), np.inf
    held = []
    for t, cohort in enumerate(cohorts(run)):
        w, v = flat(world), {k: loss_variance(world, *probed(k, t)) for k in cohort}
        threshold = float(np.median(list(v.values()))) if two_phase else last
        assert ("threshold" in run.notes[t]) is not two_phase  # of those who replied it would be another one
        assert two_phase or float(run.notes[t]["threshold"]) == pytest.approx(threshold)
        new = []
        for k in cohort:
            batch = max(1, min(5, CLIENTS.sizes[k]) * (resources[k] if resources else 1.0))
            mu = 0.0 if batch >= 5 and v[k] <= threshold else 0.9
            held.append(mu > 0)
            near = lambda m, _, w=w, mu=mu: mu / 2 * (vector(m) - w).square().sum()  # noqa: E731
            new.append(flat(local(world, CLIENTS, k, t, near)))
        world, last = load(torch.stack(new).mean(0)), float(np.median(list(v.values())))
    same(run, world)
    assert 0 < sum(held) < len(held)


def test_a_round_without_clients_is_empty_under_two_phases_too():
    far = [(1e200 * CLIENTS.x[r], CLIENTS.y[r]) for r in CLIENTS.rows]
    recipe = R.fedpbs(selection="sur", variance="gradient", two_phase=True)
    run = fs.simulate(recipe, mlp(), far, rounds=2, training=TRAIN)
    assert all(r["empty"] for r in run.rounds)


def test_fedbs_by_the_last_layer_selects_and_weighs_by_that_layers_gradients():
    run = library(R.fedbs(k=3, tau=0.5, grad_scope="last_layer"), 3, FIVE)
    world = mlp()
    for t in range(3):
        v = np.array([last_layer_variance(world, *probed(k, t)) for k in range(N)])
        cohort = sorted(np.argsort(v, kind="stable")[:3].tolist())
        assert run.rounds[t]["cohort"] == cohort
        e = np.exp(-0.5 * v[cohort])
        world = load(mean([flat(descend(world, CLIENTS, k, t)) for k in cohort], (e / e.sum()).tolist()))
    same(run, world)


def last_layer_variance(model: nn.Module, x: Tensor, y: Tensor) -> float:
    g = torch.stack([gradient(model, a[None], b[None])[-18:] for a, b in zip(x, y, strict=True)])
    return float((g - g.mean(0)).square().sum(1).mean())


def prototypes(new: dict[int, nn.Module], old: Tensor | None, by: str) -> Tensor:
    """Mean features of length 1 of every class, over all examples or over the clients' means."""
    data = {k: own_data(CLIENTS, k) for k in new}
    found = [(nn.functional.normalize(features(m, data[k][0]).detach(), dim=1), data[k][1]) for k, m in new.items()]
    made = torch.zeros(3, 5, dtype=torch.float64) if old is None else old.clone()
    for c in range(3):
        mine = [z[y == c] for z, y in found if bool((y == c).any())]
        if mine:
            made[c] = torch.cat(mine).mean(0) if by == "examples" else torch.stack([z.mean(0) for z in mine]).mean(0)
    return made


@pytest.mark.parametrize("make", [mlp, bn_mlp], ids=lambda m: m.__name__)
@pytest.mark.parametrize("by", ["examples", "clients"])
def test_fedproc_goes_from_prototypes_to_cross_entropy(by, make):
    run, world, c = library(R.fedproc(rounds=3, by=by, select=Sample(k=2)), 5, FIVE, model=make()), make(), None
    for t, cohort in enumerate(cohorts(run)):
        a = min(1.0, t / 3) if t else 1.0

        def objective(m: nn.Module, x: Tensor, y: Tensor, a=a, c=c) -> Tensor:
            logits, z = both(m, x)
            ce = nn.functional.cross_entropy(logits, y)
            if c is None:
                return ce
            s = torch.stack([torch.cosine_similarity(z, c[j][None]) for j in range(3)], 1)
            return a * ce - (1 - a) * (s.exp() / s.exp().sum(1, keepdim=True))[range(len(y)), y].log().mean()

        new = {k: descend(world, CLIENTS, k, t, objective).eval() for k in cohort}
        c = prototypes(new, c, by)
        world = averaged(list(new.values()), shares(CLIENTS, cohort))
    torch.testing.assert_close(run.model.state_dict(), world.state_dict(), rtol=0, atol=1e-10)


def test_fedprocs_first_round_is_fedavg_and_its_second_is_not():
    for rounds, alike in ((1, True), (2, False)):
        one, other = (flat(library(r, rounds, FIVE).model) for r in (R.fedproc(rounds=9), R.fedavg()))
        assert torch.equal(one, other) == alike


def test_a_class_that_the_cohort_lacks_keeps_its_prototype():
    x = torch.randn(9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    clients = Clients.of([(x[:4], torch.tensor([0, 0, 1, 1])), (x[4:], torch.tensor([1, 2, 2, 1, 2]))])
    layout = fs.simulate(R.fedavg(), mlp(), clients, rounds=1).layout
    recipe, start = R.fedproc(), {n: torch.zeros(s) for n, s in layout.tensors}

    def reply(k: int, sums: Tensor) -> fs.Reply:
        return fs.Reply(client=k, model=start, examples=5, stats={"class_features": sums / 5})

    first = torch.tensor([[2.0, 1, 1], [3.0, 0, 6], [0.0, 0, 0]])
    out = fs.server_step(recipe, start, [reply(0, first)])
    assert out.state["local.0"]["prototypes"].tolist() == [[0.5, 0.5], [0, 2], [0, 0]]
    later = torch.tensor([[0.0, 0, 0], [1.0, 4, 2], [4.0, 4, 8]])
    out = fs.server_step(recipe, start, [reply(0, later), reply(1, later)], out.state)
    torch.testing.assert_close(
        out.state["local.0"]["prototypes"], torch.tensor([[0.5, 0.5], [4, 2], [1, 2]], dtype=torch.float64)
    )
