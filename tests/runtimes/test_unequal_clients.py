"""Clients of unequal size do exactly the steps of their own data: against a plain loop, one client after another."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import fedstrata as fs
from fedstrata.clients import Clients, training_batches
from tests.federations import flat, mlp, unequal_clients


def bn_cnn() -> nn.Module:
    torch.manual_seed(0)
    head = nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), *head).double()


def image_clients() -> Clients:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(36, 1, 4, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (36,), generator=draw)
    return Clients.of(list(zip(x.split([11, 2, 7, 16]), y.split([11, 2, 7, 16]), strict=True)))


def plain_fedavg(model: nn.Module, clients: Clients, training: fs.SGD, rounds: int, seed: int) -> nn.Module:
    """FedAvg written with torch's own optimiser, modules and state_dicts."""
    world = deepcopy(model)
    for number in range(rounds):
        locals_ = []
        for k in range(len(clients)):
            mine = deepcopy(world).train()
            opt = torch.optim.SGD(mine.parameters(), lr=training.rate(number), momentum=training.momentum)
            schedule = training_batches(clients, [k], training, seed, number)
            for rows, count in zip(schedule.index[0], schedule.count[0], strict=True):
                opt.zero_grad()
                loss = nn.functional.cross_entropy(mine(clients.x[rows[:count]]), clients.y[rows[:count]])
                loss.backward()
                if training.clip is not None:
                    nn.utils.clip_grad_norm_(mine.parameters(), training.clip)
                opt.step()
            locals_.append(mine.state_dict())
        p = torch.tensor(clients.sizes / clients.sizes.sum())
        mean = {n: sum(p[k] * s[n].double() for k, s in enumerate(locals_)) for n in locals_[0]}
        world.load_state_dict({n: v.round() if "num_batches" in n else v for n, v in mean.items()})  # pyright: ignore
    return world


@pytest.mark.parametrize("training", [
    fs.SGD(lr=0.1, batch=4), fs.SGD(lr=0.1, batch=4, epochs=3, momentum=0.9), fs.SGD(lr=0.1, batch=4, steps=5),
    fs.SGD(lr=0.3, batch=3, epochs=2, momentum=0.5, clip=0.2, decay=0.5), fs.SGD(lr=0.1, batch=None, epochs=2),
], ids=repr)  # fmt: skip
@pytest.mark.parametrize("chunk", [1, 3, None])
def test_stacked_training_is_the_plain_loop(training, chunk):
    run = fs.simulate(fs.recipes.fedavg(), mlp(), unequal_clients(), rounds=3, training=training, seed=2, chunk=chunk)
    plain = plain_fedavg(mlp(), unequal_clients(), training, 3, 2)
    torch.testing.assert_close(flat(run.model), flat(plain), rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_batchnorm_statistics_are_those_of_the_plain_loop(chunk):
    """Batches of 7 of 11, 2, 7 and 16 examples leave short ones of 4, 2, none and 2: padding would show everywhere."""
    training = fs.SGD(lr=0.1, batch=7, epochs=2, momentum=0.9)
    run = fs.simulate(fs.recipes.fedavg(), bn_cnn(), image_clients(), rounds=3, training=training, seed=1, chunk=chunk)
    plain = plain_fedavg(bn_cnn(), image_clients(), training, 3, 1)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(run.model.state_dict()[name], value, rtol=0, atol=1e-10, msg=name)


def test_a_short_batch_weighs_its_own_examples_only():
    """Two clients whose padded batch would repeat an example: their gradients are means over the real ones."""
    x = torch.tensor([[1.0], [3.0], [10.0]], dtype=torch.float64)
    y = torch.zeros(3, 1, dtype=torch.float64)
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    clients = [(x[:2], y[:2]), (x[2:], y[2:])]
    run = fs.simulate(fs.recipes.fedavg("uniform"), model, clients, rounds=1, loss="squared_error",
                      training=fs.SGD(lr=0.01, batch=2))  # fmt: skip
    expected = 1 - 0.01 * ((1 + 9) / 2 + 100) / 2
    torch.testing.assert_close(flat(run.model), torch.tensor([expected], dtype=torch.float64))
