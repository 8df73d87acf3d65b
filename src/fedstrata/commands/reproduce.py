"""Published tables, made again."""

from collections.abc import Sequence
from pathlib import Path

from rich.markdown import Markdown
from rich.table import Table

from fedstrata.console import RunsWatcher, err, out
from fedstrata.errors import check
from fedstrata.reproduce import find, judge, read, reproduce, results_of
from fedstrata.reproduce.figure import draw
from fedstrata.reproduce.pages import section
from fedstrata.reproduce.plan import Reproduction
from fedstrata.reproduce.results import results_file
from fedstrata.reproduce.verdict import in_short
from fedstrata.reproduce.words import counted


def reproduce_all(
    names: Sequence[str],
    scale: str,
    seeds: int | None,
    means: dict[str, str],
    rows: Sequence[str],
    columns: Sequence[str],
    jobs: int | None,
    runs: Path | None,
    results: Path | None,
) -> None:
    """Run what is missing of these tables, and tell what came out beside what was printed."""
    if names == ["list"]:
        out.print(_listed())
        return
    check(seeds is None or seeds >= 1, f"--seeds must be at least 1; got {seeds}")
    for name in names:
        made = read(name, scale)  # pyright: ignore[reportArgumentType]  it checks that itself
        file = results / f"{name}.jsonl" if results is not None else None
        with RunsWatcher(err, None) as watcher:
            more = {"told": watcher.told, "begin": watcher.expect}
            reproduce(made, seeds, means, rows, columns, runs, file, jobs, **more)
        _show(made, file)


def _show(made: Reproduction, file: Path | None) -> None:
    """The table with its verdicts; the figure beside the results."""
    found = results_of(made, file)
    out.print(Markdown(section(made, found, link=False)))
    place = (file or results_file(made)).with_name(f"{made.name}.png" if file else f"{made.scale}.png")
    if draw(made, found, place) is not None:
        out.print(f"The curves are in {place}", highlight=False, markup=False, soft_wrap=True)


def _listed() -> Table:
    table = Table(box=None)
    for title in ("reproduction", "what", "runs", "verdicts"):
        table.add_column(title, overflow="fold")
    for name in find():
        made = read(name)
        found = results_of(made)
        state = counted(made, found) if made.missing is None else "not run: no data"
        table.add_row(name, f"{made.place}: {made.title}", state, in_short(judge(made, found)))
    return table
