"""A run that was broken off and gone on with ends as one that never was."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedstrata as fs
from fedstrata.checkpoint import KEPT, newest
from fedstrata.errors import DataError, SettingError
from fedstrata.experiment import read_toml
from fedstrata.files import checksum
from fedstrata.recipes import METHODS
from fedstrata.record import finished, read_notes, read_rounds
from fedstrata.runtimes.vault import Shelf, Vault
from tests.federations import mlp, unequal_clients
from tests.patience import PATIENCE

ROUNDS = 7


class Broken(Exception):
    pass


def run_into(folder: Path, recipe: str = "fedavg", broken_at: int | None = None, **more) -> fs.Run:
    """A run of seven rounds with a checkpoint every two, broken off after one of them if asked for."""
    clients = unequal_clients()

    def on_round(line):
        if line["round"] == broken_at:
            raise Broken

    given = {"rounds": ROUNDS, "checkpoint": 2, "test": (clients.x, clients.y), "seed": 3} | more
    given |= {"proxy": (clients.x[:20], clients.y[:20])}
    return fs.simulate(recipe, mlp(), clients, out=folder, on_round=on_round, **given)


def break_off(folder: Path, recipe: str = "fedavg", at: int = 4, **more) -> None:
    with pytest.raises(Broken):
        run_into(folder, recipe, broken_at=at, **more)


def record(folder: Path) -> list[dict]:
    return [{k: v for k, v in r.items() if k != "seconds"} for r in read_rounds(folder)]


def assert_same(one: Path, other: Path) -> None:
    assert record(one) == record(other)
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    mine, theirs = read_notes(one), read_notes(other)
    assert mine.keys() == theirs.keys()
    for name, v in mine.items():
        np.testing.assert_array_equal(v, theirs[name])
    assert {p.name for p in one.iterdir()} == {p.name for p in other.iterdir()}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_ends_the_same_after_a_break(method, tmp_path):
    whole = run_into(tmp_path / "whole", method)
    break_off(tmp_path / "broken", method)
    again = run_into(tmp_path / "broken", method, resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")
    assert len(again.rounds) == len(whole.rounds)
    assert len(again.notes) == len(whole.notes)
    for one, other in zip(again.notes, whole.notes, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


KEEPING = fs.SGD(lr=0.1, momentum=0.9, batch=4, epochs=1, reset_optimizer=False)


@pytest.mark.parametrize("engine", ["stacked", "apart", "pool"])
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_wherever_it_is_broken_off_and_whoever_keeps_what(engine, at, tmp_path):
    more = {"engine": engine, "training": KEEPING, "buffers": "local", "workers": 2}
    run_into(tmp_path / "whole", "scaffold", **more)
    break_off(tmp_path / "broken", "scaffold", at, **more)
    run_into(tmp_path / "broken", "scaffold", resume=True, **more)
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_broken_off_again_and_again(tmp_path):
    run_into(tmp_path / "whole", "moon")
    break_off(tmp_path / "broken", "moon", 0)
    for at in (0, 2, 2, 4, 5):
        with pytest.raises(Broken):
            run_into(tmp_path / "broken", "moon", broken_at=at, resume=True)
    run_into(tmp_path / "broken", "moon", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_memories_on_disk_make_no_difference(tmp_path):
    recipe = fs.recipes.scaffold(select=fs.parts.Sample(k=2))
    clients = unequal_clients()
    given = {"rounds": 6, "seed": 1, "test": (clients.x, clients.y)}
    in_memory = fs.simulate(recipe, mlp(), clients, **given)
    on_disk = fs.simulate(recipe, mlp(), clients, memory=1e-6, **given)
    for a, b in zip(in_memory.model.parameters(), on_disk.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    memory = {
        "local.0": {"c": torch.randn(5), "n": torch.tensor(3), "on": torch.tensor([True, False])},
        "optimizer": {},
    }
    shelf = Shelf(memory, tmp_path)
    shelf[7] = memory
    shelf[2] = {"optimizer": {}, "local.0": {n: v.clone() * 0 for n, v in reversed(memory["local.0"].items())}}
    torch.testing.assert_close(shelf[7], memory)
    assert shelf[2]["local.0"]["c"].tolist() == [0] * 5
    assert list(shelf) == [7, 2]
    shelf.close()
    assert not list(tmp_path.iterdir())  # the file has no name
    assert isinstance(Vault.of(memory, 10, 1e9).memories, dict)
    small = Vault.of(memory, 10, 100.0)
    assert isinstance(small.memories, Shelf)
    small.close()


def test_the_last_two_are_kept_until_the_run_ends(tmp_path):
    break_off(tmp_path, at=6)
    names = {p.name for p in (tmp_path / "checkpoint").iterdir()}
    assert names == {f"0000{n}.{kind}" for n in (4, 6) for kind in ("json", "safetensors")}
    assert KEPT == 2
    assert load_file(tmp_path / "checkpoint/00006.safetensors")["model"].shape == (fs.Layout.of(mlp()).size,)
    assert not finished(tmp_path)
    run_into(tmp_path, resume=True)
    assert finished(tmp_path)
    assert not (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "notes").exists()


def damage(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink()
    elif how == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "empty":
        path.write_bytes(b"")
    else:
        whole = bytearray(path.read_bytes())
        whole[len(whole) // 2] ^= 1
        path.write_bytes(whole)


@pytest.mark.parametrize("how", ["gone", "cut", "empty", "one bit"])
@pytest.mark.parametrize("what", ["checkpoint/00006.safetensors", "checkpoint/00006.json", "notes/00004.npz"])
def test_a_damaged_checkpoint_is_passed_over(what, how, tmp_path):
    run_into(tmp_path / "whole", "scaffold")
    break_off(tmp_path / "broken", "scaffold", 6)
    damage(tmp_path / "broken" / what, how)
    if (what, how) == ("checkpoint/00006.json", "gone"):  # it counts for nothing then
        run_into(tmp_path / "broken", "scaffold", resume=True)
    else:
        with pytest.warns(RuntimeWarning, match="00006 is damaged"):
            run_into(tmp_path / "broken", "scaffold", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_with_no_whole_checkpoint_it_begins_anew(tmp_path):
    run_into(tmp_path / "whole", "scaffold")
    break_off(tmp_path / "broken", "scaffold", 4)
    for path in (tmp_path / "broken/checkpoint").glob("*.json"):
        damage(path, "one bit")
    with pytest.warns(RuntimeWarning, match="damaged"):
        run_into(tmp_path / "broken", "scaffold", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


def test_a_record_that_was_cut_is_noticed(tmp_path):
    break_off(tmp_path, at=6)
    damage(tmp_path / "rounds.jsonl", "cut")
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert newest(tmp_path / "checkpoint", tmp_path) is None


def test_a_run_that_has_ended_is_not_run_again(tmp_path):
    first = run_into(tmp_path, "scaffold")
    again = run_into(tmp_path, "scaffold", resume=True, broken_at=0)
    assert again.rounds == read_rounds(tmp_path)
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(SettingError, match="ended after 7 rounds"):
        run_into(tmp_path, "scaffold", resume=True, rounds=9)


def test_another_experiment_is_refused(tmp_path):
    break_off(tmp_path, "scaffold")
    with pytest.raises(SettingError, match="seed = 3, and cannot be gone on with seed = 4"):
        run_into(tmp_path, "scaffold", resume=True, seed=4)
    with pytest.raises(SettingError, match="recipe"):
        run_into(tmp_path, "fedavg", resume=True)
    run_into(tmp_path, "scaffold", resume=True, rounds=9)  # more rounds than were asked for at first
    assert len(read_rounds(tmp_path)) == 9
    assert read_toml(tmp_path / "experiment.toml")["rounds"] == 9


def test_nothing_to_resume_is_said(tmp_path):
    with pytest.raises(DataError, match="nothing to resume"):
        run_into(tmp_path, resume=True)
    with pytest.raises(SettingError, match="resume needs the run folder"):
        fs.simulate("fedavg", mlp(), unequal_clients(), rounds=1, resume=True)


def test_a_full_disk_stops_the_run_with_a_sentence_and_the_last_checkpoint_intact(tmp_path):
    run_into(tmp_path / "whole", "scaffold")
    break_off(tmp_path / "broken", "scaffold", 4)
    before = {p.name: checksum(p) for p in (tmp_path / "broken/checkpoint").iterdir()}
    size = max(p.stat().st_size for p in (tmp_path / "broken/checkpoint").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # what is too much fails instead of killing us
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, hard))
    try:
        with pytest.raises(DataError, match="checkpoint of round 4 is intact: make room and run fedstrata"):
            run_into(tmp_path / "broken", "scaffold", resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert {p.name: checksum(p) for p in (tmp_path / "broken/checkpoint").iterdir()} == before
    run_into(tmp_path / "broken", "scaffold", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "broken")


SLOW = """
import sys, time, torch, fedstrata as fs
clients = [(torch.randn(4, 6), torch.arange(4) % 3) for _ in range(4)]
def slowly(line):
    print(line["round"], flush=True)
    time.sleep(0.2)
where = {"out": sys.argv[1], "engine": sys.argv[2]}
fs.simulate("scaffold", torch.nn.Linear(6, 3), clients, rounds=1000, on_round=slowly, **where)
"""


@pytest.mark.parametrize("engine", ["stacked", "pool"])
@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_round_and_leaves_a_checkpoint(asked, engine, tmp_path):
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    args = [sys.executable, "-c", SLOW, str(tmp_path / "run"), engine]
    run = subprocess.Popen(
        args, env=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert run.stdout is not None
        for _ in range(3):
            run.stdout.readline()
        os.killpg(run.pid, asked)  # all of them, as a terminal and systemd do
        _, said = run.communicate(timeout=PATIENCE)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
    assert "stopping when this round ends" in said
    assert "fedstrata run --resume" in said
    done = len(read_rounds(tmp_path / "run"))
    facts = json.loads((tmp_path / f"run/checkpoint/{done:05d}.json").read_text())
    assert facts["round"] == done >= 3
