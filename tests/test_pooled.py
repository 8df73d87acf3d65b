"""A convolution that is pooled as it is made gives what convolution and pooling give, and so do its gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import prune

import fedstrata as fs
from fedstrata import pooled
from fedstrata.descent import Federation
from fedstrata.models import model
from fedstrata.pooled import PooledConvolution, heed_pools, pooling
from fedstrata.runtimes.choose import Engine, suited
from fedstrata.task import Task
from fedstrata.threads import threads

pytest.importorskip("numba")

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-12}
LAST = torch.channels_last


def pictures(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(memory_format=LAST)


def filters(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return pictures(*shape, dtype=dtype, seed=1) / float(np.prod(shape[1:])) ** 0.5


def outcome(f: Callable[..., Tensor], x: Tensor, *parameters: Tensor) -> list[Tensor]:
    """What comes out, and the gradients of something that all of it matters to."""
    given = [v.detach().requires_grad_() for v in (x, *parameters)]
    out = f(*given)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad((weights * out.relu()).sum(), given)]  # of some windows it is zero


def assert_alike(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * max(1.0, float(b.detach().abs().max())))


def shapes(channels: int, broad: int) -> st.SearchStrategy[dict[str, Any]]:
    """Sizes of pictures and filters; each number of cache lines in a row of a filter is compiled by itself."""
    few = {"count": 4, "channels": channels, "made": 20, "tall": 4, "broad": broad, "side": 3, "longest": 4}
    pairs = {"padding": st.tuples(*[st.integers(0, 2)] * 2), "rest": st.tuples(*[st.integers(0, 4)] * 2)}
    return st.fixed_dictionaries({n: st.integers(1, most) for n, most in few.items()} | pairs | {"bias": st.booleans()})


def assert_torchs(
    dtype: torch.dtype, count: int, channels: int, made: int, tall: int, broad: int, side: int,
    padding: tuple[int, int], rest: tuple[int, int], bias: bool, longest: int,
) -> None:  # fmt: skip
    x = pictures(count, channels, tall + side - 1 + rest[0], broad + side - 1 + rest[1], dtype=dtype)
    parameters = [filters(made, channels, tall, broad, dtype=dtype)]
    parameters += [torch.linspace(-1, 1, made, dtype=dtype)] if bias else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pooled, "LONGEST", longest if longest < 4 else pooled.LONGEST)
        found = outcome(lambda v, w, b=None: PooledConvolution.apply(v, w, b, side, padding), x, *parameters)
    wanted = outcome(lambda v, w, b=None: F.max_pool2d(F.conv2d(v, w, b, 1, padding), side), x, *parameters)
    assert_alike(found, wanted, DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(shape=shapes(channels=8, broad=3))
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_are_torchs(dtype: torch.dtype, shape: dict[str, Any]):
    assert_torchs(dtype, **shape)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(shape=shapes(channels=40, broad=4))
@settings(max_examples=100, deadline=None)
def test_so_they_are_of_filters_with_long_rows(dtype: torch.dtype, shape: dict[str, Any]):
    assert_torchs(dtype, **shape)


def test_of_equal_answers_the_first_has_the_gradient():
    x, w = torch.ones(2, 3, 6, 6, dtype=torch.float64).to(memory_format=LAST), filters(4, 3, 3, 3)
    found = outcome(lambda v, w: PooledConvolution.apply(v, w, None, 2, (0, 0)), x, w)
    assert_alike(found, outcome(lambda v, w: F.max_pool2d(F.conv2d(v, w), 2), x, w), 1e-12)


def test_nan_is_not_hidden():
    x, w = pictures(2, 3, 8, 8), filters(4, 3, 3, 3)
    x[0, 1, 2, 2] = torch.nan
    found, wanted = PooledConvolution.apply(x, w, None, 2, (0, 0)), F.max_pool2d(F.conv2d(x, w), 2)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert found.isnan().flatten(1).any(1).tolist() == [True, False]


def test_bits_depend_neither_on_threads_nor_on_how_many_examples_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch):
    x, w, b = pictures(9, 5, 9, 9, dtype=torch.float32), filters(21, 5, 3, 3, dtype=torch.float32), torch.zeros(21)
    found = []
    for cached, count in ((1, 1), (1 << 30, 1), (1 << 30, 2), (1 << 30, 3)):
        monkeypatch.setattr(pooled, "CACHED", cached)
        with threads(count):
            found.append(outcome(lambda v, *p: PooledConvolution.apply(v, *p, 2, (1, 1)), x, w, b)[1:])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_cache_line_is_the_same_for_both():
    from fedstrata import windows

    assert pooled.LINE == windows.LINE


def second(f: Callable[..., Tensor], frozen: str) -> list[Tensor]:
    """Gradients of a gradient; a frozen one is not among them."""
    given = {"x": pictures(2, 3, 6, 6), "w": filters(4, 3, 3, 3), "b": torch.ones(4, dtype=torch.float64)}
    free = [v.requires_grad_() for n, v in given.items() if n not in frozen]
    first = torch.autograd.grad(f(*given.values()).relu().square().sum(), free, create_graph=True)
    return list(torch.autograd.grad(torch.cat([v.flatten() for v in first]).square().sum(), free))


@pytest.mark.parametrize("frozen", ["", "x", "w", "b", "xw", "xb", "wb"])
def test_gradients_of_gradients_are_refused_or_right(frozen: str):
    wanted = second(lambda x, w, b: F.max_pool2d(F.conv2d(x, w, b), 2), frozen)
    try:
        found = second(lambda x, w, b: PooledConvolution.apply(x, w, b, 2, (0, 0)), frozen)
    except RuntimeError:
        return
    assert_alike(found, wanted, 1e-12)


@pytest.mark.parametrize("frozen", ["", "x", "w", "b", "xw", "xb", "wb"])
@pytest.mark.parametrize("kernel", [(3, 1), (1, 3), (3, 3)], ids=str)
def test_what_is_frozen_has_no_gradient(frozen: str, kernel: tuple[int, int]):
    """The kernel is laid out as torch does it by itself."""
    plain_filters = filters(32, 16, *kernel).contiguous(memory_format=torch.contiguous_format)

    def gradients(f: Callable[..., Tensor]) -> list[Tensor]:
        given = {"x": pictures(2, 16, 6, 6), "w": plain_filters.clone(), "b": torch.ones(32, dtype=torch.float64)}
        free = [v.requires_grad_() for n, v in given.items() if n not in frozen]
        return list(torch.autograd.grad(f(*given.values()).square().sum(), free))

    found = gradients(lambda x, w, b: PooledConvolution.apply(x, w, b, 2, (0, 0)))
    assert_alike(found, gradients(lambda x, w, b: F.max_pool2d(F.conv2d(x, w, b), 2)), 1e-12)


def network() -> nn.Sequential:
    """Both orders of ReLU and pooling; what follows the second convolution is no pooling of its own."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(8, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 2)),
        nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3),
    ]  # fmt: skip
    return nn.Sequential(*layers).double()


def of_model(made: nn.Module, x: Tensor) -> list[Tensor]:
    out = made(x)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad((weights * out).square().sum(), list(made.parameters()))]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """How often a convolution was pooled as it was made."""
    called, real = [], PooledConvolution.apply
    monkeypatch.setattr(PooledConvolution, "apply", lambda *a: [called.append(a), real(*a)][1])
    return called


def test_a_sequence_of_layers_is_the_same(calls: list[Any]):
    x = pictures(4, 3, 18, 18)
    wanted = of_model(network(), x)
    made = heed_pools(network())
    assert_alike(of_model(made, x), wanted, 0)
    assert not calls  # unless it is asked for
    with pooling(True):
        assert_alike(of_model(made, x), wanted, 1e-12)
    assert len(calls) == 2


def replaced(i: int, layer: nn.Module) -> Callable[[nn.Sequential], Any]:
    return lambda s: s.__setitem__(i, layer.double())


def halved(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return out / 2


CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "listened to": lambda s: s[0].register_forward_hook(halved),
    "pooling listened to": lambda s: s[1].register_forward_hook(halved),
    "pruned": lambda s: prune.l1_unstructured(s[0], "weight", 0.5),
    "spectral norm": lambda s: nn.utils.parametrizations.spectral_norm(s[0]),
    "strided": replaced(0, nn.Conv2d(3, 8, 3, stride=(1, 2), padding=(0, 9))),
    "dilated": replaced(0, nn.Conv2d(3, 8, 3, dilation=2, padding=1)),
    "in groups": replaced(0, nn.Conv2d(3, 9, 3, groups=3)),
    "padded by name": replaced(0, nn.Conv2d(3, 8, 3, padding="same")),
    "padded with pictures": replaced(0, nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular")),
    "overlapping": replaced(1, nn.MaxPool2d(3, stride=2)),
    "not square": replaced(1, nn.MaxPool2d((2, 3))),
    "rounded up": replaced(1, nn.MaxPool2d(3, ceil_mode=True)),
    "padded pooling": replaced(1, nn.MaxPool2d(2, padding=1)),
    "dilated pooling": replaced(1, nn.MaxPool2d(2, dilation=2)),
    "average": replaced(1, nn.AvgPool2d(2)),
    "large windows": replaced(1, nn.MaxPool2d(5)),
    "a side of another kind": replaced(1, nn.MaxPool2d(np.int64(2))),  # pyright: ignore[reportArgumentType]
    "another ReLU": replaced(1, nn.LeakyReLU()),
}
"""Layers that do something else than what is done at once."""


@pytest.mark.parametrize("change", CHANGES)
def test_layers_that_somebody_changed_are_called_as_they_are(change: str, calls: list[Any]):
    made, x = nn.Sequential(*list(network())[:3]).eval(), pictures(4, 3, 18, 18)
    CHANGES[change](made)
    wanted = made(x)
    heed_pools(made)
    with pooling(True):
        assert torch.equal(made(x), wanted)
    assert not calls


def test_what_follows_may_change_its_input_in_place(calls: list[Any]):
    x, ours = pictures(4, 3, 18, 18), network()
    wanted = of_model(ours, x)
    ours[2] = ours[4] = nn.ReLU(inplace=True)
    with pooling(True):
        assert_alike(of_model(heed_pools(ours), x), wanted, 1e-12)
    assert len(calls) == 2


def test_a_sequence_takes_its_input_by_name_too():
    x, made = pictures(4, 3, 18, 18), network()
    assert torch.equal(made(input=x), heed_pools(network())(input=x))


@pytest.mark.parametrize("i", [0, 1])
def test_who_listens_later_is_heard_too(i: int, calls: list[Any]):
    made, x, seen = heed_pools(network()), pictures(4, 3, 18, 18), []
    made.get_submodule(str(i)).register_forward_hook(lambda m, a, out: seen.append(out))
    with pooling(True):
        made(x)
    assert len(seen) == len(calls) == 1  # the other convolution has nobody


def plain(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.contiguous_format)


OTHERS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "channels first": lambda made, x: made(plain(x)),
    "no examples": lambda made, x: made(x[:0]),
    "one picture without a batch": lambda made, x: made(x[0]),
    "bfloat16": lambda made, x: made.bfloat16()(x.bfloat16()),
    "vmap": lambda made, x: vmap(lambda v: functional_call(made, dict(made.named_parameters()), (v[None],)))(x),
    "grad": lambda made, x: grad(lambda v: made(v).sum())(x),
    "per-model": lambda made, x: vmap(lambda w: functional_call(made, w, (x,)))(
        {n: p[None] for n, p in made.named_parameters()}
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_does_not_fit_is_left_to_torch(other: str, calls: list[Any]):
    made, x = nn.Sequential(*list(network())[:3]), pictures(4, 3, 18, 18)
    wanted = OTHERS[other](made, x)
    heed_pools(made)
    with pooling(True):
        torch.testing.assert_close(OTHERS[other](made, x), wanted, rtol=0, atol=0)
    assert not calls


def test_pictures_smaller_than_a_window_are_refused_as_they_were():
    with pooling(True), pytest.raises(RuntimeError):
        heed_pools(network())(pictures(2, 3, 3, 3))


def test_under_autocast_torch_does_it(calls: list[Any]):
    made, x = heed_pools(network().float()), pictures(2, 3, 18, 18, dtype=torch.float32)
    with pooling(True), torch.autocast("cpu", torch.bfloat16):
        made(x)
    assert not calls


def federation(shape: tuple[int, ...] = (3, 18, 18)) -> list[tuple[Tensor, Tensor]]:
    draw = np.random.default_rng(0)
    return [(pictures(n, *shape, seed=n), torch.from_numpy(draw.integers(0, 3, n))) for n in (11, 4, 20)]


@pytest.mark.parametrize("engine", ["apart", "pool", "stacked"])
def test_a_run_is_the_same_with_and_without_it(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    def run(pays: float, workers: int = 2) -> fs.Run:
        monkeypatch.setattr(pooled, "PAYS", pays)
        training = fs.SGD(lr=0.1, momentum=0.9, batch=4)
        how: dict[str, Any] = {"rounds": 2, "training": training, "engine": engine, "workers": workers}
        return fs.simulate("fedlayerwise", network(), federation(), **how)

    found, wanted, alone = run(1), run(float("inf")), run(1, workers=1)
    for (n, a), b, c in zip(
        found.model.named_parameters(), wanted.model.parameters(), alone.model.parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=lambda m, n=n: f"{n}: {m}")
        assert torch.equal(a, c)


def task_for(rounds: int, engine: Engine = "apart", made: nn.Module | None = None) -> Task:
    made = made or network()
    task = Task.of(made)
    fed = Federation(fs.recipes.fedavg(), task, fs.Clients.of(federation()), fs.SGD())
    w = task.layout.flatten(dict(made.named_parameters()))
    return suited(fed, engine, (w, {}), rounds)


def test_it_is_used_in_runs_that_are_long_enough(monkeypatch: pytest.MonkeyPatch):
    places = 16 * 16 * 8 * 27 + 8 * 8 * 6 * 72  # multiplications of the two convolutions that are pooled
    monkeypatch.setattr(pooled, "PAYS", 3 * 2 * 35 * places)  # three rounds of 35 examples, trained on and evaluated
    assert [task_for(rounds).pooled for rounds in (2, 3)] == [False, True]
    assert not task_for(3, "stacked").pooled
    assert not task_for(99, made=model("resnet20", (3, 18, 18), 3).double()).pooled  # pools nothing of that kind
    monkeypatch.setattr(pooled, "loops", lambda: None)  # without numba
    assert not task_for(3).pooled


class Noisy(nn.Sequential):
    """Draws from torch's own generator."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input + torch.randn_like(input))


def test_to_ask_whether_it_pays_draws_nothing():
    made, before = Noisy(network()), torch.get_rng_state()
    assert not pooled.pays(made, pictures(1, 3, 18, 18), 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_that_would_come_out_wrong_is_left_to_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pooled, "PAYS", 1)
    real = PooledConvolution.apply
    monkeypatch.setattr(PooledConvolution, "apply", lambda *a: 1.1 * real(*a))
    task = task_for(3)
    assert task.channels_last
    assert not task.pooled
