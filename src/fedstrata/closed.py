"""Logistic regression in closed form: gradients of stacked clients without autograd, a third of what that takes.

With numba (`logistic.py`) they come straight from the data, nothing is gathered, and scores take one pass over it.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.fused import plain
from fedstrata.layout import Arrays
from fedstrata.loops import working
from fedstrata.task import Task, accuracy, cross_entropy
from fedstrata.threads import allowed, pieces, spread

Examples = tuple[Tensor, Tensor]
Trained = tuple[Tensor, Tensor, Tensor]
"""Where clients start, [P], their parameters and their velocities, [K, P] both."""

Array = np.ndarray[Any, Any]

PAYS = 3e9
"""Multiplications from which on it pays to import numba: half a second."""

kernels = partial(working, "logistic")
"""The compiled loops, if they are there."""


def is_logistic(task: Task) -> bool:
    """Whether it is one linear layer under a cross entropy, every parameter trained."""
    model = task.train_mode
    *before, last = model if type(model) is nn.Sequential and len(model) else [model]
    plain = type(last) is nn.Linear and last._parameters.keys() == {"weight", "bias"} and not last._buffers
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    linear = plain and not hooked and all(map(_flattens, before))
    return linear and task.loss is cross_entropy and not task.frozen


def logistic_gradients(task: Task, w: Tensor, batch: Arrays) -> Tensor:
    """Each client's gradient of its mean cross entropy, [A, P]: (softmax(W x + b) - onehot(y)) x^T."""
    gradient = torch.empty_like(w)
    weight, *bias = task.layout.unflatten(w).values()  # [A, C, I], and [A, C] if there is one
    of_weight, *of_bias = task.layout.unflatten(gradient).values()
    x = batch["x"].flatten(2)  # [A, B, I]
    logits = torch.baddbmm(bias[0][:, :, None], weight, x.mT) if bias else torch.bmm(weight, x.mT)
    error = torch.softmax(logits, 1)  # [A, C, B]
    share = batch["share"] if "share" in batch else x.new_full((), 1 / x.shape[1]).expand(x.shape[:2])
    error.mul_(share[:, None]).scatter_add_(1, batch["y"][:, None], -share[:, None])
    torch.bmm(error, x, out=of_weight)
    for v in of_bias:
        torch.sum(error, 2, out=v)
    return gradient


def compiled_gradients(task: Task, w: Tensor, x: Tensor, y: Tensor, rows: Tensor, share: Tensor) -> Tensor:
    """The same from all examples, the rows of each client's batch and what they count, [A, B] both."""
    gradient = torch.empty_like(w)
    given = (v.numpy() for v in (x.flatten(1), y, rows, share, w))
    kernels().gradients(*given, _classes(task), gradient.numpy())
    return gradient


def compiled_descent(task: Task, data: Examples, index: Array, count: Array, desk: Trained, how: Array) -> None:
    """All steps of SGD of K clients, in place; see `logistic.descend`. Threads take the next client each."""
    x, y = (v.numpy() for v in (data[0].flatten(1), data[1]))
    start, w, velocity = (v.numpy() for v in desk)
    given = x, y, index, count, start, w, velocity, _classes(task), how.astype(w.dtype)
    spread(lambda k: kernels().descend(*given, k, k + 1), range(len(w)), allowed())


def compiled_scores(task: Task, w: Tensor, x: Tensor, y: Tensor) -> Arrays:
    """Loss and accuracy of each example, [n] each."""
    found = {"loss": x.new_empty(len(x)), "accuracy": x.new_empty(len(x))}
    data, target, model = (v.numpy() for v in (x.flatten(1), y, w))
    loss, right = (v.numpy() for v in found.values())

    def piece(at: tuple[int, int]) -> None:
        some = slice(*at)
        kernels().scores(data[some], target[some], model, _classes(task), loss[some], right[some])

    spread(piece, pieces(len(x), 8 * allowed()), allowed())
    return found


def compiles(task: Task, x: Tensor, y: Tensor, multiplications: float) -> bool:
    """Whether the compiled loops can be used for such data, and pay for so much work."""
    fits = is_logistic(task) and x.dtype == task.layout.dtype and plain(x) and y.dtype == torch.long and y.dim() == 1
    return fits and multiplications >= PAYS and kernels() is not None


def scores_compiled(task: Task) -> bool:
    """Whether loss and accuracy are all that is asked of it, once the loops are there."""
    return task.compiled and task.metrics == {"accuracy": accuracy}


def _classes(task: Task) -> int:
    return task.layout.tensors[0][1][0]


def _flattens(module: nn.Module) -> bool:
    return type(module) is nn.Identity or (type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1))
