"""Who has how much of what: the picture of a split that papers show."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.clients import Clients
from fedstrata.errors import DataError
from fedstrata.partition.describe import describe, has_labels
from fedstrata.report.style import class_colours, printed, save

FEW_CLIENTS = 60
"""Up to so many, each has a bar with its number below; more are sorted."""

FEW_CLASSES = 20
"""Up to so many can be told apart by colour."""


def draw_split(
    clients: Clients, path: str | Path, title: str | None = None, names: Sequence[str] | None = None
) -> Path:
    """Draw how many examples of each class each client has into a picture file; for a regression, how many at all.

    `names` are those of the classes, which are numbers otherwise.
    """
    from matplotlib.figure import Figure

    path = Path(path) if Path(path).suffix else Path(f"{path}.png")
    counts = clients.labels().numpy() if has_labels(clients) else clients.sizes[:, None]  # [N, C]
    names = _class_names(names, counts.shape[1])
    many = len(counts) > FEW_CLIENTS
    mapped = len(names) > 1 and (many or len(names) > FEW_CLASSES)
    with printed():
        width = 9.6 if many else 6.6 + 0.06 * len(counts)
        figure = Figure(figsize=(width, 5.6 if mapped else 4.0), layout="constrained")
        axis = (_draw_map if mapped else _draw_bars)(figure, counts, names)
        axis.set_title(title or f"{len(counts)} clients", loc="left", weight="bold", pad=22, parse_math=False)
        line = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": 9, "color": "0.35"}
        axis.annotate(facts_in_words(describe(clients)), (0, 1), (0, 9), **line)
        return save(figure, path)


def _class_names(given: Sequence[str] | None, classes: int) -> list[str]:
    names = list(map(str, range(classes))) if given is None else list(given)
    if len(names) < classes:
        raise DataError(f"there are {classes} classes, but {len(names)} names for them")
    return names[:classes]


def _draw_bars(figure: Any, counts: np.ndarray, names: list[str]) -> Any:
    """A bar for each client, its classes on top of each other."""
    axis = figure.subplots()
    if len(counts) > FEW_CLIENTS:
        counts = counts[np.argsort(-counts.sum(1), kind="stable")]
    base = np.zeros(len(counts))
    for c, colour in enumerate(class_colours(len(names))):
        _bars(axis, counts[:, c], base, color=colour, label=names[c])
        base += counts[:, c]
    axis.set_ylim(0, 1.04 * base.max())
    _name_clients(axis, len(counts), "the largest first")
    if len(names) > 1:
        size = {"fontsize": "small", "labelspacing": 0.2} if len(names) > 10 else {}
        axis.legend(title="class", loc="upper left", bbox_to_anchor=(1, 1), frameon=False, reverse=True, **size)
    return axis


def _draw_map(figure: Any, counts: np.ndarray, names: list[str]) -> Any:
    """A column for each client, dark where most of its examples are, below a bar for its size."""
    from matplotlib.colors import PowerNorm

    if len(counts) > FEW_CLIENTS:
        counts = counts[by_main_class(counts)]
    above, axis = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    figure.get_layout_engine().set(hspace=0.0)
    _bars(above, counts.sum(1), 0, color="0.45")
    share = counts / np.maximum(1, counts.sum(1, keepdims=True))  # [N, C]
    norm = PowerNorm(0.5, 0, share.max())  # by the root, small shares are seen too
    image = axis.imshow(share.T, aspect="auto", cmap="Blues", norm=norm, interpolation="nearest")
    every = -(-len(names) // FEW_CLASSES)
    axis.set_yticks(range(0, len(names), every), names[::every])
    axis.set_ylabel("class")
    _name_clients(axis, len(counts), "by their commonest class")
    figure.colorbar(image, ax=axis, label="share of the client's examples", pad=0.01)
    return above


def by_main_class(counts: np.ndarray) -> np.ndarray:
    """Clients in the order of their commonest class, those with the largest share of it first."""
    share = counts.max(1) / np.maximum(1, counts.sum(1))
    return np.lexsort((-share, counts.argmax(1)))


def _bars(axis: Any, heights: np.ndarray, base: Any, **style: Any) -> None:
    axis.bar(np.arange(len(heights)), heights, 0.8 if len(heights) <= FEW_CLIENTS else 1.0, base, **style)
    axis.set(ylabel="examples", xlim=(-0.5, len(heights) - 0.5))
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.spines[["top", "right"]].set_visible(False)


def _name_clients(axis: Any, count: int, order: str) -> None:
    """Below the axis: the number of each client, or else what they are ordered by."""
    few = count <= FEW_CLIENTS
    axis.set_xlabel("client" if few else f"{count} clients, {order}")
    axis.set_xticks(range(0, count, 1 if count <= 30 else 5) if few else [])


def facts_in_words(facts: dict[str, Any]) -> str:
    """What `describe` said, as a line below the title."""
    low, high = facts["smallest"], facts["largest"]
    words = [f"{facts['examples']:,} examples, {f'{low:,} to ' * (low < high)}{high:,} a client"]
    words += [f"{facts['left_out']:,} left out"] if facts["left_out"] else []
    if "effective_classes" in facts:
        words += [f"{facts['effective_classes']:.1f} classes in effect"]
        words += [f"distance to the whole {facts['label_distance']:.2f}"]
    return "; ".join(words)
