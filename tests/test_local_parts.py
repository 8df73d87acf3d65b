"""Client halves against plain loops in which the term is written as a penalty and differentiated by autograd."""

import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata.clients import Clients, training_batches
from tests.federations import flat, mlp, unequal_clients
from tests.slow import LR, SIZES, TRAIN, load, local, vector

R = fs.recipes


def library(recipe: fs.Recipe, rounds: int) -> Tensor:
    return flat(fs.simulate(recipe, mlp(), unequal_clients(SIZES), rounds=rounds, training=TRAIN).model)


def test_fedprox_is_the_penalty_of_its_paper():
    clients, world = unequal_clients(SIZES), mlp()
    p = torch.tensor(clients.sizes / clients.sizes.sum())
    for t in range(3):
        w = flat(world)
        new = [
            local(world, clients, k, t, lambda m, _, w=w: 0.7 / 2 * (vector(m) - w).square().sum()) for k in range(3)
        ]
        world = load(sum(p[k] * flat(m) for k, m in enumerate(new)))  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(library(R.fedprox(mu=0.7), 3), flat(world), rtol=0, atol=1e-12)


def test_adaptive_mu_is_the_penalty_and_the_recursion_of_its_paper():
    clients, world = unequal_clients(SIZES), mlp()
    p = torch.tensor(clients.sizes / clients.sizes.sum())
    mu = torch.full((4,), 0.5, dtype=torch.float64)
    for t in range(4):
        old = [q.detach().clone() for q in world.parameters()]

        def penalty(m: nn.Module, _x: Tensor, old=old, mu=mu) -> Tensor:
            return torch.stack([mu[i] / 2 * (q - old[i]).square().sum() for i, q in enumerate(m.parameters())]).sum()

        new = [local(world, clients, k, t, penalty) for k in range(3)]
        world = load(sum(p[k] * flat(m) for k, m in enumerate(new)))  # pyright: ignore[reportArgumentType]
        d = torch.stack([(q.detach() - o).norm() for q, o in zip(world.parameters(), old, strict=True)])
        mu = 0.6 * mu + 0.4 * d / d.max() * 0.5
    torch.testing.assert_close(library(R.adaptive_fedprox(mu=0.5, alpha=0.4), 4), flat(world), rtol=0, atol=1e-12)


def test_feddyn_is_the_objective_of_its_paper():
    clients, world, alpha = unequal_clients(SIZES), mlp(), 0.3
    g, h = [torch.zeros_like(flat(world)) for _ in range(3)], torch.zeros_like(flat(world))
    for t in range(4):
        w, new = flat(world), []
        for k in range(3):

            def penalty(m: nn.Module, _x: Tensor, w=w, g=g[k]) -> Tensor:
                return -(g * vector(m)).sum() + alpha / 2 * (vector(m) - w).square().sum()

            new.append(flat(local(world, clients, k, t, penalty)))
            g[k] = g[k] - alpha * (new[k] - w)
        h = h - alpha / 3 * torch.stack([n - w for n in new]).sum(0)
        world = load(torch.stack(new).mean(0) - h / alpha)
    torch.testing.assert_close(library(R.feddyn(alpha=alpha), 4), flat(world), rtol=0, atol=1e-12)


def test_scaffold_is_algorithm_1_of_its_paper():
    clients, world = unequal_clients(SIZES), mlp()
    c_k, c = [torch.zeros_like(flat(world)) for _ in range(3)], torch.zeros_like(flat(world))
    for t in range(4):
        w, new, moved = flat(world), [], torch.zeros_like(flat(world))
        for k in range(3):
            drift = c - c_k[k]
            new.append(flat(local(world, clients, k, t, lambda m, _, drift=drift: (drift * vector(m)).sum())))
            steps = int(training_batches(clients, [k], TRAIN, 0, t).steps[0])
            after = c_k[k] - c + (w - new[k]) / (steps * LR)
            moved, c_k[k] = moved + after - c_k[k], after
        c = c + moved / 3
        world = load(torch.stack(new).mean(0))
    torch.testing.assert_close(library(R.scaffold(), 4), flat(world), rtol=0, atol=1e-12)


def test_moon_is_the_contrastive_loss_of_its_paper():
    clients, world = unequal_clients(SIZES), mlp()
    p = torch.tensor(clients.sizes / clients.sizes.sum())
    previous: list[nn.Module | None] = [None] * 3
    for t in range(3):
        new = []
        for k in range(3):

            def contrast(m: nn.Module, x: Tensor, world=world, last=previous[k]) -> Tensor | float:
                if last is None:
                    return 0.0
                z, glob, prev = (q[:2](x) for q in (m, world, last))  # pyright: ignore[reportIndexIssue]
                pull, push = (torch.cosine_similarity(z, o.detach()) / 0.4 for o in (glob, prev))
                return 2.0 * -(pull.exp() / (pull.exp() + push.exp())).log().mean()

            new.append(local(world, clients, k, t, contrast))
        previous = list(new)
        world = load(sum(p[k] * flat(m) for k, m in enumerate(new)))  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(library(R.moon(mu=2.0, tau=0.4), 3), flat(world), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("batch", "threshold", "held"), [(6, 1e9, [1]), (1, 1e9, []), (1, -1.0, [0, 1, 2])])
def test_fedpbs_holds_back_small_and_noisy_clients_only(batch, threshold, held):
    """|B_k| = min(5, n_k) < B_th; a threshold below every variance holds everybody."""
    train, clients, world = fs.SGD(lr=LR, batch=8), unequal_clients(SIZES), mlp()
    run = fs.simulate(R.fedpbs(mu=0.7, batch=batch, threshold=threshold), world, clients, rounds=1, training=train)
    new = []
    for k in range(3):
        single = Clients.split(clients.x, clients.y, [r if i == k else r[:0] for i, r in enumerate(clients.rows)])
        recipe = R.fedprox(mu=0.7) if k in held else R.fedavg()
        new.append(flat(fs.simulate(recipe, world, single, rounds=1, training=train).model))
    torch.testing.assert_close(flat(run.model), torch.stack(new).mean(0), rtol=0, atol=1e-12)


def test_fedpbs_takes_the_median_of_the_last_round_as_threshold():
    run = fs.simulate(R.fedpbs(), mlp(), unequal_clients((8, 9, 10, 11)), rounds=2, training=fs.SGD(lr=0.1, batch=4))
    assert run.notes[0]["threshold"] == torch.inf
    low, high = run.notes[0]["variance"].sort().values[1:3]
    torch.testing.assert_close(run.notes[1]["threshold"], (low + high) / 2)


def test_fedbs_weighs_the_calmest_by_softmax():
    run = fs.simulate(R.fedbs(k=3, tau=0.5), mlp(), unequal_clients(), rounds=1)
    v = run.notes[0]["variance"]
    torch.testing.assert_close(run.notes[0]["weights"][:, 0], torch.softmax(-0.5 * v, 0))
    everyone = fs.simulate(R.fedbs(tau=0.0), mlp(), unequal_clients(), rounds=1).notes[0]["variance"]
    torch.testing.assert_close(v.sort().values, everyone.sort().values[:3])


def test_fedlayerwise_smooths_angles_over_a_clients_own_turns():
    from fedstrata.parts import Angle, Sample

    def angles(weigh) -> list[tuple[list[int], Tensor]]:
        recipe = R.fedavg(select=Sample(k=2), weigh=weigh)
        run = fs.simulate(recipe, mlp(), unequal_clients(SIZES), rounds=6, training=TRAIN, seed=3)
        return [(r["cohort"], n["angle"]) for r, n in zip(run.rounds, run.notes, strict=True)]

    assert any(torch.isfinite(a).all() for _, a in angles(Angle()))
    first = {}
    for cohort, angle in angles(Angle()):
        for k, row in zip(cohort, angle, strict=True):
            first.setdefault(k, row)
    by_round = angles(Angle(count="round"))
    seen: set[int] = set()
    for cohort, angle in by_round:
        for k, row in zip(cohort, angle, strict=True):
            if k not in seen and k in by_round[0][0]:
                torch.testing.assert_close(row, first[k])
            seen.add(k)


def test_feddc_is_the_objective_of_its_authors_code():
    clients, world, alpha = unequal_clients(SIZES), mlp(), 0.2
    zero = torch.zeros_like(flat(world))
    omega = torch.tensor(clients.sizes / clients.sizes.mean())
    h, g_k, g = [zero] * 3, [zero] * 3, zero
    for t in range(4):
        w, new, moved = flat(world), [], zero
        for k in range(3):

            def penalty(m: nn.Module, _x: Tensor, w=w, k=k, h=h[k], g_k=g_k[k], g=g) -> Tensor:
                held = alpha / (2 * omega[k]) * (vector(m) - w + h).square().sum()
                return held + (vector(m) * (g / omega[k] - g_k)).sum()

            new.append(flat(local(world, clients, k, t, penalty)))
            steps = int(training_batches(clients, [k], TRAIN, 0, t).steps[0])
            after = g_k[k] - g / omega[k] + (w - new[k]) / (steps * LR)
            moved, g_k[k], h[k] = moved + omega[k] * (after - g_k[k]), after, h[k] + new[k] - w
        g = g + moved / 3
        world = load(torch.stack(new).mean(0) + torch.stack(h).mean(0))
    torch.testing.assert_close(library(R.feddc(alpha=alpha), 4), flat(world), rtol=0, atol=1e-11)


def test_the_reconstruction_of_fedga_weighs_by_contribution_or_joins_greedily():
    start = {"w": torch.zeros(2, dtype=torch.float64)}
    moves = torch.tensor([[2.0, 0.0], [1.0, 1.0], [-3.0, 0.5], [0.0, 1.0]], dtype=torch.float64)
    replies = [
        fs.Reply(client=k, model={"w": d}, examples=n) for k, (d, n) in enumerate(zip(moves, (4, 3, 1, 2), strict=True))
    ]
    p = torch.tensor([0.4, 0.3, 0.1, 0.2], dtype=torch.float64)
    mean = p @ moves
    s = (moves @ mean / mean.norm()).clamp_min(0)
    out = fs.server_step(R.fedga_reconstruction(), start, replies)
    torch.testing.assert_close(out.notes["weights"][:, 0], p * s / (p * s).sum())
    two = fs.server_step(R.fedga_reconstruction(m=2), start, replies).notes["weights"][:, 0]
    assert (two > 0).tolist() == [True, True, False, False]
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    x = torch.eye(2, dtype=torch.float64)
    start = {"weight": torch.zeros(1, 2, dtype=torch.float64)}
    replies = [fs.Reply(client=k, model={"weight": d[None]}, examples=1) for k, d in enumerate(moves)]
    proxy = fs.Proxy.of(model, x, torch.tensor([[1.0], [0.6]], dtype=torch.float64), "squared_error")
    joined = fs.server_step(R.fedga_reconstruction(by="validation"), start, replies, proxy=proxy).notes["weights"][:, 0]
    # the second client has the least loss and begins; with any other beside it the loss rises
    losses = {c: float(proxy.loss(moves[list(c)].mean(0))) for c in ((1,), (1, 3), (0, 1), (1, 2))}
    better = [k for k in ((1, 3), (0, 1), (1, 2)) if losses[k] <= losses[1,]]
    assert better == []
    assert joined.tolist() == [0, 1, 0, 0]


def test_nobody_joins_behind_one_who_would_make_the_merged_loss_rise():
    """In the order of their own losses: 0 begins, with 1 it is worse, and 2, with whom it were better, comes late."""
    moves = torch.tensor([[1.2], [1.5], [0.45]], dtype=torch.float64)
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    proxy = fs.Proxy.of(model, one, one, "squared_error")
    alone = [float(proxy.loss(d)) for d in moves]
    merged = [float(proxy.loss(moves[[0, k]].mean(0))) for k in (1, 2)]
    assert alone == sorted(alone)
    start, replies = {"weight": torch.zeros(1, 1, dtype=torch.float64)}, []
    for k, d in enumerate(moves):
        replies.append(fs.Reply(client=k, model={"weight": d[None]}, examples=1))
    assert merged[0] > alone[0] > merged[1]
    weights = fs.server_step(R.fedga_reconstruction(by="validation"), start, replies, proxy=proxy).notes["weights"]
    assert weights[:, 0].tolist() == [1, 0, 0]
