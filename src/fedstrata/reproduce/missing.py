"""What a table still lacks, as the commands that would make it."""

from collections.abc import Sequence

from fedstrata.reproduce.plan import Reproduction
from fedstrata.reproduce.results import Result

GPU = " --device cuda --precision tf32"


def command(made: Reproduction) -> str:
    """What makes a whole table."""
    quick = " --scale quick" if made.scale == "quick" else ""
    return f"fedstrata reproduce {made.name}{quick}" + (GPU if made.hardware == "gpu" and not quick else "")


def lacking(made: Reproduction, results: Sequence[Result]) -> list[tuple[int, str]]:
    """(how many runs, the command that makes them), the columns that lack the same rows together."""
    there = {(r.row, r.column, r.seed) for r in results}
    runs: dict[tuple[str, int], tuple[str, str]] = {}  # of a run, once where rows share it: row and column
    for c in made.cells:
        for seed in range(made.seeds):
            if (c.row, c.column, seed) not in there:
                runs.setdefault((c.fingerprint, seed), (c.row, c.column))
    rows = {column: tuple(dict.fromkeys(r for r, c in runs.values() if c == column)) for column in made.columns}
    groups = {mine: [c for c in made.columns if rows[c] == mine] for mine in rows.values() if mine}
    return [
        (sum(c in columns for _, c in runs.values()), command(made) + _said(made, mine, columns))
        for mine, columns in groups.items()
    ]


def _said(made: Reproduction, rows: Sequence[str], columns: Sequence[str]) -> str:
    """The options that name these rows and columns; none where they are all there are."""
    every = {c.fingerprint: c.row for c in reversed(made.cells) if c.column in columns}  # rows may share a run
    named = "" if set(rows) >= set(every.values()) else "".join(f' --rows "{r}"' for r in rows)
    where = "" if len(columns) == len(made.columns) else "".join(f' --columns "{c}"' for c in columns)
    return named + where


def in_words(made: Reproduction, results: Sequence[Result]) -> str:
    """The list for the page; empty where nothing is missing."""
    found = lacking(made, results)
    if not found or made.missing is not None:
        return ""
    lines = [f"- {count} run{'s' if count > 1 else ''}: `{how}`" for count, how in found]
    return "\n".join(["Missing:", "", *lines])
