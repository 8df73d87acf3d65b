"""The examples run, and FedAvg from scratch is the library's."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedstrata as fs

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_every_example_runs(script, capsys):
    runpy.run_path(str(script), run_name="__main__")
    assert "accuracy 0." in capsys.readouterr().out


def test_fedavg_from_scratch_is_the_librarys():
    scratch = runpy.run_path(str(EXAMPLES / "from_scratch.py"))
    draw = np.random.default_rng(0)
    sizes = (25, 3, 41, 1)
    clients = [
        (torch.from_numpy(draw.standard_normal((n, 6))), torch.from_numpy(draw.integers(0, 3, n))) for n in sizes
    ]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    ours = fs.simulate(
        fs.recipes.fedavg(), model, clients, rounds=4, training=fs.SGD(lr=0.1, batch=20, epochs=3), seed=7
    )
    theirs = scratch["fedavg"](model, clients, rounds=4, lr=0.1, size=20, epochs=3, seed=7)
    torch.testing.assert_close(ours.model.state_dict(), theirs.state_dict(), rtol=0, atol=1e-12)
    other = scratch["fedavg"](model, clients, rounds=4, lr=0.1, size=20, epochs=3, seed=8)
    assert not torch.allclose(ours.model.state_dict()["0.weight"], other.state_dict()["0.weight"])


def test_from_scratch_stays_short():
    assert len((EXAMPLES / "from_scratch.py").read_text().splitlines()) < 150
