"""What a client measures about itself, against plain loops over its examples."""

import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata import train as training
from fedstrata.descent import Errand, Federation
from fedstrata.layout import Arrays
from fedstrata.probes import gradient_variance, last_layer_gradient_variance, loss_variance
from fedstrata.task import Batch, Task, buffers_of
from fedstrata.train import survey
from tests.federations import mlp, unequal_clients
from tests.slow import Named, bn_mlp, features, own_data


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


def test_last_layer_gradient_variance_is_the_same_of_the_classifiers_gradients_alone():
    task, w, batch = setting()
    g = gradients()[:, -18:]
    expected = (g - g.mean(0)).square().sum(1).mean()
    torch.testing.assert_close(last_layer_gradient_variance(task, w, {}, batch), expected)


@pytest.mark.parametrize("classifier", [nn.Linear(5, 3), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))])
def test_the_last_layer_is_the_classifiers_wherever_it_was_defined(classifier):
    class Backwards(Named):
        """Its classifier is defined before its body."""

        def __init__(self):
            super().__init__(classifier)
            self.body = self._modules.pop("body")

    model = Backwards()
    last = [n for n, _ in model.named_parameters() if n.startswith("classifier")][-2:]
    x, y = unequal_clients().x[:20], unequal_clients().y[:20]
    rows = [torch.autograd.grad(nn.functional.cross_entropy(model(a[None]), b[None]),
                                [model.get_parameter(n) for n in last]) for a, b in zip(x, y, strict=True)]  # fmt: skip
    g = torch.stack([torch.cat([v.reshape(-1) for v in row]) for row in rows])
    task = Task.of(model)
    w = task.layout.flatten(dict(model.named_parameters()))
    expected = (g - g.mean(0)).square().sum(1).mean()
    torch.testing.assert_close(last_layer_gradient_variance(task, w, {}, Batch(x, y)), expected)


@pytest.mark.parametrize("probe", [loss_variance, gradient_variance, last_layer_gradient_variance])
def test_padding_is_not_measured(probe):
    task, w, batch = setting()
    padded = Batch(torch.cat([batch.x, batch.x[:3]]), torch.cat([batch.y, batch.y[:3]]), torch.arange(23) < 20)
    torch.testing.assert_close(probe(task, w, {}, padded), probe(task, w, {}, batch))
    assert not torch.allclose(probe(task, w, {}, Batch(padded.x, padded.y)), probe(task, w, {}, batch))


BIG = unequal_clients((600, 3, 256, 257, 1))


def told(model: nn.Module, names: set[str]) -> Arrays:
    """What five clients measure on all of their data."""
    task = Task.of(model)
    fed = Federation(fs.recipes.fedavg(), task, BIG, fs.SGD())
    buffers = {n: b.expand(5, *b.shape) for n, b in buffers_of(model).items()}
    start = task.layout.flatten(dict(model.named_parameters()))
    return survey(fed, Errand(range(5), 0, start, buffers, {}, {}, {}, frozenset(names)))


@pytest.mark.parametrize("make", [mlp, bn_mlp], ids=lambda m: m.__name__)
@pytest.mark.parametrize("at_once", [256, 100])
def test_what_is_measured_in_pieces_is_the_mean_over_all_of_a_clients_data(make, at_once, monkeypatch):
    monkeypatch.setattr(training, "EXAMPLES_AT_ONCE", at_once)
    model = make().eval()
    found = told(model, {"loss", "accuracy", "gradient"})
    for k in range(5):
        x, y = own_data(BIG, k)
        loss = nn.functional.cross_entropy(model(x), y)
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
        torch.testing.assert_close(found["loss"][k], loss.detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(found["accuracy"][k], (model(x).argmax(1) == y).double().mean())
        torch.testing.assert_close(found["gradient"][k], gradient, rtol=0, atol=1e-13)


def by_class(z: Tensor, y: Tensor) -> Tensor:
    return torch.stack([z[y == c].sum(0) if bool((y == c).any()) else 0 * z[0] for c in range(3)]) / len(y)


def test_class_moments_are_sums_over_each_class_divided_by_all_examples():
    model = bn_mlp().eval()
    found = told(model, {"class_moments"})["class_moments"]
    for k in range(5):
        x, y = own_data(BIG, k)
        z = features(model, x).detach()
        rows = [torch.cat([torch.ones(1).double(), v, torch.outer(v, v).flatten()]) for v in z]
        torch.testing.assert_close(found[k], by_class(torch.stack(rows), y), rtol=0, atol=1e-12)


def test_class_features_are_scaled_to_length_one():
    model = mlp()
    task = Task.of(model)
    w = task.layout.flatten(dict(model.named_parameters())).expand(5, -1)
    fed = Federation(fs.recipes.fedproc(), task, BIG, fs.SGD())
    found = training._on_all_data(fed, range(5), frozenset({"class_features"}), w, {})["class_features"]
    for k in range(5):
        x, y = own_data(BIG, k)
        z = features(model, x).detach()
        z = z / z.norm(dim=1, keepdim=True).clamp_min(1e-12)
        torch.testing.assert_close(found[k], by_class(torch.cat([torch.ones(len(y), 1).double(), z], 1), y))
