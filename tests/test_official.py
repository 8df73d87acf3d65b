"""FedLWS and L-DAWA as their published code has them, on models with the buffers that this code touches."""

# pyright: reportCallIssue=false

import numpy as np
import pytest
import torch
from torch import nn

import fedstrata as fs
from fedstrata.layout import Layout
from fedstrata.models.zoo import model as network
from fedstrata.parts import Dawa, OfficialLWS
from fedstrata.parts.shrink.official import groups
from tests import oracle as o
from tests.federations import unequal_clients
from tests.slow import FIVE, averaged, bn_mlp, descend, library, shares

R, N, LR = fs.recipes, 7, 0.1
SHAPES = {
    "conv.weight": (3, 2), "conv.bias": (3,),
    "norm.weight": (3,), "norm.bias": (3,),
    "norm.running_mean": (3,), "norm.running_var": (3,), "norm.num_batches_tracked": (), "attn.in_proj_bias": (2,),
    "zero.bias": (2,),
    "fc.weight": (2, 3), "bias_table.weight": (2,),
    "last.weight": (3,), "last.running_mean": (1,), "last.num_batches_tracked": (),
}  # fmt: skip
"""A state_dict of six groups, of which one is zero at first and the last has no bias."""

BUFFERS = [n for n in SHAPES if n.endswith(("running_mean", "running_var", "num_batches_tracked"))]


def model(draw: np.random.Generator, counter: type) -> o.Model:
    w = {n: np.asarray(draw.standard_normal(s)) * (n != "zero.bias") for n, s in SHAPES.items()}
    return {n: np.asarray(draw.integers(3, 9), counter) if "tracked" in n else v for n, v in w.items()}


def replies(w: o.Model, draw: np.random.Generator) -> o.Replies:
    def value(n: str, v: np.ndarray) -> np.ndarray:
        if "tracked" in n:
            return np.asarray(v + draw.integers(1, 40), v.dtype)
        return v + 0.3 * draw.standard_normal(v.shape)

    def one(client: int) -> tuple:
        stats = {"labels": draw.integers(0, 9, 4) + np.eye(4, dtype=int)[0], "steps": 3}
        return int(client), {n: value(n, v) for n, v in w.items()}, float(draw.integers(1, 200)), stats

    return [one(i) for i in np.sort(draw.choice(N, draw.integers(1, N + 1), replace=False))]


def sent(rs: o.Replies) -> list[fs.Reply]:
    return [fs.Reply(client=c, model=m, examples=n, stats=s) for c, m, n, s in rs]


def trained(w: o.Model) -> o.Model:
    return {n: v for n, v in w.items() if n not in BUFFERS}


def equal(rs: o.Replies) -> list[float]:
    return [1 / len(rs)] * len(rs)


BASES = {
    "fedavg": (R.fedavg(), o.fedavg, o.shares),
    "feddisco": (R.feddisco(), o.feddisco, o.disco_weights),
    "feddyn": (R.feddyn(alpha=0.3), lambda *a: o.feddyn(*a, 0.3, N), equal),
    "fedavgm": (R.fedavgm(), o.fedavgm, o.shares),
    "fedlayerwise": (R.fedlayerwise(), lambda *a: o.angle_weighted(*a, "layer"), o.shares),
}
"""(recipe, the oracle's model, the weights of floating-point buffers)"""


@pytest.mark.parametrize("counter", [np.int64, np.float64])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("clip", [{}, {"beta": 0.5, "low": 0.0, "high": 9.0}])
def test_the_published_code_of_fedlws_over_several_rounds(base, counter, clip):
    (recipe, truth, weights), draw = BASES[base], np.random.default_rng(len(base))
    recipe = R.combine(recipe, R.fedlws_official(**clip))
    w, memory, state = model(draw, counter), {}, None
    for _ in range(5):
        rs = replies(w, draw)
        out = fs.server_step(recipe, w, sent(rs), state, population=N, lr=LR)
        inner = [(c, trained(m), n, s) for c, m, n, s in rs]
        hat = truth(trained(w), inner, memory) | o.mixed_buffers({n: w[n] for n in BUFFERS}, rs, weights(rs))
        expected = o.official_lws(w, hat, rs, **clip)
        for n in w:
            atol = 1e-7 if base == "fedlayerwise" else 1e-10
            np.testing.assert_allclose(out.model[n], expected[n], rtol=1e-9, atol=atol, err_msg=n)
            assert out.model[n].dtype == w[n].dtype
        w, state = expected, out.state


def test_a_group_ends_after_every_name_with_a_bias_and_the_rest_is_the_last():
    named = {n: torch.zeros(s) for n, s in SHAPES.items()}
    layout = Layout.of_tensors({n: t for n, t in named.items() if n not in BUFFERS}, named)
    assert list(groups(layout).values()) == [0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4, 5, 5, 5]


def test_of_a_transformer_every_block_is_a_group_and_the_head_two():
    """Eight at depth 6, as in the published code; the first begins with the embedding."""
    layout = Layout.of(network("vit(depth=6, dim=8, heads=2, mlp=4)", (3, 8, 8), 10))
    found = groups(layout)
    assert sorted(set(found.values())) == list(range(8))
    assert {found[n] for n in ("token", "position", "embed.weight", "embed.bias", "blocks.0.think.4.bias")} == {0}
    assert {g for n, g in found.items() if n.startswith("blocks.5.")} == {5}
    assert {n: g for n, g in found.items() if g > 5} == {
        "norm.weight": 6, "norm.bias": 6, "classifier.weight": 7, "classifier.bias": 7,
    }  # fmt: skip


def test_a_group_of_zeros_is_left_alone_and_clipping_shrinks_a_single_client():
    draw = np.random.default_rng(0)
    w = model(draw, np.int64)
    one = replies(w, draw)[:1]
    out = fs.server_step(R.fedlws_official(beta=0.0), w, sent(one))
    gamma = out.notes["gamma"]
    assert gamma[3] == 1
    assert (gamma[[0, 1, 2, 4, 5]] < 1).all()
    np.testing.assert_allclose(out.model["zero.bias"], one[0][1]["zero.bias"])
    free = fs.server_step(R.fedlws_official(beta=0.0, low=0.0), w, sent(one))
    assert free.notes["gamma"].tolist() == [1] * 6


def counted(start: int, ends: list[int], **clip: float) -> int:
    """A counter after a round; the first weight makes its group's norm 1, and does not move."""
    w = {"a.weight": np.ones(1), "a.num_batches_tracked": np.array(start)}
    rs = [fs.Reply(client=k, model=w | {"a.num_batches_tracked": np.array(e)}, examples=1) for k, e in enumerate(ends)]
    return int(fs.server_step(R.fedlws_official(**clip), w, rs).model["a.num_batches_tracked"])


def test_a_counter_is_gamma_times_the_unrounded_mean_rounded_half_to_even():
    assert [counted(0, [n, n + 1], low=0.0, high=0.0) for n in (1, 2, 3)] == [2, 2, 4]
    # the norm before is 1 and the move 10.5: gamma = 1 / (1 + 0.0072 x 10.5) = 0.93, 9.76 and not 9.3
    assert counted(0, [10, 11], low=0.0072, high=0.0072) == 10


def test_buffers_that_are_in_no_state_dict_are_left_alone():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    model[1].register_buffer("mask", torch.ones(5, dtype=torch.float64), persistent=False)
    run = library(R.fedlws_official(), 2, FIVE, model=model)
    assert torch.equal(run.model.get_buffer("1.mask"), torch.ones(5, dtype=torch.float64))
    assert run.notes[0]["gamma"].shape == (3,)


def test_buffers_that_are_not_sent_are_neither_counted_nor_shrunk():
    for policy in ("global", "local"):
        run = library(R.fedlws_official(), 2, FIVE, model=bn_mlp(), buffers=policy)
        assert torch.equal(run.model.get_buffer("1.running_var"), bn_mlp().get_buffer("1.running_var"))


def test_frozen_parameters_are_in_no_group_but_their_bias_ends_one():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)).double()
    model[1].requires_grad_(False)
    run = library(R.fedlws_official(), 1, FIVE, model=model)
    assert run.notes[0]["gamma"][1] == 1
    assert torch.equal(run.model.get_parameter("1.weight"), model.get_parameter("1.weight"))


@pytest.mark.parametrize("part", [Dawa(include_buffers=True), Dawa(warmup_rounds=2, include_buffers=True)], ids=str)
def test_l_dawas_code_scales_running_statistics_and_averages_counters(part):
    draw = np.random.default_rng(1)
    w, memory, state = model(draw, np.float64), {}, None
    long = [n for n in BUFFERS if "tracked" not in n]
    for t in range(4):
        rs = replies(w, draw)
        out = fs.server_step(R.fedavg(weigh=part), w, sent(rs), state, population=N)
        flat = o.mixed_buffers({n: w[n] for n in BUFFERS}, rs, o.shares(rs))
        if t >= part.warmup_rounds:
            flat |= o.ldawa({n: w[n] for n in long}, rs, {})
        inner = [(c, trained(m), n, s) for c, m, n, s in rs]
        expected = o.ldawa(trained(w), inner, memory, warmup=part.warmup_rounds) | flat
        for n in w:
            np.testing.assert_allclose(out.model[n], expected[n], rtol=1e-9, atol=1e-11, err_msg=n)
        w, state = {n: expected[n] for n in w}, out.state


def test_the_presets_are_these_parts():
    assert R.fedlws_official().shrink == (OfficialLWS(beta=0.03, low=0.01, high=0.2),)
    assert R.ldawa_official().weigh == Dawa(warmup_rounds=2, include_buffers=True)


def test_clients_train_from_shrunk_running_statistics():
    """Two rounds of a BatchNorm network by hand: the second begins with the first one's shrunk buffers."""
    clients, world = unequal_clients(FIVE), bn_mlp()
    cohort = list(range(len(FIVE)))
    for t in range(2):
        new, p = [descend(world, clients, k, t) for k in cohort], shares(clients, cohort)
        before, mean = ({n: v.numpy() for n, v in m.state_dict().items()} for m in (world, averaged(new, p)))
        rs = [(k, {n: v.numpy() for n, v in m.state_dict().items()}, float(FIVE[k]), {}) for k, m in enumerate(new)]
        counter = "1.num_batches_tracked"
        mean[counter] = np.asarray(sum(a * float(r[1][counter]) for a, r in zip(p, rs, strict=True)))
        after = o.official_lws(before, mean, rs, 0.3, 0.01, 0.2)
        world.load_state_dict({n: torch.as_tensor(v) for n, v in after.items()})
    run = library(R.fedlws_official(beta=0.3), 2, FIVE, model=bn_mlp())
    torch.testing.assert_close(run.model.state_dict(), world.state_dict(), rtol=0, atol=1e-11)
