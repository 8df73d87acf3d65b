from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedstrata.errors import SettingError
from fedstrata.layout import Arrays
from fedstrata.optim import SGD, Adam, AdamW, Training

K, P, STEPS = 3, 5, 8

Rival = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

PAIRS: dict[str, tuple[Training, Rival]] = {
    "sgd": (SGD(lr=0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "nesterov": (
        SGD(lr=0.1, momentum=0.8, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True),
    ),
    "decayed sgd": (SGD(lr=0.1, weight_decay=0.3), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.3)),
    "decayed nesterov": (
        SGD(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.3),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True, weight_decay=0.3),
    ),
    "adam": (Adam(lr=0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam, its own betas": (
        Adam(lr=0.01, beta1=0.5, beta2=0.9, eps=1e-3, weight_decay=0.3),
        lambda p: torch.optim.Adam(p, 0.01, (0.5, 0.9), 1e-3, 0.3),
    ),
    "adamw": (AdamW(lr=0.01), lambda p: torch.optim.AdamW(p, 0.01)),
    "adamw, its own betas": (
        AdamW(lr=0.01, beta1=0.5, beta2=0.9, eps=1e-3, weight_decay=0.3),
        lambda p: torch.optim.AdamW(p, 0.01, (0.5, 0.9), 1e-3, 0.3),
    ),
}
EVERY = pytest.mark.parametrize("name", PAIRS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def begun(training: Training, w: Tensor) -> Arrays:
    """The optimiser state of K clients, stacked."""
    return {n: v.expand(len(w), *v.shape).clone() for n, v in training.init(w[0]).items()}


def rivals(make: Rival, w: Tensor) -> list[tuple[nn.Parameter, torch.optim.Optimizer]]:
    parameters = [nn.Parameter(row.clone()) for row in w]
    return [(p, make([p])) for p in parameters]


def stepped(rival: tuple[nn.Parameter, torch.optim.Optimizer], grad: Tensor) -> Tensor:
    parameter, optimizer = rival
    parameter.grad = grad.clone()
    optimizer.step()
    return parameter.detach()


@EVERY
def test_stacked_clients_step_as_torch_does(name: str):
    training, make = PAIRS[name]
    w, grads = normal(K, P), normal(STEPS, K, P, seed=1)
    state, torchs = begun(training, w), rivals(make, w)
    for grad in grads:
        training.update(w, grad, state, training.rate(0))
        theirs = torch.stack([stepped(r, g) for r, g in zip(torchs, grad, strict=True)])
        torch.testing.assert_close(w, theirs, rtol=1e-12, atol=1e-14)


LYING: dict[str, Callable[[Tensor], Tensor]] = {
    "side by side": lambda v: v.T.contiguous().T, "every other": lambda v: v.repeat_interleave(2, -1)[..., ::2],
    "one number for all": lambda v: v[:1, :1].expand(v.shape), "of another type": lambda v: v.float(),
}  # fmt: skip


@pytest.mark.parametrize("lying", LYING)
@EVERY
def test_a_gradient_may_lie_in_memory_as_it_likes(name: str, lying: str):
    training, make = PAIRS[name]
    w, grads = normal(K, P), normal(STEPS, K, P, seed=1)
    state, torchs = begun(training, w), rivals(make, w)
    for grad in grads:
        odd = LYING[lying](grad)
        training.update(w, odd, state, training.rate(0))
        theirs = torch.stack([stepped(r, g.double()) for r, g in zip(torchs, odd, strict=True)])
        torch.testing.assert_close(w, theirs, rtol=1e-12, atol=1e-14)


@EVERY
def test_and_so_may_the_parameters(name: str):
    training, _ = PAIRS[name]
    w, grads = normal(K, P), normal(STEPS, K, P, seed=1)
    odd = w.T.contiguous().T
    state, other = begun(training, w), begun(training, w)
    for grad in grads:
        training.update(w, grad, state, training.rate(0))
        training.update(odd, grad, other, training.rate(0))
    assert not odd.is_contiguous()
    torch.testing.assert_close(odd, w, rtol=1e-12, atol=1e-14)


def test_no_two_of_these_optimisers_are_the_same():
    ends = []
    for training, _ in PAIRS.values():
        w, grads = normal(K, P), normal(STEPS, K, P, seed=1)
        state = begun(training, w)
        for grad in grads:
            training.update(w, grad, state, training.rate(0))
        ends.append(w)
    apart = [float((a - b).abs().max()) for i, a in enumerate(ends) for b in ends[:i]]
    assert min(apart) > 1e-6


@EVERY
def test_an_update_changes_parameters_and_state_in_place_and_leaves_the_gradient_alone(name: str):
    training, _ = PAIRS[name]
    w, grad = normal(K, P).float(), normal(K, P, seed=1).float()
    state = begun(training, w)
    before = grad.clone(), w.clone(), {n: (v.shape, v.dtype) for n, v in state.items()}
    training.update(w, grad, state, 0.1)
    torch.testing.assert_close(grad, before[0], rtol=0, atol=0)
    assert not torch.equal(w, before[1])
    assert {n: (v.shape, v.dtype) for n, v in state.items()} == before[2]


@EVERY
def test_a_rate_may_be_a_tensor(name: str):
    training, _ = PAIRS[name]
    w, grads = normal(K, P), normal(STEPS, K, P, seed=1)
    other, state = w.clone(), begun(training, w)
    same = begun(training, w)
    for grad in grads:
        training.update(w, grad, state, 0.05)
        training.update(other, grad, same, torch.tensor(0.05, dtype=torch.float64))
    torch.testing.assert_close(w, other, rtol=1e-12, atol=1e-14)


@EVERY
def test_one_client_alone_steps_as_within_a_stack(name: str):
    training, _ = PAIRS[name]
    w, grads = normal(K, P), normal(STEPS, K, P, seed=1)
    alone, state, own = w[1].clone(), begun(training, w), training.init(w[1])
    for grad in grads:
        training.update(w, grad, state, 0.05)
        training.update(alone, grad[1], own, 0.05)
    torch.testing.assert_close(alone, w[1], rtol=1e-14, atol=1e-16)


def test_clients_of_one_stack_may_stand_at_different_steps_of_adam():
    training, make = PAIRS["adam"]
    w, grads = normal(2, P), normal(4, 2, P, seed=1)
    state, torchs = begun(training, w), rivals(make, w)
    for grad in grads[:2]:  # the first client is two steps ahead
        training.update(w[:1], grad[:1], {n: v[:1] for n, v in state.items()}, training.lr)
        stepped(torchs[0], grad[0])
    for grad in grads[2:]:
        training.update(w, grad, state, training.lr)
        theirs = torch.stack([stepped(r, g) for r, g in zip(torchs, grad, strict=True)])
        torch.testing.assert_close(w, theirs, rtol=1e-12, atol=1e-14)
    assert state["t"].tolist() == [4, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_adam_steps_as_torch_does_in_short_types(dtype: torch.dtype):
    training, make = PAIRS["adam"]
    w, grad = torch.ones(K, P, dtype=dtype), normal(K, P).to(dtype)
    state, torchs = begun(training, w), rivals(make, w)
    for _ in range(3):
        training.update(w, grad, state, training.lr)
    theirs = torch.stack([[stepped(r, g) for _ in range(3)][-1] for r, g in zip(torchs, grad, strict=True)])
    torch.testing.assert_close(w, theirs, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("clip", [0.01, 1.0, 2.2, 100.0])
def test_clip_is_torchs_clip_grad_norm(clip: float):
    grads = normal(K, P) * torch.tensor([[0.1], [1.0], [10.0]])
    clipped = SGD(clip=clip).clipped(grads)
    for mine, grad in zip(clipped, grads, strict=True):
        parameter = nn.Parameter(torch.zeros_like(grad))
        parameter.grad = grad.clone()
        nn.utils.clip_grad_norm_([parameter], clip)
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-14, atol=0)


def test_clip_bounds_every_client_by_itself():
    grads = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    clipped = SGD(clip=1).clipped(grads)
    torch.testing.assert_close(clipped, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    torch.testing.assert_close(SGD(clip=1).clipped(grads[0]), clipped[0])


def test_without_clip_gradients_pass():
    grads = normal(K, P)
    assert SGD().clipped(grads) is grads


def test_the_rate_decays_with_the_round():
    training = SGD(lr=0.5, decay=0.9)
    assert [training.rate(t) for t in range(3)] == pytest.approx([0.5, 0.45, 0.405])
    assert Adam(lr=0.5).rate(1000) == 0.5


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"batch": 4}, [4, 4, 2]),
        ({"batch": 4, "epochs": 2}, [4, 4, 2, 4, 4, 2]),
        ({"batch": 4, "drop_last": True}, [4, 4]),
        ({"batch": 4, "drop_last": True, "epochs": 2}, [4, 4, 4, 4]),
        ({"batch": 5, "drop_last": True}, [5, 5]),
        ({"batch": 10}, [10]),
        ({"batch": 99}, [10]),
        ({"batch": 99, "drop_last": True}, [10]),
        ({"batch": None}, [10]),
        ({"batch": None, "epochs": 3}, [10, 10, 10]),
        ({"batch": None, "steps": 2}, [10, 10]),
        ({"batch": 4, "steps": 1}, [4]),
        ({"batch": 4, "steps": 5}, [4, 4, 2, 4, 4]),
        ({"batch": 4, "steps": 5, "epochs": 9}, [4, 4, 2, 4, 4]),
        ({"batch": 4, "steps": 3, "drop_last": True}, [4, 4, 4]),
    ],
)
def test_ten_examples_make_batches_of_these_sizes(settings: dict[str, Any], sizes: list[int]):
    batches = SGD(**settings).batches(np.arange(10), np.random.default_rng(0))
    assert [len(b) for b in batches] == sizes


def test_no_examples_make_no_batches():
    for training in (SGD(), SGD(batch=None), SGD(steps=3), SGD(drop_last=True)):
        assert training.batches(np.arange(0), np.random.default_rng(0)) == []


@given(n=st.integers(1, 40), batch=st.none() | st.integers(1, 50), epochs=st.integers(1, 3), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_example_comes_once_in_every_epoch(n: int, batch: int | None, epochs: int, seed: int):
    rows = np.random.default_rng(seed).choice(1000, n, replace=False)
    batches = SGD(batch=batch, epochs=epochs).batches(rows, np.random.default_rng(seed))
    assert len(batches) % epochs == 0
    per_epoch = len(batches) // epochs
    for e in range(epochs):
        seen = np.concatenate(batches[e * per_epoch : (e + 1) * per_epoch])
        assert Counter(seen.tolist()) == Counter(rows.tolist())


@given(n=st.integers(1, 40), batch=st.integers(1, 50), steps=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_steps_are_as_many_as_asked_for_and_no_example_comes_twice_in_one(n: int, batch: int, steps: int):
    batches = SGD(batch=batch, steps=steps, drop_last=True).batches(np.arange(n), np.random.default_rng(0))
    assert len(batches) == steps
    assert all(len(b) == len(set(b.tolist())) == min(n, batch) for b in batches)


def test_every_epoch_is_shuffled_anew():
    first, second = SGD(batch=None, epochs=2).batches(np.arange(50), np.random.default_rng(0))
    assert first.tolist() != second.tolist()
    assert first.tolist() != list(range(50))


def test_batches_are_the_same_for_the_same_stream():
    one, other, third = (SGD().batches(np.arange(50), np.random.default_rng(s)) for s in (0, 0, 1))
    assert [b.tolist() for b in one] == [b.tolist() for b in other]
    assert [b.tolist() for b in one] != [b.tolist() for b in third]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SGD(lr=0), "SGD.lr must be above 0; got 0.0"),
        (lambda: SGD(batch=0), "SGD.batch must be at least 1; got 0"),
        (lambda: SGD(epochs=0), "SGD.epochs must be at least 1; got 0"),
        (lambda: Adam(steps=0), "Adam.steps must be at least 1; got 0"),
        (lambda: AdamW(decay=0), "AdamW.decay must be above 0; got 0.0"),
        (lambda: SGD(clip=0), "SGD.clip must be above 0; got 0.0"),
        (lambda: SGD(momentum=1), r"SGD.momentum must be in \[0, 1\); got 1.0"),
        (lambda: SGD(weight_decay=-1), "SGD.weight_decay must not be negative; got -1.0"),
        (lambda: Adam(beta1=1), r"Adam.beta1 must be in \[0, 1\); got 1.0"),
        (lambda: AdamW(beta2=-0.1), r"AdamW.beta2 must be in \[0, 1\); got -0.1"),
        (lambda: Adam(eps=0), "Adam.eps must be above 0; got 0.0"),
        (lambda: AdamW(weight_decay=-1), "AdamW.weight_decay must not be negative; got -1.0"),
    ],
)
def test_an_impossible_setting_is_a_sentence(make: Callable[[], Training], sentence: str):
    with pytest.raises(SettingError, match=sentence):
        make()
