"""Install the built wheel into clean environments and use it from outside the checkout, with no data and no network.

    python release/smoke.py dist [--extras "" flower ray ...] [--pythons python3.11 python3.12]

Standard library only. Each environment is new; the commands run in an empty folder, in a network namespace of their own
where that can be had, with HOME and FEDSTRATA_DATA pointing nowhere.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from time import perf_counter

ROOT = Path(__file__).parent.parent
METHODS = ["fedavg", "fedavg + lws(beta=0.1)"]

COMMANDS = [
    ["fedstrata", "--help"],
    ["fedstrata", "methods"],
    ["fedstrata", "explain", "scaffold"],
    ["fedstrata", "cite", "fedprox + lws"],
    ["fedstrata", "reproduce", "list"],
    ["fedstrata", "run", "--method", "fedlws", "--clients", "5", "--rounds", "3", "--out", "one"],
    ["fedstrata", "compare", *METHODS, "--clients", "5", "--rounds", "3", "--seeds", "2", "--out", "both"],
    ["fedstrata", "report", "both", "-o", "report.html"],
    ["fedstrata", "partition", "--clients", "5", "--alpha", "0.1"],
]
"""What must work with the core alone."""

OF_EXTRAS = {
    "flower": [["fedstrata", "deploy", "init", "there", "--nodes", "a,b", "--host", "localhost", "--port", "8443"]],
    "ray": [["fedstrata", "run", "--engine", "ray", "--set", "workers=1", "--clients", "5", "--rounds", "1"]],
    "fast": [["python", "-c", "import fedstrata.kernels, numba"]],
    "track": [["fedstrata", "run", "--track", "tensorboard", "--clients", "5", "--rounds", "1"]],
    "parquet": [["python", "-c", "import pyarrow"]],
    "huggingface": [["python", "-c", "import datasets"]],
}
"""What each extra adds to that."""


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("dist", type=Path, help="the folder of the wheel")
    asked.add_argument("--extras", nargs="*", default=["", *OF_EXTRAS], help='"" is the core alone')
    asked.add_argument("--pythons", nargs="*", default=["python3.11", "python3.12"])
    given = asked.parse_args()
    (wheel,) = given.dist.resolve().glob("*.whl")
    failed = []
    for python in given.pythons:
        if not usable(python):
            print(f"{python}: not here, so not tried")
            continue
        for extra in given.extras:
            began = perf_counter()
            why = smoke(python, wheel, extra)
            print(f"{python} {wheel.name}[{extra}]: {why or 'works'} ({perf_counter() - began:.0f} s)", flush=True)
            failed += [why] if why else []
    return 1 if failed else 0


def usable(python: str) -> bool:
    """Whether there is such a Python."""
    try:
        return subprocess.run([python, "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


def smoke(python: str, wheel: Path, extra: str) -> str | None:
    """What went wrong in a new environment, if something did."""
    with TemporaryDirectory(prefix="fedstrata-smoke-") as folder:
        venv, place = Path(folder) / "venv", Path(folder) / "place"
        place.mkdir()
        subprocess.run([python, "-m", "venv", venv], check=True)
        what = f"{wheel}[{extra}]" if extra else str(wheel)
        install = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", what]
        if (why := failure(install, place, dict(os.environ))) is not None:
            return why
        clean = {"PATH": f"{venv / 'bin'}:/usr/bin:/bin", "HOME": str(place), "FEDSTRATA_DATA": str(place / "none")}
        for command in [*COMMANDS, *OF_EXTRAS.get(extra, [])]:
            alone = ["unshare", "--net", "--map-root-user"] if extra != "ray" and namespaces() else []
            if (why := failure([*alone, *command], place, clean)) is not None:
                return why
    return None


def namespaces() -> bool:
    """Whether a process can be given a network of its own, which reaches nothing."""
    able = which("unshare") is not None
    return able and subprocess.run(["unshare", "--net", "--map-root-user", "true"], capture_output=True).returncode == 0


def failure(command: Sequence[str | Path], place: Path, env: dict[str, str]) -> str | None:
    """Why a command failed, if it did."""
    done = subprocess.run([str(c) for c in command], cwd=place, env=env, capture_output=True, text=True, timeout=600)
    said = (done.stderr or done.stdout)[-1500:]
    return None if done.returncode == 0 else f"{' '.join(map(str, command))} failed with {done.returncode}:\n{said}"


if __name__ == "__main__":
    sys.exit(main())
