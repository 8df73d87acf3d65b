"""Client halves the slow way: one client after another, by torch's own autograd and optimiser."""

from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata.clients import Clients, training_batches
from tests.federations import mlp, unequal_clients

LR = 0.1
TRAIN = fs.SGD(lr=LR, batch=5, epochs=2)
SIZES = (12, 5, 9)
FIVE = (12, 5, 9, 7, 22)
"""More clients, of which some sit out."""

Objective = Callable[[nn.Module, Tensor, Tensor], Tensor]


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def descend(
    world: nn.Module,
    clients: Clients,
    k: int,
    number: int,
    objective: Objective = cross_entropy,
    train: fs.SGD = TRAIN,
    first: int | None = None,
) -> nn.Module:
    """One client's steps on its objective, or only the first of them."""
    mine = deepcopy(world).train()
    trained = [p for p in mine.parameters() if p.requires_grad]
    opt = torch.optim.SGD(trained, lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay)
    schedule = training_batches(clients, [k], train, 0, number)
    for rows, count in zip(schedule.index[0][:first], schedule.count[0][:first], strict=True):
        opt.zero_grad()
        objective(mine, clients.x[rows[:count]], clients.y[rows[:count]]).backward()
        if train.clip is not None:
            nn.utils.clip_grad_norm_(trained, train.clip)
        opt.step()
    return mine


def local(world: nn.Module, clients: Clients, k: int, number: int, penalty, train: fs.SGD = TRAIN) -> nn.Module:
    """One client's steps on its loss plus a penalty of (model, x)."""
    return descend(world, clients, k, number, lambda m, x, y: cross_entropy(m, x, y) + penalty(m, x), train)


def steps(clients: Clients, k: int, number: int, train: fs.SGD = TRAIN) -> int:
    return int(training_batches(clients, [k], train, 0, number).steps[0])


def vector(model: nn.Module) -> Tensor:
    """The trainable parameters, with their graph."""
    return torch.cat([p.reshape(-1) for p in model.parameters() if p.requires_grad])


def flat(model: nn.Module) -> Tensor:
    return vector(model).detach()


def features(model: nn.Module, x: Tensor) -> Tensor:
    """What the last of a row of layers sees."""
    return nn.Sequential(*list(model.children())[:-1])(x)


def both(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """(logits, what the layer sees that puts them out) of one pass, so that running statistics move once."""
    caught: list[Tensor] = []
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda _, a: caught.append(a[0]))
    logits = model(x)
    hook.remove()
    return logits, caught[0]


def load(w: Tensor, like: nn.Module | None = None) -> nn.Module:
    """A model with these trainable parameters."""
    model = deepcopy(like) if like is not None else mlp()
    nn.utils.vector_to_parameters(w.detach().clone(), [p for p in model.parameters() if p.requires_grad])
    return model


def own_data(clients: Clients, k: int) -> tuple[Tensor, Tensor]:
    return clients.x[clients.rows[k]], clients.y[clients.rows[k]]


def shares(clients: Clients, cohort: Sequence[int]) -> list[float]:
    sizes = clients.sizes[list(cohort)]
    return (sizes / sizes.sum()).tolist()


def averaged(models: Sequence[nn.Module], p: Sequence[float], counts: Sequence[float] | None = None) -> nn.Module:
    """The mean model, running statistics included; counters by the other weights, rounded half to even."""
    new, states = deepcopy(models[0]), [m.state_dict() for m in models]

    def mean(name: str) -> Tensor:
        whole = not states[0][name].is_floating_point()
        weights = counts if whole and counts is not None else p
        total = torch.stack([a * s[name].double() for a, s in zip(weights, states, strict=True)]).sum(0)
        return total.round() if whole else total

    new.load_state_dict({n: mean(n).to(v.dtype) for n, v in states[0].items()})
    return new


def library(recipe: fs.Recipe, rounds: int, sizes: Sequence[int] = SIZES, **settings) -> fs.Run:
    given = {"model": mlp(), "clients": unequal_clients(tuple(sizes)), "training": TRAIN} | settings
    return fs.simulate(recipe, given.pop("model"), given.pop("clients"), rounds=rounds, **given)


def cohorts(run: fs.Run) -> list[list[int]]:
    return [r["cohort"] for r in run.rounds]


def bn_mlp() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)
    return nn.Sequential(*layers).double()


class Named(nn.Module):
    """A model with a body and a module called classifier."""

    def __init__(self, classifier: nn.Module | None = None):
        super().__init__()
        torch.manual_seed(2)
        self.body = nn.Linear(6, 5)
        self.classifier = classifier if classifier is not None else nn.Linear(5, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x).relu())
