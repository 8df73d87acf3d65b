"""How exactly numbers are multiplied: float32 as it is, or faster with fewer digits in the factors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch.backends import cuda, cudnn

Precision = Literal["float32", "tf32", "bf16"]
"""tf32: factors of products with 10 bits, on a GPU; bf16: activations with 8 bits too. Parameters and sums are float32
always. A CPU gains by bf16 if it has instructions for it (AVX512_BF16, AMX), and loses otherwise."""

_AUTOCAST = False


@contextmanager
def multiplying(precision: Precision) -> Iterator[None]:
    """Within this block products are made so.

    cuDNN tries its algorithms once for each shape and keeps the fastest: grouped convolutions gain up to a half. Which
    one that is may differ from run to run, and with it the last digits.
    """
    global _AUTOCAST
    before = cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, _AUTOCAST
    cuda.matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    cudnn.benchmark, _AUTOCAST = True, precision == "bf16"
    try:
        yield
    finally:
        cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, _AUTOCAST = before


@contextmanager
def casting(device: torch.device) -> Iterator[None]:
    """Within this block a model's passes run in bfloat16, where that was asked for.

    On a CPU not those that torch.func differentiates, to measure something: its normalising layers mix up the types.
    """
    if not _AUTOCAST or (device.type == "cpu" and _is_transformed()):
        yield
        return
    with torch.autocast(device.type, torch.bfloat16):
        yield


def _is_transformed() -> bool:
    """Whether this is inside vmap or grad of torch.func."""
    return torch._C._functorch.maybe_current_level() is not None  # pyright: ignore[reportAttributeAccessIssue]
