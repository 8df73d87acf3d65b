"""One run is one folder of plain files: what was run, what happened in every round, the model that came out.

recipe.json         the algorithm
experiment.toml     the whole experiment; `fedstrata run experiment.toml` runs it again
rounds.jsonl        one line a round, written as it ends
notes.npz           diagnostics of every round, e.g. "gamma/00003"; "layers" and "tensors" name their last axis
model.safetensors   the trained global model
environment.json    what it ran on
"""

import json
import platform
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from fedstrata import toml
from fedstrata.core import Recipe
from fedstrata.errors import DataError
from fedstrata.layout import Arrays, Layout
from fedstrata.parse import load_outside
from fedstrata.version import __version__


class Recorder:
    """Writes a run folder as the run goes; without a folder it writes nothing."""

    def __init__(self, folder: str | Path | None, recipe: Recipe, settings: Mapping[str, Any], layout: Layout):
        self.folder = Path(folder) if folder is not None else None
        self.recipe, self.settings, self.layout = recipe, settings, layout
        self.notes: dict[str, np.ndarray] = {}

    def __enter__(self) -> Self:
        if self.folder is not None:
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise DataError(f"{self.folder} is not an empty folder; give another one, or remove it first")
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as e:
                raise DataError(f"the folder {self.folder} cannot be made: {e.strerror or e}") from None
            (self.folder / "recipe.json").write_text(json.dumps(self.recipe.to_dict(), indent=2) + "\n")
            (self.folder / "experiment.toml").write_text(
                toml.dumps(self.settings), encoding="utf-8"
            )  # as TOML has to be
            (self.folder / "environment.json").write_text(json.dumps(environment(self.layout), indent=2) + "\n")
            (self.folder / "rounds.jsonl").touch()
        return self

    def round(self, line: Mapping[str, Any], notes: Arrays) -> None:
        """Add a round to the record."""
        if self.folder is not None:
            with (self.folder / "rounds.jsonl").open("a") as f:
                f.write(json_text(line) + "\n")
            self.notes |= {f"{name}/{line['round']:05d}": v.cpu().numpy() for name, v in notes.items()}

    def model(self, model: nn.Module) -> None:
        """Save the trained model, each tied tensor once under every one of its names."""
        if self.folder is not None:
            named = {n: t.detach().cpu().contiguous().clone() for n, t in model.state_dict().items()}
            save_file(named, self.folder / "model.safetensors")

    def __exit__(self, *error: object) -> None:
        if self.folder is not None:
            names = {"layers": self.layout.layers, "tensors": self.layout.at("tensor").layers}
            named: dict[str, Any] = {n: np.array(v) for n, v in names.items()} | self.notes
            np.savez(self.folder / "notes.npz", **named)


def json_text(value: Any) -> str:
    """JSON that every reader takes: numbers that are not finite are null."""

    def plain(v: Any) -> Any:
        if isinstance(v, Mapping):
            return {k: plain(x) for k, x in v.items()}
        if isinstance(v, list):
            return [plain(x) for x in v]
        return None if isinstance(v, float) and not isfinite(v) else v

    return json.dumps(plain(value), allow_nan=False)


def environment(layout: Layout) -> dict[str, Any]:
    """What a run ran on."""
    cuda = layout.device.type == "cuda"
    return {
        "fedstrata": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(layout.device) if cuda else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "parameters": layout.size,
    }


def read_rounds(folder: str | Path) -> list[dict[str, Any]]:
    """The rounds of a run folder."""
    path = Path(folder) / "rounds.jsonl"
    if not path.exists():
        raise DataError(f"{folder} is not a run folder: it has no rounds.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_recipe(folder: str | Path) -> Recipe:
    """The recipe of a run folder."""
    path = Path(folder) / "recipe.json"
    if not path.exists():
        raise DataError(f"{folder} is not a run folder: it has no recipe.json")
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise DataError(f"{path} cannot be read as JSON: {e}") from None
    if not isinstance(said, Mapping):
        raise DataError(f"{path} is not a recipe, which has a select, a weigh and other parts")
    load_outside()  # a part of somebody else's may be in it
    return Recipe.from_dict(said)
