"""Compare methods over paired seeds: the same split, first model and batches for all, and a test of what differs."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedstrata.cost import CostCard
from fedstrata.data import Dataset
from fedstrata.errors import SettingError, check
from fedstrata.experiment import Experiment, read_toml
from fedstrata.files import make_folder
from fedstrata.lab.jobs import Job, Told, loaded
from fedstrata.lab.many import run_all
from fedstrata.lab.measure import card_of, columns, curve, judged_by, measured, rounds_to, tail_length
from fedstrata.lab.stats import holm, interval, paired
from fedstrata.lab.words import verdict, words
from fedstrata.parse import parse_recipe
from fedstrata.record import json_text, read_rounds
from fedstrata.version import __version__

Given = Experiment | Mapping[str, Any] | str | Path | None
"""An experiment, its settings, its TOML file, or none: the defaults."""


@dataclass(frozen=True)
class Entry:
    """One of those that are compared: its name, its folder's, and an experiment for each seed."""

    name: str
    slug: str
    runs: tuple[Experiment, ...]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What came out: what compare.json says."""

    settings: dict[str, Any]  # the experiment that all have in common
    seeds: list[int]
    target: float | None  # the accuracy that rounds are counted to
    methods: list[dict[str, Any]]  # name, slug and run folders
    columns: list[dict[str, Any]]
    rows: list[dict[str, Any]]  # for each method a mean with its interval in every column, and the test by one
    words: list[str]  # a sentence for each method
    folder: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """As compare.json has it."""
        names = "settings", "seeds", "target", "methods", "columns", "rows", "words"
        return {"fedstrata": __version__} | {n: getattr(self, n) for n in names}

    def __str__(self) -> str:
        return "\n".join(self.words)


def compare(
    methods: Sequence[str],
    experiment: Given = None,
    *,
    seeds: int | Sequence[int] = 3,
    target: float | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    told: Told | None = None,
) -> Comparison:
    """Run some methods, as texts, on one experiment with several seeds each, and test each against the first.

    `seeds` are so many from the experiment's own on, or the seeds themselves. `target` is the accuracy that rounds are
    counted to: what the first method reaches in its last rounds unless given. `jobs` runs go on at a time, one a core
    unless given. With `out`, run folders and compare.json stay there, and runs that are there already are not repeated.
    """
    check(len(methods) >= 1, "give at least one method to compare, e.g. fedavg fedprox")
    base = given(experiment)
    numbers = list(range(base.seed, base.seed + seeds)) if isinstance(seeds, int) else list(seeds)
    check(len(numbers) >= 1, f"seeds must be at least 1; got {seeds!r}")
    check(len(set(numbers)) == len(numbers), f"every seed must be another one; got {numbers}")
    entries = entries_of(dict(zip(_names(methods), methods, strict=True)), base, numbers)
    with kept_or_not(out) as folder:
        found = contest(entries, numbers, base.settings(), folder, target, jobs, told)
    return found if out is not None else replace(found, folder=None)


def given(experiment: Given) -> Experiment:
    """The experiment that was meant."""
    if isinstance(experiment, Experiment):
        return experiment
    settings = read_toml(experiment) if isinstance(experiment, (str, Path)) else experiment
    return Experiment.of(settings or {})


def entries_of(methods: Mapping[str, str], base: Experiment, seeds: Sequence[int]) -> list[Entry]:
    """Each method on the experiment with each seed; if one needs data on the server, all do without it in the test."""
    plans = {name: replace(base, recipe=parse_recipe(text)) for name, text in methods.items()}
    proxy = next((p.with_proxy().proxy for p in plans.values() if p.with_proxy() != p), base.proxy)
    slugs = unlike([slug(text) for text in methods.values()])
    return [
        Entry(name, folder, tuple(replace(plan, proxy=proxy, seed=seed) for seed in seeds))
        for (name, plan), folder in zip(plans.items(), slugs, strict=True)
    ]


def contest(
    entries: Sequence[Entry],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    folder: Path,
    target: float | None = None,
    jobs: int | None = None,
    told: Told | None = None,
) -> Comparison:
    """Run all entries with all seeds below a folder, and write there how they compare."""
    check(target is None or 0 < target <= 1, f"target must be an accuracy in (0, 1]; got {target}")
    entries, data = prepared(entries)
    every = {entry.name: jobs_of(entry, seeds, folder) for entry in entries}
    run_all([job for mine in every.values() for job in mine], jobs, told)
    cards = {e.name: card_of(e.runs[0], d) for e, d in zip(entries, data, strict=True)}
    rounds = {name: [read_rounds(job.folder) for job in mine] for name, mine in every.items()}
    runs = [lines for mine in rounds.values() for lines in mine]
    numbers, goal = _numbers(rounds, cards, target)
    watched = all(one["worst10"] is not None for mine in numbers.values() for one in mine)
    tails = {tail_length(len(curve(lines))) for lines in runs}
    shown = [c for c in columns(goal, tails) if c.key != "worst10" or watched]
    rows = _rows(numbers, [c.key for c in shown], judged_by(runs))
    named = {e.name: [job.folder.relative_to(folder).as_posix() for job in every[e.name]] for e in entries}
    methods = [{"name": e.name, "slug": e.slug, "runs": named[e.name]} for e in entries]
    made = [asdict(c) for c in shown], rows, words(rows)
    found = Comparison(dict(settings), list(seeds), goal, methods, *made, folder)
    (folder / "compare.json").write_text(json.dumps(json.loads(json_text(found.to_dict())), indent=2) + "\n")
    return found


def _numbers(
    rounds: Mapping[str, Sequence[list[dict[str, Any]]]], cards: Mapping[str, CostCard], target: float | None
) -> tuple[dict[str, list[dict[str, Any]]], float]:
    """(what was measured of every run, by name; the accuracy that rounds are counted to: the first one's, or given)."""
    numbers = {name: [measured(r, cards[name]) for r in mine] for name, mine in rounds.items()}
    goal = _mean(next(iter(numbers.values())), "tail") if target is None else target
    for name, mine in numbers.items():
        for one, lines in zip(mine, rounds[name], strict=True):
            one["rounds"] = rounds_to(lines, goal)
    return numbers, goal


def prepared(entries: Sequence[Entry]) -> tuple[list[Entry], list[Dataset]]:
    """The entries with their partitions said, and the data of each; what is wrong with one is said before any runs."""
    ready: list[Entry] = []
    data: list[Dataset] = []
    for entry in entries:
        data.append(loaded(entry.runs[0]))
        try:
            entry.runs[0].rehearse(data[-1])
        except SettingError as e:
            raise SettingError(f"{entry.name}: {e}") from None
        ready.append(replace(entry, runs=tuple(run.settled(data[-1]) for run in entry.runs)))
    return ready, data


def jobs_of(entry: Entry, seeds: Sequence[int], folder: Path) -> list[Job]:
    """The runs of an entry, each with its folder."""
    pairs = zip(seeds, entry.runs, strict=True)
    return [Job(f"{entry.name}, seed {s}", exp, folder / entry.slug / f"seed-{s}") for s, exp in pairs]


def slug(text: str) -> str:
    """A text as a folder's name: "fedavg + lws(beta=0.1)" is fedavg-lws-beta-0.1."""
    return re.sub(r"[^\w.]+", "-", text).strip("-.")[:80] or "run"


def unlike(names: Sequence[str]) -> list[str]:
    """The names, numbered where they are alike but for upper and lower case."""
    found: list[str] = []
    for name in names:
        number, new = 2, name
        while new.lower() in {f.lower() for f in found}:
            new, number = f"{name}-{number}", number + 1
        found.append(new)
    return found


def _names(methods: Sequence[str]) -> list[str]:
    """The texts; one that is given again is numbered."""
    return [f"{m} ({methods[:i].count(m) + 1})" if m in methods[:i] else m for i, m in enumerate(methods)]


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return sum(one[key] for one in runs) / len(runs)


def _rows(numbers: Mapping[str, list[dict[str, Any]]], keys: Sequence[str], by: str) -> list[dict[str, Any]]:
    """What compare.json says of each method, tested by one of the columns."""
    first, *others = numbers
    judged = {name: [one[by] for one in mine] for name, mine in numbers.items()}
    tests = {name: paired(judged[name], judged[first]) for name in others}
    p = [t.p for t in tests.values() if t.p is not None]
    adjusted = dict(zip(tests, holm(p) if len(p) == len(tests) else [None] * len(tests), strict=True))
    rows = []
    for name, mine in numbers.items():
        row: dict[str, Any] = {"method": name} | {key: _cell([one[key] for one in mine]) for key in keys}
        against = None
        if name != first:
            against = asdict(tests[name]) | {"p": adjusted[name], "p_alone": tests[name].p}
            against["verdict"] = verdict(adjusted[name])
        rows.append(row | {"by": by, "against_first": against})
    return rows


def _cell(values: list[float | None]) -> dict[str, Any]:
    """The mean with its interval, and each seed's value; no mean where some seed has none."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return {"mean": None, "low": None, "high": None, "values": values}
    return asdict(interval(known)) | {"values": values}


@contextmanager
def kept_or_not(out: str | Path | None) -> Iterator[Path]:
    """The folder that was given, or one for the time being."""
    if out is None:
        with TemporaryDirectory(prefix="fedstrata-") as folder:
            yield Path(folder)
        return
    yield make_folder(out)
