"""Convolutions of several clients as products of matrices, against torch's, one client after another."""

import pytest
import torch
from torch.nn import functional as F

from fedstrata.patches import PatchConv, patch_conv

CASES = {
    "plain": (1, 4, 9, 3, 1, 0, 1),
    "strided and padded": (3, 5, 10, 3, 2, 1, 1),
    "large filters": (2, 3, 11, 5, 1, 2, 1),
    "dilated": (3, 2, 12, 3, 2, 2, 2),
    "1x1": (3, 4, 8, 1, 2, 0, 1),
}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_patches_give_what_each_clients_convolution_gives_and_its_gradients(name, biased):
    channels, filters, side, size, stride, padding, dilation = CASES[name]
    k, b = 3, 4
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(b * k, channels, side, side + 1, dtype=torch.float64, generator=draw).requires_grad_()
    w = torch.randn(k, filters, channels, size, size, dtype=torch.float64, generator=draw).requires_grad_()
    twice = (stride, stride), (padding, padding), (dilation, dilation)
    bias = torch.randn(k, filters, dtype=torch.float64, generator=draw).requires_grad_() if biased else None
    ours = patch_conv(x, w, bias, *twice)
    each, added = x.unflatten(0, (b, k)), [None] * k if bias is None else list(bias)
    theirs = torch.stack([F.conv2d(each[:, i], w[i], added[i], *twice) for i in range(k)], 1).flatten(0, 1)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn(ours.shape, dtype=torch.float64, generator=draw)
    given = [v for v in (x, w, bias) if v is not None]
    for a, c in zip(*(torch.autograd.grad(out, given, weights) for out in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, c)


def test_pictures_that_need_no_gradient_get_none():
    x, w = torch.ones(4, 1, 5, 5), torch.ones(2, 3, 1, 3, 3, requires_grad=True)
    PatchConv.apply(x, w, None, (1, 1), (0, 0), (1, 1)).sum().backward()
    assert x.grad is None
    assert w.grad is not None
    assert torch.equal(w.grad, torch.full_like(w, 2 * 9))


def test_where_torch_multiplies_in_fewer_digits_so_do_they():
    """Under autocast, as a GPU's bf16 runs are, gradients come back in the type of the parameters."""
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(6, 3, 8, 8, generator=draw), torch.randn(2, 4, 3, 3, 3, generator=draw).requires_grad_()
    bias = torch.randn(2, 4, generator=draw).requires_grad_()
    how = (1, 1), (1, 1), (1, 1)
    exact = patch_conv(x, w, bias, *how)
    with torch.autocast("cpu", torch.bfloat16):
        short = patch_conv(x, w, bias, *how)
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(short.float(), exact, rtol=0.05, atol=0.1)
    both = (torch.autograd.grad(out.float().square().mean(), (w, bias)) for out in (exact, short))
    for a, b in zip(*both, strict=True):
        assert b.dtype == torch.float32
        torch.testing.assert_close(b, a, rtol=0.05, atol=0.05)
