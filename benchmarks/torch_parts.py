"""What the contenders in plain PyTorch share: the models, the data as tensors, an evaluation without ceremony."""

import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.script import Job, Metrics
from benchmarks.workloads import Workload

Tensors = tuple[Tensor, Tensor]


def model_of(work: Workload, dtype: str) -> nn.Sequential:
    """The workload's model with its first weights, written as anybody would."""
    layers: dict[str, list[nn.Module]] = {
        "logreg": [nn.Linear(784, 10)],
        "layerwise_cnn": [
            *[nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)],
            *[nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)],
        ],
        "simple_cnn": [
            *[nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)],
            *[nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)],
        ],
    }
    model = nn.Sequential(*layers[work.model])
    with torch.no_grad():
        for p, w in zip(model.parameters(), work.weights(), strict=True):
            p.copy_(torch.from_numpy(w))
    return model.to(getattr(torch, dtype))


def optimizer_of(work: Workload, parameters) -> torch.optim.Optimizer:
    """The workload's optimiser, as torch has it."""
    if work.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=work.lr)
    return torch.optim.SGD(parameters, lr=work.lr, momentum=work.momentum, weight_decay=work.weight_decay)


def tensors_of(pair: tuple[np.ndarray, np.ndarray], dtype: str) -> Tensors:
    """Examples and labels as tensors."""
    return torch.from_numpy(pair[0]).to(getattr(torch, dtype)), torch.from_numpy(pair[1])


def evaluated_sets(job: Job, train: Tensors | None) -> dict[str, Tensors]:
    """The sets that are evaluated after every round."""
    sets = {name: tensors_of(pair, job.dtype) for name, pair in job.work.held_out().items()}
    return {"train": train} | sets if train is not None and job.work.evaluates_train else sets


def evaluate(model: nn.Module, sets: dict[str, Tensors], batch: int = 2048) -> Metrics:
    """Mean loss and accuracy on each set, in large batches."""
    found = {}
    with torch.inference_mode():
        for name, (x, y) in sets.items():
            loss, right = 0.0, 0
            for xb, yb in zip(x.split(batch), y.split(batch), strict=True):
                outputs = model(xb)
                loss += float(F.cross_entropy(outputs, yb, reduction="sum"))
                right += int((outputs.argmax(1) == yb).sum())
            found[name] = loss / len(x), right / len(x)
    return found


def arrays_of(model: nn.Module) -> list[np.ndarray]:
    """The parameters, in their order."""
    return [p.detach().contiguous().numpy() for p in model.parameters()]


def load(model: nn.Module, arrays: Sequence[np.ndarray]) -> None:
    """Put parameters into a model."""
    with torch.no_grad():
        for p, a in zip(model.parameters(), arrays, strict=True):
            p.copy_(torch.from_numpy(a))


def use_threads(job: Job, evaluating: bool = False) -> None:
    """As many threads as asked for, else all; but one to train the logistic regression.

    Its steps are so small that a second thread gains nothing, and costs ten times as much once the machine is shared.
    """
    tiny = job.work.model == "logreg" and not evaluating
    torch.set_num_threads(job.threads or (1 if tiny else os.cpu_count() or 1))
