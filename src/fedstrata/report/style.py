"""How figures look, on the page and in print: colours that colour-blind readers tell apart, dashes, type."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedstrata.errors import DataError, in_short

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B5A900")
"""Okabe and Ito's palette, its yellow darker, as it is drawn in lines on white."""

DARK_COLOURS = ("#4FA8E0", "#F0803C", "#2FBF95", "#DE9BC2", "#F0B43C", "#9AD2F5", "#E8E8E8", "#F0E442")
"""The same hues on a dark ground."""

CLASSES = (
    "#332288", "#88CCEE", "#44AA99", "#117733", "#999933", "#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB",
)  # fmt: skip
"""Paul Tol's muted scheme, for areas: up to ten classes."""

DARK_CLASSES = (
    "#6F63CE", "#88CCEE", "#44AA99", "#2B9B54", "#A8A845", "#DDCC77", "#D9788A", "#B84A7D", "#C277BC", "#8A8F94",
)  # fmt: skip
"""The same on a dark ground."""

HEAT = "cividis"
"""The colour map of all heat maps: even in brightness, the same to colour-blind readers."""

DASHES = ("solid", "dash", "dashdot", "dot")
"""Lines that coincide are still seen."""

PRINT: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 10,
    "legend.fontsize": 8,
    "axes.linewidth": 0.7,
    "pdf.fonttype": 42,  # text stays text
}


@contextmanager
def printed() -> Iterator[None]:
    """Within it, matplotlib draws in our style."""
    from matplotlib import rc_context

    with rc_context(PRINT):
        yield


def line_style(i: int) -> dict[str, Any]:
    """How matplotlib draws the i-th of some lines."""
    dash = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}[DASHES[i % len(DASHES)]]
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": dash, "linewidth": 1.8}


def tidy(axis: Any) -> None:
    """No frame, a faint grid, whole rounds."""
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def class_colours(classes: int) -> list[Any]:
    """A colour for each of up to twenty classes."""
    from matplotlib import colormaps

    return list(CLASSES[:classes]) if classes <= len(CLASSES) else [colormaps["tab20"](c) for c in range(classes)]


def save(figure: Any, path: Path) -> Path:
    """Write a figure into a picture file; the ending of its name says which kind."""
    try:
        with printed():
            figure.savefig(path, dpi=150)
    except (OSError, ValueError) as e:
        raise DataError(f"the picture cannot be written to {path}: {in_short(e)}; give e.g. split.png") from None
    return path
