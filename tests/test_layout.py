import pickle
from copy import deepcopy
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from fedstrata import layout as layout_module
from fedstrata.errors import ModelError
from fedstrata.layout import Grain, Layout

NAMES = ("body.weight", "body.bias", "norm.weight", "head.inner.weight", "head.inner.bias", "scale")


class Tied(nn.Module):
    """A decoder that uses the encoder's weight: the very same Parameter, or another one on the same storage."""

    def __init__(self, share: str):
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.middle = nn.Linear(3, 2)
        self.decoder = nn.Linear(3, 3, bias=False)
        own = self.encoder.weight
        self.decoder.weight = own if share == "parameter" else nn.Parameter(own.data)

    def forward(self, x: Tensor) -> Tensor:
        return self.middle(self.decoder(self.encoder(x)))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def trainable(model: nn.Module) -> dict[str, Tensor]:
    return {n: p for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}


@st.composite
def layouts(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> Layout:
    """A layout of some of NAMES in any order, with shapes of up to three dimensions."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    shapes = [tuple(draw(st.lists(st.integers(1, 4), max_size=3))) for _ in names]
    return Layout.of_tensors({n: torch.zeros(s, dtype=dtype) for n, s in zip(names, shapes, strict=True)})


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def cut(layout: Layout, x: np.ndarray) -> list[np.ndarray]:
    """The layers of [..., P] by numpy's own means."""
    return np.split(x, np.cumsum(layout.lengths)[:-1], axis=-1)


def test_a_layer_is_a_module_that_owns_trainable_parameters():
    layout = Layout.of(net())
    assert layout.layers == ("0", "1", "3")
    assert layout.lengths == (16, 8, 10)
    assert (layout.size, layout.depth) == (34, 3)
    assert [n for n, _ in layout.tensors] == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]


def test_grains_cut_the_same_vector():
    layout = Layout.of(net())
    assert layout.at("layer") == layout
    assert layout.at("tensor").layers == ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
    assert layout.at("tensor").lengths == (12, 4, 4, 4, 8, 2)
    assert layout.at("model").layers == ("(model)",)
    assert layout.at("model").lengths == (34,)
    assert layout.at("model").tensors == layout.tensors


@given(layouts())
@settings(max_examples=30, deadline=None)
def test_spans_tile_the_vector_at_every_grain(layout: Layout):
    for grain in ("tensor", "layer", "model"):
        fine = layout.at(cast(Grain, grain))
        spans = list(fine.spans())
        assert len(spans) == fine.depth
        assert [b - a for a, b in spans] == list(fine.lengths)
        assert [i for a, b in spans for i in range(a, b)] == list(range(layout.size))
        assert fine.size == layout.size == sum(prod(s) for _, s in layout.tensors)


def test_parameters_of_one_module_lie_side_by_side():
    shuffled = {
        "a.weight": torch.zeros(2),
        "b.weight": torch.zeros(3),
        "a.bias": torch.zeros(1),
        "root": torch.zeros(4),
    }
    layout = Layout.of_tensors(shuffled)
    assert layout.layers == ("a", "b", "(root)")
    assert [n for n, _ in layout.tensors] == ["a.weight", "a.bias", "b.weight", "root"]
    assert layout.lengths == (3, 3, 4)


@given(layouts(), st.integers(0, 2**32), st.integers(1, 4), st.sampled_from(["tensor", "layer", "model"]))
@settings(max_examples=40, deadline=None)
def test_norms_dots_and_cosines_are_numpys(layout: Layout, seed: int, k: int, grain: Grain):
    layout = layout.at(grain)
    x, y = normal(seed, k, layout.size), normal(seed + 1, layout.size)
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    xs, ys = cut(layout, x), cut(layout, y)
    dots = np.stack([(p * q).sum(-1) for p, q in zip(xs, ys, strict=True)], -1)
    norms = np.stack([np.linalg.norm(p, axis=-1) for p in xs], -1)
    sizes = np.stack([np.linalg.norm(q) for q in ys])
    gaps = np.stack([np.linalg.norm(p - q, axis=-1) for p, q in zip(xs, ys, strict=True)], -1)
    np.testing.assert_allclose(layout.total(a), np.stack([p.sum(-1) for p in xs], -1), atol=1e-12)
    np.testing.assert_allclose(layout.dot(a, b), dots, atol=1e-12)
    np.testing.assert_allclose(layout.norm(a), norms, rtol=1e-12)
    np.testing.assert_allclose(layout.distance(a, b), gaps, rtol=1e-12)
    np.testing.assert_allclose(layout.cos(a, b), dots / (norms * sizes), atol=1e-12)
    assert layout.norm(a).shape == (k, layout.depth)
    assert layout.norm(b).shape == (layout.depth,)


@given(layouts(), st.integers(0, 2**32), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_blocks_of_any_size_give_the_same_sums(layout: Layout, seed: int, block: int):
    x, y = (torch.from_numpy(normal(seed + i, 2, layout.size)) for i in (0, 1))
    whole = layout.dot(x, y), layout.norm(x), layout.total(x), layout.distance(x, y), layout.cos(x, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_module, "BLOCK", block)
        blocks = layout.dot(x, y), layout.norm(x), layout.total(x), layout.distance(x, y), layout.cos(x, y)
    for one, other in zip(whole, blocks, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_blocks_are_not_larger_than_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layout_module, "BLOCK", 5)
    layout, seen = Layout.of_tensors({"a.w": torch.zeros(12), "b.w": torch.zeros(3)}), []

    def watched(x: Tensor) -> Tensor:
        seen.append(x.shape[-1])
        return x.sum(-1)

    layout._reduce(watched, layout.zeros())
    assert seen == [5, 5, 2, 3]
    seen.clear()
    layout._reduce(watched, torch.zeros(2, 15))  # numbers count over all clients
    assert seen == [2] * 6 + [2, 1]


@given(layouts(), st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_spread_repeats_and_mix_weighs_layer_by_layer(layout: Layout, seed: int, k: int):
    x, weights = normal(seed, k, layout.size), normal(seed + 1, k, layout.depth)
    spread = np.repeat(weights, layout.lengths, axis=-1)
    np.testing.assert_array_equal(layout.spread(torch.from_numpy(weights)), spread)
    np.testing.assert_array_equal(layout.spread(torch.from_numpy(weights[0])), spread[0])
    mixed = layout.mix(torch.from_numpy(weights), torch.from_numpy(x))
    np.testing.assert_allclose(mixed, (spread * x).sum(0), atol=1e-12)


@given(layouts(torch.float32), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_flatten_undoes_unflatten(layout: Layout, seed: int):
    w = torch.from_numpy(normal(seed, layout.size)).float()
    named = layout.unflatten(w)
    assert [(n, tuple(t.shape)) for n, t in named.items()] == list(layout.tensors)
    torch.testing.assert_close(layout.flatten(named), w, rtol=0, atol=0)
    torch.testing.assert_close(layout.flatten(dict(reversed(named.items()))), w, rtol=0, atol=0)


def test_unflatten_undoes_flatten():
    model = net()
    layout = Layout.of(model)
    named = layout.unflatten(layout.flatten(trainable(model)))
    assert named.keys() == trainable(model).keys()
    for name, p in trainable(model).items():
        torch.testing.assert_close(named[name], p.detach(), rtol=0, atol=0)


def test_unflattened_tensors_are_views():
    layout = Layout.of(net())
    w = layout.zeros()
    layout.unflatten(w)["3.bias"].fill_(7.0)
    assert w.sum() == 14
    assert w[-2:].tolist() == [7.0, 7.0]


def test_flatten_gives_no_gradient_and_the_layouts_type():
    layout = Layout.of(net())
    w = layout.flatten({n: p.double() for n, p in trainable(net()).items()})
    assert w.dtype == torch.float32
    assert not w.requires_grad


@pytest.mark.parametrize("share", ["parameter", "storage"])
def test_tied_weights_are_one_tensor(share: str):
    model = Tied(share)
    layout = Layout.of(model)
    assert layout.aliases == (("decoder.weight", "encoder.weight"),)
    assert [n for n, _ in layout.tensors] == ["encoder.weight", "encoder.bias", "middle.weight", "middle.bias"]
    assert layout.layers == ("encoder", "middle")
    assert layout.size == 9 + 3 + 6 + 2


@pytest.mark.parametrize("share", ["parameter", "storage"])
def test_an_update_of_a_tied_weight_reaches_every_name(share: str):
    model = Tied(share)
    layout = Layout.of(model)
    w = layout.flatten(trainable(model)) + 1
    named = layout.unflatten(w)
    assert named["decoder.weight"].data_ptr() == named["encoder.weight"].data_ptr()
    assert named.keys() == trainable(model).keys()
    x = torch.ones(2, 3)
    a, c = named["encoder.weight"], named["middle.weight"]
    by_hand = ((x @ a.T + named["encoder.bias"]) @ a.T) @ c.T + named["middle.bias"]
    torch.testing.assert_close(functional_call(model, named, (x,)), by_hand)


def test_equal_weights_that_are_not_tied_are_two_tensors():
    model = Tied("parameter")
    model.decoder.weight = nn.Parameter(model.encoder.weight.data.clone())
    assert Layout.of(model).aliases == ()
    assert Layout.of(model).size == 9 + 3 + 6 + 2 + 9


def test_a_transposed_view_is_one_tensor_with_its_origin_or_refused():
    model = nn.ModuleDict({"encoder": nn.Linear(3, 2, bias=False), "decoder": nn.Linear(2, 3, bias=False)})
    encoder, decoder = cast(nn.Linear, model["encoder"]), cast(nn.Linear, model["decoder"])
    decoder.weight = nn.Parameter(encoder.weight.data.T)
    try:
        size = Layout.of(model).size
    except ModelError:
        return
    assert size == 6, "two names on one storage would be trained apart and drift apart"


def test_frozen_parameters_and_buffers_are_outside():
    model = net()
    for p in model[0].parameters():
        p.requires_grad_(False)
    layout = Layout.of(model)
    assert [n for n, _ in layout.tensors] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert layout.layers == ("1", "3")
    model[3].bias.requires_grad_(False)
    assert Layout.of(model).lengths == (8, 8)


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(ModelError, match="Flatten has no trainable parameters"):
        Layout.of(nn.Flatten())


def test_parameters_of_several_types_are_refused():
    with pytest.raises(ModelError, match=r"several types, torch\.float32, torch\.float64; use one"):
        Layout.of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))


def test_complex_parameters_are_refused():
    model = nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(ModelError, match=r"the parameter 'weight' is complex; make it pairs of real numbers"):
        Layout.of(model)


def test_a_missing_key_is_named():
    named = trainable(net())
    named["3.bais"] = named.pop("3.bias")
    with pytest.raises(ModelError, match=r"the parameter '3\.bias' is missing; did you mean '3\.bais'\?"):
        Layout.of(net()).flatten(named)


def test_an_extra_key_is_named():
    with pytest.raises(ModelError, match=r"no trainable parameter '1\.running_mean'"):
        Layout.of(net()).flatten(trainable(net()) | {"1.running_mean": torch.zeros(4)})


def test_a_mismatched_shape_is_named():
    with pytest.raises(ModelError, match=r"'3\.bias' has shape \(3,\) where the model has \(2,\)"):
        Layout.of(net()).flatten(trainable(net()) | {"3.bias": torch.zeros(3)})
    with pytest.raises(ModelError, match=r"'0\.weight' has shape \(3, 4\) where the model has \(4, 3\)"):
        Layout.of(net()).flatten(trainable(net()) | {"0.weight": torch.zeros(3, 4)})


def test_a_mismatched_alias_is_named():
    model = Tied("parameter")
    with pytest.raises(ModelError, match=r"decoder\.weight"):
        Layout.of(model).flatten(trainable(model) | {"decoder.weight": torch.zeros(5)})


def test_the_angle_of_identical_float32_vectors_is_zero():
    x = torch.from_numpy(normal(0, 5, 20_000)).float()
    layout = Layout.of_tensors({"a.w": torch.zeros(15_000), "b.w": torch.zeros(5_000)})
    cosines = layout.cos(x, x)
    assert cosines.dtype == torch.float64
    assert float(torch.arccos(cosines).max()) < 1e-6
    plain = ((x * x).sum(-1) / x.norm(dim=-1) ** 2).clamp(-1, 1)
    assert float(torch.arccos(plain).max()) > 1e-6, "float32 would have done, and this test cannot fail"


def test_sums_are_accumulated_in_float64():
    x = torch.tensor([1e8, 1.0, -1e8, 1.0])
    layout = Layout.of_tensors({"a.w": torch.zeros(4)})
    assert layout.total(x).tolist() == [2.0]
    assert layout.dot(x, torch.ones(4)).tolist() == [2.0]
    assert float(layout.norm(torch.full((4,), 1e30))) == pytest.approx(2e30, rel=1e-6)


def test_the_cosine_with_a_zero_vector_is_what_was_asked_for():
    layout = Layout.of_tensors({"a.w": torch.zeros(2), "b.w": torch.zeros(2)})
    x = torch.tensor([0.0, 0.0, 1.0, 1.0])
    y = torch.tensor([1.0, 2.0, -1.0, -1.0])
    for one, other in ((x, y), (y, x)):
        np.testing.assert_allclose(layout.cos(one, other), [0.0, -1.0], atol=1e-12)
        np.testing.assert_allclose(layout.cos(one, other, when_zero=1.0), [1.0, -1.0], atol=1e-12)


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_cosines_are_never_beyond_one(seed: int):
    layout = Layout.of_tensors({"a.w": torch.zeros(3)})
    x = torch.from_numpy(normal(seed, 50, 3))
    cosines = torch.stack([layout.cos(x, x * 3), layout.cos(x, -x / 7)])
    assert bool((cosines.abs() <= 1).all())
    assert bool(torch.arccos(cosines).isfinite().all())


def test_an_empty_tensor_has_norm_zero():
    layout = Layout.of_tensors({"a.w": torch.zeros(0, 3), "b.w": torch.zeros(2)})
    assert layout.norm(torch.tensor([3.0, 4.0])).tolist() == [0.0, 5.0]


def test_new_tensors_have_the_layouts_type_and_scalars_are_float64():
    layout = Layout.of_tensors({"a.w": torch.zeros(2, dtype=torch.float16), "b.w": torch.zeros(1, dtype=torch.float16)})
    assert layout.zeros().dtype == torch.float16
    assert layout.zeros().shape == (3,)
    assert layout.full(0.5).tolist() == [0.5, 0.5]
    assert layout.full(0.5).dtype == torch.float64
    assert layout.spread(layout.full(0.5)).dtype == torch.float16


def test_a_layout_moves_to_another_device():
    layout: Any = Layout.of(net()).to("meta")
    assert layout.zeros().device.type == "meta"
    assert layout.tensors == Layout.of(net()).tensors


def test_a_layout_remembers_its_cuts_and_travels_without_them():
    layout = Layout.of(net())
    assert layout.at("tensor") is layout.at("tensor")
    assert layout.at("model").memo is not layout.memo
    for other in (pickle.loads(pickle.dumps(layout)), deepcopy(layout), replace(layout)):
        assert other == layout
        assert hash(other) == hash(layout)
        assert not other.memo
    assert layout.to("meta").at("tensor").device.type == "meta"


def test_norms_are_the_layers_whose_tensors_all_have_one_dimension():
    model = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3))
    found = dict(zip([n for n, _ in Layout.of(model).tensors], Layout.of(model).norms(), strict=True))
    assert [n for n, norm in found.items() if norm] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied.get_submodule("1").weight = tied.get_parameter("0.weight")
    assert Layout.of(tied).norms() == (False, False, False)  # a bias beside a tied weight is no norm's


def test_the_distance_to_the_mean_is_that_of_the_mean_made_by_hand(monkeypatch):
    monkeypatch.setattr(layout_module, "BLOCK", 5)
    x = torch.randn(4, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layout = Layout.of_tensors({"a.w": torch.zeros(13), "b.w": torch.zeros(7)})
    torch.testing.assert_close(layout.apart(x), layout.distance(x, x.mean(0)))
    same = x[:1].float().expand(3, -1) * 1e6
    assert torch.equal(layout.apart(same), torch.zeros(3, 2, dtype=torch.float64))
