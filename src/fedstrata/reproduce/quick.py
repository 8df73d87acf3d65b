"""What came out of the quick versions when they were last run: beside the tables, apart from their results.

`python -m fedstrata.reproduce.quick [NAME ...]` runs them afresh, one after another, and keeps their lines as
`experiments/NAME/quick.jsonl`, with seconds of the processor instead of the clock: others' work does not count.
`fedstrata reproduce NAME --scale quick` neither reads nor writes these.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fedstrata.reproduce.missing import command
from fedstrata.reproduce.plan import Reproduction, find, read
from fedstrata.reproduce.results import Result, append, results_of
from fedstrata.reproduce.run import reproduce
from fedstrata.reproduce.verdict import Finding, judge
from fedstrata.reproduce.words import difference

FILE = "quick.jsonl"


def seen(name: str, where: Path | None = None) -> tuple[Reproduction, list[Result]]:
    """The quick version of a table, and what came out of it; nothing where it was changed since."""
    made = read(name, "quick", where)
    return made, results_of(made, made.folder / FILE)


def keep(name: str, where: Path | None = None) -> None:
    """Run a quick version from its beginning, and keep what came out instead of what was there."""
    made = read(name, "quick", where)
    with TemporaryDirectory() as folder:
        file, began = Path(folder) / FILE, _processor()
        reproduce(made, runs=Path(folder) / "runs", results=file)
        runs = {(r.fingerprint, r.seed): r for r in results_of(made, file)}.values()
        each = round((_processor() - began) / len(runs), 1)
    (made.folder / FILE).unlink(missing_ok=True)
    for r in runs:
        append(replace(r, made={**r.made, "seconds": each}), made.folder / FILE)


def _processor() -> float:
    """Seconds of this process and of those it made that have ended."""
    return sum(os.times()[:4])


def shortly(made: Reproduction, results: Sequence[Result]) -> str:
    """How many directions held, in how many seconds of the processor: "2 of 3 held, 140 s"."""
    if made.missing is not None:
        return "no data"
    found = _found(made, results)
    return f"{sum(map(_held, found))} of {len(found)} held, {_seconds(results):.0f} s" if found else "not run"


def in_words(made: Reproduction, results: Sequence[Result]) -> str:
    """The paragraph of the page."""
    found = _found(made, results)
    if not found:
        return f"Quick check: `{command(made)}`. Not run as it is now."
    count = len({(r.fingerprint, r.seed) for r in results})
    rounds = max(r.rounds for r in results)
    runs = f"{count} run{'s' if count > 1 else ''}" + (f" of {rounds} rounds" if rounds else "")
    head = f"Quick check, for directions alone: `{command(made)}`; {runs}, {_seconds(results):.0f} s of one core."
    return "\n".join([head, "", *(f"- {_told(f)}" for f in found)])


def _found(made: Reproduction, results: Sequence[Result]) -> list[Finding]:
    return [f for f in judge(made, results) if f.verdict != "not run"]


def _held(f: Finding) -> bool:
    return f.verdict in ("reproduced", "direction reproduced")


def _told(f: Finding) -> str:
    assert f.ours is not None  # it was run
    mean, sign = f.ours.mean, "+" if difference(f) else ""
    number = f"{mean:{sign}.2f}" if abs(mean) >= 0.1 else f"{mean:{sign}.2g}"
    where = f", {f.column}" if f.column else ""
    seeds = f"{f.seeds} seed{'s' if f.seeds > 1 else ''}"
    return f"{'held' if _held(f) else '*did not hold*'}: {f.claim.says}{where} ({number}, {seeds})"


def _seconds(results: Sequence[Result]) -> float:
    """Of all runs; rows may share one."""
    runs = {(r.fingerprint, r.seed): float(r.made.get("seconds", 0)) for r in results}
    return sum(runs.values())


if __name__ == "__main__":
    for each in sys.argv[1:] or [n for n in find() if read(n).missing is None]:
        keep(each)
        print(f"{each}: {shortly(*seen(each))}", flush=True)  # noqa: T201
