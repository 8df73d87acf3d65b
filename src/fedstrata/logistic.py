"""Logistic regression compiled by numba: gradients straight from the data, and scores in one pass over it.

Imported only where a run is long enough to pay for it (see `closed`).
"""

from math import exp, log
from typing import Any

import numpy as np

from fedstrata.kernels import LINE, Array, compiled, prefetch

CLASSES = 4
"""Classes whose inner products are taken at a time, of two examples: eight sums that stay in registers."""


AHEAD = 16
"""Examples that are sent for before their turn."""


@compiled
def _logits(p: Array, q: Array, weight: Array, bias: Array, zp: Array, zq: Array) -> None:
    """W p + b and W q + b."""
    zero, n = p.dtype.type(0), len(p)
    classes = len(zp)
    whole = classes - classes % CLASSES
    for c in range(0, whole, CLASSES):
        u, v, w, t = weight[c], weight[c + 1], weight[c + 2], weight[c + 3]
        pa, pb, pc, pd = zero, zero, zero, zero
        qa, qb, qc, qd = zero, zero, zero, zero
        for j in range(n):
            x, y = p[j], q[j]
            pa += u[j] * x
            pb += v[j] * x
            pc += w[j] * x
            pd += t[j] * x
            qa += u[j] * y
            qb += v[j] * y
            qc += w[j] * y
            qd += t[j] * y
        zp[c], zp[c + 1], zp[c + 2], zp[c + 3] = pa, pb, pc, pd
        zq[c], zq[c + 1], zq[c + 2], zq[c + 3] = qa, qb, qc, qd
    for c in range(whole, classes):
        u, pa, qa = weight[c], zero, zero
        for j in range(n):
            pa += u[j] * p[j]
            qa += u[j] * q[j]
        zp[c], zq[c] = pa, qa
    for c in range(len(bias)):
        zp[c] += bias[c]
        zq[c] += bias[c]


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
    """One client's gradient, [P], for rows [B] that count as `share` says; z, [B + 4, C], is room to work in."""
    classes, size = z.shape[1], len(rows)
    wide = classes * x.shape[1]
    weight, bias = w[:wide].reshape(classes, x.shape[1]), w[wide:]
    for b in range(0, size, 2):
        _logits(x[rows[b]], x[rows[min(b + 1, size - 1)]], weight, bias, z[b], z[b + 1])
    for b in range(size):
        _soften(z[b], y[rows[b]], share[b])
    z[size:] = 0
    _outer(x, rows, z, out[:wide].reshape(classes, x.shape[1]))
    for c in range(len(bias)):
        out[wide + c] = z[:size, c].sum()


@compiled
def gradients(x: Array, y: Array, rows: Array, share: Array, w: Array, classes: int, out: Array) -> None:
    """Each client's gradient of its mean cross entropy, [A, P], for rows [A, B] that count as `share` says."""
    z = np.zeros((rows.shape[1] + 4, classes), x.dtype)
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
    z, g = np.zeros((index.shape[2] + 4, classes), x.dtype), np.empty(len(start), x.dtype)
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
    z = np.zeros((2, classes), x.dtype)
    for i in range(0, len(x), 2):
        for ahead in range(i + AHEAD, min(i + AHEAD + 2, len(x))):
            for j in range(0, x.shape[1], LINE // x.itemsize):
                prefetch(x, ahead, j)  # pyright: ignore[reportCallIssue]  its first argument is numba's own
        _logits(x[i], x[min(i + 1, len(x) - 1)], weight, bias, z[0], z[1])
        for a in range(min(2, len(x) - i)):
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
