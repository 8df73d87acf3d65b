"""Images and kernels that are laid out as a CPU's convolutions like them give the same numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedstrata as fs
from fedstrata.models import model
from fedstrata.models.base import norm_of
from fedstrata.models.resnet import residual
from fedstrata.runtimes import choose
from fedstrata.task import Task, buffers_of
from tests.folding import examples, worth

SHAPE = (3, 8, 8)


class Viewing(nn.Module):
    """Takes for granted how numbers lie in memory, as many models do."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(144, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return self.head(h.view(h.size(0), -1))


class Striding(Viewing):
    """Goes wrong, and says nothing, where numbers lie in another order."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return self.head(torch.as_strided(h, (len(h), 144), (144, 1)))


CONVOLVING: dict[str, Callable[[], nn.Module]] = {
    "cnn": lambda: model("cnn", SHAPE, 3), "cnn_bn": lambda: model("cnn_bn", SHAPE, 3),
    "residual": lambda: residual(SHAPE, 3, (4, 8), 1, norm_of("batch", 8)),
    "groups": lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3, padding="same"), nn.GroupNorm(2, 6), nn.ReLU(),
                                    nn.Dropout2d(0.3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(96, 3)),
}  # fmt: skip


def ready(made: nn.Module) -> tuple[Task, Tensor, Any, Tensor]:
    made = made.double()
    task = Task.of(made)
    w = task.layout.flatten({n: p for n, p in made.named_parameters() if p.requires_grad})
    return task, w, buffers_of(made), examples(SHAPE)[0]


def stepped(task: Task, w: Tensor, buffers: Any, x: Tensor) -> tuple[Tensor, Tensor, Any]:
    """(outputs, gradient, buffers after) of one client in training mode."""
    w = w.clone().requires_grad_()
    own = {n: b[None] for n, b in buffers.items()}
    noise = torch.tensor([5]) if task.noisy else None
    seen = task.stacked(task.layout.unflatten(w[None]), own, x[None], None, noise)
    (gradient,) = torch.autograd.grad(worth(seen.outputs[0]).sum(), w)
    return seen.outputs[0].detach(), gradient, seen.buffers


@pytest.mark.parametrize("name", CONVOLVING)
def test_training_and_evaluation_are_the_same_in_another_layout(name: str):
    task, w, buffers, x = ready(CONVOLVING[name]())
    last = replace(task, channels_last=True)
    torch.testing.assert_close(stepped(last, w, buffers, x), stepped(task, w, buffers, x), rtol=0, atol=1e-10)
    with task.scoring(w, buffers) as plain:
        wanted = plain(x)
    with last.scoring(w, buffers) as outputs:
        torch.testing.assert_close(outputs(x), wanted, rtol=0, atol=1e-10)


def test_kernels_and_images_are_really_laid_out_so():
    task, w, buffers, x = ready(CONVOLVING["cnn"]())
    seen = list[bool]()

    def look(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.Conv2d)
        seen.extend(v.is_contiguous(memory_format=torch.channels_last) for v in (module.weight, args[0]))

    for m in (task.train_mode, task.eval_mode):
        m.get_submodule("0").register_forward_pre_hook(look)
    for layout in (False, True):
        now = replace(task, channels_last=layout)
        stepped(now, w, buffers, x)
        with now.scoring(w, buffers) as outputs:
            outputs(x)
    assert seen == [False] * 4 + [True] * 4


def clients() -> fs.Clients:
    x = examples(SHAPE, k=1, b=30)[0]
    return fs.Clients.of([(x[:13], torch.arange(13) % 3), (x[13:], torch.arange(17) % 3)])


@pytest.mark.parametrize("engine", ["apart", "pool", "stacked"])
@pytest.mark.parametrize("name", ["cnn_bn", "groups"])
def test_a_run_is_the_same_in_another_layout(name: str, engine: Any, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    made, found = CONVOLVING[name]().double(), []
    for convolves in (choose.convolves, lambda _: False):  # or it is never asked for
        monkeypatch.setattr(choose, "convolves", convolves)
        settings = {"rounds": 2, "training": fs.SGD(lr=0.05, batch=5), "test": (clients().x, clients().y)}
        run = fs.simulate("fedavg", made, clients(), engine=engine, **settings)
        found.append((run.model.state_dict(), torch.tensor(run.final["test"]["loss"], dtype=torch.float64)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", ["apart", "pool", "stacked", "auto"])
@pytest.mark.parametrize("recipe", ["fedavg", "moon"])
def test_a_model_that_views_memory_its_own_way_trains(recipe: str, engine: Any):
    torch.manual_seed(0)
    run = fs.simulate(recipe, Viewing().double(), clients(), rounds=1, engine=engine, training=fs.SGD(batch=5))
    assert run.final["train"]["loss"] > 0


def by_instance() -> nn.Module:
    """Whose gradient for one image alone torch gets wrong in this layout."""
    layers = nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(32, 3)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("make", "well"),
    [*((m, True) for m in CONVOLVING.values()), (Viewing, False), (Striding, False), (by_instance, False)],
)
def test_such_models_are_found_out_by_trying(make: Callable[[], nn.Module], well: bool, dtype: torch.dtype):
    torch.manual_seed(0)
    made = make().to(dtype)
    for zeros in (False, True):  # which hide what is before the last layer
        if zeros:
            nn.init.zeros_(list(made.parameters())[-2])
        task = Task.of(made)
        w = task.layout.flatten(dict(made.named_parameters()))
        assert task.takes_channels_last(w, buffers_of(made), examples(SHAPE)[0].to(dtype)) == well


def test_engines_heed_the_trial():
    for make, well in ((CONVOLVING["cnn_bn"], True), (Viewing, False)):
        task, w, buffers, _ = ready(make())
        fed = choose.Federation(fs.recipes.fedavg(), task, clients(), fs.SGD())
        for engine in ("apart", "pool", "stacked"):
            assert choose.suited(fed, engine, (w, buffers), 1).channels_last == well


def test_one_image_alone_has_the_right_gradient_whatever_the_layers():
    """Clients of one image each: in a layout that torch gets wrong, the run would be another."""
    torch.manual_seed(0)
    made, x = by_instance().double(), examples(SHAPE)[0]
    found = [fs.simulate("fedavg", made, [(v[None], [0]) for v in x], rounds=2, engine=e).model.state_dict()
             for e in ("apart", "stacked")]  # fmt: skip
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)


def test_images_of_one_channel_are_laid_out_too():
    """By their strides alone they could be either, and then torch takes the slow way."""
    task = replace(Task.of(nn.Conv2d(1, 2, 3)), channels_last=True)
    seen = []
    task.eval_mode.register_forward_pre_hook(lambda _, args: seen.append(args[0].stride()))
    with task.scoring(torch.zeros(task.layout.size), {}) as outputs:
        outputs(torch.zeros(4, 1, 5, 6))
    assert seen == [(30, 1, 6, 1)]
