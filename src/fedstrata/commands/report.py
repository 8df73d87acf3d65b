"""One page about some runs, and figures for papers."""

from pathlib import Path

from fedstrata.console import out
from fedstrata.errors import DataError
from fedstrata.report import draw_figures
from fedstrata.report import report as write_report


def report(runs: list[Path], page: Path, title: str | None, figures: Path | None) -> None:
    """Write a page about some runs, and perhaps figures."""
    tell_page(write_report(runs, page, title))
    if figures is not None:
        drawn = draw_figures(runs, figures)
        out.print(f"{len(drawn)} figures are in {figures}", highlight=False, markup=False, soft_wrap=True)


def demo_report(folder: Path) -> None:
    """End the demo with the page of its runs, or say what it takes to have one."""
    try:
        tell_page(write_report(folder, folder / "report.html"))
    except DataError as e:
        out.print(f"There is no report page: {e}", highlight=False, markup=False, soft_wrap=True)


def tell_page(page: Path) -> None:
    """Say where a page is, and how to open it."""
    uri = page.resolve().as_uri()
    out.print(f"The report is {page}; open it in a browser: {uri}", highlight=False, markup=False, soft_wrap=True)
