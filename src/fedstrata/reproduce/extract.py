"""What else is taken from a finished run than its curves: notes of the server's, and the weights at the end."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load_file

from fedstrata.errors import DataError
from fedstrata.record import read_notes
from fedstrata.server_step import BUFFERS

Which = Literal["all", "early", "late"]
"""Of the rounds: all of them, or a tenth of them from the beginning or at the end."""


def extracted(folder: Path, wanted: Mapping[str, Mapping[str, Any]]) -> dict[str, list[float]]:
    """What a table wants from a run, by name; what this one has no note or no layer for is left out."""
    found = {n: _of_weights(folder, **how) if "weights" in how else _noted(folder, **how) for n, how in wanted.items()}
    if wanted and not any(v is not None for v in found.values()):
        notes = read_notes(folder)
        there = ", ".join(sorted({n.partition("/")[0] for n in notes if "/" in n}))
        layers = ", ".join(str(n) for n in notes.get("layers", ()))
        raise DataError(f"{folder} has nothing that is wanted of it; its notes are {there}, of the layers {layers}")
    return {name: v for name, v in found.items() if v is not None}


def _noted(
    folder: Path, note: str, layers: Sequence[str] = ("*",), of: Literal["mean", "std"] = "mean", rounds: Which = "all"
) -> list[float] | None:
    """The mean or spread of a note over the layers of these names, round by round."""
    notes = read_notes(folder)
    mine = [i for i, n in enumerate(notes["layers"]) if any(fnmatch(str(n), pattern) for pattern in layers)]
    found = [np.asarray(v) for k, v in sorted(notes.items()) if k.startswith(f"{note}/")]
    if not mine or not found:
        return None
    some = max(1, len(found) // 10)
    found = {"all": found, "early": found[:some], "late": found[-some:]}[rounds]
    chosen = [v if v.shape[-1] == 1 else v[..., mine] for v in found]  # of the whole model, there is one
    return [round(float(np.mean(v) if of == "mean" else np.std(v, axis=-1).mean()), 6) for v in chosen]


def _of_weights(folder: Path, weights: Literal["share", "histogram"], within: float, bins: int = 60) -> list[float]:
    """The share of all trained numbers that are so close to zero, or how many are in each bin up to there."""
    tensors = load_file(folder / "model.safetensors")
    flat = np.concatenate([t.ravel() for n, t in tensors.items() if not n.endswith(BUFFERS)])
    if weights == "share":
        return [round(float((np.abs(flat) < within).mean()), 6)]
    return np.histogram(flat, bins, (-within, within))[0].astype(float).tolist()
