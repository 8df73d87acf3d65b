"""The largest answers of filters over words, worked out from each distinct word of a batch; their gradient too.

A filter over w words answers sum_j <W_j, e(x_t+j)> at word t. A batch has few distinct words, so what each of them
gives to each W_j is one small product of matrices, and an answer is a sum of w numbers of it. Only the largest answer
has a gradient, so that the way back needs none of the others: a step takes a quarter of what convolutions take.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstrata.bind import is_heard
from fedstrata.fused import plain
from fedstrata.loops import working
from fedstrata.products import product, wrapped

PAYS = 4096
"""Numbers of all filters at one of their places from which on it pays to import numba, half a second."""

loops = partial(working, "models.words")
"""The compiled loops, if they are there."""


def fits(words: Tensor, embedding: Any, answers: Any) -> bool:
    """Whether `Answers` gives what these layers would, of one model, as torch has them, in a CPU's memory; and pays."""
    if type(words) is not Tensor or words.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    layers, filters = [embedding, *answers.modules()], list(getattr(answers, "filters", []))
    if not filters or not _are_plain(embedding, filters) or any(map(is_heard, layers)):
        return False
    table, weights = embedding.weight, [f.weight for f in filters]
    given = [words, table, *weights, *(f.bias for f in filters)]
    if [v.dim() for v in given] != [2, 2, *[3] * len(filters), *[1] * len(filters)] or any(map(wrapped, given)):
        return False
    readable = words.dtype == torch.long and words.shape[1] >= max(w.shape[2] for w in weights)
    even = len({len(w) for w in weights}) == 1
    pays = weights[0][..., 0].numel() >= PAYS
    return readable and even and pays and plain(table.detach(), *(w.detach() for w in weights)) and loops() is not None


def _are_plain(embedding: nn.Module, filters: Sequence[nn.Module]) -> bool:
    """Whether the layers are of torch's own kinds, with nothing set that is not heeded here."""
    if type(embedding) is not nn.Embedding or embedding.max_norm is not None or embedding.sparse:
        return False
    usual = (1,), (0,), (1,), 1
    return not embedding.scale_grad_by_freq and all(
        type(f) is nn.Conv1d
        and f._parameters.keys() == {"weight", "bias"}  # not pruned, say
        and f.bias is not None
        and (f.stride, f.padding, f.dilation, f.groups) == usual
        for f in filters
    )


class Answers(torch.autograd.Function):
    """words [B, T], their table [V, D], filters [F, D, width] each -> [B, W F]; the word `padding` is not trained."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, padding: int | None, table: Tensor, *filters: Tensor) -> Tensor:
        there, where = words.unique(return_inverse=True)
        rows = F.embedding(there, table)  # [U, D]
        weight = torch.cat([f.permute(2, 0, 1).flatten(0, 1) for f in filters])  # [C, D] by width, place and filter
        best = rows.new_empty(len(words), sum(map(len, filters)))
        place, widths = torch.empty_like(best, dtype=torch.long), np.array([f.shape[2] for f in filters])
        parts = product(rows, weight).to(rows.dtype)  # [U, C], in fewer digits where torch was told to multiply so
        loops().largest(parts.numpy(), where.numpy(), widths, best.numpy(), place.numpy())
        ctx.save_for_backward(there, where, place, rows, weight)
        ctx.widths, ctx.vocabulary, ctx.padding = widths, len(table), padding
        return best

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        there, where, place, rows, weight = ctx.saved_tensors
        of_rows, of_weight = torch.empty_like(rows), torch.empty_like(weight)
        given, made = (grads[0].contiguous(), place, where), (rows, weight, of_rows, of_weight)
        loops().gradients(*(v.numpy() for v in given), ctx.widths, *(v.numpy() for v in made))
        if ctx.padding is not None:
            of_rows[there == ctx.padding] = 0
        of_table = rows.new_zeros(ctx.vocabulary, rows.shape[1]).index_copy_(0, there, of_rows)
        widths, count = ctx.widths.tolist(), grads[0].shape[1] // len(ctx.widths)
        each = of_weight.split([width * count for width in widths])
        return (
            None,
            None,
            of_table,
            *(v.unflatten(0, (w, count)).permute(1, 2, 0) for v, w in zip(each, widths, strict=True)),
        )
