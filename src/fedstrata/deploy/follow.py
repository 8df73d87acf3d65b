"""A run on a federation of this machine, followed by what its run folder says, round after round."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedstrata.deploy.app import write_app
from fedstrata.deploy.local import LINK, Federation
from fedstrata.errors import FedstrataError
from fedstrata.experiment import Experiment
from fedstrata.record import finished

LOOK, ASK = 0.2, 5.0
"""Seconds between looks into the run folder, and between questions about the run, which take a second of a core."""

FAILED = "ServerApp failed with exception: "
"""What Flower puts before the sentence of a server that has failed."""

Told = Callable[[dict[str, Any]], None]


def play(fed: Federation, experiment: Experiment, folder: Path, told: Told) -> list[dict[str, Any]]:
    """Run an experiment on a federation whose nodes are its clients; its rounds."""
    names = list(fed.nodes)
    config = {"out": str(folder.resolve()), "clients": ",".join(names), "min-online": len(names), "deadline": 0.0}
    write_app(fed.folder / "app", experiment)
    return follow(fed, fed.submit(fed.folder / "app", config), folder, told)


def follow(fed: Federation, run: str, folder: Path, told: Told) -> list[dict[str, Any]]:
    """Tell every round of a run as it ends; a sentence where the run fails."""
    lines: list[dict[str, Any]] = []
    path, asked = folder / "rounds.jsonl", time.monotonic()
    while True:
        over = finished(folder)
        text = path.read_text() if path.exists() else ""
        for line in text.splitlines(keepends=True)[len(lines) :]:
            if line.endswith("\n"):  # else it is being written
                lines.append(json.loads(line))
                told(lines[-1])
                asked = time.monotonic()  # a run that has just ended a round is going
        if over:
            return lines
        if time.monotonic() > asked + ASK:
            _still_going(fed, run, folder)
            asked = time.monotonic()
        time.sleep(LOOK)


def _still_going(fed: Federation, run: str, folder: Path) -> None:
    """Raise a sentence where the run has ended without a model."""
    if (code := fed.processes[LINK].poll()) is not None:
        raise FedstrataError(f"the SuperLink ended with exit code {code}; {fed.tail(LINK)}")
    status = fed.status(run)
    if status["status"].startswith("finished") and not finished(folder):
        raise FedstrataError(f"the run ended without a model: {status['status-details'].removeprefix(FAILED)}")
