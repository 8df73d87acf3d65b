"""Fewer digits in the factors, on a CPU: nearly the same models, exactly the same for any number of workers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedstrata as fs
from fedstrata.models import answers
from tests.federations import PLAIN, mlp, unequal_clients
from tests.runtimes.test_unequal_clients import bn_cnn, image_clients
from tests.test_answers import network, texts

TRAIN = fs.SGD(lr=0.05, batch=6, epochs=2, momentum=0.5)


def text_clients() -> list[Any]:
    return [(texts(n, seed=n), np.arange(n) % 3) for n in (11, 4, 20)]


FEDERATIONS = {
    "mlp": (mlp, unequal_clients, 0.05),
    "convolutions": (bn_cnn, image_clients, 0.25),
    "texts": (network, text_clients, 0.05),
}


def final(name: str, precision: str, **settings: Any) -> dict[str, torch.Tensor]:
    made, clients, _ = FEDERATIONS[name]
    settings = {"rounds": 3, "training": TRAIN, "precision": precision} | settings
    return fs.simulate("fedavg", made().float(), clients(), **settings).model.state_dict()


@pytest.mark.parametrize("name", FEDERATIONS)
def test_bf16_gives_nearly_the_same_in_the_models_own_type(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "PAYS", 1)
    exact, short = (final(name, precision) for precision in ("float32", "bf16"))
    torch.testing.assert_close(short, exact, rtol=0, atol=FEDERATIONS[name][2])
    assert any(not torch.equal(a, b) for a, b in zip(short.values(), exact.values(), strict=True))


def test_any_number_of_workers_gives_the_same_bits():
    one, two = (final("convolutions", "bf16", engine="pool", workers=n) for n in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.values(), two.values(), strict=True))


def test_a_run_afterwards_has_all_digits_again():
    before = final("mlp", "float32")
    final("mlp", "bf16")
    assert all(torch.equal(a, b) for a, b in zip(final("mlp", "float32").values(), before.values(), strict=True))


@pytest.mark.parametrize("engine", ["stacked", "apart"])
@pytest.mark.parametrize("name", PLAIN)
def test_every_method_runs_so(name: str, engine: Any):
    """On a model with features, normalised by batch and by layer, of clients some of whose batches are short."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(8) if engine == "apart" else nn.BatchNorm1d(8)
    made = nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), nn.Linear(8, 3))
    run = fs.simulate(name, made, unequal_clients(), rounds=2, training=TRAIN, precision="bf16", engine=engine)
    assert all(v.isfinite().all() for v in run.model.state_dict().values())
