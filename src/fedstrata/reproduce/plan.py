"""What a published table asks for: rows and columns of experiments, the numbers printed there, and its claims.

A folder of `experiments/` has a reproduction.toml:

    title = "..."
    place = "FedLWS, Table 11"
    metric = "best"             # what the printed numbers are: see `metrics`
    seeds = 3

    [experiment]                # what all runs share, as in any experiment file
    [quick]                     # what is different in the quick scale; `rows`, `columns`, `seeds` and `target` among it
    [axes.alpha."0.1"]          # a column for every combination of the axes' labels: what is different there, and
                                # `plus`, a part for all methods
    [rows.FedAvg]               # a row: what is different there, `published` by column, and its own `metric`, if any

    [[claims]]                  # what is said in the paper: see `verdict`
    [[panels]]                  # of the figure, where it is another one than the curves: see `panels`
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from fedstrata.errors import SettingError, check, near
from fedstrata.experiment import Experiment, merged, read_toml

Scale = Literal["full", "quick"]

FILE = "reproduction.toml"

MEANS = ("device", "engine", "chunk", "workers", "precision", "compile", "memory", "checkpoint")
"""Settings that say by what means a run is made, and not what comes out."""


@dataclass(frozen=True)
class Claim:
    """Something the paper says of its numbers."""

    says: str
    row: str
    over: str | None = None  # this row is better than that one
    like: str | None = None  # this row is as good as that one
    within: float | None = None  # points by which it may be off; for `like`, and for the row's own printed number
    columns: tuple[str, ...] = ()  # labels; everywhere unless given
    metric: str | None = None  # another one than the table's
    published: float | None = None  # another number than the table's
    above: float | None = None  # the row's number is above this one
    follows: str | None = None  # from column to column, this row rises and falls with that one


@dataclass(frozen=True)
class Cell:
    """One number of the table: the experiment behind it, of which each seed is a run."""

    row: str
    labels: tuple[str, ...]
    settings: Mapping[str, Any]
    published: float | None
    metric: str | None = None  # another one than the table's

    @property
    def column(self) -> str:
        """What its column is called."""
        return ", ".join(self.labels)

    def experiment(self, seed: int) -> Experiment:
        """The run of a seed."""
        return Experiment.of({**self.settings, "seed": seed}).with_proxy()

    @cached_property
    def fingerprint(self) -> str:
        """The same for cells whose runs come out the same but for the seed, by whatever means they are made."""
        plain = {k: v for k, v in self.experiment(0).settings().items() if k not in MEANS}
        return Experiment.of(plain).fingerprint


@dataclass(frozen=True)
class Reproduction:
    """A published table or figure."""

    name: str
    folder: Path
    title: str
    place: str
    metric: str
    seeds: int
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...] = ()
    scale: Scale = "full"
    target: float | None = None  # the accuracy that rounds are counted to
    hardware: Literal["cpu", "gpu"] = "cpu"  # what the full scale is made for
    missing: str | None = None  # why it was not run: the data, which not everybody has
    kind: str = "runs"  # or what else is measured: see `kinds`
    extract: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # see `extract`
    panels: Sequence[Mapping[str, Any]] = ()
    also: Sequence[str] = ()  # other metrics that the page has tables of

    @property
    def rows(self) -> list[str]:
        """The names of its rows."""
        return list(dict.fromkeys(c.row for c in self.cells))

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return list(dict.fromkeys(c.column for c in self.cells))

    def metric_of(self, row: str) -> str:
        """What the numbers of a row are."""
        return next((c.metric for c in self.cells if c.row == row and c.metric is not None), self.metric)


def root() -> Path:
    """The folder of the reproductions: of the checkout, or what came with the package."""
    here = Path(__file__).resolve()
    checkout, packaged = here.parents[3] / "experiments", here.parents[1] / "_experiments"
    return checkout if checkout.is_dir() else packaged


def find(where: Path | None = None) -> list[str]:
    """The names of all reproductions."""
    return sorted(p.parent.name for p in (where or root()).glob(f"*/{FILE}"))


def read(name: str, scale: Scale = "full", where: Path | None = None) -> Reproduction:
    """The reproduction of this name."""
    folder = (where or root()) / name
    if not (folder / FILE).exists():
        raise SettingError(f"there is no reproduction {name!r}; {near(name, find(where))}")
    check(scale in get_args(Scale), f"the scale must be one of {', '.join(get_args(Scale))}; got {scale!r}")
    said = read_toml(folder / FILE)
    try:
        return _made(name, folder, scale, said)
    except SettingError as e:
        raise SettingError(f"{folder / FILE}: {e}") from None


def _made(name: str, folder: Path, scale: Scale, said: dict[str, Any]) -> Reproduction:
    base, quick = said.pop("experiment", {}), said.pop("quick", {})
    quick = quick if scale == "quick" else {}
    axes, rows = said.pop("axes", {}), said.pop("rows", {})
    wanted = {k: quick.pop(k) for k in ("rows", "columns", "seeds") if k in quick}
    said |= {k: quick.pop(k) for k in ("target",) if k in quick}
    base = merged(base, quick)
    cells = [c for c in _cells(base, axes, rows) if _is_wanted(c, wanted)]
    claims = tuple(_claim(c, rows) for c in said.pop("claims", []))
    seeds = int(wanted.get("seeds", said.pop("seeds", 3)))
    said.pop("seeds", None)
    known = {"title", "place", "metric", "target", "hardware", "missing", "kind", "extract", "panels", "also"}
    if unknown := said.keys() - known:
        raise SettingError(f"there is no setting {min(unknown)!r} of a reproduction; {near(min(unknown), known)}")
    return Reproduction(name=name, folder=folder, seeds=seeds, cells=tuple(cells), claims=claims, scale=scale, **said)


def _cells(base: Mapping[str, Any], axes: Mapping[str, Any], rows: Mapping[str, Any]) -> list[Cell]:
    """Columns in the order of the axes, the last one fastest; each row in every column unless it says in which."""
    labelled = [list(axis.items()) for axis in axes.values()]
    cells = []
    for i, column in enumerate(product(*labelled)):
        labels, settings = tuple(name for name, _ in column), dict(base)
        for _, change in column:
            settings = merged(settings, change)
        for row, change in rows.items():
            own = {k: v for k, v in change.items() if k not in ("published", "columns", "metric")}
            if _matches(labels, change.get("columns", ())):
                number = _published(change.get("published"), labels, i)
                cells.append(Cell(row, labels, _with_plus(merged(settings, own)), number, change.get("metric")))
    return cells


def _with_plus(settings: dict[str, Any]) -> dict[str, Any]:
    """`plus` is one more part of whatever method a row has."""
    more = settings.pop("plus", None)
    return settings if more is None else settings | {"method": f"{settings['method']} + {more}"}


def _published(given: Any, labels: Sequence[str], i: int) -> float | None:
    """The number printed for a column: by its place in a list, or by the labels that name it; NaN is none."""
    if isinstance(given, Mapping):
        found = [v for k, v in given.items() if all(part.strip() in labels for part in k.split(","))]
    else:
        found = [] if given is None else given[i : i + 1]
    return None if not found or found[0] != found[0] else float(found[0])


def _matches(labels: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a column has all labels of any of those wanted; all have where nothing is."""
    return not wanted or any(all(part.strip() in labels for part in w.split(",")) for w in wanted)


def _is_wanted(cell: Cell, wanted: Mapping[str, Any]) -> bool:
    return _matches(cell.labels, wanted.get("columns", ())) and ("rows" not in wanted or cell.row in wanted["rows"])


def _claim(said: Mapping[str, Any], rows: Mapping[str, Any]) -> Claim:
    given = {**said, "columns": tuple(said.get("columns", ()))}
    if unknown := given.keys() - Claim.__dataclass_fields__.keys():
        raise SettingError(f"a claim has no {min(unknown)!r}; {near(min(unknown), Claim.__dataclass_fields__)}")
    claim = Claim(**given)
    for row in (claim.row, claim.over, claim.like, claim.follows):
        check(row is None or row in rows, f"the claim {claim.says!r} speaks of a row {row!r}; {near(str(row), rows)}")
    return claim


def wanted_columns(claim: Claim, made: Reproduction) -> list[str]:
    """The columns that a claim speaks of, among those there are."""
    labels = {c.column: c.labels for c in made.cells if c.row == claim.row}
    return [column for column, mine in labels.items() if _matches(mine, claim.columns)]


def picked(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """The names that a word is, or else those that have it in them; all where no word is given."""
    if not words:
        return list(names)
    wanted = {n for w in words for n in ([w] if w in names else [n for n in names if w in n])}
    return [n for n in names if n in wanted]
