"""The same federation at both ends: the model, the task and the recipe, from an experiment and a few facts."""

import torch
from torch import nn

from fedstrata.clients import Clients
from fedstrata.descent import Federation
from fedstrata.experiment import Experiment
from fedstrata.models import model
from fedstrata.simulate import usable_device
from fedstrata.task import Task


def federation(
    exp: Experiment, clients: Clients, classes: int, vocabulary: int | None, device: str
) -> tuple[Federation, nn.Module]:
    """(what a run is about, its model before the first round), for these examples."""
    place = usable_device(device)
    network = model(exp.model, tuple(clients.x.shape[1:]), classes, exp.seed, vocabulary=vocabulary)
    network, training = exp.recipe.adapt(network, exp.training, exp.seed)
    task = Task.of(network, device=place)
    clients = clients.to(place, task.layout.dtype)
    return Federation(exp.recipe, task, clients, training, exp.seed, exp.buffers, exp.augment), network


def made_up(shape: tuple[int, ...], words: bool) -> Clients:
    """One client of two empty examples: enough to see what a client's reply looks like."""
    x = torch.zeros(2, *shape, dtype=torch.long if words else torch.float32)
    return Clients.of([(x, torch.zeros(2, dtype=torch.long))])
