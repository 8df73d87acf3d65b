"""The examples run, and FedAvg from scratch is the library's."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedstrata as fs
from fedstrata.experiment import read_toml

EXAMPLES = Path(__file__).parent.parent / "examples"
APP = EXAMPLES / "flower_app"


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


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_an_example_fits_on_a_page(script):
    assert len(script.read_text().splitlines()) < (150 if script.name == "from_scratch.py" else 60)


def written_app(folder: Path) -> Path:
    """The Flower app of examples/flower_app as `deploy init` would write it."""
    from fedstrata.deploy.app import write_app

    write_app(folder, fs.Experiment.of(read_toml(APP / "fedstrata_app" / "experiment.toml")), {"min-online": 3})
    return folder


def test_the_flower_app_is_what_deploy_writes(tmp_path):
    made = written_app(tmp_path / "app")
    ours = {p.relative_to(APP): p.read_text() for p in APP.rglob("*.*") if p.suffix in {".py", ".toml"}}
    assert ours == {p.relative_to(made): p.read_text() for p in made.rglob("*.*")}, "write it again: see written_app"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within Flower
def test_the_flower_app_gives_the_simulators_model(tmp_path):
    pytest.importorskip("flwr")
    from tests.flower.federation import equal, over_grid, simulated

    exp = fs.Experiment.of(read_toml(APP / "fedstrata_app" / "experiment.toml"))
    found, other = over_grid(exp, tmp_path), simulated(replace(exp, seed=1), tmp_path / "other")
    assert equal(found, simulated(exp, tmp_path))
    assert not equal(found, other)
