"""FedLAMA: which tensors are averaged less often, and what clients go on from in between."""

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata.descent import Federation
from fedstrata.parts import DC, Intervals, Prox, Sample, Scaffold
from fedstrata.runtimes import Stacked, Vault
from fedstrata.simulate import first_server, first_stats, play
from fedstrata.task import Task
from tests.federations import unequal_clients
from tests.slow import FIVE, cohorts, descend, library, shares

R, CLIENTS = fs.recipes, unequal_clients(FIVE)
Arrays = dict[str, Tensor]


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def long_ones(gap: dict[str, float], size: dict[str, int]) -> set[str]:
    """The kernels up to and including the first where the rest's share of size is below the share of discrepancy."""
    rising = sorted(gap, key=lambda n: gap[n] / size[n])
    chosen, sizes, gaps = set(), 0.0, 0.0
    for name in rising:
        chosen.add(name)
        sizes += size[name] / sum(size.values())
        gaps += gap[name] / sum(gap.values())
        if 1 - sizes < gaps:
            break
    return chosen


class Slow:
    """FedLAMA with a copy of the model for every client; `own` has the tensors that were not averaged since."""

    def __init__(self, phi: int, warmup: int):
        self.phi, self.warmup, self.world = phi, warmup, deep()
        self.own: dict[int, Arrays] = {k: {} for k in range(len(FIVE))}
        self.interval = dict.fromkeys(self.world.state_dict(), 1)

    def round(self, t: int, cohort: list[int]) -> None:
        glob, new = self.world.state_dict(), {}
        for k in cohort:
            begin = deepcopy(self.world)
            begin.load_state_dict(glob | self.own[k])
            new[k] = {n: v.clone() for n, v in descend(begin, CLIENTS, k, t).state_dict().items()}
            self.own[k] = dict(new[k])
        due = [n for n, i in self.interval.items() if (t + 1) % i == 0]
        p = torch.tensor(shares(CLIENTS, cohort), dtype=torch.float64)
        mean = {n: torch.tensordot(p, torch.stack([m[n] for m in new.values()]), 1) for n in due}
        self.world.load_state_dict(glob | mean)
        for mine in self.own.values():
            for n in due:
                mine.pop(n, None)
        if (t + 1) % self.phi == 0 and t >= self.warmup:
            self.choose(mean, new)

    def choose(self, mean: Arrays, new: dict[int, Arrays]) -> None:
        kernels = [n for n in mean if n.endswith("weight")]
        apart = {n: np.mean([float((mean[n] - m[n]).square().sum()) for m in new.values()]) for n in kernels}
        gap = {n: float(v) / self.interval[n] for n, v in apart.items()}
        chosen = long_ones(gap, {n: mean[n].numel() for n in kernels})
        self.interval = {n: self.phi if n in chosen else 1 for n in self.interval}


@pytest.mark.parametrize(("phi", "warmup", "select"), [
    (2, 0, {}), (2, 3, {"select": Sample(k=3)}), (3, 2, {"select": Sample(k=2)}), (4, 0, {"select": Sample(k=4)}),
])  # fmt: skip
def test_fedlama_is_a_copy_of_the_model_for_every_client(phi, warmup, select):
    run, slow = library(R.fedlama(phi, warmup, **select), 10, FIVE, model=deep()), Slow(phi, warmup)
    seen = set()
    for t, cohort in enumerate(cohorts(run)):
        slow.round(t, cohort)
        assert run.notes[t]["interval"].tolist() == list(slow.interval.values()), t
        seen |= set(slow.interval.values())
    torch.testing.assert_close(run.model.state_dict(), slow.world.state_dict(), rtol=0, atol=1e-11)
    assert seen == {1, phi}


@pytest.mark.parametrize("settings", [{"phi": 1, "warmup": 0}, {"phi": 3, "warmup": 99}])
def test_without_long_intervals_it_is_fedavg(settings):
    one, other = (library(r, 5, FIVE, model=deep()).model for r in (R.fedlama(**settings), R.fedavg()))
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_between_averages_the_global_tensor_stands_still_and_the_clients_do_not():
    models = [library(R.fedlama(2, 0), rounds, FIVE, model=deep()) for rounds in (4, 5, 6)]
    long = [n for n, i in zip(deep().state_dict(), models[0].notes[-1]["interval"], strict=True) if i == 2]
    assert long
    assert all(n.endswith("weight") for n in long)
    four, five, six = (m.model.state_dict() for m in models)
    assert all(torch.equal(four[n], five[n]) for n in long)
    assert not any(torch.equal(five[n], six[n]) for n in long)
    assert not any(torch.equal(four[n], five[n]) for n in four if n not in long)


def test_the_interval_rule_on_discrepancies_by_hand():
    """Sizes 4, 2 and 2; D / size 1, 2 and 4: after the first, half the size is left and a quarter of D is behind."""
    shapes = {"a.weight": (2, 2), "b.weight": (1, 2), "c.weight": (1, 2), "c.bias": (1,)}
    start = {n: np.zeros(s) for n, s in shapes.items()}
    gap = {"a.weight": 4.0, "b.weight": 4.0, "c.weight": 8.0, "c.bias": 0.0}
    away = {n: np.full(s, np.sqrt(gap[n] / np.prod(s))) for n, s in shapes.items()}
    replies = [fs.Reply(client=k, model={n: (-1) ** k * v for n, v in away.items()}, examples=1) for k in range(2)]
    out = fs.server_step(R.fedavg(local=Intervals(phi=1, warmup=0)), start, replies)
    np.testing.assert_allclose(out.state["local.0"]["discrepancy"].tolist(), [4, 4, 8, 0])
    part = Intervals(phi=2, warmup=0)
    state = fs.server_step(R.fedavg(local=part), start, replies).state
    out = fs.server_step(R.fedavg(local=part), start, replies, state)
    assert out.notes["interval"].tolist() == [2, 2, 1, 1]


def test_a_long_interval_divides_the_discrepancy_that_grew_in_it():
    start = {"a.weight": np.zeros((2, 2)), "b.weight": np.zeros((1, 2))}
    recipe, state = R.fedlama(phi=2, warmup=0), None
    apart = [fs.Reply(client=k, model={n: v + (-1) ** k for n, v in start.items()}, examples=1) for k in range(2)]
    for _ in range(4):
        state = fs.server_step(recipe, start, apart, state).state
    assert state is not None
    assert state["local.0"]["interval"].tolist() == [2, 1]
    np.testing.assert_allclose(state["local.0"]["discrepancy"], [4 / 2, 2 / 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("clients", [1, 3])
def test_rounding_is_no_discrepancy(dtype, clients):
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        start = {n: v.to(dtype) for n, v in deep().state_dict().items()}
        moved = {n: v + torch.randn(v.shape, generator=draw, dtype=dtype) for n, v in start.items()}
        replies = [fs.Reply(client=k, model=moved, examples=3 + k) for k in range(clients)]
        state = fs.server_step(R.fedlama(2, 0), start, replies).state
        out = fs.server_step(R.fedlama(2, 0), start, replies, state)
        assert out.notes["interval"].tolist() == [2, 1, 2, 1, 2, 1], seed


def test_other_local_parts_hold_clients_to_the_global_model_and_not_to_their_own():
    """Their own tensors are where a client begins, not what a proximal term pulls it to."""
    strong = fs.SGD(lr=0.5, batch=None, epochs=1)
    recipe = R.recipe(select=Sample(k=5), local=(Intervals(2, 0), Prox(2.0)))
    run = library(recipe, 4, FIVE, model=deep(), training=strong)
    free = library(R.fedlama(2, 0), 4, FIVE, model=deep(), training=strong)
    assert float(run.notes[3]["drift"].sum()) < float(free.notes[3]["drift"].sum())


@dataclass(frozen=True)
class Watch(fs.Local):
    """Remembers where training began, and where the global model was."""

    def enroll(self, task, buffers):
        return {"began": task.layout.zeros(), "start": task.layout.zeros()}

    def report(self, w, turn):
        return {"began": turn.began, "start": turn.start}, {}


@pytest.mark.parametrize(("part", "key"), [(Scaffold(), "c_k"), (DC(), "g")])
def test_gradients_are_measured_from_where_a_client_began(part, key):
    """SCAFFOLD's c_k' - c_k + c and FedDC's g_k' - g_k + g / omega are the mean gradient of the client's own steps."""
    recipe = R.recipe(local=(part, Intervals(2, 0), Watch()))
    fed = Federation(recipe, Task.of(deep()), unequal_clients((9, 9)), fs.SGD(lr=0.2, batch=5))
    vault, server = Vault(recipe.enroll(fed.task, {})), first_server(fed, deep(), first_stats(fed))
    kept, apart = torch.zeros(fed.task.layout.size, dtype=torch.float64), []
    for _ in range(5):
        common = server.state["local.0"]["c" if key == "c_k" else "g"]
        server, *_ = play(fed, Stacked(fed, vault, {}), server, None, "drop")
        mine, own, watched = (vault.memories[0][f"local.{i}"] for i in range(3))
        seen = (watched["began"] - own["own"]) / (2 * 0.2)  # of two steps
        torch.testing.assert_close(mine[key] - kept + common, seen, rtol=0, atol=1e-12)
        kept = mine[key]
        apart.append(not torch.equal(watched["began"], watched["start"]))
    assert any(apart)
