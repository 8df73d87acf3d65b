"""Help is quick: it imports neither torch nor anything that draws, whatever command it is of."""

import subprocess
import sys
from typing import Any

import pytest
import typer

import fedstrata as fs
from fedstrata.cli import app, options
from fedstrata.commands.deploy import NODES
from fedstrata.experiment import SPLIT
from fedstrata.models import MODELS

SLOW = {"torch", "numpy", "sklearn", "matplotlib", "scipy", "plotly"}


def commands(group: Any, *names: str) -> dict[str, Any]:
    """Every command by its words, groups of them included."""
    found = {" ".join(names): group}
    for name, one in group.commands.items():
        found |= commands(one, *names, name) if hasattr(one, "commands") else {" ".join((*names, name)): one}
    return found


def imported(*words: str) -> set[str]:
    """The packages that a command imports."""
    say = ["-X", "importtime", "-m", "fedstrata"]
    done = subprocess.run([sys.executable, *say, *words], capture_output=True, text=True, check=True)
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}


@pytest.fixture(scope="module")
def every() -> dict[str, Any]:
    return commands(typer.main.get_command(app))


def test_help_and_version_import_nothing_slow():
    assert "typer" in imported("--help")
    assert not imported("--help") & SLOW
    assert not imported("--version") & SLOW


def test_help_of_every_command_imports_nothing_slow(every):
    assert {"", "run", "compare", "data", "deploy local"} <= every.keys()
    code = (
        "import sys\n"
        "from fedstrata.cli import app\n"
        f"for words in {list(every)!r}:\n"
        "    app([*words.split(), '--help'], standalone_mode=False)\n"
        f"print('slow:', sorted({SLOW!r} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("Usage: ") == len(every)
    assert done.stdout.endswith("slow: []\n")


def test_a_command_that_does_something_does_import_torch():
    assert "torch" in imported("methods")


def test_help_names_every_model():
    assert list(options.MODELS) == list(MODELS)


def test_the_defaults_that_help_shows_are_those_of_an_experiment(every):
    usual = fs.Experiment.of({"method": "fedavg"}).settings() | {"method": "fedavg"} | SPLIT.to_dict()
    shown = {p.name: p.show_default for p in every["run"].params if isinstance(getattr(p, "show_default", 0), str)}
    clients, _, nodes = shown.pop("clients").partition(";")
    assert "nodes" in nodes
    assert shown | {"clients": clients} == {n: str(usual[n]) for n in [*shown, "clients"]}
    assert shown.keys() == {"method", "data", "label", "client", "alpha", "seed", "model", "rounds", "engine"}
    assert next(p.show_default for p in every["deploy local"].params if p.name == "nodes") == str(NODES)


def test_no_words_at_all_show_help_and_no_complaint():
    done = subprocess.run([sys.executable, "-m", "fedstrata"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "")
    assert "Usage: " in done.stdout


def test_options_that_are_said_once_are_those_of_every_command_that_runs_an_experiment(every):
    shared = {"data", "label", "client", "clients", "alpha", "seed", "model", "rounds", "set_"}
    for words in ("run", "compare", "advise", "deploy local", "deploy init"):
        names = {p.name for p in every[words].params}
        assert shared <= names
        assert "given" not in names
    assert {p.name for p in every["partition"].params} & shared == shared - {"model", "rounds"}
