"""On an accelerator everything is the same: device and type follow by themselves."""

import gc
from functools import partial
from typing import Any

import pytest
import torch

import fedstrata as fs
from fedstrata.runtimes import together
from tests.federations import PLAIN, mlp, unequal_clients
from tests.runtimes.test_models import Tied
from tests.runtimes.test_unequal_clients import bn_cnn, image_clients

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here: run this on a machine with one"),
]
TRAIN = fs.SGD(lr=0.05, batch=6, epochs=2, momentum=0.5)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(
    ("model", "clients"), [(mlp, unequal_clients), (Tied, unequal_clients), (bn_cnn, image_clients)]
)
def test_every_method_gives_the_same_model_on_the_gpu(name, model, clients):
    here, there = (
        fs.simulate(fs.recipes.METHODS[name](), model(), clients(), rounds=3, training=TRAIN, device=device)
        for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(there.model.state_dict(), here.model.state_dict(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("training", [fs.Adam(lr=0.01, reset_optimizer=False), fs.AdamW(lr=0.01, clip=0.1)], ids=repr)
def test_optimisers_and_proxy_data_follow_to_the_gpu(training, tmp_path):
    c = unequal_clients()
    sets = {"test": (c.x, c.y), "proxy": (c.x[:5], c.y[:5])}
    settings: dict[str, Any] = {"rounds": 2, "training": training, "buffers": "local"} | sets
    both = ("cpu", "cuda")
    runs = [fs.simulate(fs.recipes.fedlws(), mlp(), c, device=d, out=tmp_path / d, **settings) for d in both]
    torch.testing.assert_close(runs[1].model.state_dict(), runs[0].model.state_dict(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "moon", "fedpbs"])
@pytest.mark.parametrize(("model", "clients"), [(mlp, unequal_clients), (bn_cnn, image_clients)])
def test_a_compiled_step_gives_the_same_model(name, model, clients):
    method = fs.recipes.METHODS[name]()
    here = fs.simulate(method, model(), clients(), rounds=3, training=TRAIN)
    there = fs.simulate(method, model(), clients(), rounds=3, training=TRAIN, device="cuda", compile="always")
    torch.testing.assert_close(there.model.state_dict(), here.model.state_dict(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("training", [fs.SGD(lr=0.05, batch=6, decay=0.9), fs.Adam(lr=0.01), fs.SGD(steps=7)], ids=repr)
def test_rates_that_change_and_cohorts_that_change_are_seen_by_captured_steps(training):
    method = fs.recipes.fedprox(select=fs.parts.Sample(k=3))
    settings: dict[str, Any] = {"rounds": 6, "training": training}
    here, there = (fs.simulate(method, mlp(), unequal_clients(), device=d, **settings) for d in ("cpu", "cuda"))
    torch.testing.assert_close(there.model.state_dict(), here.model.state_dict(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize(("model", "clients", "within"), [(mlp, unequal_clients, 0.05), (bn_cnn, image_clients, 0.25)])
def test_fewer_digits_give_nearly_the_same(model, clients, within, precision):
    exact, short = (
        fs.simulate("fedavg", model().float(), clients(), rounds=3, training=TRAIN, device="cuda", precision=p)
        for p in ("float32", precision)
    )
    torch.testing.assert_close(short.model.state_dict(), exact.model.state_dict(), rtol=0, atol=within)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedlws"])
def test_faults_on_purpose_are_the_same_on_the_gpu(name):
    chances = {"dropout": 0.2, "straggle": 0.4, "late": 0.2, "nan": 0.1, "garbage": 0.1}
    faults = fs.Faults(**chances, sign_flip=0.2, scale=0.2, label_flip=0.3)
    settings: dict[str, Any] = {"rounds": 6, "training": TRAIN, "faults": faults}
    method = fs.recipes.METHODS[name]()
    here, there = (fs.simulate(method, mlp(), unequal_clients(), device=d, **settings) for d in ("cpu", "cuda"))
    assert [r.get("faults") for r in there.rounds] == [r.get("faults") for r in here.rounds]
    torch.testing.assert_close(there.model.state_dict(), here.model.state_dict(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("model", "clients"), [(mlp, unequal_clients), (bn_cnn, image_clients)])
def test_runs_that_go_on_together_are_what_each_is_on_a_cpu(name, model, clients):
    def run(seed: int, device: str = "cuda", **settings: Any) -> fs.Run:
        method = fs.recipes.METHODS[name]()
        given: dict[str, Any] = {"rounds": 3, "training": TRAIN, "seed": seed, "device": device} | settings
        return fs.simulate(method, model(), clients(), **given)

    for found, seed in zip(together([partial(run, s) for s in (0, 1, 2)]), (0, 1, 2), strict=True):
        assert isinstance(found, fs.Run), found
        alone = run(seed, "cpu").model.state_dict()
        torch.testing.assert_close(found.model.state_dict(), alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "moon"])
def test_so_they_are_compiled(name):
    def run(seed: int, device: str = "cuda") -> fs.Run:
        how: dict[str, Any] = {"rounds": 3, "training": TRAIN, "compile": "always"}
        return fs.simulate(fs.recipes.METHODS[name](), mlp(), unequal_clients(), device=device, seed=seed, **how)

    for found, seed in zip(together([partial(run, s) for s in (0, 1)]), (0, 1), strict=True):
        assert isinstance(found, fs.Run), found
        alone = run(seed, "cpu").model.state_dict()
        torch.testing.assert_close(found.model.state_dict(), alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("training", [fs.SGD(lr=0.05, batch=6, decay=0.8), fs.SGD(steps=7, momentum=0.5)], ids=repr)
@pytest.mark.parametrize("compile", ["never", "always"])
def test_and_with_cohorts_that_change_labels_that_are_flipped_and_ends_at_different_times(training, compile):
    """More and fewer clients than were captured, at other rates, some of them with labels of their own."""
    faults, some = fs.Faults(dropout=0.4, straggle=0.4, label_flip=0.4), fs.parts.Sample(k=3)
    methods = [fs.recipes.fedavg(), fs.recipes.fedlws(select=some), fs.recipes.fedadam(select=some)]

    def run(i: int, device: str = "cuda") -> fs.Run:
        how: dict[str, Any] = {"rounds": 3 + 2 * i, "training": training, "compile": compile, "faults": faults}
        return fs.simulate(methods[i], mlp(), unequal_clients(), device=device, seed=i, **how)

    for i, found in enumerate(together([partial(run, i) for i in range(3)])):
        assert isinstance(found, fs.Run), found
        alone = run(i, "cpu").model.state_dict()
        torch.testing.assert_close(found.model.state_dict(), alone, rtol=1e-9, atol=1e-9)


def test_runs_that_have_ended_leave_nothing_on_the_gpu():
    def run(seed: int) -> None:
        fs.simulate("scaffold", mlp(), unequal_clients(), rounds=3, training=TRAIN, device="cuda", seed=seed)

    held: list[int] = []
    for _ in range(3):
        assert together([partial(run, s) for s in range(4)]) == [None] * 4
        gc.collect()
        held.append(torch.cuda.memory_allocated())
    assert held[2] <= held[1], held


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU at most")
def test_the_second_of_two_gpus_gives_the_same_model():
    here, there = (
        fs.simulate("scaffold", mlp(), unequal_clients(), rounds=5, training=TRAIN, device=d) for d in ("cpu", "cuda:1")
    )
    torch.testing.assert_close(there.model.state_dict(), here.model.state_dict(), rtol=0, atol=1e-9)
