"""Convolutions of K clients' images as products of matrices: what a GPU does faster where grouped ones are slow.

cuDNN runs a convolution in groups, one client each, as a loop over the clients where there are few channels. Here
every image becomes the matrix of its patches, [C k k, H' W'], and all images of all clients are multiplied at once. A
bias is one more column of the filters, and a row of ones of the patches: nothing passes over the pictures for it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = tuple[int, int]


def patch_conv(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """`PatchConv`, in fewer digits where torch was told to multiply so: it casts what it knows, and not this."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    cast = (None if v is None else v.to(dtype) for v in (x, weight, bias))
    return PatchConv.apply(*cast, stride, padding, dilation)


class PatchConv(torch.autograd.Function):
    """x [B K, C, H, W], each client's own filters [K, O, C, k, k] and bias [K, O] -> [B K, O, H', W']."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
    ) -> Tensor:
        windows = _windows(x, weight.shape[3:], stride, padding, dilation)  # [B K, C, k, k, H', W']
        filters, size = weight.flatten(2), weight[0, 0].numel()
        patches = x.new_empty(len(x), size + (bias is not None), windows[0, 0, 0, 0].numel())
        patches[:, :size].view(windows.shape).copy_(windows)
        if bias is not None:
            filters, patches[:, size:] = torch.cat([filters, bias[:, :, None]], 2), 1.0
        ctx.save_for_backward(patches, weight)
        ctx.how = x.shape, stride, padding, dilation
        return torch.bmm(_each(filters, len(x) // len(weight)), patches).unflatten(2, windows.shape[4:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (patches, weight), (shape, stride, padding, dilation) = ctx.saved_tensors, ctx.how
        k, o, out = len(weight), weight.shape[1], grads[0]
        flat = out.flatten(2)
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            columns = torch.bmm(_each(weight.reshape(k, o, -1).mT, len(flat) // k), flat)
            of_x = _folded(columns, shape, weight.shape[3:], out.shape[2:], stride, padding, dilation)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            both = torch.bmm(flat, patches.mT).unflatten(0, (-1, k)).sum(0)  # [K, O, C k k], and the bias
            size = weight[0, 0].numel()
            of_weight = both[:, :, :size].reshape(weight.shape)
            of_bias = both[:, :, size] if both.shape[2] > size else None
        return of_x, of_weight, of_bias, None, None, None


def _each(matrix: Tensor, images: int) -> Tensor:
    """[K, ...] -> [B K, ...]: every client's for each of its images."""
    return matrix.expand(images, *matrix.shape).flatten(0, 1)


def _windows(x: Tensor, size: Sequence[int], stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """Each place of the filter as a picture of what it sees there, [N, C, k, k, H', W']: a view."""
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x.contiguous()
    n, c, h, w = x.shape
    of = [(s - d * (k - 1) - 1) // t + 1 for s, k, t, d in zip((h, w), size, stride, dilation, strict=True)]
    steps = c * h * w, h * w, dilation[0] * w, dilation[1], stride[0] * w, stride[1]
    return x.as_strided((n, c, *size, *of), steps)


def _folded(
    columns: Tensor,
    shape: torch.Size,
    size: Sequence[int],
    of: Sequence[int],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> Tensor:
    """What all places of the filter say of each pixel, added up: the transpose of `_windows`."""
    n, c, h, w = shape
    each = columns.unflatten(1, (c, *size)).unflatten(-1, tuple(of))
    x = columns.new_zeros(n, c, h + 2 * padding[0], w + 2 * padding[1])
    for i in range(size[0]):
        for j in range(size[1]):
            a, b = i * dilation[0], j * dilation[1]
            x[:, :, a : a + of[0] * stride[0] : stride[0], b : b + of[1] * stride[1] : stride[1]] += each[:, :, i, j]
    return x[:, :, padding[0] : padding[0] + h, padding[1] : padding[1] + w]
