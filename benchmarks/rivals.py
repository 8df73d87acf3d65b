"""fedstrata beside its rivals: make their environments, check that all reach the same model, time them in turns.

python -m benchmarks.rivals                          all of it, about 40 minutes on two cores
python -m benchmarks.rivals --workloads A --only ours,tuned,fedjax
python -m benchmarks.rivals --show FILE --markdown   the tables of an earlier run
"""

import argparse
import json
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.environments import Environment, made
from benchmarks.measure import foreign_load
from benchmarks.race import Environments, check, times
from benchmarks.registry import CHECKS, CORES, PLANS, REFERENCE, Plan, chosen
from benchmarks.script import ROOT
from benchmarks.summary import summary
from benchmarks.tables import number, show
from benchmarks.workloads import WORKLOADS

KEY_PACKAGES = ("torch", "numpy", "flwr", "ray", "pfl", "jax", "jaxlib", "fedjax", "dm-haiku", "optax", "fedstrata")


def main() -> None:
    """The command."""
    given = arguments()
    if given.show:
        show(json.loads(given.show.read_text()), given.markdown)
        return
    names = [n.strip().upper() for n in given.workloads.split(",")]
    for name in names:
        if name not in WORKLOADS:
            raise SystemExit(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}")
    needed = {c.environment for n in names for c in chosen(given.only, n)}
    where = {name: made(name) for name in sorted({"", *needed})}
    result: dict[str, Any] = {"date": str(date.today()), "command": sys.argv[1:]} | machine()
    result |= {"environments": described(where), "workloads": {}}
    path = given.out or ROOT / "benchmarks" / "results" / f"{given.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)

    def save() -> None:
        path.write_text(json.dumps(result, indent=1) + "\n")

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for name in names:
            measure(name, given, where, result, save)
    except KeyboardInterrupt:
        raise SystemExit(f"stopped; what was measured until now is in {path}") from None
    show(result, given.markdown)
    print(f"written to {path}")


def measure(name: str, given: argparse.Namespace, where: Environments, result: dict, save: Callable[[], None]) -> None:
    """Check and time one workload; the result is saved after every run."""
    plan = plan_of(name, given)
    contenders = chosen(given.only, name)
    verdicts = check(name, CHECKS[name], contenders, where)
    timed = [c for c in contenders if "why_not" not in verdicts[c.name]]
    found: dict[str, Any] = {"about": WORKLOADS[name].about} | asdict(plan)
    found["check"] = {"reference": REFERENCE, **asdict(CHECKS[name]), "contenders": verdicts}
    found |= {"runs": [], "summary": {}}
    result["workloads"][name] = found

    def told(line: dict) -> None:
        found["runs"].append(line)
        found["summary"] = summary(found["runs"])
        save()
        middle = sorted(line.get("seconds", [0.0]))[len(line.get("seconds", [0])) // 2]
        says = line.get("why_not") or f"{number(middle)} s a round, others used {line['foreign']:.0%}"
        says += "; once more" if line["disturbed"] else ""
        print(f"{name} {line['repetition'] + 1}/{plan.repeat} {line['contender']}: {says}", flush=True)

    save()
    times(name, plan, timed, where, told, given.patience, given.retries)


def plan_of(name: str, given: argparse.Namespace) -> Plan:
    """The workload's own plan, or what was asked for."""
    asked = {f: getattr(given, f) for f in ("rounds", "repeat", "fraction") if getattr(given, f) is not None}
    return replace(PLANS[name], **asked)


def machine() -> dict[str, Any]:
    """On what it was measured."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return {
        "commit": git.stdout.strip(),
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": models[0] if models else platform.processor(),
        "cores": CORES,
        "foreign_load_before": round(foreign_load(), 3),
    }


def described(where: dict[str, Environment]) -> dict[str, dict]:
    """Each environment's main packages, or why it could not be made."""
    found = {}
    for name, e in where.items():
        known = {p: e.packages[p] for p in KEY_PACKAGES if p in e.packages}
        found[name or "own"] = {"why_not": e.why_not} if e.why_not else known
    return found


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rivals", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="A,B,C")
    parser.add_argument("--only", default="", help="contenders whose names begin so, separated by commas")
    parser.add_argument("--rounds", type=int, help="timed in each repetition, after one that warms up")
    parser.add_argument("--repeat", type=int, help="repetitions, each contender once in each")
    parser.add_argument("--fraction", type=float, help="of every client's examples and every held-out set")
    parser.add_argument("--patience", type=float, default=5, help="seconds to wait for a quiet machine before a run")
    parser.add_argument("--retries", type=int, default=1, help="of a run during which others used the machine")
    parser.add_argument("--name", default="rivals", help="of the file in benchmarks/results")
    parser.add_argument("--out", type=Path, help="the file itself")
    parser.add_argument("--show", type=Path, help="print the tables of this file and measure nothing")
    parser.add_argument("--markdown", action="store_true", help="tables for the documentation")
    return parser.parse_args()


if __name__ == "__main__":
    main()
