"""Every kind of layer folds: K clients in one batch give what each gives alone by plain torch, gradients included."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fedstrata.dropout import LAYERS
from fedstrata.fold import fold, folds, unfold
from fedstrata.task import Task
from tests.folding import B, K, alone, clients_of, examples, folded, same, worth

Shape = tuple[int, ...]


def frozen(layer: nn.Module, *names: str) -> nn.Module:
    for name in names:
        getattr(layer, name).requires_grad_(False)
    return layer


def without_bias(layer: nn.Module) -> nn.Module:
    """As bias=False has it in newer torches."""
    layer.register_parameter("bias", None)
    return layer


CASES: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "linear on sequences": (lambda: nn.Linear(5, 4), (3, 5)),
    "linear on sequences of sequences": (lambda: nn.Linear(5, 4), (2, 3, 5)),
    "linear without bias": (lambda: nn.Linear(5, 4, bias=False), (5,)),
    "linear without bias on sequences": (lambda: nn.Linear(5, 4, bias=False), (3, 5)),
    "linear with a frozen weight": (lambda: frozen(nn.Linear(5, 4), "weight"), (5,)),
    "linear with a frozen bias": (lambda: frozen(nn.Linear(5, 4), "bias"), (3, 5)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3), (2, 7)),
    "conv1d with all there is": (
        lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2, bias=False), (4, 9)
    ),
    "conv2d": (lambda: nn.Conv2d(2, 3, 3), (2, 5, 5)),
    "conv2d with all there is": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), (4, 7, 6)),
    "conv2d of one channel each": (lambda: nn.Conv2d(4, 4, 3, groups=4), (4, 5, 5)),
    "conv2d that is longer than wide": (lambda: nn.Conv2d(2, 3, (1, 3), stride=(2, 1), padding=(0, 2)), (2, 5, 4)),
    "conv2d of the same size": (lambda: nn.Conv2d(2, 3, (3, 2), padding="same", dilation=(1, 2)), (2, 5, 4)),
    "conv2d that says valid": (lambda: nn.Conv2d(2, 3, 3, padding="valid", bias=False), (2, 5, 5)),
    "conv2d with a frozen weight": (lambda: frozen(nn.Conv2d(2, 3, 3), "weight"), (2, 4, 4)),
    "conv2d with a frozen bias": (lambda: frozen(nn.Conv2d(2, 3, 3), "bias"), (2, 4, 4)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 1), groups=2, padding=1), (2, 3, 4, 3)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 2)),
    "group norm on flat examples": (lambda: nn.GroupNorm(2, 4), (4,)),
    "group norm with a frozen weight": (lambda: frozen(nn.GroupNorm(1, 4), "weight"), (4, 5)),
    "group norm with a frozen bias": (lambda: frozen(nn.GroupNorm(4, 4), "bias"), (4, 5)),
    "group norm without bias": (lambda: without_bias(nn.GroupNorm(2, 4)), (4, 5)),
    "layer norm": (lambda: nn.LayerNorm(4), (4,)),
    "layer norm of sequences": (lambda: nn.LayerNorm(4), (3, 4)),
    "layer norm of two dimensions": (lambda: nn.LayerNorm([3, 4]), (3, 4)),
    "layer norm of the last two of three": (lambda: nn.LayerNorm([3, 4]), (2, 3, 4)),
    "layer norm without bias": (lambda: nn.LayerNorm([3, 4], bias=False), (2, 3, 4)),
    "layer norm with a frozen weight": (lambda: frozen(nn.LayerNorm([3, 4]), "weight"), (2, 3, 4)),
    "layer norm with a frozen bias": (lambda: frozen(nn.LayerNorm(4), "bias"), (3, 4)),
}  # fmt: skip


def ready(model: nn.Module) -> tuple[nn.Module, Task]:
    """In float64, what is frozen at random."""
    torch.manual_seed(0)
    for p in model.parameters():
        p.data = torch.randn_like(p)
    model = model.double()
    return model, Task.of(model)


def check(model: nn.Module, shape: Shape, words: int | None = None, k: int = K) -> None:
    model, task = ready(model)
    w, buffers = clients_of(task, k)
    x = examples(shape, words, k)
    outputs, gradients, after = folded(task, w, buffers, x)
    assert k == 1 or float((gradients[0] - gradients[1]).abs().max()) > 1e-3  # else mixing them up would not show
    for i in range(k):
        own = {n: b[i] for n, b in buffers.items()}
        mine = outputs[i], gradients[i], {n: b[i] for n, b in after.items()}
        same(mine, alone(model, task, w[i], own, x[i]))


@pytest.mark.parametrize("name", CASES)
def test_folded_clients_give_what_each_gives_alone(name: str):
    make, shape = CASES[name]
    check(make(), shape)


@pytest.mark.parametrize("name", ["linear", "conv2d", "group norm", "layer norm"])
def test_one_client_alone_and_five_of_them_fold_too(name: str):
    make, shape = CASES[name]
    for k in (1, 5):
        check(make(), shape, k=k)


UNTRAINED: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "group norm": (lambda: nn.GroupNorm(1, 4, affine=False), (5,)),
    "layer norm": (lambda: nn.LayerNorm(4, elementwise_affine=False), (3, 5)),
    "a frozen linear": (lambda: frozen(nn.Linear(4, 3), "weight", "bias"), (3, 5)),
    "a frozen group norm": (lambda: frozen(nn.GroupNorm(1, 4), "weight", "bias"), (5,)),
    "a frozen layer norm": (lambda: frozen(nn.LayerNorm(4), "weight", "bias"), (3, 5)),
    "a frozen batch norm": (lambda: frozen(nn.BatchNorm1d(4), "weight", "bias"), (5,)),
    "batch norm": (lambda: nn.BatchNorm1d(4, affine=False), (5,)),
}


@pytest.mark.parametrize("name", UNTRAINED)
def test_a_layer_that_nobody_trains_is_everybodys(name: str):
    make, shape = UNTRAINED[name]
    check(nn.Sequential(nn.Linear(5, 4), make()), shape)


@pytest.mark.parametrize(("settings", "frozen_too"), [
    ({}, False), ({}, True), ({"padding_idx": 2}, False), ({"padding_idx": -1}, False),
])  # fmt: skip
def test_each_client_looks_its_words_up_in_its_own_table(settings: dict[str, Any], frozen_too: bool):
    table = nn.Embedding(6, 4, **settings)
    model = nn.Sequential(frozen(table, "weight") if frozen_too else table, nn.Flatten(), nn.Linear(12, 2))
    check(model, (3,), words=6)


def test_padding_is_not_trained_in_any_table():
    _, task = ready(nn.Sequential(nn.Embedding(6, 4, padding_idx=2), nn.Flatten(), nn.Linear(12, 2)))
    w, _ = clients_of(task)
    _, gradients, _ = folded(task, w, {}, examples((3,), 6))
    table = task.layout.unflatten(gradients)["0.weight"]  # [K, 6, 4]
    assert not table[:, 2].any()
    assert table[:, [0, 1, 3, 4, 5]].any()


NORMS: dict[str, tuple[Callable[..., nn.Module], Shape]] = {
    "1d flat": (nn.BatchNorm1d, (4,)), "1d series": (nn.BatchNorm1d, (4, 3)), "2d": (nn.BatchNorm2d, (4, 3, 2)),
    "3d": (nn.BatchNorm3d, (4, 2, 1, 2)),
}  # fmt: skip
HOW: dict[str, dict[str, Any]] = {
    "as usual": {}, "momentum 0.3": {"momentum": 0.3}, "momentum 0": {"momentum": 0.0},
    "cumulative": {"momentum": None}, "not tracking": {"track_running_stats": False}, "eps 0.1": {"eps": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("norm", NORMS)
def test_batch_norm_keeps_the_clients_statistics_apart(norm: str, how: str):
    kind, shape = NORMS[norm]
    check(kind(4, **HOW[how]), shape)


@pytest.mark.parametrize("names", [("weight",), ("bias",)])
def test_batch_norm_with_half_of_it_frozen_folds(names: tuple[str, ...]):
    check(frozen(nn.BatchNorm2d(4), *names), (4, 3, 2))
    check(frozen(nn.BatchNorm2d(4, track_running_stats=False), *names), (4, 3, 2))


SHORT = {n: HOW[n] for n in ("as usual", "cumulative", "not tracking")} | {"not affine": {"affine": False}}
SHORT |= {"without bias": {}}


@pytest.mark.parametrize(("how", "shape", "sizes"), [
    (how, shape, sizes) for how in SHORT for shape in ((4,), (4, 3, 2)) for sizes in ((4, 2, 3), (4, 1, 2), (1, 1, 1))
    if how != "not tracking" or len(shape) > 1 or 1 not in sizes  # one value and nothing to go by
])  # fmt: skip
def test_short_batches_are_padded_and_the_padding_is_not_seen(sizes: Shape, shape: Shape, how: str):
    before = nn.Linear(4, 4) if shape == (4,) else nn.Conv2d(4, 4, 1)
    norm = (nn.BatchNorm1d if shape == (4,) else nn.BatchNorm2d)(4, **SHORT[how])
    model, task = ready(nn.Sequential(before, without_bias(norm) if how == "without bias" else norm))
    w, buffers = clients_of(task)
    width = max(sizes)
    x = examples(shape, b=width)
    mask = torch.arange(width) < torch.tensor(sizes)[:, None]
    outputs, gradients, after = folded(task, w, buffers, x, mask=mask)
    for i, n in enumerate(sizes):
        own = {m: b[i] for m, b in buffers.items()}
        mine = outputs[i, :n], gradients[i], {m: b[i] for m, b in after.items()}
        same(mine, alone(model, task, w[i], own, x[i, :n]), 1e-11)


@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_draws_from_each_clients_noise_alone(kind: Callable[[float], nn.Module]):
    shape = {nn.Dropout1d: (4, 3), nn.Dropout2d: (4, 3, 2), nn.Dropout3d: (4, 2, 3, 2)}.get(kind, (3, 4))  # pyright: ignore[reportArgumentType, reportCallIssue]
    model = nn.Sequential(nn.Flatten(), nn.Linear(int(torch.tensor(shape).prod()), 5), nn.Dropout(0.4))
    _, task = ready(nn.Sequential(kind(0.3), *model))
    w, _ = clients_of(task)
    x, noise = examples(shape), torch.tensor([5, 2**62, 77])
    outputs, gradients, _ = folded(task, w, {}, x, noise=noise)
    for i in range(K):
        own = w[i].clone().requires_grad_()
        seen = task.forward(own, {}, x[i], "train", noise=noise[i]).outputs
        torch.testing.assert_close(outputs[i], seen, rtol=1e-12, atol=1e-12)
        (gradient,) = torch.autograd.grad(worth(seen).sum(), own)
        torch.testing.assert_close(gradients[i], gradient, rtol=1e-12, atol=1e-12)
    assert not torch.equal(outputs[0] == 0, outputs[1] == 0)
    other = folded(task, w, {}, x, noise=noise + torch.tensor([0, 1, 0]))[0]
    assert [bool(torch.equal(a, b)) for a, b in zip(other, outputs, strict=True)] == [True, False, True]


def test_folding_is_b_before_k_and_comes_undone():
    x = torch.arange(K * B * 2).view(K, B, 2)
    assert fold(x)[:, 0].tolist() == [int(x[k, b, 0]) for b in range(B) for k in range(K)]
    assert torch.equal(unfold(fold(x), K), x)


def test_batches_may_lie_in_memory_as_they_are_gathered():
    model, task = ready(nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2)))
    assert folds(model)
    w, buffers = clients_of(task)
    x = examples((2, 3, 3))
    lying = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert not lying.is_contiguous()
    same(folded(task, w, buffers, lying), folded(task, w, buffers, x))


class Renamed(nn.Dropout):
    """As it is."""


class Doubling(nn.Dropout):
    """Of one's own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * input


def test_a_subclass_of_dropout_drops_as_its_kind_does_or_as_it_says():
    x, noise = examples((4, 50))[0], torch.tensor(3)
    outputs = []
    for layer in (nn.Dropout(0.5), Renamed(0.5), Doubling(0.5)):
        _, task = ready(nn.Sequential(layer, nn.Linear(50, 50)))
        eye = torch.cat([torch.eye(50, dtype=torch.float64).flatten(), torch.zeros(50, dtype=torch.float64)])
        outputs.append(task.forward(eye, {}, x, "train", noise=noise).outputs)
    assert 0.3 < float((outputs[0] == 0).double().mean()) < 0.7
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[2], 2 * x)
