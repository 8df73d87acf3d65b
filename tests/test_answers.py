"""The largest answers of filters, from each distinct word, are what embedding, convolution and maximum give."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import prune

import fedstrata as fs
from fedstrata.descent import Federation
from fedstrata.models import answers, model
from fedstrata.models.textcnn import LargestAnswers, Reader
from fedstrata.runtimes.choose import Engine
from fedstrata.runtimes.stacked import activations
from fedstrata.task import Task

pytest.importorskip("numba")

DTYPES = {torch.float32: 1e-5, torch.float64: 1e-12}
VOCABULARY = 12


def network(dtype: torch.dtype = torch.float64, dim: int = 8, filters: int = 5, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    made = model(f"textcnn(dim={dim}, filters={filters}, dropout={dropout})", (9,), 3, vocabulary=VOCABULARY)
    return made.to(dtype)


def texts(count: int, length: int = 9, seed: int = 0) -> Tensor:
    """Few words, so that they repeat, and padding behind and between them."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, length + 1, (count, 1))
    return torch.from_numpy(np.where(np.arange(length) < lengths, draw.integers(0, VOCABULARY, (count, length)), 0))


def outcome(made: nn.Module, x: Tensor) -> list[Tensor]:
    """What a model puts out, and the gradients of something that all of it matters to."""
    torch.manual_seed(1)  # of dropout
    out = made(x)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad((weights * out).square().sum(), list(made.parameters()))]


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Callable[[nn.Module, Tensor], tuple[list[Tensor], list[Tensor]]]:
    """A model's outcome by words, and by convolutions."""

    def outcomes(made: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        monkeypatch.setattr(answers, "PAYS", 1)
        found = outcome(made, x)
        monkeypatch.setattr(answers, "PAYS", 1 << 60)
        return found, outcome(made, x)

    return outcomes


def spied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The loops that were called."""
    called: list[str] = []

    class Spy:
        def __getattr__(self, name: str):
            called.append(name)
            return getattr(real, name)

    real = answers.loops()
    monkeypatch.setattr(answers, "loops", Spy)
    return called


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(count=st.integers(1, 6), length=st.integers(5, 12), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_values_and_gradients_are_those_of_convolutions(dtype: torch.dtype, count: int, length: int, seed: int):
    made, x = network(dtype), texts(count, length, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "PAYS", 1)
        called = spied(patch)
        found = outcome(made, x)
        assert called == ["largest", "gradients"]
        patch.setattr(answers, "PAYS", 1 << 60)
        wanted = outcome(made, x)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=DTYPES[dtype] * max(1.0, float(b.abs().max())))


def test_dropout_leaves_out_the_same(both: Callable[..., tuple[list[Tensor], list[Tensor]]]):
    for a, b in zip(*both(network(dropout=0.5), texts(6)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_padding_is_not_trained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "PAYS", 1)
    made = network()
    with torch.no_grad():
        made.get_parameter("features.0.weight")[0] = 1.0  # the largest answers may well be its own
    of_table = outcome(made, texts(6))[1]
    assert of_table[0].abs().max() == 0
    assert of_table[1:].abs().max() > 0


def test_nan_is_not_hidden(both: Callable[..., tuple[list[Tensor], list[Tensor]]]):
    made, x = network(), torch.tensor([[1, 2, 3, 4, 5, 0, 0, 0, 0], [6, 7, 8, 9, 10, 11, 6, 7, 8]])
    with torch.no_grad():
        made.get_parameter("features.0.weight")[2] = torch.nan  # of a word of the first text alone
    found, wanted = both(made, x)
    assert torch.equal(found[0].isnan(), wanted[0].isnan())
    assert found[0].isnan().any(1).tolist() == [True, False]


def test_it_is_left_to_convolutions_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch):
    made, x = network(), texts(4)
    alone = made(x)
    called = spied(monkeypatch)
    made(x)
    assert not called
    monkeypatch.setattr(answers, "PAYS", 1)
    monkeypatch.setattr(answers, "loops", lambda: None)
    torch.testing.assert_close(made(x), alone, rtol=0, atol=0)  # without numba


def parts(made: nn.Module) -> tuple[nn.Embedding, LargestAnswers]:
    embedding, largest, _ = made.get_submodule("features").children()
    assert isinstance(embedding, nn.Embedding)
    assert isinstance(largest, LargestAnswers)
    return embedding, largest


def halved(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return out / 2


CHANGES: dict[str, Callable[[nn.Embedding, LargestAnswers], Any]] = {
    "listened to": lambda e, a: e.register_forward_hook(halved),
    "listened to inside": lambda e, a: a.filters[1].register_forward_hook(halved),
    "pruned": lambda e, a: prune.l1_unstructured(a.filters[0], "weight", 0.5),
    "spectral norm": lambda e, a: nn.utils.parametrizations.spectral_norm(a.filters[0]),
    "padded": lambda e, a: a.filters.__setitem__(0, nn.Conv1d(8, 5, 3, padding=1).double()),
    "without bias": lambda e, a: a.filters.__setitem__(0, nn.Conv1d(8, 5, 3, bias=False).double()),
    "unequal": lambda e, a: a.filters.__setitem__(0, nn.Conv1d(8, 7, 3).double()),
    "renormalised": lambda e, a: setattr(e, "scale_grad_by_freq", True),
}
"""Layers that do something else than the loops do."""


@pytest.mark.parametrize("change", CHANGES)
def test_layers_that_somebody_changed_are_called_as_they_are(change: str, monkeypatch: pytest.MonkeyPatch):
    made = network().eval()
    CHANGES[change](*parts(made))
    features, x = made.get_submodule("features"), texts(4)
    wanted = nn.Sequential(*features.children())(x)
    monkeypatch.setattr(answers, "PAYS", 1)
    called = spied(monkeypatch)
    assert torch.equal(features(x), wanted)
    assert not called


def test_a_slice_of_it_is_its_layers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "PAYS", 1)
    features = network().get_submodule("features")
    assert isinstance(features, Reader)
    torch.testing.assert_close(features[:2](texts(4)), features(texts(4)), rtol=0, atol=1e-12)  # but for dropout


@pytest.mark.parametrize("frozen", [False, True])
def test_transforms_of_torch_func_go_through_convolutions(frozen: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "PAYS", 1)
    made, x = network(), texts(4)
    alone = made(x)
    table = {n: p.detach() for n, p in made.named_parameters() if frozen and n == "features.0.weight"}
    own = {n: p.detach() for n, p in made.named_parameters() if n not in table}
    called = spied(monkeypatch)
    several = vmap(lambda w: functional_call(made, w | table, (x,)))({n: p.expand(3, *p.shape) for n, p in own.items()})
    torch.testing.assert_close(several, alone.expand_as(several), rtol=0, atol=1e-12)
    grad(lambda w: functional_call(made, w | table, (x,)).sum())(own)
    assert not called


def test_whole_numbers_of_other_kinds_are_texts_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "PAYS", 1)
    for a, b in zip(outcome(network(), texts(4).int()), outcome(network(), texts(4)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("x", [torch.full((2, 9), -1), torch.full((2, 9), VOCABULARY), texts(2)[:, :4]])
def test_what_is_no_text_is_refused_as_it_was(x: Tensor, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "PAYS", 1)
    with pytest.raises((IndexError, RuntimeError)):
        network()(x)


def test_memory_is_planned_for_convolutions(monkeypatch: pytest.MonkeyPatch):
    fed = Federation(fs.recipes.fedavg(), Task.of(network()), fs.Clients.of([(texts(5), np.arange(5) % 3)]), fs.SGD())
    wanted = activations(fed)
    monkeypatch.setattr(answers, "PAYS", 1)
    assert activations(fed) == wanted > 9 * 8


def test_the_model_as_it_is_by_default_is_large_enough():
    embedding, largest = parts(model("textcnn", (9,), 3, vocabulary=VOCABULARY))
    assert answers.fits(texts(2), embedding, largest)
    for layer in (embedding, *largest.filters):  # of stacked clients
        layer._parameters["weight"] = nn.Parameter(layer.get_parameter("weight")[None])
    assert not answers.fits(texts(2), embedding, largest)


@pytest.mark.parametrize("engine", ["apart", "pool", "stacked"])
def test_a_run_is_the_same_with_and_without_it(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    draw = np.random.default_rng(0)
    clients = [(texts(n, seed=n), draw.integers(0, 3, n)) for n in (11, 4, 20)]

    def run(pays: int) -> fs.Run:
        monkeypatch.setattr(answers, "PAYS", pays)
        training = fs.SGD(lr=0.1, momentum=0.9, batch=4)
        made = network(dropout=0.5)
        return fs.simulate("fedlayerwise", made, clients, rounds=2, training=training, engine=engine, workers=2)

    found, wanted = run(1), run(1 << 60)
    for (n, a), b in zip(found.model.named_parameters(), wanted.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=lambda m, n=n: f"{n}: {m}")
