"""The largest answers of filters over words, worked out from each distinct word of a batch; their gradient too.

A filter over w words answers sum_j <W_j, e(x_t+j)> at word t. A batch has few distinct words, so what each of them
gives to each W_j is one small product of matrices, and an answer is a sum of w numbers of it. Only the largest answer
has a gradient, so that the way back needs none of the others: a step takes a quarter of what convolutions take.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.fused import plain

PAYS = 4096
"""Numbers of all filters at one of their places from which on it pays to import numba, half a second."""


def fits(words: Tensor, table: Tensor, *filters: Tensor) -> bool:
    """Whether these are one model's, in a CPU's memory and not seen through vmap, and large enough to pay."""
    alone = words.dim() == 2 and table.dim() == 2 and filters[0][..., 0].numel() >= PAYS
    return alone and not any(map(_wrapped, (words, table))) and plain(*_given(table, filters)) and loops() is not None


class Answers(torch.autograd.Function):
    """words [B, T], their table [V, D], filters [F, D, width] each -> [B, W F]; word 0 is padding, and not trained."""

    @staticmethod
    def forward(ctx: Any, words: Tensor, table: Tensor, *filters: Tensor) -> Tensor:
        there, where = words.unique(return_inverse=True)
        rows = table[there]  # [U, D]
        weight = torch.cat([f.permute(2, 0, 1).flatten(0, 1) for f in filters])  # [C, D] by width, place and filter
        best = rows.new_empty(len(words), sum(map(len, filters)))
        place, widths = torch.empty_like(best, dtype=torch.long), np.array([f.shape[2] for f in filters])
        parts = (rows @ weight.T).to(rows.dtype)  # [U, C], in fewer digits where torch was told to multiply so
        loops().largest(parts.numpy(), where.numpy(), widths, best.numpy(), place.numpy())
        ctx.save_for_backward(there, where, place, rows, weight)
        ctx.widths, ctx.vocabulary = widths, len(table)
        return best

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        there, where, place, rows, weight = ctx.saved_tensors
        of_rows, of_weight = torch.empty_like(rows), torch.empty_like(weight)
        given, made = (grads[0].contiguous(), place, where), (rows, weight, of_rows, of_weight)
        loops().gradients(*(v.numpy() for v in given), ctx.widths, *(v.numpy() for v in made))
        of_rows[there == 0] = 0
        of_table = rows.new_zeros(ctx.vocabulary, rows.shape[1]).index_copy_(0, there, of_rows)
        widths, count = ctx.widths.tolist(), grads[0].shape[1] // len(ctx.widths)
        each = of_weight.split([width * count for width in widths])
        return None, of_table, *(v.unflatten(0, (w, count)).permute(1, 2, 0) for v, w in zip(each, widths, strict=True))


@cache
def loops() -> Any:
    """The compiled loops; None where numba is missing or does not work."""
    try:
        from fedstrata.models import words

        words.try_out()
    except Exception:  # whatever a numba of another version may raise: torch does the same
        return None
    return words


def _given(table: Tensor, filters: tuple[Tensor, ...]) -> list[Tensor]:
    return [table.detach(), *(f.detach() for f in filters)]


def _wrapped(x: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore[reportAttributeAccessIssue]
