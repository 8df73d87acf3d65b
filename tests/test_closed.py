"""Logistic regression in closed form is what autograd gives, and nothing else is taken for it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedstrata as fs
from fedstrata.closed import is_logistic, logistic_gradients
from fedstrata.descent import Federation, shares
from fedstrata.layout import Arrays
from fedstrata.task import Task
from tests.federations import final_model, unequal_clients

LOGISTIC: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "one layer": (lambda: nn.Linear(6, 4), (6,)),
    "without bias": (lambda: nn.Linear(6, 4, bias=False), (6,)),
    "of images": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 4)), (2, 3, 3)),
    "of images without bias": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(18, 4, bias=False)), (2, 3, 3)),
    "after nothing at all": (lambda: nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(6, 4)), (6,)),
    "of one class": (lambda: nn.Linear(6, 1), (6,)),
}


def batches(shape: tuple[int, ...], classes: int, sizes: tuple[int, ...]) -> Arrays:
    """Of clients with so many examples, as a Feed has them."""
    draw, width = torch.Generator().manual_seed(0), max(sizes)
    x = torch.randn(width, len(sizes), *shape, generator=draw, dtype=torch.float64).transpose(0, 1)
    y = torch.randint(classes, (width, len(sizes)), generator=draw).T
    mask = torch.arange(width) < torch.tensor(sizes)[:, None]
    return {"x": x, "y": y} | ({} if mask.all() else {"mask": mask, "share": shares(mask, torch.float64)})


def by_autograd(model: nn.Module, task: Task, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    model.load_state_dict(task.layout.unflatten(w))
    loss = cross_entropy(model(x), y)
    found = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.flatten() for g in found])


@pytest.mark.parametrize("sizes", [(5, 5, 5), (5, 2, 1), (1,), (1, 1), (3,)])
@pytest.mark.parametrize("name", LOGISTIC)
def test_the_closed_form_is_what_autograd_gives(name: str, sizes: tuple[int, ...]):
    make, shape = LOGISTIC[name]
    model = make().double()
    task = Task.of(model)
    assert is_logistic(task)
    draw = torch.Generator().manual_seed(1)
    w = torch.randn(len(sizes), task.layout.size, generator=draw, dtype=torch.float64)
    batch = batches(shape, model(torch.zeros(1, *shape, dtype=torch.float64)).shape[1], sizes)
    kept = w.clone(), {n: v.clone() for n, v in batch.items()}
    found = logistic_gradients(task, w, batch)
    for k, n in enumerate(sizes):
        wanted = by_autograd(model, task, w[k], batch["x"][k, :n], batch["y"][k, :n])
        torch.testing.assert_close(found[k], wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(w, kept[0])  # what is given is left as it is
    assert all(torch.equal(batch[n], v) for n, v in kept[1].items())


def test_it_is_as_stable_as_torch_where_logits_are_huge():
    model = nn.Linear(6, 3).double()
    task = Task.of(model)
    w, batch = torch.full((1, 21), 1e4, dtype=torch.float64), batches((6,), 3, (4,))
    w[0, :6] = -1e4
    found = logistic_gradients(task, w, batch)
    assert found.isfinite().all()
    wanted = by_autograd(model, task, w[0], batch["x"][0], batch["y"][0])
    torch.testing.assert_close(found[0], wanted, rtol=1e-12, atol=1e-12)


def frozen_bias() -> nn.Module:
    layer = nn.Linear(6, 4)
    assert layer.bias is not None
    layer.bias.requires_grad_(False)
    return layer


def watched() -> nn.Module:
    layer = nn.Linear(6, 4)
    layer.register_forward_hook(lambda *args: 2 * args[2])
    return layer


def pre_watched() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4))
    model.register_forward_pre_hook(lambda _, args: (args[0] ** 2,))
    return model


def spectral_normed() -> nn.Module:
    """By torch's older function, which leaves the kind of the layer as it is."""
    return nn.utils.spectral_norm(nn.Linear(6, 4))


class Own(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return -super().forward(input)


class OwnSequential(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return -super().forward(input)


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "two layers": lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)),
    "a nonlinearity": lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 4)),
    "a nonlinearity after it": lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU()),
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 4)),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4)),
    "a frozen bias": frozen_bias,
    "one batch of all": lambda: nn.Sequential(nn.Flatten(0), nn.Linear(6, 4)),
    "half flat": lambda: nn.Sequential(nn.Flatten(1, 2), nn.Linear(6, 4)),
    "flat from the third": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(6, 4)),
    "a subclass": lambda: Own(6, 4),
    "a subclass of a sequence": lambda: OwnSequential(nn.Flatten(), nn.Linear(6, 4)),
    "a sequence within": lambda: nn.Sequential(nn.Sequential(nn.ReLU()), nn.Linear(6, 4)),
    "a hook": watched,
    "a hook before": pre_watched,
    "spectral norm": spectral_normed,
    "a parametrization": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)),
    "one layer twice": lambda: nn.Sequential(*[nn.Linear(6, 6)] * 2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_is_taken_for_it(name: str):
    assert not is_logistic(Task.of(OTHERS[name]()))


@pytest.mark.parametrize("loss", ["squared_error", cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_nor_is_another_loss(loss):
    assert not is_logistic(Task.of(nn.Linear(6, 4), loss))
    assert is_logistic(Task.of(nn.Linear(6, 4), "cross_entropy"))


@pytest.mark.parametrize(("recipe", "closed"), [
    (fs.recipes.fedavg(), True), (fs.recipes.scaffold(), True), (fs.recipes.fedprox(mu=0.1), True),
    (fs.recipes.fedavg(local=fs.parts.Moon()), False), (fs.recipes.fedavg(local=fs.parts.ETF()), False),
    (fs.recipes.fedavg(local=fs.parts.Prototypes()), False),
], ids=lambda v: v.local if isinstance(v, fs.Recipe) else str(v))  # fmt: skip
def test_parts_that_add_to_the_loss_need_autograd(recipe: fs.Recipe, closed: bool):
    fed = Federation(recipe, Task.of(nn.Linear(6, 4)), unequal_clients(), fs.SGD())
    assert fed.in_closed_form == closed


@pytest.mark.parametrize("recipe", ["fedavg", "scaffold", "fedprox"])
def test_a_run_is_the_same_with_and_without_it(recipe: str, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    settings = {"model": model, "training": fs.SGD(lr=0.1, batch=5, momentum=0.5, clip=1.0)}
    closed = final_model(fs.recipes.METHODS[recipe](), **settings)
    monkeypatch.setattr(Federation, "in_closed_form", False)
    torch.testing.assert_close(final_model(fs.recipes.METHODS[recipe](), **settings), closed, rtol=0, atol=1e-12)
