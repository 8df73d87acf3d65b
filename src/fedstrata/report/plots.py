"""The page's figures as plain dictionaries that plotly's JavaScript draws.

A figure is a list of choices, each with a title, traces and a layout, and perhaps frames for a slider. Colours that
begin with @ are those of the page's scheme, light or dark: "@2" is the third line's, "@2/0.2" the same, transparent.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from fedstrata.partition.describe import has_labels
from fedstrata.report.again import Split
from fedstrata.report.folders import Group
from fedstrata.report.lens import Frames, Heat, thinned
from fedstrata.report.series import SETS, Series, measures, over_rounds
from fedstrata.report.split import FEW_CLIENTS, by_main_class
from fedstrata.report.style import CLASSES, COLOURS, DASHES

Figure = dict[str, Any]

COLUMNS = 200
"""Rounds in one heat map, at most: more are not to be told apart."""

LONGEST_NAME = 22
"""Characters of a layer's or client's name beside an axis."""

FEW_NAMES = 12
"""Up to so many clients have their names below their bars; those of more are told where one points at them."""


def curves(groups: Sequence[Group], measure: str) -> Figure:
    """A measure over the rounds on every set that has it, one choice a set."""
    choices = [_lines(groups, where, measure, where) for where in SETS if measure in measures(groups, where)]
    return {"choices": choices, "height": 340}


def fairness(groups: Sequence[Group], watched: str) -> Figure:
    """How the clients' own scores spread, over the rounds."""
    kinds = {"mean": "mean over clients", "worst10": "worst tenth", "std": "spread"}
    return {"choices": [_lines(groups, "clients", k, title, watched) for k, title in kinds.items()], "height": 340}


def distribution(scores: Sequence[tuple[int, str, np.ndarray, np.ndarray]], watched: str) -> Figure:
    """The final score of each client: (the group's place, its name, scores [N], examples [N]) of some groups."""
    traces = [
        {
            "type": "box",
            "name": name,
            "x": _plain(values),
            "text": [f"client {i}, {n:,} examples" for i, n in enumerate(sizes.tolist())],
            "hovertemplate": "%{text}: %{x}<extra></extra>",
            "boxpoints": "all",
            "jitter": 0.6,
            "pointpos": 0,
            "line": {"color": f"@{_c(i)}", "width": 1.2},
            "fillcolor": f"@{_c(i)}/0.12",
            "marker": {"color": f"@{_c(i)}", "size": 5, "opacity": 0.75},
            "legendgroup": f"g{i}",
        }
        for i, name, values, sizes in scores
    ]
    axis = {"title": {"text": watched}}
    rate = {"tickformat": ".0%"} if watched == "accuracy" else {}
    layout = {"xaxis": axis | rate, "yaxis": {"autorange": "reversed", "showgrid": False}}
    return {"choices": [{"title": "", "data": traces, "layout": layout}], "height": max(372, 90 + 62 * len(scores))}


def split_figure(split: Split) -> dict[str, Any]:
    """How many examples of which class each client has: bars, or a map where they are many."""
    assert split.clients is not None
    clients = split.clients
    counts = clients.labels().numpy() if has_labels(clients) else clients.sizes[:, None]  # [N, C]
    few = len(counts) <= FEW_CLIENTS and counts.shape[1] <= len(CLASSES)
    classes, owners = _class_names(split, counts.shape[1]), _client_names(split, len(counts))
    many = not few and counts.shape[1] > 1
    return {"title": split.title, **(_map if many else _bars)(counts, classes, owners)}


def _class_names(split: Split, classes: int) -> list[str]:
    """As the data calls them, or else by their numbers."""
    return [escape(n) for n in split.classes[:classes]] if split.classes else list(map(str, range(classes)))


def _client_names(split: Split, clients: int) -> list[str]:
    """The number that a client has in the rest of the page, and what the data calls it."""
    if split.owners is None:
        return list(map(str, range(clients)))
    full = [f"{k} {name}" for k, name in enumerate(split.owners)]
    return [escape(n if len(n) <= LONGEST_NAME else f"{n[: LONGEST_NAME - 1]}…") for n in full]


def heat_map(heat: Heat) -> Figure:
    """A quantity over rounds and layers."""
    shown = thinned(len(heat.rounds), COLUMNS)
    trace = _heat(heat.values[:, shown], heat.values, "round %{x}, %{y}<br>%{z:.4g}<extra></extra>")
    trace |= {"x": [heat.rounds[i] for i in shown], "y": short_names(heat.layers)}
    layout = {"xaxis": {"title": {"text": "round"}, "showgrid": False}, "yaxis": _layer_axis()}
    return {"choices": [{"title": "", "data": [trace], "layout": layout}], "height": _height(len(heat.layers))}


def client_maps(frames: Sequence[Frames], numbers: int) -> Figure:
    """Quantities over clients and layers with a slider for the rounds, of at most so many numbers each."""
    across = {"title": {"text": "client"}, "type": "category", "showgrid": False, "tickangle": 0, "nticks": 10}
    layout = {"xaxis": across, "yaxis": _layer_axis()}
    choices = []
    for some in frames:
        shown = thinned(len(some.rounds), max(2, numbers // max(1, max(v.size for v in some.values))))
        together = np.concatenate([v.reshape(-1) for v in some.values])
        trace = _heat(some.values[shown[0]].T, together, "client %{x}, %{y}<br>%{z:.4g}<extra></extra>")
        frames_ = [
            {"name": some.rounds[i], "x": list(map(str, some.clients[i])), "z": _plain(some.values[i].T)} for i in shown
        ]
        trace |= {"x": frames_[0]["x"], "y": short_names(some.layers)}
        choices.append({"title": some.title, "says": some.says, "data": [trace], "layout": layout, "frames": frames_})
    return {"choices": choices, "height": _height(max((len(f.layers) for f in frames), default=1)) + 16}


def short_names(names: Sequence[str]) -> list[str]:
    """The ends of long names, where these are enough to tell them apart."""
    short = [n if len(n) <= LONGEST_NAME else f"…{n[1 - LONGEST_NAME :]}" for n in names]
    return short if len(set(short)) == len(names) else list(names)


def _lines(groups: Sequence[Group], where: str, measure: str, title: str, watched: str | None = None) -> dict[str, Any]:
    watched = watched or measure
    named = f"{where} {measure}" if title == where else f"{watched}, {title}"
    traces = [t for i, g in enumerate(groups) for t in _line(i, g.name, over_rounds(g.runs, where, measure))]
    value = {"title": {"text": named}} | ({"tickformat": ".0%"} if watched == "accuracy" else {})
    return {"title": title, "data": traces, "layout": {"xaxis": {"title": {"text": "round"}}, "yaxis": value}}


def _line(i: int, name: str, series: Series) -> list[dict[str, Any]]:
    """The mean, and behind it the band over seeds."""
    common = {"type": "scatter", "x": series.rounds, "legendgroup": f"g{i}", "name": name}
    edge = common | {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    band = [edge | {"y": _plain(series.high)}, edge | {"y": _plain(series.low), "fill": "tonexty"}]
    band[1]["fillcolor"] = f"@{_c(i)}/0.16"
    mode = "lines" if len(series.rounds) > 1 else "markers"
    line = common | {"mode": mode, "y": _plain(series.mean), "line": {"color": f"@{_c(i)}", "width": 2}}
    line["line"]["dash"] = DASHES[i % len(DASHES)]
    line["marker"] = {"color": f"@{_c(i)}"}
    return [*(band if series.banded else []), line]


def _bars(counts: np.ndarray, classes: Sequence[str], owners: Sequence[str]) -> dict[str, Any]:
    """A bar for each client, its classes on top of each other."""
    named = len(classes) > 1
    hover = "client %{{customdata}}, {}%{{y}} examples<extra></extra>"
    traces = [
        {
            "type": "bar",
            "x": list(range(len(counts))),
            "y": counts[:, c].astype(int).tolist(),
            "name": f"class {name}" if named else "examples",
            "customdata": list(owners),
            "marker": {"color": f"@class-{c}" if named else "@0", "line": {"width": 0.5, "color": "@card"}},
            "hovertemplate": hover.format(f"class {name}, " if named else ""),
        }
        for c, name in enumerate(classes)
    ]
    labels = {"tickvals": list(range(len(owners))), "ticktext": list(owners)} if len(owners) <= FEW_NAMES else {}
    layout = {
        "barmode": "stack",
        "bargap": 0.15,
        "xaxis": {"title": {"text": "client"}, "showgrid": False, "autotickangles": [0, -40, -90]} | labels,
        "yaxis": {"title": {"text": "examples"}},
        "showlegend": named,
        "legend": {"traceorder": "normal", "orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    return {"data": traces, "layout": layout}


def _map(counts: np.ndarray, classes: Sequence[str], owners: Sequence[str]) -> dict[str, Any]:
    """A column for each client, bright where most of its examples are; those of one main class stand together."""
    order = by_main_class(counts)
    counts = counts[order]
    share = (counts / np.maximum(1, counts.sum(1, keepdims=True))).T  # [C, N]
    trace = _heat(np.sqrt(share), np.sqrt(share), "client %{x}, class %{y}<br>%{customdata:.1%} of it<extra></extra>")
    ticks = [0.0, 0.1, 0.25, 0.5, 1.0]
    trace["colorbar"] |= {"tickvals": np.sqrt(ticks).tolist(), "ticktext": [f"{t:.0%}" for t in ticks]}
    trace |= {"zmin": 0, "zmax": 1, "customdata": _plain(share)}  # by the root, small shares are seen too
    trace |= {"x": [owners[i] for i in order], "y": list(classes)}
    across = {"title": {"text": f"{len(counts)} clients, by their commonest class"}, "type": "category"}
    across |= {"showgrid": False, "showticklabels": False}
    return {"data": [trace], "layout": {"xaxis": across, "yaxis": {"title": {"text": "class"}, "showgrid": False}}}


def _heat(values: np.ndarray, scale: np.ndarray, hover: str) -> dict[str, Any]:
    """A heat map whose colours span all but the outermost hundredths of a scale."""
    finite = scale[np.isfinite(scale)]
    low, high = np.percentile(finite, [1, 99]).tolist() if finite.size else (0.0, 1.0)
    wide = max(abs(low), abs(high), 1e-12) * 1e-6
    low, high = (low, high) if high - low > wide else (low - wide, high + wide)  # all the same: one colour
    bar = {"thickness": 10, "outlinewidth": 0, "len": 1.0, "tickformat": ".3~g", "nticks": 4}
    gaps = {"xgap": 1, "ygap": 1} if values.shape[1] <= 60 and values.shape[0] <= 40 else {}
    scaled = {"zmin": low, "zmax": high, "colorscale": "Cividis", "colorbar": bar, "hovertemplate": hover}
    return {"type": "heatmap", "z": _plain(values), **scaled, **gaps}


def _layer_axis() -> dict[str, Any]:
    return {"title": {"text": "layer"}, "type": "category", "autorange": "reversed", "showgrid": False}


def _height(rows: int) -> int:
    """Of a heat map with so many layers, in pixels."""
    return int(np.clip(92 + 26 * rows, 150, 560))


def _c(i: int) -> int:
    return i % len(COLOURS)


def _plain(values: Any) -> Any:
    """Numbers of four digits in nested lists; null where they are not finite."""
    if isinstance(values, (list, np.ndarray)):
        return [_plain(v) for v in values]
    return float(f"{values:.4g}") if np.isfinite(values) else None
