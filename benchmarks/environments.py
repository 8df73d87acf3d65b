"""The virtual environments of the rivals: made once under .bench/, made again when what they hold changes."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.registry import ENVIRONMENTS
from benchmarks.script import ROOT

PLACE = ROOT / ".bench"


@dataclass(frozen=True)
class Environment:
    """A Python that a contender runs with, or the reason why there is none."""

    python: str = sys.executable
    packages: dict[str, str] = field(default_factory=dict)
    why_not: str = ""


def made(name: str) -> Environment:
    """The environment of this name, made if it is not there yet; "" is the one that we run in."""
    if not name:
        return Environment(sys.executable, _packages(sys.executable))
    folder, wanted = PLACE / name, "\n".join(ENVIRONMENTS[name])
    python, ready = folder / "bin" / "python", folder / "ready.txt"
    if not (ready.exists() and ready.read_text() == wanted):
        print(f"making the environment {name}: {', '.join(ENVIRONMENTS[name])}", flush=True)
        if why_not := _make(folder, ENVIRONMENTS[name]):
            return Environment(str(python), {}, why_not)
        ready.write_text(wanted)
    return Environment(str(python), _packages(str(python)))


def _make(folder: Path, packages: tuple[str, ...]) -> str:
    """Make an environment; "" or why it could not be made."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for command in ([sys.executable, "-m", "venv", str(folder)], [*install, *packages]):
        done = subprocess.run(command, capture_output=True, text=True, env=alone)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
            return f"the environment could not be made: {(errors or ['no message'])[-1]}"
    return ""


def _packages(python: str) -> dict[str, str]:
    """What is installed, by name."""
    code = (
        "import json; from importlib.metadata import distributions as d; "
        "print(json.dumps({x.metadata['Name']: x.version for x in d()}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(sorted(json.loads(done.stdout).items()))
