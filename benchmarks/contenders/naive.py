"""What most research repositories do: a DataLoader a client, a deep copy of the model, an average of state_dicts."""

from collections.abc import Iterable
from copy import deepcopy
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.script import Job, main
from benchmarks.torch_parts import arrays_of, evaluated_sets, model_of, optimizer_of, tensors_of, use_threads
from benchmarks.workloads import Workload


def run(job: Job):
    """The naive loop."""
    use_threads(job)
    work, model = job.work, model_of(job.work, job.dtype)
    train = tensors_of(work.train(), job.dtype)
    clients = [TensorDataset(train[0][rows], train[1][rows]) for rows in map(work.rows, range(work.clients))]
    sets = {n: DataLoader(TensorDataset(*s), batch_size=256) for n, s in evaluated_sets(job, train).items()}
    for round in range(job.rounds):
        began = perf_counter()
        locals_ = []
        for k in work.cohort(round).tolist():
            orders = [order - work.starts[k] for order in work.orders(round, k)]
            locals_.append(train_client(work, model, clients[k], orders).state_dict())
        shares = work.shares(round).tolist()
        model.load_state_dict({n: sum(p * d[n] for p, d in zip(shares, locals_, strict=True)) for n in locals_[0]})
        trained = perf_counter()
        metrics = {name: score(model, loader) for name, loader in sets.items()}
        job.lap(trained - began, perf_counter() - trained, metrics)
    return arrays_of(model)


def train_client(work: Workload, start: nn.Module, data: TensorDataset, orders: Iterable) -> nn.Module:
    """One client's epochs from a copy of the global model."""
    model = deepcopy(start)
    model.train()
    optimizer = optimizer_of(work, model.parameters())
    for order in orders:
        for x, y in DataLoader(data, batch_size=work.batch, sampler=order.tolist()):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if work.mu:
                moved = zip(model.parameters(), start.parameters(), strict=True)
                loss = loss + work.mu / 2 * sum(((p - q.detach()) ** 2).sum() for p, q in moved)
            loss.backward()
            optimizer.step()
    return model


@torch.no_grad()
def score(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Mean loss and accuracy, batch after batch."""
    model.eval()
    loss, right, n = 0.0, 0, 0
    for x, y in loader:
        outputs = model(x)
        loss += F.cross_entropy(outputs, y, reduction="sum").item()
        right += (outputs.argmax(1) == y).sum().item()
        n += len(y)
    return loss / n, right / n


if __name__ == "__main__":
    main("naive", run)
