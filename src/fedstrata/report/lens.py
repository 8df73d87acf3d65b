"""The layer lens: what the parts noted of every layer, over the rounds and over the clients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedstrata.report.folders import RunFolder, uncounted

WORDS: dict[str, tuple[str, str]] = {
    "drift": ("drift |Δ|", "how far clients move the layer away from the global model"),
    "angle": ("angle", "between a client's update and the mean update, in radians, as the method smooths it"),
    "cosine": ("cosine", "between a client's layer and the global one"),
    "weights": ("weight", "how much a client counts in the layer"),
    "gamma": ("\u03b3, shrinking", "the factor that the layer is multiplied by; 1 leaves it alone"),
    "tau": ("τ, disagreement", "how far apart the clients' updates of the layer are"),
    "mu": ("μ, proximal strength", "how strongly clients are held near the global layer"),
    "interval": ("interval", "rounds between two averages of the layer"),
    "rate": ("decay rate", "how much of the old model is taken away"),
    "effective_steps": ("effective steps", "local work of a client, as FedNova counts it"),
    "distance": ("label distance", "between a client's labels and the target's"),
    "contribution": ("contribution", "a client's update along the common direction"),
    "agreement": ("agreement", "of a client's gradient with the common one"),
    "adversary": ("adversary's weight", "how much the worst case counts a client"),
    "gap": ("gap", "between a client's accuracy and that of all"),
    "variance": ("variance", "of a client's losses or gradients on a mini-batch"),
}
"""The title and the meaning of what is noted, in the order of the page."""

OF_CLIENTS = {"effective_steps", "distance", "contribution", "agreement", "adversary", "gap", "variance"}
"""Notes of one number a client; others of one axis have one number a layer."""


def effective(weights: np.ndarray) -> np.ndarray:
    """How many equally weighed clients would count as evenly in each layer: [K, L] to [L]."""
    total, squares = np.abs(weights).sum(0) ** 2, (weights**2).sum(0)
    return total / np.maximum(squares, 1e-300)


def variation(values: np.ndarray) -> np.ndarray:
    """Standard deviation over clients by their mean, in each layer: [K, L] to [L]."""
    return values.std(0) / np.maximum(np.abs(values.mean(0)), 1e-300)


def average(values: np.ndarray) -> np.ndarray:
    """The mean over clients in each layer: [K, L] to [L]."""
    return values.mean(0)


SUMMARIES: dict[str, list[tuple[str, str, Callable[[np.ndarray], np.ndarray]]]] = {
    "drift": [
        ("drift |Δ|", "how far the layer moves on a client, mean over the clients", average),
        ("uneven drift", "spread of the drift over the clients, by its mean: high where a few clients pull", variation),
    ],
    "weights": [("clients that count", "as many equal weights would be as even: (Σw)² / Σw²", effective)],
}
"""What is shown over rounds and layers of notes that have a number for each client; of others the mean."""


@dataclass(frozen=True, eq=False)
class Heat:
    """One number for each layer in each round."""

    title: str
    says: str
    layers: list[str]
    rounds: list[int]
    values: np.ndarray  # [L, R]


@dataclass(frozen=True, eq=False)
class Frames:
    """One number for each client and layer, round by round."""

    title: str
    says: str
    layers: list[str]
    rounds: list[int]
    clients: list[list[int]]  # of each round
    values: list[np.ndarray]  # of each round, [K, L]


@dataclass(frozen=True, eq=False)
class Lens:
    """All that can be seen of the layers of a run."""

    heats: list[Heat]
    frames: list[Frames]


def lens(run: RunFolder) -> Lens:
    """What a run noted of its layers. Clients that were merged as they came cannot be told apart any more."""
    cohorts = {line["round"]: _answered(line) for line in run.rounds}
    heats: list[Heat] = []
    frames: list[Frames] = []
    for name, noted in _noted(run).items():
        tables = _alike({r: _table(name, v, len(cohorts.get(r, ()))) for r, v in noted.items()})
        if not tables:
            continue
        title, says = WORDS.get(name, (name, "as the recipe noted it"))
        rounds, values = [r + 1 for r in tables], list(tables.values())
        layers = layer_names(run, values[0].shape[-1])
        if values[0].ndim == 1:
            heats.append(Heat(title, says, layers, rounds, np.stack(values, 1)))
            continue
        if len(layers) > 1:  # of a single row the clients' picture tells all
            for title_, says_, summary in SUMMARIES.get(name, [(f"{title}, mean", says, average)]):
                heats.append(Heat(title_, says_, layers, rounds, np.stack([summary(v) for v in values], 1)))
        if all(len(v) == len(cohorts.get(r, ())) for r, v in tables.items()):
            frames.append(Frames(title, says, layers, rounds, [cohorts[r] for r in tables], values))
    return Lens(heats, frames)


def layer_names(run: RunFolder, count: int) -> list[str]:
    """What the axis of so many values is called: layers, tensors, the whole model, or groups of the method's own."""
    if count == 1:
        return ["model"]
    known = next((n for n in ("layers", "tensors") if n in run.notes and len(run.notes[n]) == count), None)
    return run.notes[known].tolist() if known else [f"group {i + 1}" for i in range(count)]


def thinned(count: int, most: int) -> list[int]:
    """At most so many of `count` places, evenly, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, max(1, min(count, most))).round().astype(int)).tolist()


def in_words(found: Lens) -> str:
    """Where clients agree least and most, over the last quarter of the rounds."""
    disagree = "clients disagree most", "least"
    words = {"angle, mean": disagree, "τ, disagreement": disagree}
    for title, (most, least) in (words | {"uneven drift": ("clients drift most unevenly", "most evenly")}).items():
        heat = next((h for h in found.heats if h.title == title and len(h.layers) > 1), None)
        if heat is not None:
            late = heat.values[:, -max(1, len(heat.rounds) // 4) :].mean(1)
            high, low = (f"{_called(heat.layers[i])} ({late[i]:.3g})" for i in (late.argmax(), late.argmin()))
            what = f"The measure is {title.partition(',')[0]}."
            return f"Over the last quarter of the rounds, {most} in {high} and {least} in {low}. {what}"
    return ""


def _called(layer: str) -> str:
    """A layer within a sentence: some are mere numbers."""
    return f"layer {layer}" if layer[:1].isdigit() else layer


def _noted(run: RunFolder) -> dict[str, dict[int, np.ndarray]]:
    """Every note by its name, in the order of the page, and by its round."""
    found: dict[str, dict[int, np.ndarray]] = {}
    for key in sorted(run.notes):
        name, slash, number = key.rpartition("/")
        if slash:
            found.setdefault(name, {})[int(number)] = run.notes[key].astype(np.float64)
    order = list(WORDS)
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in WORDS else len(order)))


def _table(name: str, values: np.ndarray, clients: int) -> np.ndarray:
    """[L] or [K, L]: a note of one number a client is that of a single layer, the model."""
    return values[:, None] if values.ndim == 1 and name in OF_CLIENTS and len(values) == clients else values


def _alike(tables: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Those with as many axes and layers as the last; single numbers are no tables."""
    last = list(tables.values())[-1]
    same = {r: v for r, v in tables.items() if v.ndim == last.ndim and v.shape[-1:] == last.shape[-1:]}
    return same if last.ndim in (1, 2) else {}


def _answered(line: dict[str, Any]) -> list[int]:
    """Whose updates a round was closed over."""
    out = set(uncounted(line))
    return [i for i in line.get("cohort", []) if i not in out]
