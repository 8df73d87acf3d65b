"""Batch normalisation that does not see padding: clients with short batches can be stacked with the others.

torch's own layer is used wherever it is exact. Where a batch is padded, this one counts only the real examples.
A batch with one value per channel has no variance: it is normalised with the running statistics and leaves them alone,
where torch refuses it. Statistics with a leading client axis are those of a folded batch (`fold.py`): K C channels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

_MASK: ContextVar[Tensor | None] = ContextVar("mask", default=None)


@contextmanager
def real_examples(mask: Tensor | None) -> Iterator[None]:
    """Within this block, batches are padded: only the examples where the mask, [B] or [B, K], is true are real."""
    token = _MASK.set(mask)
    try:
        yield
    finally:
        _MASK.reset(token)


def heed_masks(model: nn.Module) -> nn.Module:
    """Make every BatchNorm layer of the model heed `real_examples`; the model itself is changed and returned."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.forward = partial(_forward, module)  # pyright: ignore[reportAttributeAccessIssue]
    return model


class _Own(NamedTuple):
    """What a layer has, [C] each, or [K, C] for the clients of a folded batch; counters [] or [K]."""

    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None
    var: Tensor | None
    counter: Tensor | None

    @property
    def clients(self) -> int | None:
        """How many clients a folded batch is of."""
        stacked = [v for v in self[:4] if v is not None and v.dim() == 2]
        return len(stacked[0]) if stacked else None

    def flat(self) -> "_Own":
        """K C channels; the statistics are views, so that moving them moves the layer's own."""
        k = self.clients or 1

        def flat(v: Tensor | None) -> Tensor | None:
            return None if v is None else (v if v.dim() == 2 else v.expand(k, -1)).reshape(-1)

        return _Own(flat(self.weight), flat(self.bias), flat(self.mean), flat(self.var), self.counter)


def _forward(self: _BatchNorm, x: Tensor) -> Tensor:
    mask, own = _MASK.get(), _Own(self.weight, self.bias, self.running_mean, self.running_var, self.num_batches_tracked)
    k = own.clients
    values = x.numel() // x.shape[1] // (k or 1)
    by_batch = self.training or self.running_mean is None
    plain = not by_batch or (mask is None and values > 1 and self.momentum is not None)
    if k is None:
        if plain:
            return type(self).forward(self, x)
        return _masked(self, own, x, mask if mask is not None else x.new_ones(x.shape[0], dtype=torch.bool))
    own, side = own.flat(), x.reshape(-1, k * x.shape[1], *x.shape[2:])  # [B, K C, ...]
    if plain:
        out = batch_norm(side, own.mean, own.var, own.weight, own.bias, by_batch, self.momentum or 0.0, self.eps)
        if by_batch and own.counter is not None:
            own.counter.add_(1)
    else:
        every = mask if mask is not None else x.new_ones(side.shape[0], k, dtype=torch.bool)
        out = _masked(self, own, side, every[:, :, None].expand(-1, -1, x.shape[1]).flatten(1))
    return out.reshape(x.shape)


def _masked(self: _BatchNorm, own: _Own, x: Tensor, mask: Tensor) -> Tensor:
    """As torch's, of the examples where the mask, [B] or [B, channels], is true."""
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x  # counts and means need more digits
    over = [d for d in range(x.dim()) if d != 1]
    as_channel = [-1 if d == 1 else 1 for d in range(x.dim())]
    real = mask.view(*mask.shape, *[1] * (x.dim() - mask.dim())).to(x.dtype).expand_as(x)
    count = real.sum(over)  # [C] values seen by each channel
    mean = (x * real).sum(over) / count
    var = ((x - mean.view(as_channel)).square() * real).sum(over) / count
    alone = count <= 1
    if own.mean is not None and own.var is not None:
        old = own.mean.clone(), own.var.clone()
        _track(self, own, mean.detach(), (var * count / (count - 1).clamp_min(1)).detach(), alone)
        mean, var = torch.where(alone, old[0], mean), torch.where(alone, old[1], var)
    y = (x - mean.view(as_channel)) / (var.view(as_channel) + self.eps).sqrt()
    y = y if own.weight is None else y * own.weight.view(as_channel)
    return y if own.bias is None else y + own.bias.view(as_channel)


def _track(self: _BatchNorm, own: _Own, mean: Tensor, var: Tensor, alone: Tensor) -> None:
    """Move the running statistics as torch does, except for a batch that has no variance."""
    assert own.mean is not None
    assert own.var is not None
    factor = torch.full_like(mean, self.momentum if self.momentum is not None else 0.0)
    if own.counter is not None:
        own.counter.add_((~alone).view(*own.counter.shape, -1).any(-1).long())
        if self.momentum is None:  # the cumulative mean over all batches
            factor = 1.0 / own.counter.clamp_min(1).to(mean.dtype)
            factor = factor[:, None].expand(-1, len(alone) // len(factor)).flatten() if factor.dim() else factor
    factor = torch.where(alone, 0.0, factor)
    own.mean.add_(factor * (mean - own.mean))
    own.var.add_(factor * (var - own.var))
