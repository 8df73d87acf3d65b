"""Small runs that the tests of the report share."""

from pathlib import Path
from typing import Any

import fedstrata as fs


def run_into(folder: Path, method: str = "fedlws", **settings: Any) -> Path:
    """A quick run of six clients on handwritten digits."""
    small = {"partition": {"clients": 6, "alpha": 0.3}, "training": {"epochs": 1}}
    fs.Experiment.of({"method": method, "rounds": 3, **small, **settings}).run(folder)
    return folder


def compared(runs: dict[str, list[str]]) -> dict[str, Any]:
    """What `compare` says of such runs: their folders by method."""
    numbers = {"mean": 0.5, "low": 0.45, "high": 0.55, "values": [0.45, 0.55]}
    against = {"difference": 0.01, "low": -0.02, "high": 0.04, "p": 0.4, "verdict": "noise"}
    return {
        "fedstrata": fs.__version__,
        "settings": {},
        "seeds": [0, 1],
        "target": None,
        "methods": [{"name": name, "slug": name, "runs": paths} for name, paths in runs.items()],
        "columns": [
            {"key": "last", "title": "accuracy, last round", "better": "high", "form": "percent"},
            {"key": "tail", "title": "accuracy, mean of the last 3", "better": "high", "form": "percent"},
            {"key": "up", "title": "sent up", "better": "low", "form": "bytes"},
            {"key": "to", "title": "rounds to 90 %", "better": "low", "form": "rounds"},
        ],
        "rows": [
            {
                "method": name,
                "last": numbers,
                "tail": numbers | {"low": -0.2, "high": 1.2},
                "up": {"mean": 3e6, "low": 3e6, "high": 3e6, "values": [3e6]},
            }
            | {
                "to": {"mean": None, "low": None, "high": None, "values": [7, None]}
                if i
                else {"mean": 7, "values": [7]}
            }
            | {"against_first": against if i else None}
            for i, name in enumerate(runs)
        ],
        "words": ["The second <method> is not better than the first."],
    }
