"""One run is one folder of plain files."""

import json
import os
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedstrata as fs
from fedstrata.experiment import read_toml
from fedstrata.record import json_text, read_rounds
from tests.federations import PLAIN, mlp, unequal_clients

R = fs.recipes


def run_into(folder, recipe: fs.Recipe | None = None, **settings):
    clients = unequal_clients()
    given = {"rounds": 3, "test": (clients.x, clients.y), "val": (clients.x[:9], clients.y[:9])} | settings
    return fs.simulate(recipe or R.fedlws(), mlp(), clients, out=folder, **given)


def without_seconds(folder) -> list[dict]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in read_rounds(folder)]


def test_the_folder_holds_all_that_was_promised(tmp_path):
    run = run_into(tmp_path / "run")
    names = {"recipe.json", "experiment.toml", "rounds.jsonl", "notes.npz", "model.safetensors", "environment.json"}
    assert {p.name for p in (tmp_path / "run").iterdir()} == names
    line = read_rounds(tmp_path / "run")[-1]
    assert set(line) == {"round", "train", "val", "test", "clients", "cohort", "dropped", "seconds"}
    assert all(set(line[s]) == {"loss", "accuracy"} for s in ("train", "val", "test"))
    assert set(line["clients"]) == {"mean", "worst10", "std"}
    assert line["round"] == 2
    assert line["cohort"] == list(range(7))
    assert fs.Recipe.from_dict(json.loads((tmp_path / "run/recipe.json").read_text())) == run.recipe
    torch.testing.assert_close(load_file(tmp_path / "run/model.safetensors"), dict(run.model.state_dict()))


def test_notes_are_readable_without_pickle(tmp_path):
    run_into(tmp_path / "run", R.adaptive_fedprox(weigh=fs.parts.Angle(), shrink=fs.parts.LWS()))
    with np.load(tmp_path / "run/notes.npz", allow_pickle=False) as notes:
        assert {n.split("/")[0] for n in notes} >= {
            "weights",
            "gamma",
            "tau",
            "mu",
            "angle",
            "drift",
            "layers",
            "tensors",
        }
        assert notes["weights/00002"].shape == (7, 2)
        assert notes["mu/00000"].shape == (4,)
        assert notes["layers"].tolist() == ["0", "2"]
        assert notes["tensors"].tolist() == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize("name", PLAIN)
def test_one_seed_gives_byte_identical_records(name, tmp_path):
    for folder in ("one", "two"):
        run_into(tmp_path / folder, R.METHODS[name](select=fs.parts.Sample(k=4)), seed=3)
    assert without_seconds(tmp_path / "one") == without_seconds(tmp_path / "two")
    one, two = ((tmp_path / f / "model.safetensors").read_bytes() for f in ("one", "two"))
    assert one == two


def test_an_experiment_file_runs_again_to_the_same_end(tmp_path):
    first = fs.Experiment.of({"method": "fedlws(beta=0.2)", "rounds": 2, "seed": 5, "training": {"lr": 0.05}})
    first.run(tmp_path / "one")
    again = fs.Experiment.of(tomllib.loads((tmp_path / "one/experiment.toml").read_text()))
    assert again == first.settled(first.dataset())  # nobody said a partition: the file does
    again.run(tmp_path / "two")
    assert without_seconds(tmp_path / "one") == without_seconds(tmp_path / "two")


def test_a_run_with_a_model_from_python_says_so_instead_of_running_something_else(tmp_path):
    run_into(tmp_path / "run", buffers="global")
    settings = tomllib.loads((tmp_path / "run/experiment.toml").read_text())
    assert settings["buffers"] == "global"
    with pytest.raises(fs.FedstrataError, match=r"given in Python .Sequential of 53 parameters, 7 clients"):
        fs.Experiment.of(settings)


def test_numbers_that_are_not_finite_are_null():
    assert json_text({"a": [1.5, float("nan")], "b": {"c": float("inf"), "d": "NaN"}}) == (
        '{"a": [1.5, null], "b": {"c": null, "d": "NaN"}}'
    )


def test_another_kind_of_training_keeps_what_both_know():
    plain, adam = (fs.Experiment.of({"method": "fedavg", "training": t}).training for t in ({}, {"kind": "Adam"}))
    assert (adam.batch, adam.epochs) == (plain.batch, plain.epochs)
    assert adam.lr == fs.Adam().lr


def test_a_folder_that_is_not_empty_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(fs.FedstrataError, match="is not an empty folder"):
        run_into(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_kill_left_of_the_first_file_is_no_obstacle(tmp_path):
    """Killed while experiment.toml was being written, a run can neither be resumed nor stand in its own way."""
    (tmp_path / ".experiment.toml.part").write_text("rounds = ")
    run_into(tmp_path)
    assert len(read_rounds(tmp_path)) == 3
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_fails_leaves_its_finished_rounds(tmp_path):
    def trip(line):
        if line["round"] == 1:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run_into(tmp_path / "run", on_round=trip)
    assert [r["round"] for r in read_rounds(tmp_path / "run")] == [0, 1]
    with np.load(tmp_path / "run/notes.npz") as notes:
        assert "gamma/00001" in notes


def test_rounds_that_are_not_evaluated_say_nothing_of_accuracy(tmp_path):
    run_into(tmp_path / "run", evaluate_every=2)
    assert ["test" in r for r in read_rounds(tmp_path / "run")] == [False, True, True]  # and always the last one


IN_C = """
from fedstrata.experiment import read_toml
from fedstrata.record import Recorder
from fedstrata.runtimes import Vault
from tests.federations import mlp
import fedstrata as fs
Recorder("run", fs.recipes.fedavg(), {"data": "m\\u00fc.csv"}, fs.Layout.of(mlp()), Vault({})).begin()
assert read_toml("run/experiment.toml") == {"data": "m\\u00fc.csv"}
"""


def test_an_experiment_is_in_utf8_whatever_the_locale(tmp_path):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", IN_C], cwd=tmp_path, env=os.environ | plain, check=True)
    assert tomllib.loads((tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8"))["data"] == "mü.csv"


def test_a_toml_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.toml").write_text("rounds = 3", encoding="utf-8-sig")
    assert read_toml(tmp_path / "a.toml") == {"rounds": 3}
