"""Advice: look at how clients differ, race the methods that suit, and say which to take, and how sure that is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

from fedstrata.errors import SettingError, check
from fedstrata.experiment import Experiment
from fedstrata.files import make_folder
from fedstrata.lab.command import run_command
from fedstrata.lab.compare import Comparison, Given, contest, entries_of, given, kept_or_not
from fedstrata.lab.jobs import Told, loaded
from fedstrata.lab.shortlist import FIRST, Candidate, shortlist
from fedstrata.lab.skew import Skew, skew
from fedstrata.threads import cores

FINALISTS = 2
"""Challengers that meet FedAvg in the end."""

FRESH, MOST_FRESH = 5, 10
"""Seeds of the end, more where there is time; none of them had a part in choosing who is there."""

WORTH = 0.005
"""Half a point of accuracy: what is less is not worth another method, were it ever so certain."""

LEAST = 3
"""Rounds of a run that tells anything."""

STARTING = 5.0
"""Seconds until a process is ready to work."""


@dataclass(frozen=True)
class Rung:
    """One step of the race: who ran, for how long, and what they reached (mean over the seeds)."""

    rounds: int
    seeds: list[int]
    reached: dict[str, float]


@dataclass(frozen=True, eq=False)
class Advice:
    """A method to take, and everything that speaks for it."""

    method: str
    skew: Skew
    candidates: list[Candidate]
    rungs: list[Rung]
    final: Comparison  # of the last ones with FedAvg, on fresh seeds
    words: list[str]
    command: str  # that runs it for real

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        seen = {"labels": self.skew.labels, "sizes": self.skew.sizes, "features": self.skew.features}
        tried = [{"method": c.method, "reason": c.reason} for c in self.candidates]
        rungs = [{"rounds": r.rounds, "seeds": r.seeds, "reached": r.reached} for r in self.rungs]
        told = {
            "method": self.method,
            "kinds": list(self.skew.kinds),
            "skew": seen,
            "candidates": tried,
            "rungs": rungs,
        }
        return told | {"final": self.final.to_dict(), "words": self.words, "command": self.command}

    def __str__(self) -> str:
        return "\n".join([*self.words, self.command])


def advise(
    experiment: Given = None,
    *,
    budget: float = 5.0,
    out: str | Path | None = None,
    jobs: int | None = None,
    told: Told | None = None,
    say: Callable[[str], None] | None = None,
) -> Advice:
    """Recommend a method for an experiment's data, split and model, after about so many minutes of racing.

    Methods that suit the split run for a few rounds; the better half goes on, for longer and with more seeds; the last
    two meet FedAvg on fresh seeds. One is recommended that is really better there, by half a point at least, and else
    FedAvg. `say` gets each sentence before the last as soon as it is known.
    """
    check(budget > 0, f"budget must be above 0 minutes; got {budget}")
    end = perf_counter() + 60 * budget
    speak = say or (lambda sentence: None)
    base = given(experiment)
    data = loaded(base)
    base = base.settled(data)
    base.rehearse(data)
    seen = skew(base.clients(data), data.vocabulary is None, base.seed)
    candidates = shortlist(seen)
    words = [*seen.in_words(), *(f"{c.method} is tried: {c.reason}." for c in candidates)]
    for sentence in words:
        speak(sentence)
    with kept_or_not(out) as folder:
        make_folder(folder, empty=True)
        processes = jobs or (cores() if base.device == "cpu" else 1)
        rungs, final = Race(base, folder, end, processes, told, speak).run([c.method for c in candidates])
    final = final if out is not None else replace(final, folder=None)
    method, verdict = recommended(final, rungs[-1].rounds, base.rounds)
    return Advice(method, seen, candidates, rungs, final, [*words, verdict], run_command(base, method))


@dataclass(frozen=True)
class Race:
    """Successive halving: everybody a little, the better half more, until few enough are left for the end."""

    base: Experiment
    folder: Path
    end: float  # by perf_counter
    processes: int
    told: Told | None
    speak: Callable[[str], None]

    def run(self, methods: Sequence[str]) -> tuple[list[Rung], Comparison]:
        """All rungs; the first method is in each of them, to compare with."""
        first, *others = methods
        setup, seconds = self._trial()
        pace = dict.fromkeys(methods, seconds)
        stages = halvings(len(others))
        least = sum(self._time(LEAST, n + 1, s, setup, seconds) for n, s, _ in stages)
        if self.end - perf_counter() < least:
            need = f"the shortest race takes {least / 60:.1f} minutes here"
            raise SettingError(f"the budget is too short: {need}, or less with fewer clients or a smaller model")
        rungs, found = [], None
        for step, (count, seeds, share) in enumerate(stages):
            here = [first, *others[:count]]
            last = step == len(stages) - 1
            seeds, rounds = self._affordable(share, None if last else seeds, setup, [pace[m] for m in here])
            numbers = self._seeds(step, seeds, len(stages))
            found = self._rung(step, here, numbers, rounds)
            reached = {row["method"]: row[row["by"]]["mean"] for row in found.rows}
            rungs.append(Rung(rounds, numbers, reached))
            pace = {row["method"]: row["seconds"]["mean"] / rounds for row in found.rows}
            others = sorted(here[1:], key=lambda m: -reached[m])
        assert found is not None
        return rungs, found

    def _affordable(self, share: float, seeds: int | None, setup: float, pace: Sequence[float]) -> tuple[int, int]:
        """(seeds, rounds) that this share of the time left is enough for; as many seeds as can be unless given.

        `setup` is the seconds that a run takes to begin, `pace` those that a round of each method takes.
        """
        wanted = max(LEAST, ceil(self.base.rounds * share))
        left = (self.end - perf_counter()) * share - self._starting
        if seeds is None:
            one_seed = sum(setup + wanted * p for p in pace) / self.processes
            seeds = max(FRESH, min(MOST_FRESH, int(left / one_seed)))
        afford = (left * self.processes / seeds - setup * len(pace)) / sum(pace)
        return seeds, max(LEAST, min(wanted, int(afford)))

    def _rung(self, step: int, methods: Sequence[str], seeds: list[int], rounds: int) -> Comparison:
        who = ", ".join(methods)
        self.speak(f"Race {step + 1}, {rounds} rounds with {len(seeds)} seeds: {who}.")
        plan = replace(self.base, rounds=rounds)
        entries = entries_of({m: m for m in methods}, plan, seeds)
        folder = self.folder / f"race-{step + 1}"
        folder.mkdir()
        return contest(entries, seeds, plan.settings(), folder, None, self.processes, self.told)

    def _seeds(self, step: int, count: int, stages: int) -> list[int]:
        """The same ones and more in later rungs; in the end others."""
        start = self.base.seed + (0 if step < stages - 1 else FRESH + stages)
        return list(range(start, start + count))

    def _time(self, rounds: int, methods: int, seeds: int, setup: float, seconds: float) -> float:
        """How long a rung takes, in seconds."""
        return self._starting + methods * seeds * (setup + rounds * seconds) / self.processes

    @property
    def _starting(self) -> float:
        """Seconds until other processes are there."""
        return STARTING if self.processes > 1 else 0.0

    def _trial(self) -> tuple[float, float]:
        """(seconds to set up a run, seconds a round), of two rounds of FedAvg."""
        began = perf_counter()
        entry, *_ = entries_of({FIRST: FIRST}, replace(self.base, rounds=2), [self.base.seed])
        run = entry.runs[0].run(data=loaded(self.base))
        seconds = run.rounds[-1]["seconds"]
        return max(0.0, perf_counter() - began - 2 * seconds), seconds


def halvings(challengers: int) -> list[tuple[int, int, float]]:
    """(challengers, seeds, share of the rounds) of each rung: 6, 3, then the finalists."""
    stages = []
    count, seeds, share = challengers, 2, 0.25
    while count > FINALISTS:
        stages.append((count, seeds, share))
        count, seeds, share = max(FINALISTS, ceil(count / 2)), seeds + 1, min(0.5, 2 * share)
    return [*stages, (count, FRESH, 1.0)]


def recommended(final: Comparison, rounds: int, wanted: int) -> tuple[str, str]:
    """(the method, the sentence that says why)."""
    first, *others = final.rows
    real = [r for r in others if r["against_first"]["verdict"] == "real"]
    better = [r for r in real if r["against_first"]["difference"] >= WORTH]
    after = f"after {rounds} rounds" + (f" (of {wanted}, for want of time)" if rounds < wanted else "")
    after += f" with {len(final.seeds)} seeds"
    if not better:
        met = " and ".join(f"{r['method']} is {_difference(r)}" for r in others)
        small = any(r["against_first"]["difference"] > 0 for r in real)
        none = "No real difference that is worth another method" if small else "No real difference"
        said = f"{none}: {after}, nothing beats {FIRST} by half a point beyond noise ({met})"
        return FIRST, f"{said}; {FIRST} is recommended, as the simplest."
    best = max(better, key=lambda r: r[r["by"]]["mean"])
    reached = f"{FIRST} reaches {100 * first[first['by']]['mean']:.1f} %, and it is {_difference(best)}"
    why = f"{reached}, p = {best['against_first']['p']:.2g}: a real difference"
    return best["method"], f"{best['method']} is recommended: {after}, {why}."


def _difference(row: Mapping[str, Any]) -> str:
    found = row["against_first"]
    points, low, high = (100 * found[k] for k in ("difference", "low", "high"))
    return f"{abs(points):.1f} points {'above' if points > 0 else 'below'}, 95 % interval {low:+.1f} to {high:+.1f}"
