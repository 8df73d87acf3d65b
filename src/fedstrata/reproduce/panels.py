"""Figures that are no curves of accuracy: what `[[panels]]` of a reproduction.toml ask for, side by side.

kind = "columns"      # a row's numbers from column to column, each with its own axis: rows = ["r", "tau"]
kind = "rounds"       # values over rounds, means of the seeds: lines = { label = [row, name of the value] }
kind = "histogram"    # the same of counts in bins from -within to within
kind = "matrix"       # a value that is a matrix, of the first seed: value = "data"
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from fedstrata.reproduce.plan import Reproduction
from fedstrata.reproduce.results import Result
from fedstrata.reproduce.verdict import numbers

Panel = Mapping[str, Any]

WIDE = 60
"""Letters of a title that a panel has room for in one line."""


def draw_panels(made: Reproduction, results: Sequence[Result], path: Path) -> Path:
    """All panels of a reproduction that has results."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(made.panels), 4.0), layout="constrained")
    axes = figure.subplots(1, len(made.panels), squeeze=False)[0]
    for axis, panel in zip(axes, made.panels, strict=True):
        DRAWN[panel["kind"]](axis, panel, made, results)
        axis.set_title(fill(panel.get("title", made.title), WIDE), fontsize=9)
    figure.savefig(path, dpi=90)
    return path


def _columns(axis: Any, panel: Panel, made: Reproduction, results: Sequence[Result]) -> None:
    found = numbers(made, results)
    for i, row in enumerate(panel["rows"]):
        one = axis if i == 0 else axis.twinx()
        means = [(c, np.mean(list(found[row, c].values()))) for c in made.columns if (row, c) in found]
        one.plot([c for c, _ in means], [m for _, m in means], "o-", color=f"C{i}")
        one.set_ylabel(row, color=f"C{i}")
    axis.tick_params(axis="x", rotation=60)


def _rounds(axis: Any, panel: Panel, made: Reproduction, results: Sequence[Result]) -> None:
    for label, mean in _lines(panel, results):
        axis.plot(np.arange(1, len(mean) + 1), mean, label=label, linewidth=1.2)
    axis.set_xlabel("round")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _histogram(axis: Any, panel: Panel, made: Reproduction, results: Sequence[Result]) -> None:
    for label, mean in _lines(panel, results):
        edges = np.linspace(-panel["within"], panel["within"], len(mean) + 1)
        axis.stairs(mean, edges, label=label)
    axis.set_xlabel("value")
    axis.set_ylabel("weights")
    axis.legend(fontsize=8)


def _matrix(axis: Any, panel: Panel, made: Reproduction, results: Sequence[Result]) -> None:
    shown = np.array(next(r.values[panel["value"]] for r in results if panel["value"] in r.values))
    np.fill_diagonal(shown, np.nan)
    end = len(shown) + 0.5
    axis.figure.colorbar(axis.imshow(shown, cmap="Blues", extent=(0.5, end, end, 0.5)), ax=axis)
    axis.set_xlabel("client")


def _lines(panel: Panel, results: Sequence[Result]) -> list[tuple[str, np.ndarray]]:
    """(label, mean over the seeds) of each line that there are values for."""
    found = {
        label: [np.asarray(r.values[name]) for r in results if r.row == row and name in r.values]
        for label, (row, name) in panel["lines"].items()
    }
    return [(label, np.mean(lines, axis=0)) for label, lines in found.items() if lines]


DRAWN: dict[str, Callable[[Any, Panel, Reproduction, Sequence[Result]], None]] = {
    "columns": _columns,
    "rounds": _rounds,
    "histogram": _histogram,
    "matrix": _matrix,
}
"""What draws a panel, by its kind."""
