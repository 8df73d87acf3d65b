"""What one client can measure about itself, at the model it received: on one mini-batch, or on all of its data."""

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.func import grad, vmap

from fedstrata.layout import Arrays
from fedstrata.task import Batch, Task
from fedstrata.task import accuracy as right

Probe = Callable[[Task, Tensor, Arrays, Batch], Tensor]

EXAMPLES_AT_ONCE = 16
"""Per-example gradients held at a time; more costs memory, P numbers each."""


def loss_variance(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """Population variance of the per-example losses (FedPBS, Alg. 4 line 9)."""
    losses = task.losses(task.forward(w, buffers, batch.x).outputs, batch.y).double()
    return batch.mean((losses - batch.mean(losses)).square())


def gradient_variance(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """Mean squared distance of the per-example gradients to their mean (FedBS as in FedPBS, Eq. 8)."""

    def one_loss(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return task.losses(task.forward(v, buffers, x).outputs, y).mean()

    def mean_loss(v: Tensor) -> Tensor:
        return batch.mean(task.losses(task.forward(v, buffers, batch.x).outputs, batch.y))

    mean = grad(mean_loss)(w)

    def distance(x: Tensor, y: Tensor) -> Tensor:
        return (grad(one_loss)(w, x[None], y[None]) - mean).double().square().sum()

    return batch.mean(vmap(distance, chunk_size=EXAMPLES_AT_ONCE)(batch.x, batch.y))


def loss(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """Mean loss."""
    return batch.mean(task.losses(task.forward(w, buffers, batch.x).outputs, batch.y)).double()


def accuracy(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """Share of its examples that the model gets right."""
    return batch.mean(right(task.forward(w, buffers, batch.x).outputs, batch.y)).double()


def gradient(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """Gradient of its mean loss, [P]."""
    return grad(lambda v: loss(task, v, buffers, batch).to(w.dtype))(w)


MINI: dict[str, Probe] = {"loss_variance": loss_variance, "gradient_variance": gradient_variance}
WHOLE: dict[str, Probe] = {"loss": loss, "accuracy": accuracy, "gradient": gradient}
PROBES = MINI | WHOLE
"""By name: those that take one mini-batch, and those that take all of a client's data."""


def measure(names: Iterable[str], task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Arrays:
    """These measurements of one client."""
    return {n: PROBES[n](task, w, buffers, batch) for n in sorted(names)}
