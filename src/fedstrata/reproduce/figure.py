"""The curves behind a table: one picture, a panel a column, a line a row with its band over the seeds."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedstrata.lab.stats import interval
from fedstrata.reproduce.panels import draw_panels
from fedstrata.reproduce.plan import Reproduction
from fedstrata.reproduce.results import Result

ACROSS = 3
"""Panels beside each other."""

MOST = 18
"""Panels of a picture: the first columns."""


def draw(made: Reproduction, results: Sequence[Result], path: Path) -> Path | None:
    """Test accuracy over rounds, or the panels that are asked for; nothing where there is nothing to draw."""
    from matplotlib.figure import Figure

    if made.panels and results:
        return draw_panels(made, results, path)
    columns = [c for c in made.columns if any(r.column == c and r.curves.get("test") for r in results)][:MOST]
    if not columns:
        return None
    across = min(ACROSS, len(columns))
    down = -(-len(columns) // across)
    figure = Figure(figsize=(max(7.0, 4.2 * across), 3.1 * down + 0.6), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    for axis in axes.flat[len(columns) :]:
        axis.set_visible(False)
    for axis, column in zip(axes.flat, columns, strict=False):
        for i, row in enumerate(made.rows):
            curves = [r.curves["test"] for r in results if (r.row, r.column) == (row, column)]
            _line(axis, curves, row, f"C{i % 10}", "-" if i < 10 else "--")
        axis.set_title(column or made.title, fontsize=9)
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("test accuracy, %")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(across + 1, len(labels)), fontsize=8)
    figure.savefig(path, dpi=90)
    return path


def _line(axis, curves: Sequence[Sequence[float]], label: str, colour: str, style: str) -> None:
    if not curves:
        return
    length = min(map(len, curves))
    bands = [interval([100 * c[t] for c in curves]) for t in range(length)]
    low, high = (np.clip([getattr(b, end) or 0.0 for b in bands], 0, 100) for end in ("low", "high"))
    rounds = np.arange(1, length + 1)
    axis.plot(rounds, [b.mean for b in bands], style, color=colour, label=label, linewidth=1.2)
    if len(curves) > 1:
        axis.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
