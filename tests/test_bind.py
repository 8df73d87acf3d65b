"""Binding values to a model is torch's functional_call, and leaves the model as it was."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedstrata.bind import bound, places, seen_by


class Tied(nn.Module):
    """One weight in two layers, one layer in two places, one buffer under two names, and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.same = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.second.weight = self.first.weight
        self.again, self.scale = self.same, nn.Parameter(torch.tensor(2.0))
        shift = torch.ones(4)
        self.register_buffer("shift", shift)
        self.register_buffer("other", shift)
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        h = self.again(self.second(self.same(self.first(x)).relu()))
        return self.scale * h + self.shift - self.get_buffer("other") / 2


class Recurrent(nn.Module):
    """Keeps a list of its weights beside them."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))})

    def forward(self, x: Tensor) -> Tensor:
        return self.inner["b"](self.inner["a"](x).tanh())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied, "recurrent": Recurrent, "nested": Nested, "one layer": lambda: nn.Linear(4, 2),
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
}  # fmt: skip
X = torch.linspace(-1, 2, 12, dtype=torch.float64).view(3, 4)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().double()


def values(model: nn.Module, shift: float = 0.1) -> dict[str, Tensor]:
    """Other parameters and buffers than its own, by their first names."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {n: v.detach().clone() + (shift if v.is_floating_point() else 3) for n, v in named.items()}


def contents(model: nn.Module) -> list[tuple[str, int, Tensor]]:
    """What it holds: which tensors, under which names, with which numbers."""
    parameters = model.named_parameters(remove_duplicate=False)
    every = [*parameters, *model.named_buffers(remove_duplicate=False)]
    return [(n, id(v), v.detach().clone()) for n, v in every]


def unchanged(model: nn.Module, before: list[tuple[str, int, Tensor]]) -> bool:
    after = contents(model)
    return [a[:2] for a in after] == [b[:2] for b in before] and all(
        torch.equal(a[2], b[2]) for a, b in zip(after, before, strict=True)
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_bound_model_is_a_functional_call(name: str):
    model = made(name)
    before, own = contents(model), model.eval()(X)
    model.train()
    given, theirs = values(model), values(model)
    with bound(places(model), given):
        found = model(X)
    wanted = functional_call(made(name), theirs, (X,))  # which does not put shared modules back as they were
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    for n in given:  # running statistics move in what was given
        torch.testing.assert_close(given[n], theirs[n], rtol=0, atol=0)
    assert unchanged(model, before)
    torch.testing.assert_close(model.eval()(X), own, rtol=0, atol=0)
    assert not torch.allclose(found, own)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_what_was_bound(name: str):
    model, found = made(name), []
    for call in ("bound", "functional"):
        given = {n: v.requires_grad_(v.is_floating_point()) for n, v in values(model).items()}
        leaves = [v for n, v in given.items() if n in dict(model.named_parameters())]
        buffers = {n: v.detach() for n, v in given.items() if n not in dict(model.named_parameters())}
        if call == "bound":
            with bound(places(model), given | buffers):
                y = model(X)
        else:
            y = functional_call(made(name), given | buffers, (X,))
        found.append(torch.autograd.grad(y.pow(3).sum(), leaves))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_tied_names_live_in_all_their_places():
    model = Tied().double()
    there = places(model)
    assert there["first.weight"] == there["second.weight"]
    assert "nothing" not in there
    weight = torch.full((4, 4), 0.3, dtype=torch.float64)
    for names in (["first.weight"], ["second.weight"], ["first.weight", "second.weight"]):
        with bound(there, dict.fromkeys(names, weight)):
            assert model.first.weight is weight
            assert model.second.weight is weight
        assert model.first.weight is model.second.weight
        assert isinstance(model.first.weight, nn.Parameter)
    with bound(there, {"same.running_mean": torch.ones(4)}):
        assert model.again.running_mean is model.same.running_mean


def test_what_a_model_puts_in_the_place_of_a_value_is_told_and_the_model_is_as_it_was():
    model = Tied().double()
    before, new = contents(model), torch.zeros(4)
    with bound(places(model), values(model)) as put:
        model(X)
        model.scale.mul_(2)  # in place: there is nothing to tell
        model.same.running_mean = new
        assert not put
    assert put.keys() == {"same.running_mean"}
    assert put["same.running_mean"] is new
    assert unchanged(model, before)


def test_a_failing_forward_leaves_the_model_as_it_was():
    model = made("tied")
    before = contents(model)

    def broken() -> None:
        with bound(places(model), values(model)):
            model(X[:, :3])

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        broken()
    assert unchanged(model, before)


def test_a_name_that_the_model_has_not_changes_nothing():
    model = made("nested")
    before = contents(model)
    given = values(model) | {"inner.c.weight": torch.zeros(1)}
    with pytest.raises(KeyError, match=r"inner\.c\.weight"), bound(places(model), given):
        pass
    assert unchanged(model, before)


def test_bindings_may_be_nested():
    model = made("nested")
    before, there = contents(model), places(model)
    outer, inner = values(model, 0.1), values(model, 0.2)
    model.eval()
    with bound(there, outer):
        first = model(X)
        with bound(there, inner):
            assert not torch.allclose(model(X), first)
        torch.testing.assert_close(model(X), first, rtol=0, atol=0)
    assert unchanged(model, before)


def test_a_look_at_what_goes_into_a_module_ends_with_its_block():
    model, seen = made("nested"), []
    head = model.get_submodule("inner.b")
    with seen_by(head, seen.append):
        model(X)
    model(X)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], model.get_submodule("inner.a")(X).tanh())
    with pytest.raises(ZeroDivisionError), seen_by(head, seen.append):
        raise ZeroDivisionError
    assert not head._forward_pre_hooks
    with seen_by(None, seen.append):
        model(X)
    assert len(seen) == 1
