"""Tables with a row for every client, some of which are looked at or replaced in a round."""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

SMALL = 1 << 16
"""Numbers a row below which tables are joined before they are looked at: a model may have hundreds of buffers."""


def rows(table: Tensor, ids: Tensor) -> Tensor:
    """The rows of these clients; a client beyond the end of the table has a row of zeros."""
    return _grown(table, ids)[ids]


def put_rows(table: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """A new table in which these clients have these rows."""
    return _grown(table, ids).index_copy(0, ids, values.to(table.dtype))


def _grown(table: Tensor, ids: Tensor) -> Tensor:
    short = int(ids.max()) + 1 - table.shape[0] if ids.numel() else 0
    return torch.cat([table, table.new_zeros(short, *table.shape[1:])]) if short > 0 else table


def finite_rows(tables: Sequence[Tensor]) -> Tensor:
    """Which rows hold neither NaN nor infinity in any of these tables."""
    flat = [t if t.dim() == 2 else t.flatten(1) if t.dim() > 1 else t[:, None] for t in tables]
    small = [t for t in flat if t.shape[1] < SMALL]
    joined = [torch.cat(small, 1)] if len(small) > 1 else small
    return torch.stack([_finite(t) for t in (*joined, *(t for t in flat if t.shape[1] >= SMALL))]).all(0)


def finite(t: Tensor) -> bool:
    """Whether there is neither NaN nor infinity in it."""
    return not t.is_floating_point() or isfinite(t.sum()) or bool(t.isfinite().all())


def _finite(table: Tensor) -> Tensor:
    if table.is_cuda:
        return table.isfinite().all(1)  # there, to look at a result costs more than to make it
    good = table.sum(1).isfinite()  # if a sum is finite, so is all that went into it; else look closer
    if not bool(good.all()):
        good[~good] = table[~good].isfinite().all(1)
    return good
