"""A convolution and the largest answer in each of its windows, on a CPU: only these answers have a gradient.

Torch spreads a window's gradient over four answers, three of them zero, and then multiplies all of them, for pictures
of few channels by a fraction of what a core can do. Here what is not zero is all that is looked at (`windows.py`), and
the convolution of some examples is pooled before the next ones are looked at, while it is in the cache.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstrata.bind import is_heard
from fedstrata.loops import working
from fedstrata.products import wrapped
from fedstrata.rng import seeded
from fedstrata.threads import allowed, pieces, spread

PAYS = 3e10
"""Multiplications of the convolutions, forward, from which on it pays to import numba: half a second."""

CACHED = 1 << 21
"""Bytes of answers that are made before they are pooled."""

LINE = 64
"""Bytes of a cache line, in which `windows` adds up."""

LONGEST = 12 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 6
"""Lines whose sums stay in registers."""

WIDEST = 4
"""Side of the largest windows: each of their spots is compiled by itself."""

loops = partial(working, "windows")
"""The compiled loops, if they are there."""

_ON: ContextVar[bool] = ContextVar("on", default=False)


@contextmanager
def pooling(on: bool) -> Iterator[None]:
    """Within this block convolutions are pooled so, in models that `heed_pools` has seen."""
    token = _ON.set(on)
    try:
        yield
    finally:
        _ON.reset(token)


def heed_pools(model: nn.Module) -> nn.Module:
    """Make sequences of layers take a convolution and its pooling at once; the model is changed and returned."""
    for sequence in _sequences(model):
        if any(taken := _taken(sequence)):
            sequence.forward = partial(_forward, sequence, taken)  # pyright: ignore[reportAttributeAccessIssue]
    return model


def pays(model: nn.Module, x: Tensor, passes: float) -> bool:
    """Whether so many passes over an example have enough of such convolutions, and the loops are there."""
    found = any(any(_taken(s)) for s in _sequences(model))
    return found and passes * _multiplications(model, x[:1]) >= PAYS and loops() is not None


class Kept(NamedTuple):
    """What a convolution's gradient needs to know of it."""

    side: int  # of a window
    padding: tuple[int, int]
    across: int  # answers in a row


class PooledConvolution(torch.autograd.Function):
    """x [B, I, H, W], weight [C, I, k, l], bias [C] -> [B, C, h, w], all with channels last.

    Where a gradient is infinite, numbers beside those that torch gives may be NaN too.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, side: int, padding: tuple[int, int]
    ) -> Tensor:
        height, width = (n + 2 * p - k + 1 for n, p, k in zip(x.shape[2:], padding, weight.shape[2:], strict=True))
        size = len(x), len(weight), height // side, width // side
        out = torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)
        best = out.permute(0, 2, 3, 1)
        place = torch.empty_like(best, dtype=torch.int32)
        some = max(1, allowed() * CACHED // (height * width * len(weight) * x.element_size()))
        for v, *into in zip(x.split(some), best.split(some), place.split(some), strict=True):
            _pool(F.conv2d(v, weight, bias, 1, padding), side, *into)
        ctx.save_for_backward(x, weight, place)
        ctx.kept = Kept(side, padding, width)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (x, weight, place), kept = ctx.saved_tensors, ctx.kept
        g = grads[0].permute(0, 2, 3, 1).contiguous()
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        return (
            _to_inputs(g, place, x, weight, kept) if of_x else None,
            _to_filters(g, place, x, weight, kept) if of_weight else None,
            g.sum((0, 1, 2)) if of_bias else None,
            None,
            None,
        )


def _pool(z: Tensor, side: int, best: Tensor, place: Tensor) -> None:
    given = z.permute(0, 2, 3, 1).contiguous().numpy(), (0,) * side, best.numpy(), place.numpy()
    spread(lambda piece: loops().largest(*given, *piece), pieces(len(z), allowed()), allowed())


def _to_inputs(g: Tensor, place: Tensor, x: Tensor, weight: Tensor, kept: Kept) -> Tensor:
    down, right = kept.padding
    count, channels, height, width = x.shape[0], x.shape[1], x.shape[2] + 2 * down, x.shape[3] + 2 * right
    rows = weight.permute(0, 2, 3, 1).flatten(2)  # [C, k, l I]
    size, length, wide = height * width * channels, *_lines(rows)
    dx = g.new_zeros(count, size + length - rows.shape[2])
    filters = F.pad(rows, (0, length - rows.shape[2])).contiguous().numpy()
    given = g.numpy(), place.numpy(), kept.across, kept.side, filters, width, channels, wide, dx.numpy()
    spread(lambda piece: loops().to_inputs(*given, *piece), pieces(count, allowed()), allowed())
    made = dx[:, :size].view(count, height, width, channels)[:, down : height - down, right : width - right]
    return made.permute(0, 3, 1, 2)


def _to_filters(g: Tensor, place: Tensor, x: Tensor, weight: Tensor, kept: Kept) -> Tensor:
    (filters, channels, tall, broad), (down, right) = weight.shape, kept.padding
    seen = F.pad(x.permute(0, 2, 3, 1), (0, 0, right, right, down, down)) if down or right else x.permute(0, 2, 3, 1)
    count, height, width, _ = seen.shape
    length, wide = _lines(weight.permute(0, 2, 3, 1).flatten(2))
    of_rows = g.new_zeros(filters, tall, length)
    apart, made = LINE // g.element_size(), of_rows
    if length == apart and tall <= LONGEST:  # a line holds a row of the filter: all of them at once
        apart, made, wide = width * channels, of_rows.view(filters, 1, -1), (0,) * tall
    begin = _begins(height - tall + 1, kept.across, width, channels)
    pictures = _with_rest(seen.reshape(count, -1), length - broad * channels)
    given = g.numpy(), place.numpy(), begin, pictures.numpy(), width * channels, apart, wide, made.numpy()
    spread(lambda piece: loops().to_filters(*given, *piece), pieces(filters, allowed()), allowed())
    return of_rows[..., : broad * channels].unflatten(2, (broad, channels)).permute(0, 3, 1, 2)


def _with_rest(x: Tensor, more: int) -> Tensor:
    """The same [B, n], with so many zeros behind it in memory: a last line may reach beyond the last picture."""
    return torch.cat([x.flatten(), x.new_zeros(more)])[: x.numel()].view(x.shape) if more else x


@lru_cache
def _begins(height: int, across: int, width: int, channels: int) -> Any:
    """Where in a picture begins what each answer has seen."""
    return (np.arange(height)[:, None] * width + np.arange(across)).ravel() * channels


def _lines(rows: Tensor) -> tuple[int, tuple[int, ...]]:
    """How long a row of numbers becomes in whole lines, and a tuple as long as the lines that are summed at a time."""
    lanes = LINE // rows.element_size()
    lines = -(-rows.shape[-1] // lanes)
    times = -(-lines // LONGEST)
    wide = -(-lines // times)
    return times * wide * lanes, (0,) * wide


def _sequences(model: nn.Module) -> list[nn.Sequential]:
    return [m for m in model.modules() if type(m) is nn.Sequential]


def _multiplications(model: nn.Module, x: Tensor) -> int:
    """Of the convolutions that are pooled next, in a pass over these examples."""
    seen: list[int] = []

    def count(layer: Any, _args: object, out: Tensor) -> None:
        seen.append(out.numel() * layer.weight[0].numel())

    pooled = [layer for s in _sequences(model) for layer, taken in zip(s, _taken(s), strict=True) if taken]
    hooks = [layer.register_forward_hook(count) for layer in pooled]
    try:
        with torch.no_grad(), seeded(0, x.device):  # some models draw
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(seen)


def _forward(self: nn.Sequential, taken: Sequence[int], input: Tensor) -> Tensor:
    """As torch's, but for convolutions that are pooled next, or after a ReLU, which commutes with a maximum."""
    x, layers, i, on = input, list[Any](self), 0, _ON.get()
    while i < len(layers):
        some = layers[i : i + taken[i]] if on else []
        if some and not any(map(is_heard, some)) and _fits(x, some[0], _side(some[-1])):
            filters = some[0]
            x = PooledConvolution.apply(x, filters.weight, filters.bias, _side(some[-1]), filters.padding)
            x = x.relu() if len(some) == 3 else x
            i += len(some)
        else:
            x = layers[i](x)
            i += 1
    return x


def _taken(sequence: nn.Sequential) -> list[int]:
    """How many layers are taken at once from each on: a convolution, perhaps a ReLU, and a pooling; 0 elsewhere."""
    layers = list(sequence)
    ends = [i + 2 if i + 2 < len(layers) and type(layers[i + 1]) is nn.ReLU else i + 1 for i in range(len(layers))]
    return [
        end + 1 - i if end < len(layers) and _filters(layers[i]) and _pools(layers[end]) else 0
        for i, end in enumerate(ends)
    ]


def _filters(layer: nn.Module) -> bool:
    """Whether it is a convolution with settings that are heeded here."""
    if type(layer) is not nn.Conv2d or layer._parameters.keys() != {"weight", "bias"} or layer._buffers:
        return False  # pruned, say
    usual = (layer.stride, layer.dilation, layer.groups, layer.padding_mode) == ((1, 1), (1, 1), 1, "zeros")
    return usual and all(type(p) is int for p in layer.padding)  # and no name


def _pools(layer: nn.Module) -> bool:
    """Whether it takes the largest of small squares that lie side by side."""
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    beside = layer.stride == layer.kernel_size and layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1))
    return beside and 1 <= _side(layer) <= WIDEST


def _side(pool: nn.MaxPool2d) -> int:
    """Of its windows; 0 if they are no squares."""
    tall, broad = pool.kernel_size if isinstance(pool.kernel_size, tuple) else (pool.kernel_size,) * 2
    return tall if type(tall) is type(broad) is int and tall == broad else 0


def _fits(x: Tensor, filters: nn.Conv2d, side: int) -> bool:
    """Whether these are pictures of one model with channels last, in a CPU's memory, large enough for a window."""
    given = [x, filters.weight, *(() if filters.bias is None else (filters.bias,))]
    if any(wrapped(v) or v.device.type != "cpu" or v.dtype != x.dtype for v in given) or torch.compiler.is_compiling():
        return False
    exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    if not exact or (x.dim(), filters.weight.dim()) != (4, 4) or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    room = (n + 2 * int(p) - k + 1 for n, p, k in zip(x.shape[2:], filters.padding, filters.kernel_size, strict=True))
    return len(x) > 0 and min(room) >= side
