"""The compiled loops of `kernels` for tensors: where they can be used, over which blocks, by how many threads.

numba is optional (`pip install fedstrata[fast]`): without it, on an accelerator, for other types than float32 and
float64 and for small matrices, torch does the same in more passes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstrata import memory
from fedstrata.layout import Layout
from fedstrata.loops import working
from fedstrata.threads import allowed, spread

Array = NDArray[Any]

SMALLEST = 2_000_000
"""Numbers from which on it pays to import numba, half a second, and to hand work to threads."""

LOOK = 160 * 1024
"""Bytes of a block of all clients in a pass that looks at it several times: it and the next one stay in the cache."""

STREAM = 64 * 1024
"""Bytes of a block of one client in a pass that looks at it once: long runs are what memory is fastest at."""

SHARE = 2_000_000
"""Numbers for which it pays to wake another thread, some 150 microseconds' work: on a virtual machine it takes 30 until
that has begun, 50 until this one knows of its end, and more where torch's threads still wait for work, busily."""

LOOKS = 3
"""Times that a number takes longer in a pass that looks at it several times than in one that mixes."""

kernels = partial(working, "kernels")
"""The compiled loops, if they are there."""


def fits(delta: Tensor, old: Tensor) -> bool:
    """Whether the compiled loops can take these updates of this model, and pay."""
    return len(delta) > 0 and delta.numel() >= SMALLEST and plain(delta, old) and kernels() is not None


def plain(*tensors: Tensor) -> bool:
    """Whether these lie in a CPU's memory without gaps, as float32 all or float64 all, and need no gradient."""
    dtype = tensors[0].dtype
    return dtype in (torch.float32, torch.float64) and all(
        t.dtype == dtype and t.device.type == "cpu" and t.is_contiguous() and not t.requires_grad for t in tensors
    )


@dataclass(frozen=True)
class Blocks:
    """Where the blocks of a pass begin and end, [N] each: none crosses a tensor."""

    begin: Array
    end: Array
    memo: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.begin)

    @classmethod
    def of(cls, layout: Layout, width: int) -> "Blocks":
        """The blocks of this many columns at most; the same ones are asked for in every round."""
        made = layout.memo.get(("blocks", width))
        if made is None:
            spans = [(a, b) for a, b in layout.at("tensor").spans() if b > a]
            begin = np.concatenate([np.arange(a, b, width) for a, b in spans])
            end = np.concatenate([np.append(np.arange(a + width, b, width), b) for a, b in spans])
            made = layout.memo["blocks", width] = cls(begin, end)
        return made

    def owners(self, layout: Layout) -> Array:
        """The layer of each block, [N]."""
        made = layout.memo.get(("owners", len(self)))
        if made is None:
            ends = np.cumsum(layout.lengths)
            made = layout.memo["owners", len(self)] = np.searchsorted(ends, self.begin, side="right")
        return made

    def pieces(self, count: int) -> list[tuple[int, int]]:
        """Where about so many pieces of the blocks begin and end: about as many columns in each."""
        if count not in self.memo:
            cuts = np.unique(np.searchsorted(self.begin, self.end[-1] * np.arange(count + 1) // count))
            self.memo[count] = list(pairwise(cuts.tolist()))
        return self.memo[count]


@dataclass(frozen=True)
class Sums:
    """What a pass has added up, block by block, in float64."""

    blocks: Blocks
    kinds: Array  # [3] what was asked for by reference
    rows: Array  # [3, N, 2, K] by reference: |delta_k|^2, and the product with it or the squared distance to it
    sizes: Array  # [N, 5] |reference|^2 of each, |old|^2, |average - old|^2
    memo: dict[int, tuple[Array, Array]] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """Of the references that clients were compared with."""
        return int(self.kinds.nonzero()[0][0])

    def finite(self) -> bool:
        """Whether no |delta_k|^2 is NaN or infinite."""
        return bool(np.isfinite(self.rows[self.first, :, 0].sum()))

    def at(self, layout: Layout) -> tuple[Array, Array]:
        """The sums of each layer, of clients [3, 2, K, L] and of vectors [5, L]; at a grain they are added up once."""
        if layout.depth not in self.memo:
            of_clients = np.empty((3, 2, self.rows.shape[-1], layout.depth))
            of_vectors = np.empty((5, layout.depth))
            given = self.rows, self.sizes, self.kinds, self.blocks.owners(layout)
            kernels().gather(*given, of_clients, of_vectors)
            self.memo[layout.depth] = of_clients, of_vectors
        return self.memo[layout.depth]


def look(
    layout: Layout, delta: Tensor, old: Tensor, weights: Tensor, kinds: dict[int, str], writes: bool
) -> tuple[Sums, Tensor]:
    """One pass over the updates: (its sums, old + their mean by these weights if that is to be written, else old).

    `kinds` says what is summed up of each client and a reference: "SQUARE", "DOT" or "GAP".
    """
    x, loops = delta.numpy(), kernels()
    k = len(x)
    width = max(128, LOOK // (k * x.itemsize) // 64 * 64)
    blocks = Blocks.of(layout, min(width, STREAM // x.itemsize))
    both, scale = np.ones((2, k), x.dtype), np.array([1, 1 / k, -1])
    both[0] = weights.numpy()
    asked = np.array([getattr(loops, kinds.get(q, "NOTHING")) for q in range(3)])
    rows = memory.array(3 * len(blocks) * 2 * k, np.float64).reshape(3, len(blocks), 2, k)
    sizes, w = np.empty((len(blocks), 5)), old.numpy()
    out = memory.array(w.size, w.dtype) if writes else w
    given = x, w, both, scale, asked, writes, blocks.begin, blocks.end
    _run(loops.look, blocks, LOOKS * x.size, *given, rows, sizes, out)
    return Sums(blocks, asked, rows, sizes), torch.from_numpy(out)


def mix(layout: Layout, delta: Tensor, old: Tensor, weights: Tensor, keep: Tensor) -> Tensor:
    """keep_l old + sum_k weights_k,l delta_k, layer by layer: [P] from weights [K, L] and keep [L]."""
    x, w = delta.numpy(), old.numpy()
    out = memory.array(w.size, w.dtype)
    blocks = Blocks.of(layout, STREAM // x.itemsize)
    scalars = np.ascontiguousarray(weights.numpy().T, x.dtype), keep.numpy().astype(x.dtype)
    where = blocks.begin, blocks.end, blocks.owners(layout)
    _run(kernels().mix, blocks, x.size, x, w, *scalars, *where, out)
    return torch.from_numpy(out)


def blend(layout: Layout, a: Tensor, x: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """a_l x + b_l y, layer by layer: [P] from scalars [L]."""
    v, w = x.numpy(), y.numpy()
    out = memory.array(v.size, v.dtype)
    blocks = Blocks.of(layout, STREAM // v.itemsize)
    scalars = a.numpy().astype(v.dtype), b.numpy().astype(v.dtype)
    where = blocks.begin, blocks.end, blocks.owners(layout)
    _run(kernels().blend, blocks, v.size, v, w, *scalars, *where, out)
    return torch.from_numpy(out)


def square(layout: Layout, x: Tensor) -> float:
    """|x|^2, in float64."""
    blocks = Blocks.of(layout, STREAM // x.element_size())
    out = np.empty(len(blocks))
    _run(kernels().square, blocks, len(x), x.numpy(), blocks.begin, blocks.end, out)
    return float(out.sum())


def cosine(dots: Array, squares: Array, size: Array, when_zero: float) -> Tensor:
    """From <x, y> and |x|^2, [K, L], and |y|^2, [L]: [K, L], clipped to [-1, 1]."""
    out = np.empty_like(squares)
    kernels().cosine(dots, squares, size, when_zero, out)
    return torch.from_numpy(out)


def _run(loop: Callable[..., None], blocks: Blocks, numbers: int, *args: Any) -> None:
    """A loop over all blocks, by as many threads as may and as pay; who is done early takes the next piece."""
    threads = max(1, min(allowed(), len(blocks), numbers // SHARE))
    spread(lambda piece: loop(*args, *piece), blocks.pieces(4 * threads if threads > 1 else 1), threads)
