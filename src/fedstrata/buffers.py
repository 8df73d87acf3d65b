"""What becomes of running statistics and counters: mixed plainly, never shrunk, scaled or regularised."""

from typing import Literal

import torch
from torch import Tensor

from fedstrata.layout import Arrays

BufferPolicy = Literal["average", "global", "local"]
"""average: the mean of the clients' buffers; global: the server keeps its own; local: so does every client."""


def mix_buffers(old: Arrays, new: Arrays, weights: Tensor, share: Tensor, policy: BufferPolicy = "average") -> Arrays:
    """The global buffers after a round, from the clients' [K, ...], in the types they had.

    Floating-point buffers take the algorithm's weights of the clients; whole numbers their p_k mean, rounded half even.
    """
    if policy != "average":
        return old

    def mean(b: Tensor, w: Tensor) -> Tensor:
        return torch.tensordot(w.double(), b.double(), 1)

    return {
        n: mean(b, weights).to(b.dtype) if b.is_floating_point() else mean(b, share).round().to(b.dtype)
        for n, b in new.items()
    }
