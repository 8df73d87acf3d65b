"""The tables: on the terminal, and in Markdown for the documentation."""

from math import isnan

from rich.console import Console
from rich.table import Table

from benchmarks.registry import CONTENDERS

HEAD = ["", "round, s", "quartiles", "training", "evaluation", "CPU s", "memory, MB", "ours / it", "training alone"]
QUIET = 0.05  # foreign load above which a table says so


def show(result: dict, markdown: bool = False) -> None:
    """Print the table of every workload."""
    for name, found in result["workloads"].items():
        rows, notes = rows_of(found), notes_of(found)
        title = f"{name}: {found['about']}" + (f"; {found['fraction']:.0%} of it" if found["fraction"] < 1 else "")
        if markdown:
            lines = ["| " + " | ".join(r) + " |" for r in (HEAD, ["---"] + ["---:"] * (len(HEAD) - 1), *rows)]
            print("\n".join([f"### {title}", "", *lines, "", *(f"{n}\n" for n in notes)]))
            continue
        table = Table(title=title, title_justify="left")
        for i, head in enumerate(HEAD):
            table.add_column(head, justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        console = Console(width=max(170, Console().width))
        console.print(table)
        console.print("\n".join(notes) + "\n", highlight=False)


def rows_of(found: dict) -> list[list[str]]:
    """A row for each contender, the fastest first, then those that were not timed."""
    timed = sorted(found["summary"].items(), key=lambda item: item[1]["seconds"]["median"])
    rows = [[CONTENDERS[n].label, *_cells(s, CONTENDERS[n].script == "ours" and n != "ours-auto")] for n, s in timed]
    missing = [n for n in found["check"]["contenders"] if n not in found["summary"]]
    return rows + [[CONTENDERS[n].label, "not timed", *[""] * (len(HEAD) - 2)] for n in missing]


def notes_of(found: dict) -> list[str]:
    """What one has to know to read the table."""
    how, runs = found["check"], found["runs"]
    worst = max((v["difference"] for v in how["contenders"].values() if "why_not" not in v), default=0.0)
    notes = [
        f"{found['repeat']} repetitions in turns of {found['rounds']} rounds, after one that warms up. Checked before: "
        f"after {how['rounds'] + 1} rounds in {how['dtype']} all are within {worst:.0e} of the naive loop."
    ]
    failed = {r["contender"]: r["why_not"] for r in runs if "why_not" in r}
    reasons = {n: v["why_not"] for n, v in how["contenders"].items() if "why_not" in v} | failed
    notes += [f"{CONTENDERS[n].label}: {why}" for n, why in reasons.items()]
    foreign = [r["foreign"] for r in runs if "foreign" in r and not r["disturbed"]]
    if foreign and max(foreign) > QUIET:
        mean = sum(foreign) / len(foreign)
        notes.append(f"Others used {mean:.0%} of the cores meanwhile, at most {max(foreign):.0%}.")
    return notes


def _cells(s: dict, whole_only: bool) -> list[str]:
    """The figures of a contender; our other engines are not run a second time to tell training from evaluation."""
    halves = ["", ""] if whole_only else [number(s[of]["median"]) for of in ("train_seconds", "evaluate_seconds")]
    round = s["seconds"]
    ratios = [_ratio(s.get("ours_over_it")), "" if whole_only else _ratio(s.get("ours_over_it_training"))]
    costs = [number(s["cpu_seconds"]["median"]), f"{s['peak_mb']:,.0f}"]
    return [number(round["median"]), f"{number(round['low'])} to {number(round['high'])}", *halves, *costs, *ratios]


def _ratio(r: dict | None) -> str:
    if r is None or isnan(r["median"]):
        return ""
    return f"{r['median']:.2f}" + (f" ({r['low']:.2f} to {r['high']:.2f})" if r["low"] < r["high"] else "")


def number(seconds: float) -> str:
    """Three digits that count."""
    return f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.3f}"
