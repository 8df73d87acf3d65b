"""Run contenders: first check that all come to the same parameters, then time them, one after another in turns."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.environments import Environment
from benchmarks.measure import wait_for_quiet, watch
from benchmarks.registry import CONTENDERS, REFERENCE, Check, Contender, Plan
from benchmarks.script import INSIDE, ROOT, environment, line_of
from benchmarks.workloads import WORKLOADS

LIMIT = 1200  # seconds that one run may take
DISTURBED = 0.15  # share of the cores that others may use
LOSS_TOLERANCE = 1e-4  # between mean losses: that the same sets were evaluated

Environments = dict[str, Environment]


def run(contender: Contender, where: Environment, workload: str, *options: str) -> dict:
    """One run of a contender: its line with what it cost, or {"why_not": a sentence}."""
    if where.why_not:
        return {"why_not": where.why_not}
    module = f"benchmarks.contenders.{contender.script}"
    command = [where.python, "-m", module, workload, *contender.options, *options, INSIDE]
    own = [Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    paths = own if where.python == sys.executable else []
    seen = watch(command, environment(*paths), ROOT, LIMIT)
    line = line_of(seen.out)
    if seen.code is None:
        return {"why_not": f"it took longer than {LIMIT} s"}
    if line is None or seen.code:
        said = [x for x in seen.err.splitlines() if x.strip()] or ["it said nothing"]
        return {"why_not": f"it ended with code {seen.code}: {said[-1]}"}
    return line | {"contender": contender.name} | seen.cost


def check(workload: str, how: Check, contenders: list[Contender], where: Environments) -> dict[str, dict]:
    """Of each contender, how far it is from the naive loop after a few rounds, or {"why_not": a sentence}."""
    with TemporaryDirectory() as folder:

        def end(contender: Contender) -> dict:
            path = Path(folder) / f"{contender.name}.npy"
            sizes = "--rounds", str(how.rounds), "--fraction", str(how.fraction), "--dtype", how.dtype
            line = run(contender, where[contender.environment], workload, *sizes, "--parameters", str(path))
            return line if "why_not" in line else line | {"parameters": np.load(path)}

        goal = end(CONTENDERS[REFERENCE])
        if "why_not" in goal:
            raise SystemExit(f"the reference, {REFERENCE}, does not run on {workload}: {goal['why_not']}")
        first = np.concatenate([w.ravel() for w in WORKLOADS[workload].weights()])
        moved = float(np.abs(goal["parameters"] - first).max())
        if moved < 100 * how.tolerance:
            raise SystemExit(f"the check of {workload} says nothing: its parameters moved by {moved:.0e} only")
        found = {}
        for c in contenders:
            tolerance = how.tolerance * (c.looser if how.dtype == "float64" else 1)
            found[c.name] = _compared(goal if c.name == REFERENCE else end(c), goal, tolerance)
            print(f"{workload} {c.name}: {in_words(found[c.name])}", flush=True)
    return found


def in_words(verdict: dict) -> str:
    """What a check found."""
    return verdict.get("why_not") or f"agrees within {verdict['difference']:.1e}"


def _compared(line: dict, goal: dict, tolerance: float) -> dict:
    """What the final parameters and the losses that were measured say against the reference."""
    if "why_not" in line:
        return line
    mine, its = line["parameters"], goal["parameters"]
    if len(mine) != len(its):
        return {"why_not": f"it has {len(mine)} parameters instead of {len(its)}"}
    difference = float(np.abs(mine - its).max())
    if not difference <= tolerance:  # also if it is NaN
        return {
            "difference": difference,
            "why_not": f"its parameters differ by {difference:.1e}, above {tolerance:.0e}",
        }
    for name, (loss, _) in goal["metrics"].items():
        its_loss = line["metrics"].get(name, [np.nan])[0]
        if not abs(its_loss - loss) <= LOSS_TOLERANCE:
            return {"difference": difference, "why_not": f"its loss on the {name} set is {its_loss} instead of {loss}"}
    return {"difference": difference, "tolerance": tolerance}


def times(
    workload: str, plan: Plan, contenders: list[Contender], where: Environments, told: Callable[[dict], None],
    patience: float, retries: int,
) -> None:  # fmt: skip
    """Repeat: every contender once, beginning with another one each time. Tells of each run as it ends.

    A run during which others used much of the machine is told of as disturbed and made again, whatever it showed.
    """
    sizes = "--rounds", str(plan.rounds), "--fraction", str(plan.fraction)
    for repetition in range(plan.repeat):
        first = repetition % max(1, len(contenders))
        for c in contenders[first:] + contenders[:first]:
            for left in reversed(range(retries + 1)):
                wait_for_quiet(patience)
                line = run(c, where[c.environment], workload, *sizes)
                again = left > 0 and line.get("foreign", 0) > DISTURBED
                told(line | {"contender": c.name, "repetition": repetition, "disturbed": again})
                if not again:
                    break
