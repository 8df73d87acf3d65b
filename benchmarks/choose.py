"""The evidence of docs/choose.md: methods against FedAvg on one kind of heterogeneity after another, five seeds.

`python -m benchmarks.choose` makes what is missing and writes benchmarks/results/choose.json; `--pages` writes the
tables into docs/choose.md from there. `mnist` needs MNIST where FEDSTRATA_DATA says, or a network.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedstrata as fs

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "choose.json"
PAGE = ROOT / "docs" / "choose.md"
SEEDS = 5


@dataclass(frozen=True)
class Scenario:
    """A kind of heterogeneity: the settings that make it, and the methods that are tried on it."""

    title: str
    methods: tuple[str, ...]
    settings: Mapping[str, Any]
    suffix: str = ""  # a part that is added to every method
    base: Mapping[str, Any] = field(default_factory=lambda: {"data": "digits", "model": "mlp", "rounds": 30})


SKEWED = {"partition": {"kind": "Dirichlet", "clients": 20, "alpha": 0.1}}
MILD = {"partition": {"kind": "Dirichlet", "clients": 20, "alpha": 0.5}}
MNIST = {"data": "mnist", "model": "mlp", "rounds": 20, "training": {"epochs": 1, "batch": 50}, "train_share": 0.2}

SCENARIOS: dict[str, Scenario] = {
    "labels": Scenario(
        "20 clients, Dirichlet alpha 0.1, all of them in every round",
        ("fedavg", "fedprox(mu=0.1)", "scaffold", "feddyn", "feddc", "fedlws", "fedlayerwise", "fedadp", "feddisco",
         "moon", "fedetf", "fedavgm", "fedadam(lr=0.01)", "feddf"),
        SKEWED,
    ),
    "sizes": Scenario(
        "20 clients, sizes Dirichlet alpha 0.1, labels alike",
        ("fedavg", "fedavg(weighting='uniform')", "fednova", "scaffold", "fedlws"),
        {"partition": {"kind": "Quantity", "clients": 20, "alpha": 0.1}},
    ),
    "features": Scenario(
        "20 clients, images turned by 0 to 60 degrees, labels alike",
        ("fedavg", "scaffold", "fedadp", "fedlws", "fedprox(mu=0.1)"),
        {"partition": {"kind": "Rotated", "angles": [0, 20, 40, 60], "base": {"kind": "IID", "clients": 20}}},
    ),
    "few": Scenario(
        "100 clients, Dirichlet alpha 0.1, 5 of them a round",
        ("fedavg", "fedprox(mu=0.1)", "fedprox(mu=1)", "scaffold", "feddyn", "fedavgm(lr=0.3)", "fedadam(lr=0.01)",
         "fedlws"),
        {"partition": {"kind": "Dirichlet", "clients": 100, "alpha": 0.1}},
        "Sample(k=5)",
    ),
    "signs": Scenario(
        "20 clients, Dirichlet alpha 0.5, a fifth send minus their update",
        ("fedavg", "fedadp", "fedlayerwise", "fedlws", "fedlaw", "scaffold"),
        MILD | {"faults": {"sign_flip": 0.2}},
    ),
    "flips": Scenario(
        "20 clients, Dirichlet alpha 0.5, a fifth have wrong labels",
        ("fedavg", "fedadp", "fedlayerwise", "fedlws", "fedlaw", "scaffold"),
        MILD | {"faults": {"label_flip": 0.2}},
    ),
    "slow": Scenario(
        "20 clients, Dirichlet alpha 0.1, half of them make a tenth of their steps",
        ("fedavg", "fednova", "fedprox(mu=0.1)", "scaffold"),
        SKEWED | {"faults": {"straggle": 0.5, "straggle_share": 0.1}},
    ),
    "fair": Scenario(
        "20 clients, Dirichlet alpha 0.1: the worst tenth of the clients",
        ("fedavg", "qfedavg", "afl", "fairfed", "fedavg(weighting='uniform')"),
        SKEWED,
    ),
    "mnist": Scenario(
        "MNIST, 12,000 examples over 20 clients, Dirichlet alpha 0.1, 20 rounds",
        ("fedavg", "fedprox(mu=0.1)", "scaffold", "feddyn", "fedlws", "fedlayerwise", "fedavgm"),
        SKEWED,
        base=MNIST,
    ),
}  # fmt: skip


def make(scenario: Scenario, out: Path, jobs: int) -> dict[str, Any]:
    """Run what is missing of a scenario; its rows in short."""
    methods = [f"{m} + {scenario.suffix}" if scenario.suffix else m for m in scenario.methods]
    found = fs.compare(methods, dict(scenario.base) | dict(scenario.settings), seeds=SEEDS, out=out, jobs=jobs)
    rows = [_short(name, row) for name, row in zip(scenario.methods, found.rows, strict=True)]
    return {"title": scenario.title, "seeds": len(found.seeds), "rows": rows}


def _short(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    keys = "tail", "worst10", "oscillation", "bytes"
    kept: dict[str, Any] = {"method": name}
    kept |= {k: {n: row[k][n] for n in ("mean", "low", "high")} for k in keys if k in row}
    against = row["against_first"]
    return kept | {"against": against and {k: against[k] for k in ("difference", "low", "high", "p", "verdict")}}


def table(found: Mapping[str, Any]) -> str:
    """A scenario in Markdown: accuracy of the last ten rounds, worst tenth, difference to FedAvg and its verdict."""
    lines = [
        "| method | accuracy, % | worst 10 % of clients | against `fedavg`, points | verdict | MB |",
        "|---|---:|---:|---:|---|---:|",
    ]
    for row in found["rows"]:
        a, worst = row["against"], row.get("worst10")
        cells = [f"`{row['method']}`", _spread(row["tail"]), _spread(worst) if worst else ""]
        cells += (
            [f"{100 * a['difference']:+.1f} ({100 * a['low']:+.1f} to {100 * a['high']:+.1f})", _said(a)]
            if a
            else ["", ""]
        )
        lines.append("| " + " | ".join([*cells, f"{row['bytes']['mean'] / 1e6:.0f}"]) + " |")
    return "\n".join(lines)


def _said(against: Mapping[str, Any]) -> str:
    if against["verdict"] != "real":
        return "noise"
    return "better" if against["difference"] > 0 else "worse"


def _spread(value: Mapping[str, float]) -> str:
    return f"{100 * value['mean']:.1f} ± {50 * (value['high'] - value['low']):.1f}"


def with_tables(text: str, results: Mapping[str, Any]) -> str:
    """A page whose tables, between `<!-- evidence NAME -->` and `<!-- end -->`, are those of the results."""
    for name, found in results.items():
        before, mark, rest = text.partition(f"<!-- evidence {name} -->")
        if mark:
            _, end, after = rest.partition("<!-- end -->")
            text = f"{before}{mark}\n\n{found['title']}; {found['seeds']} seeds.\n\n{table(found)}\n\n{end}{after}"
    return text


def main(args: Sequence[str] | None = None) -> None:
    """Make the runs, the results and the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SCENARIOS)}; all unless given")
    parser.add_argument("--out", type=Path, default=ROOT / ".bench" / "choose")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--pages", action="store_true", help="only write the tables into the page")
    given = parser.parse_args(args)
    for name in [] if given.pages else given.names or SCENARIOS:
        made = make(SCENARIOS[name], given.out / name, given.jobs)
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[name] = made
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name}: {results[name]['title']}\n{table(results[name])}\n", flush=True)
    PAGE.write_text(with_tables(PAGE.read_text(), json.loads(RESULTS.read_text()))) if PAGE.exists() else None


if __name__ == "__main__":
    main()
