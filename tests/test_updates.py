"""What the server asks of the updates is the same by torch and by the compiled loops, however many passes it takes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedstrata as fs
from fedstrata import fused
from fedstrata.core import Cohort, Recipe, Round
from fedstrata.layout import Grain, Layout
from fedstrata.server import Replies, Server, close_round, screen
from fedstrata.updates import Updates
from tests.test_layout import layouts

GRAINS: tuple[Grain, ...] = ("tensor", "layer", "model")
LOOKS = ("average", "angle", "apart", "moved")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}


@pytest.fixture(autouse=True)
def _blocks(monkeypatch: pytest.MonkeyPatch):
    """Blocks of a few columns, so that small vectors have many; the loops are used for any size."""
    pytest.importorskip("numba")
    monkeypatch.setattr(fused, "SMALLEST", 0)
    monkeypatch.setattr(fused, "STREAM", 5 * 8)
    monkeypatch.setattr(fused, "SHARE", 1)


def updates(layout: Layout, k: int, seed: int, looks: Any = (), compiled: bool = True, even: bool = False) -> Updates:
    draw = np.random.default_rng(seed)
    delta = torch.from_numpy(draw.standard_normal((k, layout.size))).to(layout.dtype)
    old = torch.from_numpy(draw.standard_normal(layout.size)).to(layout.dtype)
    examples = torch.from_numpy(draw.integers(1, 50, k)).double()
    made = Updates(layout, delta, old, examples, torch.ones_like(examples) if even else examples, looks)
    made.fused = made.fused and compiled
    return made


def answers(u: Updates) -> dict[str, Tensor]:
    """Everything that can be asked."""
    k, draw = len(u.delta), torch.Generator().manual_seed(1)
    told = {"average": u.mix(u.weights[:, None], "model")}
    told["move"] = u.move(told["average"], "layer")
    for g in GRAINS:
        layout = u.layout.at(g)
        weights = torch.rand(k, layout.depth, generator=draw, dtype=torch.float64)
        told |= {f"norm {g}": u.norm(g), f"cos mean {g}": u.cos_mean(g), f"cos old {g}": u.cos_old(g, 1.0)}
        told |= {f"apart {g}": u.apart(g), f"size {g}": u.size(g), f"move {g}": u.move(u.old + u.delta[0], g)}
        told |= {f"mix {g}": u.mix(weights, g), f"mix of models {g}": u.mix(weights, g, weights.sum(0))}
        told |= {f"scale {g}": u.scale(weights[0], u.old, g)}
        told |= {f"blend {g}": u.blend(weights[0], u.old, 1 - weights[0], u.delta[0], g)}
    return told | {"finite": u.finite().double()}


def close(one: dict[str, Tensor], other: dict[str, Tensor], dtype: torch.dtype) -> None:
    for name, value in one.items():
        tolerance = TOLERANCE[dtype] * (1 if name.startswith("cos") else float(value.abs().max().clamp_min(1)))
        torch.testing.assert_close(value, other[name], rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(st.data(), st.integers(0, 2**32), st.integers(1, 9), st.sets(st.sampled_from(LOOKS)), st.booleans())
@settings(max_examples=25, deadline=None)
def test_compiled_loops_tell_what_torch_tells(dtype, data, seed: int, k: int, looks: set[str], even: bool):
    layout = data.draw(layouts(dtype))
    torch_s, ours = (answers(updates(layout, k, seed, looks, compiled, even)) for compiled in (False, True))
    close(torch_s, ours, dtype)


def test_what_was_not_said_beforehand_is_worked_out_all_the_same():
    layout = Layout.of_tensors({"a.w": torch.zeros(40), "a.b": torch.zeros(3), "b.w": torch.zeros(17)})
    told = [answers(updates(layout, 5, 0, looks)) for looks in ((), LOOKS)]
    for name, value in told[0].items():
        torch.testing.assert_close(value, told[1][name], rtol=1e-13, atol=1e-13)


def test_results_do_not_depend_on_the_number_of_threads():
    layout = Layout.of_tensors({"a.w": torch.zeros(400), "a.b": torch.zeros(3), "b.w": torch.zeros(170)})
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(answers(updates(layout, 6, 0, LOOKS)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(value, other[name]) for name, value in found[0].items())


def test_blocks_tile_the_vector_and_never_cross_a_tensor():
    layout = Layout.of_tensors(
        {"a.w": torch.zeros(12), "a.e": torch.zeros(0), "a.b": torch.zeros(3), "b.w": torch.zeros(5)}
    )
    blocks = fused.Blocks.of(layout, 5)
    assert list(zip(blocks.begin, blocks.end, strict=True)) == [(0, 5), (5, 10), (10, 12), (12, 15), (15, 20)]
    assert blocks.owners(layout).tolist() == [0, 0, 0, 0, 1]
    assert blocks.owners(layout.at("tensor")).tolist() == [0, 0, 0, 2, 3]
    assert blocks.owners(layout.at("model")).tolist() == [0] * 5
    assert fused.Blocks.of(layout, 5) is blocks


@pytest.mark.parametrize("count", [1, 8, 28])
def test_pieces_of_blocks_tile_them_and_have_about_as_many_columns(count: int):
    layout = Layout.of_tensors({"a.b": torch.zeros(3), "a.c": torch.zeros(2), "a.w": torch.zeros(6_000)})
    blocks = fused.Blocks.of(layout, 5)
    pieces = blocks.pieces(count)
    assert len(pieces) == count
    assert [i for a, b in pieces for i in range(a, b)] == list(range(len(blocks)))
    columns = [blocks.end[b - 1] - blocks.begin[a] for a, b in pieces]
    assert max(columns) - min(columns) <= 2 * 5
    assert len(fused.Blocks.of(layout, 3_000).pieces(count)) <= 4  # fewer blocks than pieces


def test_a_tensor_that_a_client_set_to_zero_has_cosine_one():
    layout = Layout.of_tensors({"a.w": torch.zeros(3), "b.w": torch.zeros(3)})
    old = torch.tensor([0.1, 0.2, 0.3, 1.0, 2.0, 3.0])
    delta = torch.stack([-old, old])
    u = Updates(layout, delta, old, torch.ones(2).double(), torch.ones(2).double())
    assert u.fused
    torch.testing.assert_close(u.cos_old("layer", when_zero=1.0), torch.ones(2, 2).double())
    assert u.cos_old("layer", when_zero=0.5)[0].tolist() == [0.5, 0.5]


def test_the_angle_of_identical_updates_is_zero():
    layout = Layout.of_tensors({"a.w": torch.zeros(15_000), "b.w": torch.zeros(5_000)})
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    u = Updates(layout, x.expand(7, -1).clone(), x, torch.arange(1.0, 8), torch.arange(1.0, 8))
    assert u.fused
    assert float(torch.arccos(u.cos_mean("layer")).max()) < 1e-6


def test_other_memory_is_left_to_torch():
    layout, k = Layout.of_tensors({"a.w": torch.zeros(6)}), 3
    n = torch.ones(k, dtype=torch.float64)
    whole = torch.randn(k, 12)
    assert Updates(layout, whole[:, :6].contiguous(), torch.zeros(6), n, n).fused
    for delta, old in (
        (whole[:, :6], torch.zeros(6)),
        (whole[:, ::2], torch.zeros(6)),
        (whole[:, :6].half(), torch.zeros(6).half()),
        (whole[:, :6].double(), torch.zeros(6)),
        (whole[:0, :6].contiguous(), torch.zeros(6)),
    ):
        assert not Updates(layout, delta, old, n, n).fused


def test_weights_that_are_learned_keep_their_gradient():
    layout = Layout.of_tensors({"a.w": torch.zeros(6)})
    u = updates(layout, 3, 0)
    weights = torch.full((3, 1), 1 / 3, dtype=torch.float64, requires_grad=True)
    u.mix(weights, "model").sum().backward()
    assert weights.grad is not None


def case(recipe: Recipe, delta: Tensor, layout: Layout) -> tuple[Server, Cohort, Replies]:
    k = len(delta)
    stats = {"examples": torch.arange(1.0, k + 1, dtype=torch.float64)}
    old = torch.linspace(-1, 1, layout.size).to(delta.dtype)
    server = Server(layout, old, {}, recipe.init(layout, k), stats)
    return server, Cohort(layout, torch.arange(k), stats, old, k), Replies(torch.arange(k), delta)


LAYOUT = Layout.of_tensors({"a.w": torch.zeros(40), "a.b": torch.zeros(3), "b.w": torch.zeros(17)})


def draws(k: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(k, LAYOUT.size, generator=torch.Generator().manual_seed(3), dtype=dtype)


@pytest.mark.parametrize(
    ("recipe", "looks", "mixes"),
    [
        (fs.recipes.fedavg(), 1, 0),
        (fs.recipes.fedavg(weighting="uniform"), 1, 0),
        (fs.recipes.fedlws(), 1, 0),
        (fs.recipes.fedavg(lr=0.5, shrink=(fs.parts.LWS(), fs.parts.AWD())), 1, 0),
        (fs.recipes.fedlws_official(), 1, 0),
        (fs.recipes.fedlayerwise(), 1, 1),
        (fs.recipes.fedadp(shrink=fs.parts.LWS()), 1, 1),
        (fs.recipes.ldawa(), 1, 1),
        (fs.recipes.fedga_reconstruction(), 1, 1),
    ],
    ids=lambda r: type(r.weigh).__name__ if isinstance(r, Recipe) else str(r),
)
def test_a_round_reads_the_updates_as_often_as_it_must(recipe, looks, mixes, monkeypatch):
    passes: list[str] = []
    for name in ("look", "mix"):
        real = getattr(fused, name)
        monkeypatch.setattr(fused, name, lambda *a, n=name, f=real: (passes.append(n), f(*a))[1])
    server, cohort, replies = case(recipe, draws(4), LAYOUT)
    usable, _ = screen(replies, 0, "drop", recipe, cohort)
    close_round(recipe, server, cohort, usable)
    assert (passes.count("look"), passes.count("mix")) == (looks, mixes)
    passes.clear()
    close_round(recipe, server, cohort, screen(replies, 0, "drop")[0])  # nobody said beforehand for whom
    assert (passes.count("look"), passes.count("mix")) == (looks, mixes)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("recipe", [fs.recipes.fedlws(), fs.recipes.fedlayerwise(), fs.recipes.ldawa()])
def test_who_sends_nan_is_left_out_of_all_sums(recipe, bad):
    delta = draws(5)
    without = delta[[0, 1, 3, 4]]
    delta[2, 50] = bad
    server, cohort, replies = case(recipe, delta, LAYOUT)
    usable, dropped = screen(replies, 0, "drop", recipe, cohort)
    assert dropped == [2]
    got, notes = close_round(recipe, server, cohort, usable)
    alone = replace(cohort, ids=cohort.ids[[0, 1, 3, 4]], stats={"examples": cohort.stats["examples"][[0, 1, 3, 4]]})
    want, others = close_round(recipe, server, alone, Replies(alone.ids, without))
    assert torch.equal(got.model, want.model)
    assert all(torch.equal(v, others[n]) for n, v in notes.items())


def test_finite_numbers_whose_squares_overflow_are_kept():
    delta = draws(3, torch.float64)
    delta[1, 0] = 1e200
    for big in (delta, delta.float().nan_to_num(posinf=3e38)):
        layout = replace(LAYOUT, dtype=big.dtype)
        server, cohort, replies = case(fs.recipes.fedavg(), big, layout)
        assert screen(replies, 0, "drop", fs.recipes.fedavg(), cohort)[1] == []
        assert screen(replies, 0, "drop")[1] == []
        got, notes = close_round(fs.recipes.fedavg(), server, cohort, replies)
        torch.testing.assert_close(
            got.model, (cohort.model.double() + torch.tensor([1, 2, 3.0]).double() / 6 @ big.double()).to(big.dtype)
        )
        assert bool(notes["drift"].isfinite().all()) == (big.dtype == torch.float32)


def test_another_round_is_looked_at_anew():
    _, cohort, _ = case(fs.recipes.fedavg(), draws(4), LAYOUT)
    round = Round(cohort, draws(4))
    norm = round.updates.norm("model")
    assert replace(round, uploads={"x": torch.ones(4)}).updates is round.updates
    assert not torch.equal(replace(round, delta=2 * round.delta).updates.norm("model"), norm)
    stats = {"examples": torch.ones(4, dtype=torch.float64)}
    assert replace(round, cohort=replace(cohort, stats=stats)).share.tolist() == [0.25] * 4
    assert replace(round, cohort=replace(cohort, model=cohort.model + 1)).updates is not round.updates


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_model_is_sound_unless_a_number_in_it_is_not(dtype: torch.dtype, compiled: bool):
    u = updates(replace(LAYOUT, dtype=dtype), 3, 0, ("average",), compiled)
    average = u.mix(u.weights[:, None], "model")
    assert u.sound(average)
    assert u.sound(average.clone())
    assert u.sound(torch.full_like(average, torch.finfo(dtype).max))  # the sum overflows
    for bad in (torch.nan, torch.inf, -torch.inf):
        for place in (0, 41, -1):
            assert not u.sound(average.index_fill(0, torch.tensor([place % len(average)]), bad))


def test_an_average_that_overflows_is_not_sound():
    delta = draws(3)
    delta[:, 7] = 3e38
    _, cohort, _ = case(fs.recipes.fedavg(), delta, LAYOUT)
    cohort.model[7] = 3e38
    u = fs.recipes.fedavg().updates(cohort, delta)
    assert not u.sound(u.mix(u.weights[:, None], "model"))


@pytest.mark.parametrize("small", [1e-8, 1e-12, 1e-20])
def test_a_model_far_smaller_than_its_updates_still_has_a_direction(small):
    layout = Layout.of_tensors({"a.w": torch.zeros(300), "b.w": torch.zeros(200)})
    both = [updates(layout, 4, 0, LOOKS, compiled) for compiled in (True, False)]
    for u in both:
        u.old *= small
    assert both[0].fused
    told, other = (u.cos_old("layer") for u in both)
    torch.testing.assert_close(told, other, atol=1e-6, rtol=1e-6)
    assert told.abs().max() > 0.01
