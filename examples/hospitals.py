"""From a CSV of hospitals to the commands of a deployment: write it, compare methods, pick one, say how to deploy it.

The cases are scikit-learn's breast cancer data. Each of the five hospitals sees another mix of them, and other numbers.
"""

import csv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedstrata as fs

MALIGNANT = {"north": 0.9, "east": 0.7, "south": 0.4, "west": 0.2, "centre": 0.1}  # the share each hospital aims at
SIZES = {"north": 0.1, "east": 0.1, "south": 0.2, "west": 0.2, "centre": 0.4}
METHODS = ["fedavg", "fedavg(weighting='uniform')", "scaffold", "fedlws"]


def write_cases(path: Path, seed: int = 0) -> None:
    """A row a case: hospital, diagnosis (0 malignant, 1 benign), the first four measurements."""
    found: Any = load_breast_cancer()
    draw = np.random.default_rng(seed)
    pull = {0: MALIGNANT, 1: {h: 1 - p for h, p in MALIGNANT.items()}}
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["hospital", "diagnosis", *(n.replace(" ", "_") for n in found["feature_names"][:4])])
        for x, y in zip(found["data"], found["target"], strict=True):
            chance = np.array([SIZES[h] * pull[int(y)][h] for h in MALIGNANT])
            rows.writerow([draw.choice(list(MALIGNANT), p=chance / chance.sum()), y, *x[:4]])


def picked(found: fs.Comparison) -> str:
    """The best of those that are really better than the first; else the first."""
    first, *others = found.rows
    real = [r for r in others if r["against_first"]["verdict"] == "real"]
    return max([first, *real], key=lambda r: r["tail"]["mean"])["method"]


def main(folder: Path) -> None:
    """All of it, in a folder."""
    write_cases(folder / "cases.csv")
    experiment = {"data": str(folder / "cases.csv"), "label": "diagnosis", "client": "hospital", "model": "logreg"}
    found = fs.compare(METHODS, experiment | {"rounds": 10}, seeds=3, jobs=1)
    for row in found.rows:
        print(f"{row['method']}: accuracy {row['tail']['mean']:.3f}, worst hospital {row['worst10']['mean']:.3f}")
    print(found)
    method = picked(found)
    columns = "--label diagnosis --client hospital --model logreg --rounds 10"
    print(f"\nTake {method}. To try it over TLS on this machine, and then for the real thing:")
    print(f'  fedstrata deploy local --method "{method}" --data cases.csv {columns}')
    nodes = f"--nodes {','.join(MALIGNANT)} --host fl.example.org"
    print(f'  fedstrata deploy init federation {nodes} --method "{method}" --data cases.csv {columns}')


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        main(Path(place))
