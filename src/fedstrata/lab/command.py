"""The command that runs an experiment with a method."""

import shlex
from typing import Any

from fedstrata.data import is_own
from fedstrata.experiment import DEFAULTS, Experiment
from fedstrata.partition import ByOwner, Dirichlet
from fedstrata.toml import inline

OPTIONS = "data", "label", "client", "without", "model", "rounds", "seed"
"""Settings that have an option of their own."""


def run_command(exp: Experiment, method: str) -> str:
    """`fedstrata run` with all that the experiment says beyond the defaults, and this method in place of its own."""
    settings = {k: v for k, v in exp.settings().items() if k != "recipe" and v != DEFAULTS.get(k)}
    words = ["fedstrata", "run", "--method", method]
    for name in OPTIONS:
        if name in settings:
            words += [f"--{name}", str(settings.pop(name))]
    split = exp.partition
    if isinstance(split, Dirichlet) and split == Dirichlet(split.clients, alpha=split.alpha):
        settings.pop("partition", None)
        words += ["--clients", str(split.clients), "--alpha", str(split.alpha)]
    elif split == ByOwner() and is_own(exp.data):
        settings.pop("partition", None)  # as its column of clients says
    for name, value in settings.items():
        for path, one in _changed(name, value):
            words += ["--set", f"{path}={inline(one)}"]
    return shlex.join(words)


def _changed(name: str, value: Any) -> list[tuple[str, Any]]:
    """What is to be set: of a table of the default's kind the fields that differ, else all of it."""
    usual = DEFAULTS.get(name)
    if isinstance(value, dict) and isinstance(usual, dict) and value["kind"] == usual["kind"]:
        return [(f"{name}.{k}", v) for k, v in value.items() if v != usual.get(k)]
    return [(name, value)]
