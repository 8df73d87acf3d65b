"""The pool of processes: the same numbers as one client after another, and errors that say where they were."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata.descent import Federation
from fedstrata.errors import ClientError
from fedstrata.parts import Intervals, Sample
from fedstrata.runtimes import Apart, Pool, Vault, choose, pool
from fedstrata.simulate import first_server, first_stats, play
from fedstrata.task import Task
from tests.federations import final_model, flat, mlp, unequal_clients
from tests.patience import PATIENCE
from tests.runtimes.test_unequal_clients import bn_cnn, image_clients

R = fs.recipes
KEEPING: dict[str, fs.Recipe] = {
    "scaffold": R.scaffold(), "scaffold by whole gradients": R.scaffold(option=1), "feddyn": R.feddyn(),
    "moon": R.moon(buffer=2), "feddc": R.feddc(), "fedlama": R.fedavg(local=Intervals(phi=2, warmup=0)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def three_cores(monkeypatch: pytest.MonkeyPatch):
    """As many workers as are asked for, on however small a machine."""
    monkeypatch.setattr(choose, "cores", lambda: 3)


def trained(recipe: fs.Recipe, engine: str, **settings: Any) -> dict[str, Tensor]:
    how = {"rounds": 3, "evaluate_every": 3, "training": fs.SGD(lr=0.05, batch=6)} | settings
    how |= {"engine": engine} | ({"workers": 2} if engine == "pool" else {})
    return fs.simulate(recipe, bn_cnn(), image_clients(), **how).model.state_dict()


@pytest.mark.parametrize(("name", "buffers"), [
    *((n, "average") for n in KEEPING), *((n, b) for n in ("scaffold", "moon") for b in ("local", "global")),
])  # fmt: skip
def test_what_clients_keep_is_kept_by_the_pool_too(name: str, buffers: str):
    pooled, apart = (trained(KEEPING[name], e, buffers=buffers) for e in ("pool", "apart"))
    torch.testing.assert_close(pooled, apart, rtol=0, atol=1e-11)


@pytest.mark.parametrize("training", [
    fs.SGD(lr=0.05, batch=6, momentum=0.9, reset_optimizer=False), fs.Adam(lr=0.01, batch=6, reset_optimizer=False),
], ids=["sgd", "adam"])  # fmt: skip
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_optimisers_that_are_kept_are_kept_by_the_pool_too(training: fs.Training, buffers: str):
    settings = {"training": training, "buffers": buffers}
    pooled, apart, fresh = (
        trained(R.scaffold(), "pool", **settings), trained(R.scaffold(), "apart", **settings),
        trained(R.scaffold(), "apart", training=fs.SGD(lr=0.05, batch=6), buffers=buffers),
    )  # fmt: skip
    torch.testing.assert_close(pooled, apart, rtol=0, atol=1e-11)
    assert not torch.allclose(pooled["0.weight"], fresh["0.weight"], atol=1e-6)


@pytest.mark.parametrize("select", [Sample(k=2), Sample(k=3, by="size")])
def test_sampled_clients_remember_in_the_pool_too(select: fs.parts.Sample):
    pooled, apart = (trained(R.scaffold(select=select), e, rounds=4) for e in ("pool", "apart"))
    torch.testing.assert_close(pooled, apart, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["moon", "ccvr"])
def test_the_number_of_workers_and_another_run_do_not_change_a_bit(name: str):
    settings = {"model": bn_cnn().float(), "clients": image_clients(), "engine": "pool", "rounds": 2}
    settings |= {"training": fs.SGD(lr=0.05, batch=6, momentum=0.5)}
    models = [final_model(R.METHODS[name](), workers=w, **settings) for w in (1, 2, 3, 3)]
    assert all(torch.equal(models[0], m) for m in models[1:])


def test_functions_that_cannot_be_sent_are_inherited():
    scale = 2.0
    settings: dict[str, Any] = {
        "loss": lambda o, y: scale * nn.functional.cross_entropy(o, y, reduction="none"),
        "metrics": {"sure": lambda o, y: o.softmax(-1).amax(-1)},
        "test": (torch.randn(9, 6), [0, 1, 2] * 3), "rounds": 2,
    }  # fmt: skip
    pooled, apart = (fs.simulate("fedavg", mlp(), unequal_clients(), engine=e, **settings) for e in ("pool", "apart"))
    torch.testing.assert_close(flat(pooled.model), flat(apart.model), rtol=0, atol=1e-11)
    assert pooled.final["test"]["sure"] == pytest.approx(apart.final["test"]["sure"], rel=1e-12)
    assert pooled.final["clients"] == pytest.approx(apart.final["clients"], rel=1e-12)


@dataclass(frozen=True)
class Growing(fs.Select):
    """One client, then two, then all."""

    def init(self, layout, population):
        return {"round": torch.zeros(())}

    def pick(self, state, stats, rng):
        count = (1, 2, 3, len(stats["examples"]))[int(state["round"].clamp(max=3))]
        return torch.arange(count), {"round": state["round"] + 1}


def test_a_larger_cohort_makes_the_pool_grow(monkeypatch: pytest.MonkeyPatch):
    made = list[int]()
    crew = pool.Crew
    monkeypatch.setattr(pool, "Crew", lambda work, count: made.append(count) or crew(work, count))
    recipe = R.scaffold(select=Growing())
    pooled, apart = (final_model(recipe, engine=e, rounds=6) for e in ("pool", "apart"))
    torch.testing.assert_close(pooled, apart, rtol=0, atol=1e-11)
    assert 1 < len(made) < 4  # not anew in every round


@dataclass(frozen=True)
class Hoarder(fs.Step):
    """Keeps the clients' updates as they are, and goes on along those of the last round."""

    def init(self, layout, population):
        return {}

    def step(self, state, proposal, round):
        round.note(updates=round.delta)
        last = state.get("last", round.delta)
        return proposal + 0.1 * last[0], {"last": round.delta}


def test_what_a_part_keeps_of_the_updates_is_not_written_over():
    runs = [fs.simulate(R.fedavg(server=Hoarder()), mlp(), unequal_clients(), rounds=4, engine=e)
            for e in ("pool", "apart")]  # fmt: skip
    torch.testing.assert_close(flat(runs[0].model), flat(runs[1].model), rtol=0, atol=1e-11)
    for pooled, apart in zip(runs[0].notes, runs[1].notes, strict=True):
        torch.testing.assert_close(pooled["updates"], apart["updates"], rtol=0, atol=1e-11)


class Trap(nn.Module):
    """Does something when it sees a value above 99."""

    def __init__(self, what: Callable[[], Any]):
        super().__init__()
        self.layer, self.what = nn.Linear(6, 3, dtype=torch.float64), [what]

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 99).any()) and self.training:
            self.what[0]()
        return self.layer(x)


def trapped(what: Callable[[], Any], **settings: Any) -> None:
    clients = unequal_clients()
    clients.x[clients.rows[4][0]] = 100.0
    fs.simulate("fedavg", Trap(what), clients, rounds=2, engine="pool", workers=2, **settings)


def fail() -> None:
    raise ZeroDivisionError("by nought")


def test_an_error_names_the_round_and_the_client_and_nobody_is_left_behind():
    before = set(multiprocessing.active_children())
    with pytest.raises(ClientError, match="round 0, client 4, training: ZeroDivisionError: by nought") as caught:
        trapped(fail)
    assert "in fail" in "".join(caught.value.__notes__)
    assert set(multiprocessing.active_children()) <= before


def test_an_error_while_measuring_or_scoring_is_told_as_well():
    class Fragile(nn.Module):
        def __init__(self, sizes: set[int]):
            super().__init__()
            self.layer, self.sizes = nn.Linear(6, 3, dtype=torch.float64), sizes

        def forward(self, x: Tensor) -> Tensor:
            if not self.training and len(x) in self.sizes:
                raise ArithmeticError("not today")
            return self.layer(x)

    clients = unequal_clients((9, 9, 4, 9, 9, 9, 9, 9))
    with pytest.raises(ClientError, match="round 0, client 2, measuring: ArithmeticError: not today"):
        fs.simulate(R.fedpbs(), Fragile({4}), clients, rounds=1, engine="pool", training=fs.SGD(batch=9))
    with pytest.raises(ArithmeticError, match="not today"):
        fs.simulate("fedavg", Fragile({67}), clients, rounds=1, engine="pool")


def test_a_worker_that_is_killed_ends_the_run_with_a_sentence_at_once():
    before, began = set(multiprocessing.active_children()), time.perf_counter()
    with pytest.raises(ClientError, match="ended by signal 9, perhaps for want of memory; use fewer workers"):
        trapped(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert time.perf_counter() - began < PATIENCE / 2
    assert set(multiprocessing.active_children()) <= before


def test_a_pool_that_failed_can_be_used_again():
    """Answers of the round that failed are not taken for those of the next."""
    clients, model, board = unequal_clients(), mlp(), torch.zeros(1).share_memory_()

    def loss(o: Tensor, y: Tensor) -> Tensor:
        if board[0] == 1 and len(y) == 3:
            raise ArithmeticError("not today")
        return nn.functional.cross_entropy(o, y, reduction="none")

    fed = Federation(R.fedavg(), Task.of(model, loss), clients, fs.SGD(lr=0.1, batch=5))
    server = first_server(fed, model, first_stats(fed))
    own = Pool(fed, Vault(fed.recipe.enroll(fed.task, {})), {}, 2)
    board[0] = 1
    with pytest.raises(ClientError, match=r"client \d, training: ArithmeticError"):
        play(fed, own, server, None, "drop")
    board[0] = 0
    found = play(fed, own, server, None, "drop")[0].model
    own.close()
    wanted = play(fed, Apart(fed, own.vault, {}), server, None, "drop")[0].model
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)


def test_a_run_may_be_in_a_thread_of_its_own_and_within_another_run():
    found: list[Tensor] = []

    def run() -> None:
        found.append(final_model(R.scaffold(), engine="pool"))

    def inner(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            run()

    thread = Thread(target=run)
    thread.start()
    thread.join(60)
    final_model(R.fedavg(), engine="pool", on_round=inner)
    wanted = final_model(R.scaffold(), engine="apart")
    assert len(found) == 2
    for model in found:
        torch.testing.assert_close(model, wanted, rtol=0, atol=1e-11)


def test_empty_buffers_and_scalars_pass_through_the_pool():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3, dtype=torch.float64)
            self.register_buffer("none", torch.zeros(0, 2))
            self.register_buffer("flag", torch.tensor(True))
            self.register_buffer("count", torch.tensor(0))
            self.register_buffer("short", torch.zeros(3, dtype=torch.bfloat16))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                for b in self.buffers():
                    b.add_(1) if b.dtype != torch.bool else None
            return self.layer(x) * self.flag

    model = Odd()
    for policy in ("average", "local"):
        settings = {"rounds": 2, "buffers": policy}
        pooled, apart = (fs.simulate("fedavg", model, unequal_clients(), engine=e, **settings).model.state_dict()
                         for e in ("pool", "apart"))  # fmt: skip
        assert (int(pooled["count"]) > 1) == (policy == "average")
        torch.testing.assert_close(pooled, apart, rtol=0, atol=1e-11)


def test_nothing_is_changed_by_who_else_draws_random_numbers():
    """F.dropout draws from torch's generator, which is seeded for each client and round."""

    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(6, 3, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(nn.functional.dropout(x, 0.3, self.training))

    models = [final_model(R.fedavg(), model=Noisy(), engine=e, workers=w)
              for e, w in (("pool", 1), ("pool", 3), ("apart", None))]  # fmt: skip
    assert torch.equal(models[0], models[1])
    torch.testing.assert_close(models[0], models[2], rtol=0, atol=1e-11)
