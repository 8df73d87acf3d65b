"""What a run is gone on with: the experiment that it was begun as, by one process; what is damaged is a sentence."""

import json
import shutil
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedstrata as fs
from fedstrata.errors import DataError, ModelError, SettingError
from fedstrata.experiment import read_toml
from fedstrata.record import read_model
from tests.federations import mlp, unequal_clients
from tests.test_checkpoint import ROUNDS, Broken, assert_same, break_off, run_into

OTHER = {
    "recipe": ({"recipe": "fedprox"}, r"recipe\.local\.0\.kind = None, and cannot be gone on with .* = Prox"),
    "seed": ({"seed": 4}, "seed = 3, and cannot be gone on with seed = 4"),
    "training": ({"training": fs.SGD(lr=1.0)}, r"training\.lr = 0\.01, and .* training\.lr = 1\.0"),
}


@pytest.mark.parametrize("what", OTHER)
def test_a_run_that_has_ended_is_not_taken_for_another(what, tmp_path):
    run_into(tmp_path, training=fs.SGD(lr=0.01))
    settings, said = OTHER[what]
    with pytest.raises(SettingError, match=said):
        run_into(tmp_path, resume=True, **{"training": fs.SGD(lr=0.01)} | settings)
    run_into(tmp_path, training=fs.SGD(lr=0.01), resume=True, engine="apart")  # which may change


def test_fewer_rounds_than_there_are_is_refused(tmp_path):
    break_off(tmp_path)
    with pytest.raises(SettingError, match="has 4 rounds already; give rounds = 4 or more"):
        run_into(tmp_path, resume=True, rounds=3)
    assert read_toml(tmp_path / "experiment.toml")["rounds"] == ROUNDS
    run_into(tmp_path, resume=True, rounds=4)
    with pytest.raises(SettingError, match="has ended after 4 rounds; run 3 into another folder"):
        run_into(tmp_path, resume=True, rounds=3)


def go_on(folder: Path, clients: fs.Clients, model: torch.nn.Module) -> fs.Run:
    given = {"rounds": ROUNDS, "checkpoint": 2, "seed": 3, "out": folder, "resume": True}
    return fs.simulate("scaffold", model, clients, **given)


def test_other_data_and_another_model_are_refused(tmp_path):
    break_off(tmp_path, "scaffold")
    clients = unequal_clients()
    with pytest.raises(SettingError, match=r"made_in_python = Sequential of 53 parameters, 7 clients, and cannot"):
        go_on(tmp_path, clients, torch.nn.Sequential(torch.nn.Linear(6, 3)))
    with pytest.raises(SettingError, match=r"made_in_python = .* 7 clients, and cannot .* 6 clients"):
        go_on(tmp_path, replace(clients, rows=clients.rows[:6]), mlp())
    with pytest.raises(SettingError, match=r"trained_on = 92 examples of 7 clients \(\w{12}\), and cannot"):
        go_on(tmp_path, replace(clients, y=clients.y.flip(0)), mlp())
    renamed = torch.nn.Sequential(OrderedDict((f"layer{n}", m) for n, m in mlp().named_children()))
    with pytest.raises(SettingError, match=r"tensors = 4 of 53 numbers \(\w{12}\), and cannot"):
        go_on(tmp_path, clients, renamed)
    assert len(run_into(tmp_path, "scaffold", resume=True).rounds) == ROUNDS


def test_a_checkpoint_that_does_not_say_what_was_begun_is_gone_on_with(tmp_path):
    run_into(tmp_path / "whole", "scaffold")
    break_off(tmp_path / "broken", "scaffold")
    for path in (tmp_path / "broken/checkpoint").glob("*.json"):  # of an older version
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "begun"}))
    with pytest.raises(SettingError, match="seed = 3"):
        run_into(tmp_path / "broken", "scaffold", resume=True, seed=4)
    run_into(tmp_path / "broken", "scaffold", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


FILED = {"method": "fedprox(mu=0.1)", "rounds": 4, "checkpoint": 1, "partition": {"clients": 3}, "model": "logreg"}
EDITS = {
    "rate": ("lr = 0.1", "lr = 0.2", r"training\.lr = 0\.1, and cannot be gone on with training\.lr = 0\.2"),
    "clients": ("clients = 3", "clients = 4", r"partition\.clients = 3"),
    "method": ('kind = "Prox", mu = 0.1, plain_sgd = false', 'kind = "Scaffold"', r"recipe\.local\.0"),
    "model": ('model = "logreg"', 'model = "mlp"', "model = logreg"),
    "defaults left out": (", plain_sgd = false", "", None),
    "all checkpoints gone, and defaults left out": (", plain_sgd = false", "", None),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_experiment_whose_file_was_edited_is_refused_where_that_changes_it(what, tmp_path):
    def broken(line):
        if line["round"] == 1:
            raise Broken

    with pytest.raises(Broken):
        fs.Experiment.of(FILED).run(tmp_path, on_round=broken)
    old, new, said = EDITS[what]
    file, text = tmp_path / "experiment.toml", (tmp_path / "experiment.toml").read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    if what.startswith("all"):
        shutil.rmtree(tmp_path / "checkpoint")
    if said is None:
        assert len(fs.Experiment.of(read_toml(file)).run(tmp_path, resume=True).rounds) == 4
        file.write_text(text.replace(old, new))
        fs.Experiment.of(FILED).run(tmp_path, resume=True)  # nor where it has ended
    else:
        with pytest.raises(SettingError, match=said):
            fs.Experiment.of(read_toml(file)).run(tmp_path, resume=True)


def test_a_folder_is_written_by_one_at_a_time(tmp_path):
    def meanwhile(line):
        if line["round"] == 5:
            with pytest.raises(DataError, match="another process is writing into"):
                run_into(tmp_path / "broken", "scaffold", resume=True)
            raise Broken

    clients = unequal_clients()
    given = {"rounds": ROUNDS, "checkpoint": 2, "test": (clients.x, clients.y), "seed": 3, "engine": "pool"}
    given |= {"proxy": (clients.x[:20], clients.y[:20]), "workers": 2}
    with pytest.raises(Broken):
        fs.simulate("scaffold", mlp(), clients, out=tmp_path / "broken", on_round=meanwhile, **given)
    run_into(tmp_path / "broken", "scaffold", resume=True, engine="pool", workers=2)
    run_into(tmp_path / "whole", "scaffold", engine="pool", workers=2)
    assert_same(tmp_path / "whole", tmp_path / "broken")


DAMAGES = {
    "a round that was cut": ("rounds.jsonl", lambda whole: whole[:-30], "line 7 is no JSON"),
    "another line": ("rounds.jsonl", lambda whole: whole + b"garbage\n", "line 8 is no JSON"),
    "a list": ("rounds.jsonl", lambda whole: whole + b"[1, 2]\n", r"line 8 is not what is said of a round: \[1, 2\]"),
    "a number": ("rounds.jsonl", lambda whole: whole + b"3\n", "line 8 is not what is said of a round: 3"),
    "half a round": ("rounds.jsonl", lambda whole: whole + b'{"cohort": 3}\n', "line 8 is not what is said of a round"),
    "no rounds": ("rounds.jsonl", lambda whole: b"", r"has ended, and its rounds\.jsonl is empty"),
    "half a model": ("model.safetensors", lambda whole: whole[:300], r"model\.safetensors is damaged"),
    "half the notes": ("notes.npz", lambda whole: whole[:300], r"notes\.npz is damaged"),
    "half an experiment": ("experiment.toml", lambda whole: whole[:30], r"experiment\.toml is damaged"),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_folder_of_a_run_that_has_ended_is_a_sentence(how, tmp_path):
    name, cut, said = DAMAGES[how]
    run_into(tmp_path, "fedlws")
    (tmp_path / name).write_bytes(cut((tmp_path / name).read_bytes()))
    with pytest.raises(DataError, match=said) as told:
        run_into(tmp_path, "fedlws", resume=True)
    assert f"put back a copy of it, or remove {tmp_path} and run it again" in str(told.value)


def test_a_model_of_other_shapes_is_a_sentence(tmp_path):
    run_into(tmp_path / "run")
    with pytest.raises(ModelError, match="is of another model than the one given"):
        read_model(tmp_path / "run", torch.nn.Linear(6, 3))
