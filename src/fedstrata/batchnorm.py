"""Batch normalisation that does not see padding: clients with short batches can be stacked with the others.

torch's own layer is used wherever it is exact. Where a batch is padded, this one counts only the real examples.
A batch with one value per channel has no variance: it is normalised with the running statistics and leaves them alone,
where torch refuses it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_MASK: ContextVar[Tensor | None] = ContextVar("mask", default=None)


@contextmanager
def real_examples(mask: Tensor | None) -> Iterator[None]:
    """Within this block, batches are padded: only the examples where the mask, [B], is true are real."""
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


def _forward(self: _BatchNorm, x: Tensor) -> Tensor:
    mask, values = _MASK.get(), x.numel() // x.shape[1]
    by_batch = self.training or self.running_mean is None
    if not by_batch or (mask is None and values > 1 and self.momentum is not None):
        return type(self).forward(self, x)
    return _masked(self, x, mask if mask is not None else x.new_ones(x.shape[0], dtype=torch.bool))


def _masked(self: _BatchNorm, x: Tensor, mask: Tensor) -> Tensor:
    over = [d for d in range(x.dim()) if d != 1]
    as_channel = [-1 if d == 1 else 1 for d in range(x.dim())]
    real = mask.view(-1, *[1] * (x.dim() - 1)).to(x.dtype).expand_as(x)
    count = real.sum(over)  # [C] values seen by each channel
    mean = (x * real).sum(over) / count
    var = ((x - mean.view(as_channel)).square() * real).sum(over) / count
    alone = count <= 1
    if self.running_mean is not None and self.running_var is not None:
        old = self.running_mean.clone(), self.running_var.clone()
        _track(self, mean.detach(), (var * count / (count - 1).clamp_min(1)).detach(), alone)
        mean, var = torch.where(alone, old[0], mean), torch.where(alone, old[1], var)
    y = (x - mean.view(as_channel)) / (var.view(as_channel) + self.eps).sqrt()
    return y * self.weight.view(as_channel) + self.bias.view(as_channel) if self.affine else y


def _track(self: _BatchNorm, mean: Tensor, var: Tensor, alone: Tensor) -> None:
    """Move the running statistics as torch does, except for a batch that has no variance."""
    assert self.running_mean is not None
    assert self.running_var is not None
    factor = torch.as_tensor(self.momentum if self.momentum is not None else 0.0, dtype=mean.dtype, device=mean.device)
    if self.num_batches_tracked is not None:
        self.num_batches_tracked.add_((~alone).any().long())
        if self.momentum is None:  # the cumulative mean over all batches
            factor = 1.0 / self.num_batches_tracked.clamp_min(1).to(mean.dtype)
    factor = torch.where(alone, 0.0, factor)
    self.running_mean.add_(factor * (mean - self.running_mean))
    self.running_var.add_(factor * (var - self.running_var))
