"""compare, advise and sweeps, as a person types them."""

import json
import shlex
from pathlib import Path

import pytest

import fedstrata as fs
from fedstrata.commands.settings import Options
from fedstrata.experiment import read_toml
from fedstrata.lab.command import run_command
from tests.cli.test_cli import fedstrata, last_json

SMALL = ["--model", "logreg", "--clients", "4", "--set", "training.epochs=1"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_compare_ends_with_a_table_and_words(capsys):
    methods = "fedavg", "fedavg()", "fedprox(mu=50)"
    args = ["compare", *methods, "--seeds", "2", "--rounds", "3", "--jobs", "1", "--out", "c", "--json"]
    assert fedstrata(*args, *SMALL) == 0
    shown = capsys.readouterr().out
    assert "fedavg() does exactly as fedavg with every seed: no real difference." in shown
    assert "The folder is c" in shown
    assert json.loads(shown.splitlines()[-1]) == json.loads(Path("c/compare.json").read_text())
    assert fedstrata(*args, *SMALL) == 0
    assert "6 runs of these were there already." in capsys.readouterr().out


def test_compare_takes_an_experiment_file(capsys):
    Path("e.toml").write_text('method = "scaffold"\nrounds = 2\nmodel = "logreg"\nseed = 5')
    assert fedstrata("compare", "e.toml", "fedavg", "--seeds", "1", "--out", "c", "--jobs", "1") == 0
    said = json.loads(Path("c/compare.json").read_text())
    assert [m["name"] for m in said["methods"]] == ["fedavg"]
    assert said["seeds"] == [5]
    assert said["settings"]["model"] == "logreg"
    assert "with one seed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("compare fedavg fedprx", "did you mean 'fedprox'?"),
        ("compare a.toml b.toml fedavg", "compare takes one experiment file; got a.toml, b.toml"),
        ("compare fedavg --seeds 0", "--seeds must be at least 1"),
        ("compare fedavg --target 2", "target must be an accuracy"),
        ("compare fedavg --model nothing", "no model is called 'nothing'"),
        ("compare --seeds 2", "Missing argument"),
        ("compare none.toml fedavg", "there is no file none.toml"),
        ("compare none.toml", "there is no file none.toml"),
        ("advise --data nothing", "no data set is called 'nothing'"),
        ("advise --budget 0", "budget must be above 0"),
        ("advise --budget 0.0001", "the budget is too short"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(args, sentence, capsys):
    assert fedstrata(*args.split()) == 2
    told = capsys.readouterr().err.splitlines()
    [said] = [line for line in told if line.startswith("fedstrata: ")]
    assert sentence in said
    assert not args.startswith("compare fedavg fed") or told == [said]  # no progress before it
    assert not list(Path().glob("runs/*"))


SWEEP = """
rounds = 2
model = "logreg"
partition = {clients = 4}
[sweep]
method = ["fedavg", "fedprox"]
"training.lr" = [0.1, 0.01]
seed = [0, 1]
"""


def test_a_sweep_runs_all_of_its_grid_and_nothing_twice(capsys):
    Path("sweep.toml").write_text(SWEEP)
    assert fedstrata("run", "sweep.toml", "--out", "s", "--jobs", "1", "--set", "training.epochs=1") == 0
    shown = capsys.readouterr().out
    assert "sweep: 8 runs" in shown
    folders = sorted(p.parent.as_posix() for p in Path("s").rglob("experiment.toml"))
    assert folders == [
        f"s/{m}-lr-{lr}/seed-{s}" for m in ("fedavg", "fedprox") for lr in ("0.01", "0.1") for s in (0, 1)
    ]
    assert read_toml("s/fedprox-lr-0.01/seed-1/experiment.toml")["training"]["lr"] == 0.01
    assert read_toml("s/fedprox-lr-0.01/seed-1/experiment.toml")["training"]["epochs"] == 1
    before = {p: p.stat().st_mtime_ns for p in Path("s").rglob("rounds.jsonl")}
    Path("s/fedavg-lr-0.1/seed-0/model.safetensors").unlink()  # as if it had been killed
    assert fedstrata("run", "sweep.toml", "--out", "s", "--jobs", "1", "--set", "training.epochs=1", "--json") == 0
    after = {p: p.stat().st_mtime_ns for p in Path("s").rglob("rounds.jsonl")}
    changed = [p for p in after if after[p] != before[p]]
    assert [p.as_posix() for p in changed] == ["s/fedavg-lr-0.1/seed-0/rounds.jsonl"]
    shown = capsys.readouterr().out
    assert "7 runs of these were there already." in shown
    names = [m["name"] for m in json.loads(shown.splitlines()[-1])["methods"]]
    assert names[1:3] == ["fedavg, lr=0.01", "fedprox, lr=0.1"]


def test_a_sweep_without_methods_or_seeds_runs_too(capsys):
    Path("sweep.toml").write_text("rounds = 1\n[sweep]\npartition.alpha = [0.1, 1.0]")
    assert fedstrata("run", "sweep.toml", "--out", "s", "--jobs", "1", "--model", "logreg") == 0
    assert sorted(p.name for p in Path("s").iterdir()) == ["alpha-0.1", "alpha-1.0", "compare.json"]


def test_advise_recommends_and_says_how_to_run_it(capsys):
    args = ["advise", "--rounds", "3", "--alpha", "0.1", "--budget", "10", "--jobs", "1", "--out", "a", "--json"]
    assert fedstrata(*args, *SMALL) == 0
    said = last_json(capsys)
    assert said["method"] in {c["method"] for c in said["candidates"]}
    assert "label" in said["kinds"]
    assert len(said["rungs"]) >= 2
    assert Path(f"a/race-{len(said['rungs'])}/compare.json").exists()
    assert fedstrata(*shlex.split(said["command"])[1:], "--out", "r") == 0
    assert read_toml("r/experiment.toml")["partition"]["clients"] == 4
    assert fedstrata(*args, *SMALL) == 2  # the folder is not empty any more


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rounds": 7, "seed": 3, "model": "logreg", "val": 0.2, "evaluate_every": 2},
        {"partition": {"clients": 5, "alpha": 0.3}, "training": {"lr": 0.05, "momentum": 0.9}},
        {"partition": {"clients": 5, "min_size": 3}},
        {"partition": {"kind": "IID", "clients": 5}, "training": {"kind": "Adam", "lr": 0.01, "batch": "none"}},
        {"partition": {"kind": "Rotated", "base": {"kind": "IID", "clients": 4}, "angles": [0.0, 90.0]}},
        {"augment": {"flip": True}, "data": "mnist(scaling='unit')", "engine": "apart"},
    ],
)
def test_the_command_of_an_experiment_says_all_of_it(settings):
    exp = fs.Experiment.of({"method": "fedavg(weighting='uniform')"} | settings)
    words = shlex.split(run_command(exp, "fedavg(weighting='uniform')"))
    assert words[:2] == ["fedstrata", "run"]
    assert parsed(words[2:]) == exp


def parsed(words: list[str]) -> fs.Experiment:
    """What `fedstrata run` makes of its options."""
    given = [(words[i].removeprefix("--"), words[i + 1]) for i in range(0, len(words), 2)]
    split = {k: float(v) if k == "alpha" else int(v) for k, v in given if k in ("clients", "alpha")}
    others = {k: v for k, v in given if k not in ("set", "method", *split)}
    plain = {k: int(v) if k in ("rounds", "seed") else v for k, v in others.items()}
    options = Options(None, dict(given)["method"], plain | split, [v for k, v in given if k == "set"])
    return fs.Experiment.of(options.read()[1])
