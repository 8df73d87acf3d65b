"""Products of float32 matrices by oneDNN, on processors where MKL, torch's usual way, does half of what they can.

MKL takes AVX-512 for Intel's processors alone; AMD's have it since Zen 4. oneDNN asks the processor what it can do.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b, [..., I] and [O, I] -> [..., O]."""
    if not suits(x, weight):
        return torch.nn.functional.linear(x, weight, bias)
    return Linear.apply(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b^T, [M, I] and [N, I] -> [M, N]; no gradient comes through."""
    return _by_onednn(a, b) if suits(a, b) else a @ b.mT


def suits(*matrices: Tensor) -> bool:
    """Whether oneDNN is faster for these, and can take them."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    fit = all(m.dtype == torch.float32 and m.device.type == "cpu" and m.dim() > 1 and m.numel() for m in matrices)
    return fit and halved_by_mkl() and not any(map(wrapped, matrices))


class Linear(torch.autograd.Function):
    """x W^T + b, [M, I] and [O, I] -> [M, O]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _by_onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (x, weight), g = ctx.saved_tensors, grads[0]
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _by_onednn(g, weight.mT) if of_x else None,
            _by_onednn(g.mT, x.mT) if of_weight else None,
            g.sum(0) if of_bias else None,
        )


@cache
def halved_by_mkl() -> bool:
    """Whether this is one of AMD's processors with AVX-512, and torch can be asked for oneDNN's product."""
    info = Path("/proc/cpuinfo")
    amd = info.exists() and "AuthenticAMD" in info.read_text()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return amd and wide and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def wrapped(x: Tensor) -> bool:
    """Whether it stands for several tensors that vmap goes over, or for one that torch.func differentiates."""
    return torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore[reportAttributeAccessIssue]


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
