"""Filters over words, compiled by numba: each distinct word of a batch is filtered once, not wherever it stands.

Imported only where a model is large enough to pay for it (see `answers`).
"""

import numpy as np

from fedstrata.kernels import Array, compiled


@compiled
def largest(parts: Array, words: Array, widths: Array, best: Array, place: Array) -> None:
    """best [B, W F]: the most that each filter answers, and at which word it begins to.

    parts [U, C] has what a word gives to each place of each filter, in the order (width, place, filter); words [B, T].
    """
    filters = best.shape[1] // len(widths)
    z = np.empty(filters, parts.dtype)
    for b in range(len(words)):
        c = 0
        for i in range(len(widths)):
            most, at = best[b, i * filters : (i + 1) * filters], place[b, i * filters : (i + 1) * filters]
            most[:], at[:] = -np.inf, 0
            alike = 0
            for last in range(words.shape[1]):
                alike = alike + 1 if last > 0 and words[b, last] == words[b, last - 1] else 0
                t = last - widths[i] + 1
                if t < 0 or alike >= widths[i]:  # the same words as one before: padding, most often
                    continue
                z[:] = parts[words[b, t], c : c + filters]
                for j in range(1, widths[i]):
                    part = parts[words[b, t + j], c + j * filters : c + (j + 1) * filters]
                    for f in range(filters):
                        z[f] += part[f]
                for f in range(filters):
                    more = z[f] > most[f] or z[f] != z[f]  # NaN stays
                    at[f] = t if more else at[f]
                    most[f] = z[f] if more else most[f]
            c += widths[i] * filters


@compiled
def gradients(
    g: Array, place: Array, words: Array, widths: Array, table: Array, weight: Array, of_table: Array, of_weight: Array
) -> None:
    """What the largest answers' gradient, [B, W F], makes of the words' rows, [U, D], and of the filters, [C, D]."""
    filters, c = g.shape[1] // len(widths), 0
    of_table[:], of_weight[:] = 0, 0
    for i in range(len(widths)):
        for f in range(filters):
            for b in range(len(g)):
                v = g[b, i * filters + f]
                if v == 0:  # dropped, or below the ReLU
                    continue
                for j in range(widths[i]):
                    u, row = words[b, place[b, i * filters + f] + j], c + j * filters + f
                    x, dx, w, dw = table[u], of_table[u], weight[row], of_weight[row]
                    for d in range(len(x)):
                        dw[d] += v * x[d]
                        dx[d] += v * w[d]
        c += widths[i] * filters


def try_out() -> None:
    """Compile, or load what was compiled before, in float32."""
    two, words, widths = np.ones((2, 1), np.float32), np.zeros((1, 2), np.int64), np.array([2])
    best, place = np.empty((1, 1), np.float32), np.empty((1, 1), np.int64)
    largest(two.T.copy(), words, widths, best, place)
    gradients(best, place, words, widths, two[:1], two, two[:1].copy(), two.copy())
