"""K models in one pass: the clients' batches are folded into one, and the layers with parameters tell them apart.

Examples stand in the order (b, k). Seen as [B, K C, ...], such a batch is what a grouped convolution and a batch
normalisation of K C channels want, so that nothing is copied; layers without parameters see nothing but a larger batch.
Ordinary autograd of the sum of the clients' losses then gives every client its own gradient. That costs less than vmap,
which remains for models with parameters of other kinds.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstrata.batchnorm import heed_masks
from fedstrata.patches import patch_conv
from fedstrata.products import linear

CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}

FEW = 3
"""Channels up to which a GPU multiplies matrices of patches instead: cuDNN would take one client after another."""

NARROW = 32
"""Outputs below which a linear layer is turned round."""

STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}
"""What batch normalisation remembers."""


def folds(model: nn.Module) -> bool:
    """Whether every parameter and buffer belongs to a layer that can tell folded clients apart."""
    return all(_known(m) for m in model.modules() if m._parameters or m._buffers)


def heed_folds(model: nn.Module) -> nn.Module:
    """Make the layers of the model take parameters with a leading client axis; the model is changed and returned."""
    for module in model.modules():
        if type(module) in FORWARDS and _known(module):
            module.forward = partial(FORWARDS[type(module)], module)  # pyright: ignore[reportAttributeAccessIssue]
    return heed_masks(model)


def fold(x: Tensor) -> Tensor:
    """[K, B, ...] -> [B K, ...]."""
    return x.transpose(0, 1).flatten(0, 1)


def unfold(x: Tensor, k: int) -> Tensor:
    """[B K, ...] -> [K, B, ...]."""
    return x.unflatten(0, (-1, k)).transpose(0, 1)


def _known(module: nn.Module) -> bool:
    """Whether it is a layer of a kind below as torch has it, all of whose settings are heeded there."""
    kind = type(module)
    if not (module._parameters.keys() <= {"weight", "bias"} and module._buffers.keys() <= STATISTICS):
        return False  # pruned, say, or with a normalised weight, which a hook makes of other parameters
    if kind in CONVOLUTIONS:
        return module.padding_mode == "zeros"
    if kind is nn.Embedding:
        return module.max_norm is None and not module.sparse and not module.scale_grad_by_freq
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):  # something must say how many clients there are
        own = (p for p in module._parameters.values() if p is not None)
        return module.running_mean is not None or any(p.requires_grad for p in own)
    return kind in FORWARDS


def _stacked(weight: Tensor, bias: Tensor | None, dims: int, of_bias: int = 1) -> tuple[Tensor, Tensor | None] | None:
    """Both with a client axis, or nothing where they are one client's, whose have `dims` and `of_bias`."""
    by_bias = bias is not None and bias.dim() > of_bias
    if weight.dim() == dims and not by_bias:
        return None
    k = len(bias) if bias is not None and by_bias else len(weight)  # a frozen one is everybody's
    weight = weight if weight.dim() > dims else weight.expand(k, *weight.shape)
    return weight, bias if bias is None or by_bias else bias.expand(k, *bias.shape)


def _linear(self: nn.Linear, x: Tensor) -> Tensor:
    own = _stacked(self.weight, self.bias, 2)
    if own is None:
        return _narrow(self, x) if x.dim() == 2 and self.out_features < NARROW else linear(x, self.weight, self.bias)
    weight, bias = own
    k = len(weight)
    each = x.unflatten(0, (-1, k)).transpose(0, 1)  # [K, B, ..., in]
    inside = each.flatten(1, -2).mT  # [K, in, B...]: the weights' gradients then come out in their own order
    out = torch.bmm(weight, inside) if bias is None else torch.baddbmm(bias[:, :, None], weight, inside)
    return out.mT.unflatten(1, each.shape[1:-1]).transpose(0, 1).flatten(0, 1)


def _narrow(self: nn.Linear, x: Tensor) -> Tensor:
    """x W^T + b as (W x^T + b)^T, which a CPU does half as fast again where there are few outputs."""
    inside = self.weight @ x.mT if self.bias is None else torch.addmm(self.bias[:, None], self.weight, x.mT)
    return inside.mT.contiguous()  # as a model may view it


def _convolution(self: Any, x: Tensor) -> Tensor:
    own, conv = _stacked(self.weight, self.bias, 2 + len(self.kernel_size)), CONVOLUTIONS[type(self)]
    if own is None:
        return conv(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
    weight, bias = own
    k = len(weight)
    if x.is_cuda and _has_few_channels(self, weight):
        return patch_conv(x, weight, bias, self.stride, self.padding, self.dilation)
    side = x.reshape(-1, k * x.shape[1], *x.shape[2:])  # [B, K C, ...]
    flat = weight.flatten(0, 1), None if bias is None else bias.flatten()
    out = conv(side, *flat, self.stride, self.padding, self.dilation, k * self.groups)
    return out.reshape(-1, out.shape[1] // k, *out.shape[2:])


def _has_few_channels(self: Any, weight: Tensor) -> bool:
    """Whether these are pictures of few channels; padding by name is left to torch."""
    return weight.dim() == 5 and weight.shape[2] <= FEW and self.groups == 1 and not isinstance(self.padding, str)


def _scaled(x: Tensor, scale: Tensor, shift: Tensor | None, last: bool) -> Tensor:
    """Each client's scale and shift, [K, C] over the second axis of x or [K, ...] over its last ones."""
    each = x.unflatten(0, (-1, len(scale)))  # [B, K, ...]
    tail = each.dim() - 1 - scale.dim()
    shape = (len(scale), *[1] * tail, *scale.shape[1:]) if last else (*scale.shape, *[1] * tail)
    each = each * scale.view(shape)
    return (each if shift is None else each + shift.view(shape)).flatten(0, 1)


def _group_norm(self: nn.GroupNorm, x: Tensor) -> Tensor:
    own = _stacked(self.weight, self.bias, 1) if self.affine else None
    if own is None:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
    return _scaled(F.group_norm(x, self.num_groups, None, None, self.eps), *own, last=False)


def _layer_norm(self: nn.LayerNorm, x: Tensor) -> Tensor:
    shape = self.normalized_shape
    own = _stacked(self.weight, self.bias, len(shape), len(shape)) if self.elementwise_affine else None
    if own is None:
        return F.layer_norm(x, shape, self.weight, self.bias, self.eps)
    return _scaled(F.layer_norm(x, shape, None, None, self.eps), *own, last=True)


def _embedding(self: nn.Embedding, x: Tensor) -> Tensor:
    if self.weight.dim() == 2:
        return F.embedding(x, self.weight, self.padding_idx)
    k, words = self.weight.shape[:2]
    first = torch.arange(k, device=x.device).view(-1, *[1] * (x.dim() - 1)) * words
    rows = x.unflatten(0, (-1, k)) + first  # each client's words in the table of all
    out = F.embedding(rows, self.weight.flatten(0, 1)).flatten(0, 1)
    if self.padding_idx is None:
        return out
    return torch.where((x == self.padding_idx)[..., None], out.detach(), out)  # padding is not trained


FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}
"""The layers that can tell folded clients apart, batch normalisation aside."""
