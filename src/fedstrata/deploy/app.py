"""The Flower app of an experiment: a thin shim around fedstrata, which every machine has installed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstrata import toml
from fedstrata.deploy.templates import filled
from fedstrata.errors import check, near
from fedstrata.experiment import Experiment

RUN: dict[str, tuple[Any, str]] = {
    "out": ("", "the run folder, on the server; a new one in ~/fedstrata/runs unless given"),
    "resume": (False, "go on in that folder from its last checkpoint"),
    "clients": ("", "names of those who belong to the federation, with commas; whoever comes, unless given"),
    "min-online": (2, "clients that must be there before a round begins"),
    "wait": (300.0, "seconds to wait for them; then the run ends with a sentence"),
    "deadline": (600.0, "seconds that a round waits for replies; 0: as long as it takes"),
    "over-select": (1.0, "ask so many times the clients that a round needs; it closes when enough replied"),
    "min-replies": (1, "with fewer usable replies a round changes nothing"),
    "max-examples": (10_000_000, "a client that claims more is not believed"),
    "poll": (0.5, "seconds between looks for replies"),
    "stop-target": (0.0, "end when the accuracy reaches this share; 0: never"),
    "stop-patience": (0, "end when it has not become better for so many evaluations; 0: never"),
    "test": ("", "a file on the server to test on, where nodes bring data of their own"),
    "pin": (True, "a client's name belongs to the first node that used it"),
}
"""The run config of the app: every key with its default and what it means."""

PACKAGE = "fedstrata_app"


def write_app(folder: Path, experiment: Experiment, config: Mapping[str, Any] | None = None) -> None:
    """Write the app of an experiment; `config` puts other defaults into its run config."""
    said = dict(config or {})
    for key in said:
        check(key in RUN, f"the run config has no key {key!r}; {near(key, RUN)}")
    lines = [f"{k} = {toml.inline(said.get(k, usual))}  # {about}" for k, (usual, about) in RUN.items()]
    inner = folder / PACKAGE
    inner.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(filled("app/pyproject.toml.txt", CONFIG="\n".join(lines)))
    for name in ("__init__.py", "server_app.py", "client_app.py"):
        (inner / name).write_text(filled(f"app/{name}.txt"))
    (inner / "experiment.toml").write_text(toml.dumps(experiment.settings()))


def add_client(folder: Path, name: str) -> bool:
    """Add a client to those whom the app names; whether it names any."""
    path = folder / "pyproject.toml"
    lines = path.read_text().splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if line.startswith('clients = "')), None)
    if at is None or lines[at].startswith('clients = ""'):
        return False
    head, names, rest = lines[at].split('"', 2)
    lines[at] = f'{head}"{names},{name}"{rest}'
    path.write_text("".join(lines))
    return True
