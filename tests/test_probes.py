"""What a client measures about itself, against plain loops over its examples."""

import pytest
import torch

from fedstrata.probes import gradient_variance, loss_variance
from fedstrata.task import Batch, Task
from tests.federations import mlp, unequal_clients


def setting() -> tuple[Task, torch.Tensor, Batch]:
    model, clients = mlp(), unequal_clients()
    task = Task.of(model)
    return task, task.layout.flatten(dict(model.named_parameters())), Batch(clients.x[:20], clients.y[:20])


def gradients() -> torch.Tensor:
    """One gradient an example, [20, P], by autograd one after another."""
    clients, rows = unequal_clients(), []
    for x, y in zip(clients.x[:20], clients.y[:20], strict=True):
        model = mlp()
        torch.nn.functional.cross_entropy(model(x[None]), y[None]).backward()
        rows.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
    return torch.stack(rows)


def test_loss_variance_is_the_population_variance():
    task, w, batch = setting()
    losses = torch.nn.functional.cross_entropy(mlp()(batch.x), batch.y, reduction="none")
    torch.testing.assert_close(loss_variance(task, w, {}, batch), losses.detach().var(correction=0))


def test_gradient_variance_is_the_mean_squared_distance_to_the_mean_gradient():
    task, w, batch = setting()
    g = gradients()
    expected = (g - g.mean(0)).square().sum(1).mean()
    torch.testing.assert_close(gradient_variance(task, w, {}, batch), expected)


@pytest.mark.parametrize("probe", [loss_variance, gradient_variance])
def test_padding_is_not_measured(probe):
    task, w, batch = setting()
    padded = Batch(torch.cat([batch.x, batch.x[:3]]), torch.cat([batch.y, batch.y[:3]]), torch.arange(23) < 20)
    torch.testing.assert_close(probe(task, w, {}, padded), probe(task, w, {}, batch))
    assert not torch.allclose(probe(task, w, {}, Batch(padded.x, padded.y)), probe(task, w, {}, batch))
