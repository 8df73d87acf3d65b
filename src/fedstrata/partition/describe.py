"""What a split looks like in numbers."""

from typing import Any

import numpy as np

from fedstrata.clients import Clients


def describe(clients: Clients) -> dict[str, Any]:
    """Sizes; for labels also each client's effective classes (e^entropy) and the mean distance to the whole.

    The distance is the total variation between a client's label distribution and that of all clients together.
    """
    sizes = clients.sizes
    facts: dict[str, Any] = {"clients": len(clients), "examples": int(sizes.sum())}
    facts |= {"smallest": int(sizes.min()), "median": float(np.median(sizes)), "largest": int(sizes.max())}
    if clients.y.is_floating_point():
        return facts
    counts = clients.labels().numpy()
    whole = counts.sum(0) / counts.sum()
    p = counts[sizes > 0] / sizes[sizes > 0, None]
    entropy = -(p * np.log(np.where(p > 0, p, 1.0))).sum(1)
    facts["effective_classes"] = float(np.exp(entropy).mean())
    facts["label_distance"] = float((np.abs(p - whole).sum(1) / 2).mean())
    return facts
