"""What one client can measure about itself, at the model it received, on one mini-batch."""

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.func import grad, vmap

from fedstrata.layout import Arrays
from fedstrata.task import Batch, Task

Probe = Callable[[Task, Tensor, Arrays, Batch], Tensor]

EXAMPLES_AT_ONCE = 16
"""Per-example gradients held at a time; more costs memory, P numbers each."""


def loss_variance(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """Population variance of the per-example losses (FedPBS, Alg. 4 line 9)."""
    losses = task.losses(task.forward(w, buffers, batch.x).outputs, batch.y).double()
    return batch.mean((losses - batch.mean(losses)).square())


def gradient_variance(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """Mean squared distance of the per-example gradients to their mean (FedBS as in FedPBS, Eq. 8)."""

    def loss(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return task.losses(task.forward(v, buffers, x).outputs, y).mean()

    def mean_loss(v: Tensor) -> Tensor:
        return batch.mean(task.losses(task.forward(v, buffers, batch.x).outputs, batch.y))

    mean = grad(mean_loss)(w)

    def distance(x: Tensor, y: Tensor) -> Tensor:
        return (grad(loss)(w, x[None], y[None]) - mean).double().square().sum()

    return batch.mean(vmap(distance, chunk_size=EXAMPLES_AT_ONCE)(batch.x, batch.y))


PROBES: dict[str, Probe] = {"loss_variance": loss_variance, "gradient_variance": gradient_variance}


def measure(names: Iterable[str], task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Arrays:
    """These measurements of one client."""
    return {n: PROBES[n](task, w, buffers, batch) for n in sorted(names)}
