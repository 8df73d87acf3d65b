"""Logistic regression compiled by numba: gradients straight from the data, and scores in one pass over it.

Imported only where a run is long enough to pay for it (see `closed`).
"""

from math import exp, log
from typing import Any

import numpy as np

from fedstrata.kernels import LINE, Array, compiled, prefetch

SIX = 6
"""Examples whose inner products with two classes are taken at a time: twelve sums, all in registers."""

AHEAD = 12
"""Examples that are sent for before their turn, some of them with every two classes."""


@compiled
def _logits(x: Array, rows: Array, weight: Array, bias: Array, z: Array, ahead: int) -> None:
    """z_b = W x_b + b of six examples; as many are sent for meanwhile, from x[ahead] on."""
    o, n, classes = x.dtype.type(0), x.shape[1], len(weight)
    p, q, r, s, t, u = x[rows[0]], x[rows[1]], x[rows[2]], x[rows[3]], x[rows[4]], x[rows[5]]
    line = LINE // x.itemsize
    share = SIX * n // line * 2 // classes + 1
    for c in range(0, classes, 2):
        if ahead >= 0:
            for j in range(c // 2 * share, (c // 2 + 1) * share):
                prefetch(x, ahead, j * line)  # pyright: ignore[reportCallIssue]  its first argument is numba's own
        d = min(c + 1, classes - 1)
        v, w = weight[c], weight[d]
        pv, qv, rv, sv, tv, uv, pw, qw, rw, sw, tw, uw = o, o, o, o, o, o, o, o, o, o, o, o
        for j in range(n):
            e, f, g, h, i, k = p[j], q[j], r[j], s[j], t[j], u[j]
            pv, qv, rv = pv + v[j] * e, qv + v[j] * f, rv + v[j] * g
            sv, tv, uv = sv + v[j] * h, tv + v[j] * i, uv + v[j] * k
            pw, qw, rw = pw + w[j] * e, qw + w[j] * f, rw + w[j] * g
            sw, tw, uw = sw + w[j] * h, tw + w[j] * i, uw + w[j] * k
        z[0, c], z[1, c], z[2, c], z[3, c], z[4, c], z[5, c] = pv, qv, rv, sv, tv, uv
        z[0, d], z[1, d], z[2, d], z[3, d], z[4, d], z[5, d] = pw, qw, rw, sw, tw, uw
    for c in range(len(bias)):
        for b in range(SIX):
            z[b, c] += bias[c]


@compiled
def _soften(z: Array, label: int, share: float) -> None:
    """z becomes share (softmax(z) - onehot(label))."""
    top = z.max()
    total = 0.0
    for c in range(len(z)):
        z[c] = exp(z[c] - top)
        total += z[c]
    for c in range(len(z)):
        z[c] *= share / total
    z[label] -= share


@compiled
def _outer(x: Array, rows: Array, z: Array, into: Array) -> None:
    """into_c = sum_b z_bc x_b, four examples at a time."""
    size = len(rows)
    into[:] = 0
    for b in range(0, size, 4):
        e, f, g, h = rows[b], rows[min(b + 1, size - 1)], rows[min(b + 2, size - 1)], rows[min(b + 3, size - 1)]
        p, q, r, s = x[e], x[f], x[g], x[h]
        for c in range(len(into)):
            i, j, k, m = z[b, c], z[b + 1, c], z[b + 2, c], z[b + 3, c]  # beyond the batch they are zero
            line = into[c]
            for t in range(len(line)):
                line[t] += (i * p[t] + j * q[t]) + (k * r[t] + m * s[t])


@compiled
def _gradient(x: Array, y: Array, rows: Array, share: Array, w: Array, z: Array, out: Array) -> None:
    """One client's gradient, [P], for rows [B] that count as `share` says; z, [B + 6, C], is room to work in."""
    classes, size = z.shape[1], len(rows)
    wide = classes * x.shape[1]
    weight, bias = w[:wide].reshape(classes, x.shape[1]), w[wide:]
    six = np.empty(SIX, np.int64)
    for b in range(0, size, SIX):
        for a in range(SIX):
            six[a] = rows[min(b + a, size - 1)]
        _logits(x, six, weight, bias, z[b : b + SIX], -1)
    for b in range(size):
        _soften(z[b], y[rows[b]], share[b])
    z[size:] = 0
    _outer(x, rows, z, out[:wide].reshape(classes, x.shape[1]))
    for c in range(len(bias)):
        out[wide + c] = z[:size, c].sum()


@compiled
def gradients(x: Array, y: Array, rows: Array, share: Array, w: Array, classes: int, out: Array) -> None:
    """Each client's gradient of its mean cross entropy, [A, P], for rows [A, B] that count as `share` says."""
    z = np.zeros((rows.shape[1] + SIX, classes), x.dtype)
    for k in range(len(rows)):
        _gradient(x, y, rows[k], share[k], w[k], z, out[k])


@compiled
def descend(
    x: Array, y: Array, index: Array, count: Array, start: Array, w: Array, velocity: Array, classes: int, how: Array,
    first: int, last: int,
) -> None:  # fmt: skip
    """All steps of SGD of some clients, one after another: what belongs to a client stays in the cache.

    index [A, S, B] has the rows of each batch, of which count [A, S] are real. how is rate, momentum, 1 for Nesterov's,
    weight decay and FedProx's mu. velocity may have no columns where there is no momentum.
    """
    z, g = np.zeros((index.shape[2] + SIX, classes), x.dtype), np.empty(len(start), x.dtype)
    rate, momentum, nesterov, decay, mu = how[0], how[1], how[2], how[3], how[4]
    for k in range(first, last):
        u = w[k]
        for s in range(index.shape[1]):
            n = count[k, s]
            if n == 0:
                break
            share = np.full(n, x.dtype.type(1) / x.dtype.type(n), x.dtype)
            _gradient(x, y, index[k, s, :n], share, u, z, g)
            if momentum == 0:
                for j in range(len(u)):
                    u[j] -= rate * (g[j] + mu * (u[j] - start[j]) + decay * u[j])
            else:
                v = velocity[k]
                for j in range(len(u)):
                    d = g[j] + mu * (u[j] - start[j]) + decay * u[j]
                    v[j] = momentum * v[j] + d
                    u[j] -= rate * (d + momentum * v[j] if nesterov > 0 else v[j])


@compiled
def scores(x: Array, y: Array, w: Array, classes: int, loss: Array, right: Array) -> None:
    """The cross entropy of each example, and 1 where the first of the largest outputs is its label."""
    wide = classes * x.shape[1]
    weight, bias = w[:wide].reshape(classes, x.shape[1]), w[wide:]
    z, six = np.zeros((SIX, classes), x.dtype), np.empty(SIX, np.int64)
    for i in range(0, len(x), SIX):
        for a in range(SIX):
            six[a] = min(i + a, len(x) - 1)
        _logits(x, six, weight, bias, z, i + AHEAD)
        for a in range(min(SIX, len(x) - i)):
            best = 0
            for c in range(1, classes):
                if z[a, c] > z[a, best]:
                    best = c
            total = 0.0
            for c in range(classes):
                total += exp(z[a, c] - z[a, best])
            loss[i + a] = log(total) - (z[a, y[i + a]] - z[a, best])
            right[i + a] = best == y[i + a]


def try_out() -> Any:
    """Compile, or load what was compiled before, in float32."""
    x, y, w = np.ones((3, 2), np.float32), np.zeros(3, np.int64), np.ones((1, 15), np.float32)
    rows = np.zeros((1, 3), np.int64)
    gradients(x, y, rows, np.ones((1, 3), np.float32), w, 5, np.empty_like(w))
    descend(x, y, rows[None], np.ones((1, 1), np.int64), w[0], w.copy(), w.copy(), 5, w[0, :5], 0, 1)
    scores(x, y, w[0], 5, np.empty(3, np.float32), np.empty(3, np.float32))
