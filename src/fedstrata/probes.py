"""What one client can measure about itself: on one mini-batch or on all of its data, before or after it trained."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import normalize, one_hot

from fedstrata.errors import ModelError
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


def last_layer_gradient_variance(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """The same of the last layer's gradients alone, which cost one backward pass through that layer each."""
    a, b = list(task.layout.spans())[task.layout.layers.index(_last_layer(task))]

    def one_loss(v: Tensor, x: Tensor, y: Tensor) -> Tensor:
        whole = torch.cat([w[:a], v, w[b:]])
        return task.losses(task.forward(whole, buffers, x[None]).outputs, y[None])[0]

    gradients = vmap(grad(one_loss), (None, 0, 0), chunk_size=EXAMPLES_AT_ONCE)(w[a:b], batch.x, batch.y).double()
    mean = batch.total(gradients) / (len(batch.x) if batch.mask is None else batch.mask.sum())
    return batch.mean((gradients - mean).square().sum(1))


def loss(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """Its loss."""
    return batch.total(task.losses(task.forward(w, buffers, batch.x).outputs, batch.y))


def accuracy(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """Whether the model gets an example right."""
    return batch.total(right(task.forward(w, buffers, batch.x).outputs, batch.y))


def gradient(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """Gradient of its loss, [P]."""
    return grad(lambda v: loss(task, v, buffers, batch).to(w.dtype))(w)


def class_moments(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """For each class: 1, the features and their products, [C, 1 + d + d * d], for an example of it; zeros else."""
    z, classes = _features(task, w, buffers, batch)
    member = _member(classes, batch, z)
    products = torch.stack([(z * m[:, None]).T @ z for m in member.unbind(1)])  # [C, d, d], never [B, d, d]
    return torch.cat([member.sum(0)[:, None], member.T @ z, products.flatten(1)], 1)


def class_features(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Tensor:
    """For each class: 1 and the features scaled to length 1, [C, 1 + d], for an example of it; zeros else."""
    z, classes = _features(task, w, buffers, batch)
    member = _member(classes, batch, z)
    return torch.cat([member.sum(0)[:, None], member.T @ normalize(z, dim=1)], 1)


def _features(task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> tuple[Tensor, int]:
    """(what the classifier sees, [B, d] in float64, the number of classes)."""
    seen = task.forward(w, buffers, batch.x)
    if seen.features is None:
        raise ModelError(f"the model's forward does not call {task.classifier!r}, so there are no features to take")
    return seen.features.flatten(1).double(), seen.outputs.shape[1]


def _member(classes: int, batch: Batch, like: Tensor) -> Tensor:
    """Which class each real example is of, [B, C], as 0 and 1."""
    member = one_hot(batch.y, classes).to(like.dtype)
    return member if batch.mask is None else torch.where(batch.mask[:, None], member, 0.0)


def _last_layer(task: Task) -> str:
    within = [n for n in task.layout.layers if f"{n}.".startswith(f"{task.classifier}.")]
    return (within or task.layout.layers)[-1]


MINI: dict[str, Probe] = {
    "loss_variance": loss_variance,
    "gradient_variance": gradient_variance,
    "last_layer_gradient_variance": last_layer_gradient_variance,
}
"""Measured at the received model on one mini-batch."""

WHOLE: dict[str, Probe] = {"loss": loss, "accuracy": accuracy, "gradient": gradient, "class_moments": class_moments}
"""Measured at the received model on all of a client's data: these give sums over a batch, the mean is what is kept."""

AFTER: dict[str, Probe] = {"class_features": class_features, "trained_gradient": gradient}
"""The same, at the model that the client trained."""

PROBES = MINI | WHOLE | AFTER


def measure(names: Iterable[str], task: Task, w: Tensor, buffers: Arrays, batch: Batch) -> Arrays:
    """These measurements of one client on one batch."""
    return {n: PROBES[n](task, w, buffers, batch) for n in sorted(names)}
