"""The figures of the page for papers: PDF and PNG, by matplotlib, in the same colours."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedstrata.files import make_folder
from fedstrata.report.again import Again, different_splits
from fedstrata.report.folders import Group, find
from fedstrata.report.lens import Heat, lens
from fedstrata.report.plots import short_names
from fedstrata.report.series import measures, over_rounds
from fedstrata.report.split import draw_split
from fedstrata.report.style import HEAT, line_style, printed, save, tidy
from fedstrata.report.summary import CLIENTS, main_set, watched

KINDS = "pdf", "png"


def draw_figures(folders: Iterable[str | Path], into: str | Path) -> list[Path]:
    """Draw curves, fairness, split and layers of some runs into a folder, each as PDF and as PNG."""
    found, into = find(folders), make_folder(into)
    groups, where = found.groups, main_set(found.groups)
    made: dict[str, Any] = {}
    with printed():
        made["curves"] = _panels(groups, [(where, m, f"{where} {m}") for m in measures(groups, where)])
        if measures(groups, "clients"):
            kind = watched(groups)
            made["clients"] = _panels(groups, [("clients", k, f"{kind}, {title}") for k, title in CLIENTS.items()])
        for group in groups:
            if heats := [h for h in lens(group.runs[0]).heats if len(h.layers) > 1]:
                made[f"layers-{_slug(group.name)}"] = _layers(heats)
    written = [save(figure, into / f"{name}.{kind}") for name, figure in made.items() for kind in KINDS]
    return written + _splits(groups, into)


def _panels(groups: Sequence[Group], panels: Sequence[tuple[str, str, str]]) -> Any:
    """A panel for each (set, measure, title): means over seeds with their bands."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(panels), 2.7), layout="constrained")
    for axis, (where, measure, title) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for i, group in enumerate(groups):
            series = over_rounds(group.runs, where, measure)
            axis.plot(series.rounds, series.mean, label=group.name, **line_style(i))
            if series.banded:
                colour = line_style(i)["color"]
                axis.fill_between(series.rounds, series.low, series.high, color=colour, alpha=0.16, linewidth=0)
        axis.set(xlabel="round", ylabel=title)
        tidy(axis)
    figure.axes[0].legend(frameon=False)
    return figure


def _layers(heats: Sequence[Heat]) -> Any:
    """Heat maps over rounds and layers, one below the other."""
    from matplotlib.figure import Figure

    heights = [min(4.0, 0.7 + 0.16 * len(h.layers)) for h in heats]
    figure = Figure(figsize=(5.6, sum(heights) + 0.5), layout="constrained")
    axes = figure.subplots(len(heats), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, heat in zip(axes, heats, strict=True):
        image = axis.pcolormesh(heat.rounds, range(len(heat.layers)), heat.values, cmap=HEAT, shading="nearest")
        every = -(-len(heat.layers) // 20)
        axis.set_yticks(range(0, len(heat.layers), every), short_names(heat.layers)[::every])
        axis.invert_yaxis()
        axis.set_title(heat.title, loc="left")
        axis.set_ylabel("layer")
        axis.xaxis.get_major_locator().set_params(integer=True)
        figure.colorbar(image, ax=axis, pad=0.01)
    axes[-1].set_xlabel("round")
    return figure


def _splits(groups: Sequence[Group], into: Path) -> list[Path]:
    """The pictures of the splits that can be made again."""
    again, written = Again(), []
    for i, run in enumerate(different_splits([g.runs[0] for g in groups])):
        split = again.split(run)
        if split.clients is not None:
            name = f"split-{i + 1}" if i else "split"
            written += [
                draw_split(split.clients, into / f"{name}.{kind}", split.title, split.classes) for kind in KINDS
            ]
    return written


def _slug(name: str) -> str:
    return "-".join(re.findall(r"[\w.]+", name))
