"""Logistic regression compiled by numba: gradients straight from the data, and scores in one pass over it.

Imported only where a run is long enough to pay for it (see `closed`).
"""

from math import exp, log
from typing import Any

import numpy as np

from fedstrata.kernels import Array, compiled

CLASSES = 4
"""Classes whose inner products are taken at a time, of two examples: eight sums that stay in registers."""


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
def gradients(x: Array, y: Array, rows: Array, share: Array, w: Array, classes: int, out: Array) -> None:
    """Each client's gradient of its mean cross entropy, [A, P], for rows [A, B] that count as `share` says."""
    wide = classes * x.shape[1]
    size = rows.shape[1]
    z = np.zeros((size + 4, classes), x.dtype)
    for k in range(len(rows)):
        weight, bias = w[k, :wide].reshape(classes, x.shape[1]), w[k, wide:]
        for b in range(0, size, 2):
            _logits(x[rows[k, b]], x[rows[k, min(b + 1, size - 1)]], weight, bias, z[b], z[b + 1])
        for b in range(size):
            _soften(z[b], y[rows[k, b]], share[k, b])
        z[size:] = 0
        _outer(x, rows[k], z, out[k, :wide].reshape(classes, x.shape[1]))
        for c in range(len(bias)):
            out[k, wide + c] = z[:size, c].sum()


@compiled
def scores(x: Array, y: Array, w: Array, classes: int, loss: Array, right: Array) -> None:
    """The cross entropy of each example, and 1 where the first of the largest outputs is its label."""
    wide = classes * x.shape[1]
    weight, bias = w[:wide].reshape(classes, x.shape[1]), w[wide:]
    z = np.zeros((2, classes), x.dtype)
    for i in range(0, len(x), 2):
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
    scores(x, y, w[0], 5, np.empty(3, np.float32), np.empty(3, np.float32))
