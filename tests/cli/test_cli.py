"""The command, as a person types it."""

import json
import re
import sys
import tomllib
import warnings
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np
import pytest
import torch

import fedstrata as fs
from fedstrata import record
from fedstrata.cli import main
from fedstrata.commands.report import demo_report
from fedstrata.commands.settings import new_folder
from fedstrata.errors import PartError
from fedstrata.record import read_rounds

METHODS = list(fs.recipes.METHODS)
QUICK = ("--set", "training.epochs=1")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fedstrata(*args: str) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    return int(stop.value.code or 0)


def last_json(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_fedavg_learns_digits_with_the_default_settings(capsys):
    args = "run --method fedavg --data digits --clients 20 --alpha 0.1 --rounds 20 --json"
    assert fedstrata(*args.split()) == 0
    assert last_json(capsys)["test"]["accuracy"] > 0.85


def settings_of(folder: str) -> dict:
    return tomllib.loads((Path(folder) / "experiment.toml").read_text())


def test_a_run_folder_is_named_and_can_be_run_again(capsys):
    args = "run --method fedprox(mu=0.3) --rounds 2 --out a --set training.lr=0.2"
    assert fedstrata(*args.split()) == 0
    assert "The run folder is a" in capsys.readouterr().out
    assert fedstrata("run", "a/experiment.toml", "--out", "b", "--json") == 0
    assert settings_of("b")["recipe"]["local"][0] == {"kind": "Prox", "mu": 0.3, "plain_sgd": False}
    assert settings_of("b")["training"]["lr"] == 0.2
    assert read_rounds("a")[-1]["test"] == read_rounds("b")[-1]["test"]


def test_options_overrule_the_file():
    lines = (
        'method = "fedprox"',
        "rounds = 9",
        "[partition]",
        'kind = "IID"',
        "clients = 4",
        "[training]",
        'kind = "Adam"',
    )
    Path("e.toml").write_text("\n".join(lines))
    assert fedstrata(*["run", "e.toml", "--rounds", "1", "--clients", "3", "--method", "fedavg", "--out", "r"]) == 0
    settings = settings_of("r")
    assert settings["rounds"] == 1
    assert settings["partition"] == {"kind": "IID", "clients": 3, "min_size": 1}
    assert settings["training"]["kind"] == "Adam"
    assert settings["recipe"]["local"] == []


def test_a_combination_runs_and_can_be_changed(capsys):
    both = "fedprox(mu=0.01) + fedlayerwise(alpha=5) + lws(beta=0.1)"
    changes = "--set", "recipe.local.0.mu=0.5", "--set", "training.kind=Adam"
    assert fedstrata("run", "--method", both, "--rounds", "2", "--out", "r", *changes) == 0
    recipe = settings_of("r")["recipe"]
    assert (recipe["local"][0]["mu"], recipe["weigh"]["kind"], recipe["shrink"][0]["kind"]) == (0.5, "Angle", "LWS")
    assert fedstrata("explain", both) == 0
    assert "Hold clients near the global model" in capsys.readouterr().out


def test_a_run_in_which_nobody_is_usable_says_so(capsys):
    assert fedstrata(*["run", "--rounds", "2", "--set", "training.lr=1e30", "--json"]) == 0
    shown = capsys.readouterr().out
    assert "In 2 of 2 rounds no client was usable" in shown
    assert json.loads(shown.splitlines()[-1])["dropped"] == 40


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ("recipe.weigh.kind=Angle", "fedlayerwise"),
        ("recipe.weigh.kind=Equal", "fedavg + Equal"),
        ("training.lr=0.2", "fedavg"),
    ],
)
def test_a_method_whose_parts_were_set_is_called_what_it_is(changed, name, capsys):
    assert fedstrata("run", "--rounds", "1", "--set", changed, "--json") == 0
    shown = capsys.readouterr().out
    assert json.loads(shown.splitlines()[-1])["method"] == name
    assert f"{name} on digits" in shown


def test_a_run_that_had_ended_is_shown_at_its_end(capsys):
    assert fedstrata("run", "--rounds", "2", "--out", "r") == 0
    capsys.readouterr()
    assert fedstrata("run", "--resume", "r") == 0
    assert "2/2" in capsys.readouterr().err


def test_signs_that_the_terminal_does_not_have_cost_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(BytesIO(), "ascii"))
    assert fedstrata(*["compare", "fedavg", "--rounds", "1", "--seeds", "1", "--clients", "3", "--jobs", "1"]) == 0
    sys.stdout.flush()
    assert b"means ? half of the 95 %" in sys.stdout.buffer.getvalue()  # pyright: ignore


def test_a_warning_of_ours_is_a_sentence():
    assert fedstrata("--version") == 0
    assert warnings.formatwarning("it is so", RuntimeWarning, record.__file__, 3) == "fedstrata: it is so\n"
    assert json.__file__ in warnings.formatwarning("it is so", RuntimeWarning, json.__file__, 3)


def test_a_run_folder_is_called_after_the_methods_in_it(capsys, tmp_path):
    assert fedstrata("run", "--method", "fedprox(mu=0.5) + lws(beta=0.1)", "--rounds", "1") == 0
    assert [p.name.partition("-")[2].partition("-")[2] for p in (tmp_path / "runs").iterdir()] == ["fedprox-lws"]


def test_without_a_folder_a_new_one_is_made_below_runs(capsys, tmp_path):
    for _ in range(2):
        assert fedstrata("run", "--rounds", "1") == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_methods_lists_them_all(capsys):
    assert fedstrata("methods") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in METHODS)
    assert fedstrata("methods", "--json") == 0
    assert set(last_json(capsys)) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_explain_shows_parts_and_costs(name, capsys):
    assert fedstrata("explain", name) == 0
    shown = capsys.readouterr().out
    assert "What leaves a client" in shown
    assert "select" in shown
    assert "x the model" in shown


def test_the_cost_card_counts_bytes(capsys):
    assert fedstrata("explain", "scaffold", "--model", "logreg", "--json") == 0
    cost, size = last_json(capsys)["cost"], 4 * 650  # 64 x 10 + 10 parameters of four bytes
    assert cost["model"] == size
    assert cost["down"] == 2 * size  # the model and c
    assert cost["up"] == 2 * size + 8  # the model, the change of c, the number of examples
    assert cost["memory"] == size  # c_k
    assert fedstrata("explain", "fedpbs", "--json") == 0
    assert "the variance of its losses on one mini-batch" in last_json(capsys)["cost"]["leaves"]


def test_demo_ends_with_a_table_curves_and_a_page_or_says_what_to_install(capsys, tmp_path, monkeypatch):
    assert fedstrata("demo", "--out", "demo") == 0
    shown = capsys.readouterr().out
    assert all(f"{name} " in shown for name in ("fedavg", "fedlayerwise", "fedlws"))
    assert "demo/curves.png" in shown
    assert (tmp_path / "demo/curves.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "demo/report.html").as_uri() in shown
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    demo_report(tmp_path / "demo")
    said = "There is no report page: the report page needs plotly: pip install plotly"
    assert said in capsys.readouterr().out


def test_version(capsys):
    assert fedstrata("--version") == 0
    assert capsys.readouterr().out.strip() == f"fedstrata {fs.__version__}"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("run --method fedavgg", "no method is called 'fedavgg'; did you mean 'fedavg'?"),
        ("run --method fedprox(mmu=1)", "fedprox has no setting 'mmu'; did you mean 'mu'?"),
        ("run --method fedprox(mu='a')", "Prox.mu must be a number or a PerLayer; got 'a'"),
        ("run --method fedprox(0.1)", "need their names"),
        ("run --method feddyn(alpha=0)", "alpha must be above 0"),
        ("run --method fedlws(mode='layr')", "did you mean 'layer'?"),
        ("run --method fedavg(select=Sampel(k=2))", "did you mean 'Sample'?"),
        ("run --method 1+", "is not a recipe"),
        ("run --data digit", "(a file of yours is given by its path); did you mean 'digits'?"),
        ("run --model mpl", "did you mean 'mlp'?"),
        ("run --clients 0", "clients must be at least 1"),
        ("run --clients 5000", "there are 1257"),
        ("run --alpha -1", "alpha must be above 0"),
        ("run --rounds 0", "rounds must be at least 1"),
        ("run --rounds ten", "Invalid value for '--rounds'"),
        ("run --seed -3", "seed must not be negative"),
        ("run --set training.lr=fast", "SGD.lr must be a number; got 'fast'"),
        ("run --set training.lrr=1", "did you mean 'lr'?"),
        ("run --set training.kind=SDG", "no training is called 'SDG'; did you mean 'SGD'?"),
        ("run --set roundss=3", "did you mean 'rounds'?"),
        ("run --set lr=0.1", "Experiment has no setting 'lr'; did you mean 'training.lr'?"),
        ("run --set alpha=0.1", "Experiment has no setting 'alpha'; did you mean 'partition.alpha'?"),
        ("run --set rounds", "must read key=value"),
        ("run --set rounds.a=1", "rounds must be a whole number"),
        ("run --set partition.kind=IID --alpha 0.1", "IID has no setting 'alpha'"),
        ("run --set proxy=3", "proxy = 3 cannot be had"),
        ("run --set device=warp", "warp"),
        ("run nothing.toml", "there is no file nothing.toml"),
        ("run fedprox(mu=1)", "there is no file fedprox(mu=1); a method is given by --method 'fedprox(mu=1)'"),
        ("explain scafold", "did you mean 'scaffold'?"),
        ("exlain scaffold", "No such command 'exlain'"),
        ("run --what", "; if that is a setting, write --set what=VALUE, else try fedstrata run --help"),
        ("run --roundss 3", "No such option: --roundss (did you mean --rounds?); if that is a setting"),
        ("methods --what", "No such option: --what; try fedstrata methods --help"),
        ("run --rounds ten", "; try fedstrata run --help"),
        ("deploy check", "; try fedstrata deploy check --help"),
        ("deploy local --nodes 3 --clients 4", "--nodes says how many clients there are; leave out --clients"),
        ("exlain scaffold", "Did you mean 'explain'? Try fedstrata --help"),
        ("run --set partition=iid", "partition must be a Partition or nothing; got 'iid'"),
        ("run --set chunk=0", "chunk must be at least 1"),
        ("run --method moon --model logreg", "Moon needs features"),
        ("run --method fedlaw --set proxy=9", "proxy = 9 cannot be had, class by class, from 360 test examples"),
        ("run --resume nowhere", "there is no folder nowhere to go on with"),
        ("run --method scaffold+fedadp", "a recipe has one weigh part, not both"),
        ("run --out /proc/nothing", "the folder /proc/nothing cannot be made"),
        ("run --out /usr --data nowhere", "/usr is not an empty folder"),  # before the data is looked for
        ("run --track foo --data nowhere", "no tracker is called 'foo'"),
        ("run --jobs 0", "jobs must be at least 1; got 0"),
        ("run --method ", "'' is not a recipe; write e.g. fedprox"),
        ("run --set training=3", "got 3; write the table [training] with lines like lr = 0.1"),
        ("run --set recipe=fedavg", "got 'fedavg'; give a method by its name as method = 'fedavg'"),
        ("run --data ./l\udcfct", "l?t' is no UTF-8"),
    ],
)  # fmt: skip
def test_every_error_is_one_sentence_and_exit_code_2(args, sentence, capsys):
    assert fedstrata(*args.split(" ")) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert sentence in said[-1]
    assert said[-1].startswith("fedstrata: ")
    assert not any("Traceback" in line for line in said)


def test_the_command_alone_shows_its_help_and_nothing_after_it(capsys):
    assert fedstrata() == 2
    said = capsys.readouterr()
    assert "Usage:" in said.out + said.err
    assert "fedstrata: " not in said.err
    commands = re.findall(r"^│ (\w+) ", said.out, re.M)
    assert commands[:4] == ["demo", "run", "compare", "advise"]


def test_words_for_labels_are_told(capsys):
    rows = [f"{i % 5},{i % 3},{('well', 'ill')[i % 2]},{'ab'[i % 2]}" for i in range(40)]
    Path("own.csv").write_text("\n".join(["x,y,state,client", *rows]))
    assert fedstrata("run", "--data", "own.csv", "--label", "state", "--model", "logreg", "--rounds", "1") == 0
    assert "The classes are ill, well." in capsys.readouterr().err


def test_a_broken_file_says_so(capsys):
    Path("bad.toml").write_text("rounds = = 3")
    assert fedstrata("run", "bad.toml") == 2
    assert "bad.toml cannot be read as TOML" in capsys.readouterr().err


@dataclass(frozen=True)
class ByNought(fs.Step):
    """Divides by nought."""

    def step(self, state, proposal, round):
        return proposal * (1 // len(state)), state


def test_an_error_in_a_part_of_ones_own_is_a_sentence_or_shows_its_place(capsys, monkeypatch):
    args = "run", "--method", f"{ByNought.__name__}()", "--rounds", "1", *QUICK
    assert fedstrata(*args) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "round 0: ZeroDivisionError in ByNought.step: integer division" in said
    assert "(set FEDSTRATA_DEBUG=1 to see where)" in said
    monkeypatch.setenv("FEDSTRATA_DEBUG", "1")
    with pytest.raises(PartError) as caught:
        main(list(args))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_chunks_of_1_7_and_20_agree():
    runs = [fs.Experiment.of({"method": "fedavg", "rounds": 2, "chunk": c}).run() for c in (1, 7, 20)]
    for other in runs[1:]:
        torch.testing.assert_close(runs[0].model.state_dict(), other.model.state_dict(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("plus", ["", " + lws(beta=0.1)"], ids=["alone", "shrunk"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_on_digits_alone_and_shrunk(name, plus, capsys):
    assert (
        fedstrata("run", "--method", name + plus, "--rounds", "5", "--set", "evaluate_every=5", *QUICK, "--json") == 0
    )
    seen = last_json(capsys)
    assert seen["method"] == name + plus
    assert seen["rounds"] == 5
    assert np.isfinite([seen["test"]["loss"], seen["train"]["loss"]]).all()
    assert seen["dropped"] == 0


def test_a_method_that_needs_data_on_the_server_gets_some_and_says_so(capsys):
    assert fedstrata("run", "--method", "feddf", "--rounds", "1", "--out", "a") == 0
    assert "200 examples are taken out of the test set" in " ".join(capsys.readouterr().err.split())
    assert settings_of("a")["proxy"] == 200


def test_every_run_has_a_folder_of_its_own_from_the_moment_it_starts(tmp_path):
    made = [new_folder("fedavg") for _ in range(5)]
    assert len(set(made)) == 5
    assert all(folder.is_dir() for folder in made)


def test_a_run_that_writes_nothing_leaves_no_folder(tmp_path, capsys):
    Path("mine.csv").write_text("\n".join(["label,a", *(f"{i % 2},{i}" for i in range(40))]))
    assert fedstrata("run", "--data", "mine.csv", "--set", "augment.flip=true") == 2
    assert not list((tmp_path / "runs").iterdir())
    (tmp_path / "runs").rmdir()
    (tmp_path / "runs").touch()
    assert fedstrata("run", "--rounds", "1") == 2
    assert "--out" in capsys.readouterr().err
