"""oneDNN's products are torch's, gradients too, and used only where they are faster and can be."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import fedstrata as fs
from fedstrata import products
from fedstrata.products import linear, product
from tests.federations import mlp, unequal_clients

needs_onednn = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN to ask"
)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """On any processor, and how often it was asked."""
    asked: list[int] = []

    def counting(*given: Any) -> Tensor:
        asked.append(1)
        return real(*given)

    real = products._by_onednn
    monkeypatch.setattr(products, "halved_by_mkl", lambda: True)
    monkeypatch.setattr(products, "_by_onednn", counting)
    return asked


@needs_onednn
@pytest.mark.parametrize("lead", [(7,), (3, 5), (2, 3, 4), (1,)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_torchs(lead: tuple[int, ...], bias: bool, by_onednn: list[int]):
    x, weight = normal(*lead, 40).requires_grad_(), normal(33, 40, seed=1).requires_grad_()
    given = [x, weight, *([normal(33, seed=2).requires_grad_()] if bias else [])]
    g = normal(*lead, 33, seed=3)
    found, wanted = linear(*given, *([] if bias else [None])), torch.nn.functional.linear(*given)
    assert by_onednn == [1]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    for a, b in zip(torch.autograd.grad(found, given, g), torch.autograd.grad(wanted, given, g), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_nothing_is_worked_out_that_nobody_wants(by_onednn: list[int]):
    weight = normal(33, 40).requires_grad_()
    torch.autograd.grad(linear(normal(7, 40), weight, None).sum(), weight)
    assert len(by_onednn) == 2  # forth, and the filters' gradient


@needs_onednn
def test_a_transposed_or_broadcast_matrix_is_taken_too(by_onednn: list[int]):
    a, b = normal(40, 7).mT, normal(1, 40).expand(33, 40)
    torch.testing.assert_close(product(a, b), a @ b.mT, rtol=1e-5, atol=1e-5)
    assert by_onednn


def test_others_are_left_to_torch(by_onednn: list[int]):
    x, layer = normal(7, 40), nn.Linear(40, 33)
    double = normal(7, 40, dtype=torch.float64)
    assert torch.equal(product(double, double), double @ double.mT)
    assert linear(x[:0], layer.weight, layer.bias).shape == (0, 33)
    assert linear(x[0], layer.weight, layer.bias).shape == (33,)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, layer.weight, layer.bias).dtype == torch.bfloat16
    weights = {n: p.detach().expand(2, *p.shape) for n, p in layer.named_parameters()}
    layer.forward = lambda input: linear(input, layer.weight, layer.bias)
    vmap(lambda w: functional_call(layer, w, (x,)))(weights)
    grad(lambda w: functional_call(layer, w, (x,)).sum())({n: p.detach() for n, p in layer.named_parameters()})
    assert not by_onednn


@needs_onednn
@pytest.mark.parametrize("engine", ["apart", "pool"])
def test_a_run_is_the_same_with_and_without_it(engine: Any, by_onednn: list[int], monkeypatch: pytest.MonkeyPatch):
    def run() -> dict[str, Tensor]:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 33), nn.Tanh(), nn.Linear(33, 3))
        training = fs.SGD(lr=0.05, batch=6)
        run = fs.simulate("fedavg", made, unequal_clients(), rounds=2, training=training, engine=engine, workers=1)
        return run.model.state_dict()

    found = run()
    assert engine == "pool" or by_onednn  # of another process nothing is heard
    monkeypatch.setattr(products, "halved_by_mkl", lambda: False)
    torch.testing.assert_close(found, run(), rtol=0, atol=1e-5)


def test_it_is_not_asked_where_mkl_is_as_fast(monkeypatch: pytest.MonkeyPatch, by_onednn: list[int]):
    monkeypatch.setattr(products, "halved_by_mkl", lambda: False)
    x, layer = normal(7, 40), nn.Linear(40, 33)
    assert torch.equal(linear(x, layer.weight, layer.bias), layer(x))
    fs.simulate("fedavg", mlp().float(), unequal_clients(), rounds=1, engine="apart")
    assert not by_onednn
