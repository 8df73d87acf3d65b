"""Loops over the cohort's updates [K, P], compiled by numba: a block of columns is read from memory once.

Imported only when a matrix is large enough to pay for it (see `fused`). Blocks are fixed and never cross a tensor,
each has its own sums in float64, and these are added up in order: results do not depend on the number of threads.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

Array = NDArray[Any]

ROWS = 8
"""Rows that are added up at a time, so that their sum is read and written an eighth as often: 5 % faster than 4."""

HALF = 4
"""Rows at a time where two sums are made of each."""

STEP = 512
"""Columns that are summed up while as many of the next block are on their way: reading and computing overlap."""

LINE = 64
"""Bytes of a cache line."""

NOTHING, SQUARE, DOT, GAP = 0, 1, 2, 3
"""What is summed up of a client's block r: |r|^2 alone, with <r, y>, or with |r - y|^2."""


def compiled(function: Any) -> Any:
    """Compiled, and kept on disk where a folder can be written; sums may be reordered, NaN and infinity stay."""
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz", "arcp"}}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither this folder nor the user's cache can be written
        return numba.njit(**options)(function)


@intrinsic
def prefetch(_typing: Any, x: Any, k: Any, j: Any) -> Any:
    """Ask for the cache line of x[k, j], and do not wait for it."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = make_array(signature.args[0])(context, builder, args[0])
        place = cgutils.get_item_pointer(context, builder, signature.args[0], array, args[1:])
        pointer, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, whole, whole, whole])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(ask, [builder.bitcast(place, pointer), whole(0), whole(2), whole(1)])  # to read, into L2, data
        return context.get_dummy_value()

    return numba.types.void(x, k, j), emit


@compiled
def _padded(weights: Array) -> Array:
    """Weights [K] with zeros up to the next multiple of the rows that are taken at a time."""
    wide = np.zeros((len(weights) + ROWS - 1) // ROWS * ROWS, weights.dtype)
    wide[: len(weights)] = weights
    return wide


@compiled
def _mix(x: Array, weights: Array, s: int, m: Array) -> None:
    """m = sum_k weights_k x_k over the columns from s on, in the updates' own type."""
    n, last = len(m), x.shape[0] - 1
    m[:] = 0
    for k in range(0, last + 1, ROWS):  # beyond the last row its weights are zero
        a, b, c, d = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        e, f, g, h = weights[k + 4], weights[k + 5], weights[k + 6], weights[k + 7]
        p, q = x[k, s : s + n], x[min(k + 1, last), s : s + n]
        r, t = x[min(k + 2, last), s : s + n], x[min(k + 3, last), s : s + n]
        u, v = x[min(k + 4, last), s : s + n], x[min(k + 5, last), s : s + n]
        w, z = x[min(k + 6, last), s : s + n], x[min(k + 7, last), s : s + n]
        for j in range(n):
            m[j] += ((a * p[j] + b * q[j]) + (c * r[j] + d * t[j])) + ((e * u[j] + f * v[j]) + (g * w[j] + h * z[j]))


@compiled
def _mix_both(x: Array, v: Array, w: Array, s: int, m: Array, y: Array) -> None:
    """m = sum_k v_k x_k and y = sum_k w_k x_k over the columns from s on: each number is loaded once."""
    n, last = len(m), x.shape[0] - 1
    m[:], y[:] = 0, 0
    for k in range(0, last + 1, HALF):
        a, b, c, d = v[k], v[k + 1], v[k + 2], v[k + 3]
        e, f, g, h = w[k], w[k + 1], w[k + 2], w[k + 3]
        p, q = x[k, s : s + n], x[min(k + 1, last), s : s + n]
        r, t = x[min(k + 2, last), s : s + n], x[min(k + 3, last), s : s + n]
        for j in range(n):
            m[j] += (a * p[j] + b * q[j]) + (c * r[j] + d * t[j])
            y[j] += (e * p[j] + f * q[j]) + (g * r[j] + h * t[j])


@compiled
def _row(x: Array, k: int, s: int, n: int, y: Array, kind: int) -> tuple[float, float]:
    """|r|^2 and what else is asked for of client k's columns from s on; the next ones are sent for meanwhile."""
    total, other = 0.0, 0.0
    for c in range(0, n, STEP):
        for j in range(s + n + c, min(s + n + c + STEP, x.shape[1]), LINE // x.itemsize):
            prefetch(x, k, j)  # pyright: ignore[reportCallIssue]  its first argument is numba's own
        r, z = x[k, s + c : min(s + c + STEP, s + n)], y[c : c + STEP]
        if kind == DOT:
            for j in range(len(r)):
                v = np.float64(r[j])
                total += v * v
                other += v * z[j]
        elif kind == GAP:
            for j in range(len(r)):
                v = np.float64(r[j])
                total += v * v
                other += (v - z[j]) * (v - z[j])
        elif kind == SQUARE:
            for j in range(len(r)):
                v = np.float64(r[j])
                total += v * v
    return total, other


@compiled
def _average(old: Array, m: Array, out: Array) -> tuple[float, float]:
    """out = old + m; (|old|^2, |out - old|^2), the latter as rounded."""
    size, move = 0.0, 0.0
    for j in range(len(out)):
        v = old[j] + m[j]
        out[j] = v
        o = np.float64(old[j])
        size += o * o
        move += (np.float64(v) - o) * (np.float64(v) - o)
    return size, move


@compiled
def _widen(m: Array, scale: float, y: Array) -> float:
    """y = scale m, in float64; |y|^2."""
    total = 0.0
    for j in range(len(m)):
        v = scale * np.float64(m[j])
        y[j] = v
        total += v * v
    return total


@compiled
def _blend(a: float, x: Array, b: float, y: Array, out: Array) -> None:
    """out = a x + b y."""
    for j in range(len(out)):
        out[j] = a * x[j] + b * y[j]


@compiled
def look(
    x: Array, old: Array, weights: Array, scale: Array, kinds: Array, writes: bool, begin: Array, end: Array,
    rows: Array, sizes: Array, out: Array, first: int, last: int,
) -> None:  # fmt: skip
    """Some blocks of the pass over all clients.

    Clients are compared with three references y_q: two sums of the updates, by weights [2, K], and the old model, each
    times scale_q. rows [3, N, 2, K] has |x_k|^2 and what kinds_q says; sizes [N, 5] has |y_q|^2, then |old|^2 and
    |out - old|^2, where out = old + the first sum is written if asked for.
    """
    width = (end - begin).max()
    m, y = np.empty((2, width), x.dtype), np.empty((3, width))
    v, w = _padded(weights[0]), _padded(weights[1])
    mean, even = writes or kinds[0] >= DOT, kinds[1] >= DOT
    for i in range(first, last):
        s, n = begin[i], end[i] - begin[i]
        if mean and even:
            _mix_both(x, v, w, s, m[0, :n], m[1, :n])
        elif mean or even:
            _mix(x, w if even else v, s, m[1 if even else 0, :n])
        if writes:
            sizes[i, 3], sizes[i, 4] = _average(old[s : s + n], m[0, :n], out[s : s + n])
        for q in range(3):
            if kinds[q] >= DOT:
                sizes[i, q] = _widen(m[q, :n] if q < 2 else old[s : s + n], scale[q], y[q, :n])
        for k in range(x.shape[0]):
            for q in range(3):
                if kinds[q] != NOTHING:
                    rows[q, i, 0, k], rows[q, i, 1, k] = _row(x, k, s, n, y[q], kinds[q])


@compiled
def mix(
    x: Array, old: Array, weights: Array, keep: Array, begin: Array, end: Array, owner: Array, out: Array,
    first: int, last: int,
) -> None:  # fmt: skip
    """Some blocks of out = keep_l old + sum_k weights_l,k x_k."""
    m = np.empty((end - begin).max(), x.dtype)
    for i in range(first, last):
        s, n, layer = begin[i], end[i] - begin[i], owner[i]
        _mix(x, _padded(weights[layer]), s, m[:n])
        _blend(keep[layer], old[s : s + n], x.dtype.type(1), m[:n], out[s : s + n])


@compiled
def blend(
    x: Array, y: Array, a: Array, b: Array, begin: Array, end: Array, owner: Array, out: Array, first: int, last: int
) -> None:
    """Some blocks of out = a_l x + b_l y."""
    for i in range(first, last):
        s, n, layer = begin[i], end[i] - begin[i], owner[i]
        _blend(a[layer], x[s : s + n], b[layer], y[s : s + n], out[s : s + n])


@compiled
def square(x: Array, begin: Array, end: Array, out: Array, first: int, last: int) -> None:
    """|x|^2 of some blocks, [N]."""
    for i in range(first, last):
        total, r = 0.0, x[begin[i] : end[i]]
        for j in range(len(r)):
            v = np.float64(r[j])
            total += v * v
        out[i] = total


@compiled
def gather(rows: Array, sizes: Array, kinds: Array, owner: Array, of_clients: Array, of_vectors: Array) -> None:
    """Add up the blocks of each layer in their order: [3, N, 2, K] -> [3, 2, K, L] and [N, 5] -> [5, L]."""
    of_clients[:], of_vectors[:] = 0, 0
    for i in range(len(owner)):
        for q in range(3):
            if kinds[q] != NOTHING:
                of_clients[q, :, :, owner[i]] += rows[q, i]
        of_vectors[:, owner[i]] += sizes[i]


@compiled
def cosine(dots: Array, squares: Array, size: Array, when_zero: float, out: Array) -> None:
    """From <x, y> and |x|^2, [K, L], and |y|^2, [L]; clipped to [-1, 1]."""
    for k in range(out.shape[0]):
        for i in range(out.shape[1]):
            length = np.sqrt(squares[k, i]) * np.sqrt(size[i])
            cos = dots[k, i] / max(length, 1e-300) if length > 0 else when_zero
            out[k, i] = -1.0 if cos < -1 else 1.0 if cos > 1 else cos


def try_out() -> None:
    """Compile, or load what was compiled before, and call everything once in float32."""
    x, line = np.ones((2, 2), np.float32), np.ones(2, np.float32)
    weights, begin, end = np.ones((2, 2), np.float32), np.arange(2), np.arange(1, 3)
    rows, sizes, kinds = np.empty((3, 2, 2, 2)), np.empty((2, 5)), np.full(3, GAP)
    look(x, line, weights, np.ones(3), kinds, True, begin, end, rows, sizes, line.copy(), 0, 2)
    mix(x, line, weights, line, begin, end, begin, line.copy(), 0, 2)
    blend(line, line, line, line, begin, end, begin, line.copy(), 0, 2)
    square(line, begin, end, np.empty(2), 0, 2)
    gather(rows, sizes, kinds, begin, np.empty((3, 2, 2, 2)), np.empty((5, 2)))
    cosine(rows[0, 0], rows[0, 1], np.ones(2), 0.0, np.empty((2, 2)))
