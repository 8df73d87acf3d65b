"""K clients with parameters of their own, folded into one batch, and each alone by plain torch."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedstrata.layout import Arrays
from fedstrata.task import Task, buffers_of

K, B = 3, 4


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def clients_of(task: Task, k: int = K) -> tuple[Tensor, Arrays]:
    """Parameters [k, P] and buffers [k, ...] that differ from client to client, with nothing left at 0 or 1."""
    draw = torch.Generator().manual_seed(1)
    w = 0.5 + 0.3 * torch.randn(k, task.layout.size, generator=draw, dtype=torch.float64)

    def differing(b: Tensor) -> Tensor:
        if not b.is_floating_point():
            return b + torch.arange(k).view(-1, *[1] * b.dim())
        return 0.5 + torch.rand(k, *b.shape, generator=draw, dtype=b.dtype)

    return w, {n: differing(b) for n, b in buffers_of(task.train_mode).items()}


def examples(shape: tuple[int, ...], words: int | None = None, k: int = K, b: int = B) -> Tensor:
    """A batch of each client, [k, b, ...]: numbers, or word numbers."""
    draw = torch.Generator().manual_seed(2)
    if words is not None:
        return torch.randint(words, (k, b, *shape), generator=draw)
    return torch.randn(k, b, *shape, generator=draw, dtype=torch.float64)


def worth(y: Tensor) -> Tensor:
    """A number for each example that every output matters to, [B]."""
    scale = torch.linspace(-1, 2, y[0].numel(), dtype=y.dtype).view(y.shape[1:])
    return (y * scale + (y * scale).pow(3)).flatten(1).sum(1)  # a normalisation would hide sums and squares


def folded(task: Task, w: Tensor, buffers: Arrays, x: Tensor, **given: Any) -> tuple[Tensor, Tensor, Arrays]:
    """(outputs [K, B, ...], gradients [K, P], buffers after) of all clients in one pass."""
    assert task.folds
    w = w.clone().requires_grad_()
    seen = task.stacked(task.layout.unflatten(w), buffers, x, **given)
    values = worth(seen.outputs.flatten(0, 1)).view(x.shape[:2])
    if "mask" in given:
        values = torch.where(given["mask"], values, 0.0)
    return seen.outputs.detach(), torch.autograd.grad(values.sum(), w)[0], seen.buffers


def alone(model: nn.Module, task: Task, w: Tensor, buffers: Arrays, x: Tensor) -> tuple[Tensor, Tensor, Arrays]:
    """The same of one client by torch alone; a batch norm that has one value a channel uses what it remembers."""
    mine = deepcopy(model).train()
    mine.load_state_dict(task.layout.unflatten(w) | buffers, strict=False)
    for m in mine.modules():
        if isinstance(m, _BatchNorm) and x[:, 0].numel() == 1:
            m.eval()
    y = mine(x)
    names = trained(mine)
    found = torch.autograd.grad(worth(y).sum(), list(names.values()))
    return y.detach(), task.layout.flatten(dict(zip(names, found, strict=True))), buffers_of(mine)


def same(one: tuple[Tensor, Tensor, Arrays], other: tuple[Tensor, Tensor, Arrays], atol: float = 1e-12) -> None:
    """Outputs, gradients and buffers, relative to their size."""
    pairs = [*zip(one[:2], other[:2], strict=True), *((one[2][n], other[2][n]) for n in other[2])]
    assert one[2].keys() == other[2].keys()
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=atol, atol=atol * max(1.0, float(b.double().abs().max())))
