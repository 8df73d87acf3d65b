from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedstrata.batchnorm import heed_masks, real_examples

CHANNELS, REAL, PADDED = 3, 4, 7
MASK = torch.arange(PADDED) < REAL

SHAPES: dict[str, tuple[int, ...]] = {"1d flat": (CHANNELS,), "1d series": (CHANNELS, 5), "2d": (CHANNELS, 2, 4)}
SETTINGS: dict[str, dict[str, Any]] = {
    "as usual": {},
    "momentum 0.3": {"momentum": 0.3},
    "cumulative": {"momentum": None},
    "not affine": {"affine": False},
    "not tracking": {"track_running_stats": False},
    "eps 0.1": {"eps": 0.1},
}


def layer(shape: tuple[int, ...], **settings: Any) -> _BatchNorm:
    """A layer with nothing left at 0 or 1."""
    torch.manual_seed(0)
    norm = (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(CHANNELS, dtype=torch.float64, **settings)
    for t in (*norm.parameters(), *norm.buffers()):
        if t.is_floating_point():
            t.data.uniform_(0.5, 2.0)
    return norm


def examples(shape: tuple[int, ...], count: int = REAL, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return 3 + 2 * torch.randn(count, *shape, dtype=torch.float64)


def padded(x: Tensor, to: int = PADDED) -> Tensor:
    """The batch with its first example repeated, as a Schedule pads."""
    return torch.cat([x, x[:1].expand(to - len(x), *x.shape[1:])])


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-11, atol=1e-12)


def worth(y: Tensor) -> Tensor:
    """Some function of the outputs that every one of them matters to."""
    return (y * torch.linspace(-1, 2, y[0].numel(), dtype=y.dtype).view(y.shape[1:])).pow(3).flatten(1).sum(1)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_padded_batch_gives_what_torch_gives_for_the_unpadded_one(shape: tuple[int, ...], settings: dict[str, Any]):
    theirs = layer(shape, **settings)
    ours = heed_masks(deepcopy(theirs))
    for seed in range(3):
        x = examples(shape, seed=seed).requires_grad_()
        z = padded(x.detach()).requires_grad_()
        expected = theirs(x)
        with real_examples(MASK):
            y = ours(z)
        torch.testing.assert_close(y[:REAL], expected, rtol=1e-11, atol=1e-12)
        wanted = torch.autograd.grad(worth(expected).sum(), [x, *theirs.parameters()])
        found = torch.autograd.grad(worth(y)[MASK].sum(), [z, *ours.parameters()])
        torch.testing.assert_close(found[0][:REAL], wanted[0], rtol=1e-10, atol=1e-11)
        assert float(found[0][REAL:].abs().max()) == 0.0
        for mine, torchs in zip(found[1:], wanted[1:], strict=True):
            torch.testing.assert_close(mine, torchs, rtol=1e-10, atol=1e-11)
        assert not any(b.requires_grad for b in ours.buffers())
        same(ours.state_dict(), theirs.state_dict())


def test_without_masks_padding_would_be_seen():
    x = examples((CHANNELS,))
    norm = layer((CHANNELS,))
    assert float((norm(padded(x))[:REAL] - norm(x)).detach().abs().max()) > 1e-3


def test_what_the_padding_holds_is_of_no_consequence():
    x, ours = examples((CHANNELS,)), heed_masks(layer((CHANNELS,)))
    again = deepcopy(ours)
    foreign = torch.cat([x, 100 * examples((CHANNELS,), PADDED - REAL, seed=9)])
    with real_examples(MASK):
        torch.testing.assert_close(ours(padded(x))[:REAL], again(foreign)[:REAL], rtol=1e-12, atol=1e-12)
    same(ours.state_dict(), again.state_dict())


def test_the_real_examples_may_lie_anywhere():
    x, theirs = examples((CHANNELS,)), layer((CHANNELS,))
    ours = heed_masks(deepcopy(theirs))
    there = torch.tensor([1, 2, 4, 6])
    z = torch.zeros(PADDED, CHANNELS, dtype=torch.float64).index_copy(0, there, x)
    with real_examples(torch.zeros(PADDED, dtype=torch.bool).index_fill(0, there, True)):
        y = ours(z)
    torch.testing.assert_close(y[there], theirs(x), rtol=1e-11, atol=1e-12)
    same(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_full_batch_is_torchs_own(shape: tuple[int, ...], settings: dict[str, Any]):
    theirs = layer(shape, **settings)
    ours = heed_masks(deepcopy(theirs))
    for seed in range(2):
        torch.testing.assert_close(ours(examples(shape, seed=seed)), theirs(examples(shape, seed=seed)))
        same(ours.state_dict(), theirs.state_dict())


def test_the_cumulative_mean_is_that_of_all_batches():
    ours = heed_masks(nn.BatchNorm1d(CHANNELS, momentum=None, dtype=torch.float64))
    batches = [examples((CHANNELS,), n, seed=n) for n in (4, 2, 6)]
    for x in batches:
        with real_examples(torch.arange(PADDED) < len(x)):
            ours(padded(x))
    state = ours.state_dict()
    torch.testing.assert_close(state["running_mean"], torch.stack([x.mean(0) for x in batches]).mean(0))
    torch.testing.assert_close(state["running_var"], torch.stack([x.var(0) for x in batches]).mean(0))
    assert int(state["num_batches_tracked"]) == 3


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("shape", [(CHANNELS,), (CHANNELS, 1), (CHANNELS, 1, 1)])
def test_one_value_a_channel_uses_and_leaves_the_running_statistics(shape: tuple[int, ...], pad: bool, momentum: Any):
    norm = layer(shape, momentum=momentum)
    ours = heed_masks(deepcopy(norm))
    x = examples(shape, 1).requires_grad_()
    with real_examples(torch.arange(PADDED) < 1 if pad else None):
        y = ours(padded(x) if pad else x)[:1]
    expected = deepcopy(norm).eval()(x)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(expected.sum(), x))
    same(ours.state_dict(), norm.state_dict())


def test_torch_itself_refuses_one_value_a_channel():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer((CHANNELS,))(examples((CHANNELS,), 1))


def test_one_example_with_several_values_a_channel_is_normalised_by_itself():
    theirs = layer((CHANNELS, 2, 4))
    ours = heed_masks(deepcopy(theirs))
    x = examples((CHANNELS, 2, 4), 1)
    with real_examples(torch.arange(PADDED) < 1):
        y = ours(padded(x))
    torch.testing.assert_close(y[:1], theirs(x), rtol=1e-11, atol=1e-12)
    same(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("mask", [None, MASK])
def test_evaluation_is_untouched(mask: Tensor | None):
    theirs = layer((CHANNELS,)).eval()
    ours = heed_masks(deepcopy(theirs))
    before = deepcopy(ours.state_dict())
    with real_examples(mask):
        y = ours(padded(examples((CHANNELS,))))
    torch.testing.assert_close(y, theirs(padded(examples((CHANNELS,)))), rtol=0, atol=0)
    same(ours.state_dict(), before)


def test_a_mask_holds_within_its_block_only():
    ours, x = heed_masks(layer((CHANNELS,))), padded(examples((CHANNELS,)))
    plain = deepcopy(ours)(x)

    def broken() -> None:
        with real_examples(MASK):
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        broken()
    torch.testing.assert_close(deepcopy(ours)(x), plain, rtol=0, atol=0)
    with real_examples(MASK):
        masked = deepcopy(ours)(x)
        with real_examples(None):
            torch.testing.assert_close(deepcopy(ours)(x), plain, rtol=0, atol=0)
        torch.testing.assert_close(deepcopy(ours)(x), masked, rtol=0, atol=0)
    assert float((masked - plain).detach().abs().max()) > 1e-3


def test_a_copy_keeps_its_own_statistics():
    ours = heed_masks(layer((CHANNELS,)))
    copy, before = deepcopy(ours), deepcopy(ours.state_dict())
    with real_examples(MASK):
        copy(padded(examples((CHANNELS,))))
    same(ours.state_dict(), before)
    assert int(copy.state_dict()["num_batches_tracked"]) == int(before["num_batches_tracked"]) + 1


def test_every_batchnorm_layer_of_a_model_heeds_masks():
    torch.manual_seed(0)
    theirs = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    ).double()
    ours = heed_masks(deepcopy(theirs))
    x = examples((1, 3, 3))
    with real_examples(MASK):
        y = ours(padded(x))
    torch.testing.assert_close(y[:REAL], theirs(x), rtol=1e-11, atol=1e-12)
    same(ours.state_dict(), theirs.state_dict())


def client_model(momentum: float | None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, CHANNELS), nn.BatchNorm1d(CHANNELS, momentum=momentum), nn.Tanh()).double()


def objective(model: nn.Module, params: Any, buffers: Any, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Any]:
    after = {n: b.clone() for n, b in buffers.items()}
    with real_examples(mask):
        y = functional_call(model, params | after, (x,))
    values = worth(y)
    return (values if mask is None else torch.where(mask, values, 0.0)).sum(), after


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (4, 2, 3), (4, 1, 2), (1, 1, 1)])
def test_stacked_clients_with_their_own_buffers_get_torchs_gradients_and_statistics(
    sizes: tuple[int, ...], momentum: float | None
):
    model = client_model(momentum)
    ours = heed_masks(deepcopy(model))
    params = {n: p.detach() for n, p in model.named_parameters()}
    batches = [examples((2,), n, seed=k) for k, n in enumerate(sizes)]
    stacked = {n: torch.stack([p + 0.1 * k for k in range(3)]) for n, p in params.items()}
    buffers = {n: torch.stack([b + k for k in range(3)]) for n, b in model.named_buffers()}
    width = max(sizes)
    mask = torch.arange(width) < torch.tensor(sizes)[:, None] if min(sizes) < width else None
    x = torch.stack([padded(b, width) for b in batches])
    step = grad(partial(objective, ours), has_aux=True)
    found, after = vmap(step, (0, 0, 0, None if mask is None else 0))(stacked, buffers, x, mask)
    for k, batch in enumerate(batches):
        alone = deepcopy(model)
        alone.load_state_dict({n: v[k] for n, v in (stacked | buffers).items()})
        if sizes[k] == 1:
            alone[1].eval()  # pyright: ignore[reportIndexIssue]
        worth(alone(batch)).sum().backward()
        wanted = {n: p.grad for n, p in alone.named_parameters() if p.grad is not None}
        same({n: g[k] for n, g in found.items()}, wanted)
        same({n: b[k] for n, b in after.items()}, dict(alone.named_buffers()))
