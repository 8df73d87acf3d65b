"""Which engine a run gets, and sentences where the one that was asked for cannot be had."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstrata as fs
from fedstrata.descent import Federation
from fedstrata.errors import SettingError
from fedstrata.models import model
from fedstrata.parts import Sample
from fedstrata.runtimes import Apart, Pool, Runtime, Stacked, Vault, choose
from fedstrata.runtimes.choose import chosen, fitting
from fedstrata.runtimes.crew import Crew, can_differentiate
from fedstrata.simulate import first_server, first_stats
from fedstrata.task import Task
from tests.federations import mlp, unequal_clients
from tests.runtimes.test_unequal_clients import bn_cnn, image_clients

Clients = fs.Clients


def federation(
    made: nn.Module, clients: Clients | None = None, recipe: fs.Recipe | None = None, **how: Any
) -> Federation:
    return Federation(recipe or fs.recipes.fedavg(), Task.of(made), clients or unequal_clients(), fs.SGD(**how))


def engine(fed: Federation, made: nn.Module, name: Any = "auto", **settings: Any) -> Runtime:
    server = first_server(fed, made, first_stats(fed))
    return chosen(name, fed, Vault({}), {}, (server.model, server.buffers), **settings)


@pytest.fixture(autouse=True)
def three_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choose, "cores", lambda: 3)


SMALL: dict[str, Callable[[], nn.Module]] = {
    "logreg": lambda: model("logreg", (6,), 3), "mlp": lambda: model("mlp", (6,), 3), "by hand": mlp,
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("workers", [1, 2])
def test_small_models_without_convolutions_are_stacked(name: str, workers: int):
    assert fitting(federation(SMALL[name]()), workers) == "stacked"


@pytest.mark.parametrize("name", ["cnn", "cnn_bn", "resnet20", "moon_cnn"])
def test_convolutions_go_to_a_pool_or_with_one_worker_nowhere(name: str):
    fed = federation(model(name, (3, 16, 16), 3))
    assert fitting(fed, 2) == "pool"
    assert fitting(fed, 1) == "apart"


def test_so_do_wide_models_and_those_that_do_not_fold():
    wide = federation(nn.Linear(6, 200_000), batch=100)
    assert fitting(wide, 2) == "pool"
    assert fitting(federation(nn.Linear(6, 200_000), batch=1), 2) == "stacked"
    assert fitting(federation(nn.Sequential(nn.Linear(6, 3), nn.PReLU())), 2) == "pool"
    assert fitting(federation(nn.Sequential(nn.Linear(6, 3), nn.PReLU())), 1) == "apart"


def test_the_engine_is_made_as_it_was_chosen():
    made = bn_cnn()
    assert isinstance(engine(federation(mlp()), mlp()), Stacked)
    pool = engine(federation(made, image_clients()), made)
    assert isinstance(pool, Pool)
    assert pool.workers == 3  # of four clients, on three cores
    assert isinstance(engine(federation(made, image_clients()), made, workers=1), Apart)
    one = federation(made, image_clients(), fs.recipes.fedavg(select=Sample(k=1)))
    assert isinstance(engine(one, made), Apart)  # nothing to share out
    for name, kind in (("stacked", Stacked), ("pool", Pool), ("apart", Apart)):
        assert isinstance(engine(federation(made, image_clients()), made, name), kind)


def test_there_are_no_more_workers_than_cores_and_clients():
    made = bn_cnn()
    workers = [engine(federation(made, image_clients()), made, "pool", workers=w).workers for w in (1, 2, 9)]  # pyright: ignore[reportAttributeAccessIssue]
    assert workers == [1, 2, 3]
    few = federation(made, image_clients(), fs.recipes.fedavg(select=Sample(k=2)))
    assert engine(few, made, "pool").workers == 2  # pyright: ignore[reportAttributeAccessIssue]


def refused(monkeypatch: pytest.MonkeyPatch, sentence: str) -> None:
    """engine = "pool" is a sentence, and left to choose there is none."""
    made = bn_cnn()
    with pytest.raises(SettingError, match=sentence):
        fs.simulate("fedavg", made, image_clients(), rounds=1, engine="pool")
    assert isinstance(engine(federation(made, image_clients()), made), Apart)
    monkeypatch.undo()
    monkeypatch.setattr(choose, "cores", lambda: 3)
    assert isinstance(engine(federation(made, image_clients()), made), Pool)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_there_is_no_pool_where_forking_is_not_safe(monkeypatch: pytest.MonkeyPatch, platform: str):
    monkeypatch.setattr(sys, "platform", platform)
    refused(monkeypatch, f"engine = 'pool' needs .* forked, which is not safe on {platform}; use 'stacked' or 'apart'")


def test_there_is_no_pool_within_a_worker(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choose, "current_process", lambda: SimpleNamespace(daemon=True))
    refused(monkeypatch, "engine = 'pool' cannot be had inside a worker process; use 'stacked' or 'apart'")


def test_there_is_no_pool_once_autograd_has_threads_for_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(choose, "can_differentiate", lambda: False)
    refused(monkeypatch, "engine = 'pool' cannot be had .* GPU .*CUDA_VISIBLE_DEVICES=.*; use 'stacked' or 'apart'")


def test_a_forked_process_can_differentiate_here():
    torch.ones(1, requires_grad=True).sum().backward()
    assert can_differentiate()


def test_but_not_where_torch_refuses(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    assert not can_differentiate()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_cpu_run_beside_a_gpu_finds_an_engine_before_and_after_a_backward_pass():
    for _ in range(2):
        assert fs.simulate("fedavg", bn_cnn(), image_clients(), rounds=1).final["train"]["loss"] > 0
        torch.ones(1, requires_grad=True).sum().backward()
        torch.ones(1, requires_grad=True, device="cuda").sum().backward()


def test_a_run_within_a_worker_chooses_for_itself():
    def work(_: int) -> float:
        return fs.simulate("fedavg", bn_cnn(), image_clients(), rounds=1).final["train"]["loss"]

    crew = Crew(work, 1)
    try:
        assert dict(crew.each([0])) == {0: pytest.approx(work(0), rel=1e-9)}
    finally:
        crew.dismiss()


@pytest.mark.parametrize("rounds", [200, 2000])
@pytest.mark.parametrize(
    ("bytes_touched", "tensors", "captured", "compiled", "compiling"),
    [(4.7e8, 10, 0.112, 0.0799, 13), (3.0e9, 65, 0.651, 0.545, 96)],
    ids=["SimpleCNN", "ResNet20"],
)
def test_compiling_is_held_worth_it_where_it_was_on_an_h200(
    rounds: int, bytes_touched: float, tensors: int, captured: float, compiled: float, compiling: float
):
    steps = choose.compiled_steps(None, 1, 64, np.array([2500] * 20), tiny=False)
    assert choose.pays(rounds * steps, bytes_touched, tensors) == (rounds * (captured - compiled) > compiling)


def test_of_unequal_clients_only_what_all_take_part_in_is_compiled():
    sizes = np.array([64, 640])
    assert choose.compiled_steps(None, 2, 64, sizes, tiny=False) == 2
    assert choose.compiled_steps(None, 2, 64, sizes, tiny=True) == 11
    assert choose.compiled_steps(7, 2, 64, sizes, tiny=False) == 7
