"""Accuracy and loss over the rounds, one line a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstrata.errors import DataError
from fedstrata.report.style import line_style, printed, tidy


def draw_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path) -> Path:
    """Draw the metrics of some runs on a set that all have, test, train or val, into a picture file."""
    from matplotlib.figure import Figure

    where = next((s for s in ("test", "train", "val") if all(any(s in r for r in rs) for rs in runs.values())), None)
    if where is None:
        raise DataError("the runs have no set in common that they were evaluated on; give all of them a test set")
    scored = {name: [r for r in rounds if where in r] for name, rounds in runs.items()}
    measures = sorted(next(iter(scored.values()))[0][where], key=lambda m: m == "loss")  # the loss last
    with printed():
        figure = Figure(figsize=(5.2 * len(measures), 3.6), layout="constrained")
        for axis, measure in zip(figure.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
            for i, (name, rounds) in enumerate(scored.items()):
                line = [r["round"] + 1 for r in rounds], [r[where][measure] for r in rounds]
                axis.plot(*line, label=name, **line_style(i))
            axis.set(xlabel="round", ylabel=f"{where} {measure}")
            tidy(axis)
        figure.axes[0].legend(frameon=False)
        figure.savefig(path, dpi=150)
    return Path(path)
