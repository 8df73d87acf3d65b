"""What a split looks like in numbers."""

from typing import Any

import numpy as np

from fedstrata.clients import Clients
from fedstrata.task import are_labels


def describe(clients: Clients) -> dict[str, Any]:
    """Sizes and examples left out; for labels also how many each client has, and how far they are from the whole.

    Effective classes are e^entropy, a mean over clients that have data. The distance is the total variation between a
    client's label distribution and that of all clients together.
    """
    sizes = clients.sizes
    owned = len(np.unique(clients.rows.flat))
    facts: dict[str, Any] = {"clients": len(clients), "examples": int(sizes.sum()), "left_out": len(clients.x) - owned}
    facts |= {"smallest": int(sizes.min()), "median": float(np.median(sizes)), "largest": int(sizes.max())}
    facts["sizes"] = sizes.tolist()
    return facts | _label_facts(clients.labels().numpy()) if has_labels(clients) else facts


def has_labels(clients: Clients) -> bool:
    """Whether each example has one class, and no other target."""
    return are_labels(clients.y)


def _label_facts(counts: np.ndarray) -> dict[str, Any]:
    """Of class counts [N, C]; a client without data has no entropy and no distance."""
    filled = counts.sum(1) > 0
    p = counts[filled] / counts[filled].sum(1, keepdims=True)
    entropy = -(p * np.log(np.where(p > 0, p, 1.0))).sum(1) + 0.0  # in nats; no minus zero
    distance = np.abs(p - counts.sum(0) / counts.sum()).sum(1) / 2
    every = iter(entropy.tolist())
    classes = (counts > 0).sum(1)
    return {
        "effective_classes": float(np.exp(entropy).mean()),
        "label_distance": float(distance.mean()),
        "label_entropy": float(entropy.mean()),
        "label_entropies": [next(every) if f else None for f in filled],
        "classes": {"min": int(classes.min()), "median": float(np.median(classes)), "max": int(classes.max())},
    }
