"""docs/reproductions.md: every table with our numbers beside the published ones, as the results say."""

import sys
from collections.abc import Sequence
from pathlib import Path

from fedstrata.reproduce import quick
from fedstrata.reproduce.figure import draw
from fedstrata.reproduce.missing import command, in_words
from fedstrata.reproduce.plan import Reproduction, find, read, root
from fedstrata.reproduce.results import Result, results_of
from fedstrata.reproduce.verdict import in_short, judge
from fedstrata.reproduce.words import caption, counted, findings_table, made_on, table

HEAD = """<!-- Written by `make pages` from experiments/: change it there. -->

# Reproductions

The tables of the papers behind fedstrata, made again. `fedstrata reproduce list` shows them, `fedstrata reproduce NAME`
runs what is missing of one and prints its table; results, curves and notes are in `experiments/NAME`.

Seeds change everything that is drawn: the split, the first model, the batches. Intervals are at 95 %, by Student's t
over the seeds; rows are compared seed by seed. *Reproduced*: the interval of the difference leaves out zero on the side
that is claimed. *Direction reproduced*: the mean is on that side, but the interval holds zero, or there is one seed.
*Not reproduced*: it is not. A claim of equality, or about a number itself, is reproduced within the tolerance that it
states.

`fedstrata reproduce NAME --scale quick` takes minutes on two cores: few rounds of few clients, often on smaller images.
It checks that all runs, and in which direction the rows differ, with one to three seeds: what holds there need not hold
in the full table, nor fail there what fails here. Seconds are those of one core.

"""


def page(where: Path | None = None) -> str:
    """All of them: an overview, then one after another."""
    every = [read(name, where=where) for name in find(where)]
    found = {made.name: results_of(made) for made in every}
    lines = ["| | what | runs | verdicts | quick check |", "|---|---|---:|---|---|"]
    for made in every:
        count = counted(made, found[made.name])
        verdicts = in_short(judge(made, found[made.name])) if made.missing is None else "not run"
        told = [f"[{made.name}](#{made.name})", f"{made.place}: {made.title}", count, verdicts]
        lines.append(f"| {' | '.join(told)} | {quick.shortly(*quick.seen(made.name, where))} |")
    parts = [section(made, found[made.name]) for made in every]
    return HEAD + "\n".join(lines) + "\n\n" + "\n\n".join(parts) + "\n"


def section(made: Reproduction, results: Sequence[Result], link: bool = True) -> str:
    """One table: what was made on what, by which command, what came out, and what its notes say."""
    said = [f"## {made.name}", f"{made.place}: {made.title}.", f"`{command(made)}`. {made_on(made, results)}"]
    if made.missing is not None and not results:
        said.append(f"It was not run: {made.missing}.")
    if results:
        for metric in (None, *made.also):
            said += [caption(made, metric), table(made, results, metric)]
        said += [findings_table(judge(made, results))] if made.claims else []
    figure = made.folder / f"{made.scale}.png"
    said += [still] if (still := in_words(made, results)) and results else []
    if link and figure.exists():
        said.append(f"![curves](../experiments/{made.name}/{figure.name})")
    if link and made.scale == "full" and made.missing is None:
        said.append(quick.in_words(*quick.seen(made.name, made.folder.parent)))
    notes = made.folder / "NOTES.md"
    if notes.exists():
        said.append(notes.read_text(encoding="utf-8").strip())
    return "\n\n".join(said)


def write(folder: Path) -> None:
    """The page, and the pictures of what it tells."""
    for name in find():
        made = read(name)
        draw(made, results_of(made), made.folder / f"{made.scale}.png")
    (folder / "reproductions.md").write_text(page(root()), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
