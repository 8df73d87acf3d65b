"""Logistic regression compiled by numba is what torch gives, for any shape, and is used only where it pays."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedstrata as fs
from fedstrata import closed
from fedstrata.closed import compiled_gradients, compiled_scores, logistic_gradients
from fedstrata.descent import gathered, shares
from fedstrata.evaluate import score
from fedstrata.task import Task

pytest.importorskip("numba")

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-12}


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(shape=st.tuples(*(st.integers(1, 9) for _ in range(4))), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_gradients_are_those_of_torch(bias: bool, dtype: torch.dtype, shape: tuple[int, ...], seed: int):
    clients, batch, classes, width = shape
    draw = np.random.default_rng(seed)
    task = Task.of(nn.Linear(width, classes, bias=bias).to(dtype))
    x, y = normal(30, width, dtype=dtype, seed=seed), torch.from_numpy(draw.integers(0, classes, 30))
    rows = torch.from_numpy(draw.integers(0, 30, (clients, batch)))
    mask = torch.arange(batch) < torch.from_numpy(draw.integers(1, batch + 1, clients))[:, None]
    w, share = normal(clients, task.layout.size, dtype=dtype, seed=seed + 1), shares(mask, dtype)
    wanted = logistic_gradients(task, w, gathered(fs.Clients.split(x, y, [np.arange(30)]), rows.T) | {"share": share})
    found = compiled_gradients(task, w, x, y, rows, share)
    torch.testing.assert_close(found, wanted, rtol=0, atol=DTYPES[dtype])


@pytest.mark.parametrize("classes", [1, 2, 4, 7, 10])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_are_those_of_torch(classes: int, dtype: torch.dtype):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, classes)).to(dtype)
    task, w = Task.of(model), torch.cat([p.detach().flatten() for p in model.parameters()])
    x, y = 50 * normal(41, 3, 4, dtype=dtype), torch.arange(41) % classes
    wanted, found = score(task, w, {}, x, y), compiled_scores(task, w, x, y)
    torch.testing.assert_close(found["loss"], wanted["loss"], rtol=DTYPES[dtype], atol=10 * DTYPES[dtype])
    torch.testing.assert_close(found["accuracy"], wanted["accuracy"], rtol=0, atol=0)


@pytest.mark.parametrize("recipe", ["fedavg", "fedprox", "scaffold", "fedlws"])
def test_a_run_is_the_same_with_and_without_it(recipe: str, monkeypatch: pytest.MonkeyPatch):
    draw = np.random.default_rng(0)
    clients = [(draw.normal(size=(n, 5)), draw.integers(0, 3, n)) for n in (11, 4, 20, 1)]
    given: dict[str, Any] = {
        "rounds": 3,
        "training": fs.SGD(lr=0.1, batch=4, epochs=2, momentum=0.5),
        "engine": "stacked",
    }
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()
    plain = fs.simulate(recipe, model, clients, **given)
    calls = []
    monkeypatch.setattr(closed, "PAYS", 0)
    monkeypatch.setattr(closed, "kernels", lambda real=closed.kernels: calls.append(1) or real())
    fast = fs.simulate(recipe, model, clients, **given)
    assert calls
    torch.testing.assert_close(fast.model.state_dict(), plain.model.state_dict(), rtol=0, atol=1e-12)
    for a, b in zip(fast.rounds, plain.rounds, strict=True):
        assert a["train"] == pytest.approx(b["train"], rel=1e-12)
        assert a["clients"] == pytest.approx(b["clients"], rel=1e-12)


def test_short_runs_do_without_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(closed, "kernels", lambda: pytest.fail("numba was asked for"))
    fs.simulate("fedavg", nn.Linear(2, 2), [(np.zeros((4, 2)), np.array([0, 1, 0, 1]))], rounds=2, engine="stacked")
