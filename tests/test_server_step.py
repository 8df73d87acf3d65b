"""The server's step against a plain numpy oracle: several rounds, changing cohorts, any order of replies."""

# pyright: reportCallIssue=false

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fedstrata as fs
from fedstrata.errors import DataError, ModelError, NeedError
from tests import oracle as o

R, N, LR = fs.recipes, 9, 0.1
SHAPES = {
    "conv.weight": (4, 2, 3),
    "conv.bias": (4,),
    "norm.weight": (4,),
    "fc.weight": (3, 4),
    "fc.bias": (3,),
    "scale": (),
}


def model(draw: np.random.Generator) -> o.Model:
    """Parameters; one bias is zero, as it is at the beginning."""
    return {n: draw.standard_normal(s) * (n != "fc.bias") for n, s in SHAPES.items()}


def replies(w: o.Model, draw: np.random.Generator, k: int | None = None) -> o.Replies:
    """Those of a random cohort; layer "norm" may not move at all."""
    ids = draw.choice(N, k or draw.integers(1, N + 1), replace=False)
    still = draw.random() < 0.2

    def one(client: int) -> tuple[int, o.Model, float, dict[str, Any]]:
        moved = {n: v + 0.3 * draw.standard_normal(v.shape) * (not (still and "norm" in n)) for n, v in w.items()}
        stats = {
            "steps": int(draw.integers(1, 20)),
            "variance": float(draw.random()),
            "labels": draw.integers(0, 9, 4) + np.eye(4, dtype=int)[0],
        }
        stats |= {"loss": float(draw.random() * 3), "accuracy": float(draw.random()), "gradient": draw.random(48) - 0.3}
        stats |= {"trained_gradient": draw.random(48) - 0.4}
        return int(client), moved, float(draw.integers(1, 200)), stats

    return sorted((one(i) for i in ids), key=lambda r: r[0])


def sent(rs: o.Replies, order: np.ndarray | None = None) -> list[fs.Reply]:
    made = [fs.Reply(client=c, model=m, examples=n, stats=s) for c, m, n, s in rs]
    return made if order is None else [made[i] for i in order]


Truth = Callable[[o.Model, o.Replies, dict], o.Model]
CASES: dict[str, tuple[fs.Recipe, Truth]] = {
    "fedavg": (R.fedavg(), o.fedavg),
    "fedavg uniform": (R.fedavg("uniform"), lambda *a: o.fedavg(*a, uniform=True)),
    "fedavgm": (R.fedavgm(beta=0.7, lr=0.5), lambda *a: o.fedavgm(*a, beta=0.7, lr=0.5)),
    "fedavgm dampened": (R.fedavgm(dampening=0.9), lambda *a: o.fedavgm(*a, damp=0.9)),
    "fedadagrad": (R.fedadagrad(), lambda *a: o.fedopt(*a, "adagrad", 0.1, 0.0)),
    "fedadam": (R.fedadam(), lambda *a: o.fedopt(*a, "adam", 0.1, 0.9)),
    "fedyogi": (R.fedyogi(), lambda *a: o.fedopt(*a, "yogi", 0.01, 0.9)),
    "feddyn": (R.feddyn(alpha=0.3), lambda *a: o.feddyn(*a, 0.3, N)),
    "fedavg with a rate": (R.fedavg(lr=0.4), lambda *a: o.moved(a[0], o.fedavg(*a), 0.4)),
    "fedadagrad from 0": (R.fedadagrad(v_init=0.0), lambda *a: o.fedopt(*a, "adagrad", 0.1, 0.0, v_init=0.0)),
    "fedadagrad with momentum": (R.fedadagrad(beta1=0.5, tau=0.1), lambda *a: o.fedopt(*a, "adagrad", 0.1, 0.5, 0.1)),
    "fedadam from 2": (
        R.fedadam(beta2=0.9, v_init=2.0), lambda *a: o.fedopt(*a, "adam", 0.1, 0.9, beta2=0.9, v_init=2.0)
    ),
    "fedadam corrected": (
        R.fedadam(bias_correction=True), lambda *a: o.fedopt(*a, "adam", 0.1, 0.9, corrected=True)
    ),
    "fedadam of flower": (
        R.fedadam_flower(), lambda *a: o.fedopt(*a, "adam", 0.1, 0.9, 1e-9, v_init=0.0, corrected=True)
    ),
    "fedadam of fedlaw": (R.fedadam_fedlaw(), lambda *a: o.fedopt(*a, "adam", 1.0, 0.9, 1e-5, v_init=0.0)),
    "fedyogi from 0.3": (R.fedyogi(v_init=0.3), lambda *a: o.fedopt(*a, "yogi", 0.01, 0.9, v_init=0.3)),
    "feddyn of fedlaw": (R.feddyn_fedlaw(alpha=0.3), lambda *a: o.feddyn_fedlaw(*a, 0.3)),
    "scaffold with a rate": (
        R.scaffold(lr=0.4), lambda *a: o.moved(a[0], o.fedavg(*a, uniform=True), 0.4)
    ),
    "scaffold": (R.scaffold(), lambda *a: o.fedavg(*a, uniform=True)),
    "fednova": (R.fednova(momentum=0.0), o.fednova),
    **{
        f"feddisco {d}": (R.feddisco(distance=d), lambda *a, d=d: o.feddisco(*a, d))  # pyright: ignore
        for d in ("kl", "l1", "l2", "cosine")
    },
    "ldawa": (R.ldawa(), o.ldawa),
    "ldawa cut": (R.ldawa(floor=0.97), lambda *a: o.ldawa(*a, floor=0.97)),
    "ldawa normalised": (R.ldawa(normalised=True), lambda *a: o.ldawa(*a, normalised=True)),
    "ldawa warmed up": (R.ldawa(warmup_rounds=2), lambda *a: o.ldawa(*a, warmup=2)),
    "fedadp": (R.fedadp(), lambda *a: o.angle_weighted(*a, "model")),
    "fedlayerwise": (R.fedlayerwise(), lambda *a: o.angle_weighted(*a, "layer")),
    "fedlayerwise by tensor": (R.fedlayerwise(grain="tensor"), lambda *a: o.angle_weighted(*a, "tensor")),
    **{
        f"fedlws {mode} {variant} over {base}": (
            fs.recipes.combine(recipe, R.fedlws(beta=0.4, mode=mode, variant=variant)),  # pyright: ignore
            lambda w, rs, s, t=truth, m=mode, v=variant: o.lws(w, t(w, rs, s), rs, 0.4, m, v),
        )
        for mode in ("layer", "model", "tensor")
        for variant in ("full", "only_opt", "only_reg")
        for base, recipe, truth in (
            ("fedavg", R.fedavg(), o.fedavg),
            ("feddisco", R.feddisco(), lambda *a: o.feddisco(*a, "kl")),
            ("feddyn", R.feddyn(alpha=0.3), lambda *a: o.feddyn(*a, 0.3, N)),
        )
    },
    **{
        f"fedlws {mode} without norms": (
            R.fedlws(beta=0.4, mode=mode, skip_norm=True),  # pyright: ignore
            lambda w, rs, s, m=mode: o.lws(w, o.fedavg(w, rs, s), rs, 0.4, m, "full", ("norm.weight",)),
        )
        for mode in ("layer", "model", "tensor")
    },
    "qfedavg": (R.qfedavg(q=0.7), lambda *a: o.qfedavg(*a, 0.7, LR)),
    "qfedavg 0": (R.qfedavg(q=0.0), lambda *a: o.fedavg(*a, uniform=True)),
    "afl": (R.afl(lr=0.2), lambda *a: o.afl(*a, 0.2, N)),
    "fairfed": (R.fairfed(beta=0.8), lambda *a: o.fairfed(*a, 0.8)),
    "folb": (R.folb(), o.folb),
    "folb system-aware": (R.folb(psi=0.7), lambda *a: o.folb(*a, psi=0.7)),
    "awd": (R.awd(strength=0.1), lambda *a: o.awd(*a, 0.1)),
    "adadecay": (R.adadecay(strength=0.05), lambda *a: o.adadecay(*a, 4.0, 0.05)),
    "fedbs": (R.fedbs(tau=2.0), lambda *a: o.softmax_weighted(*a, 2.0)),
    "fedpbs": (R.fedpbs(), lambda *a: o.fedavg(*a, uniform=True)),
    "fedpbs sat": (R.fedpbs(aggregation="sat"), lambda *a: o.softmax_weighted(*a, 1.0)),
    "fedpbs sat of gradients": (
        R.fedpbs(aggregation="sat", variance="gradient", tau=3.0), lambda *a: o.softmax_weighted(*a, 3.0)
    ),
    "fedpbs by size": (R.fedpbs(aggregation="samples", two_phase=True), o.fedavg),
    "fedbs normalised": (R.fedbs(tau=2.0, normalise=True), lambda *a: o.softmax_weighted(*a, 2.0, normalise=True)),
    "fedbs of the last layer": (R.fedbs(tau=2.0, grad_scope="last_layer"), lambda *a: o.softmax_weighted(*a, 2.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_several_rounds_are_the_oracles(name, seed):
    recipe, truth = CASES[name]
    draw = np.random.default_rng(seed)
    w, memory, state = model(draw), {}, None
    for _ in range(4):
        rs = replies(w, draw)
        out = fs.server_step(recipe, w, sent(rs), state, population=N, lr=LR)
        expected = truth(w, rs, memory)
        for n in w:
            # an angle near 0 is known to 2e-8 only: acos is ill-conditioned there
            atol = 1e-8 if "angle" in out.notes else 1e-11
            np.testing.assert_allclose(out.model[n], expected[n], rtol=1e-9, atol=atol, err_msg=n)
            assert out.model[n].dtype == np.float64
        w, state = expected, out.state


@pytest.mark.parametrize("name", CASES)
def test_float32_is_within_the_specified_tolerance(name):
    recipe, truth = CASES[name]
    draw = np.random.default_rng(5)
    w = {n: v.astype(np.float32) for n, v in model(draw).items()}
    rs = [(c, {n: v.astype(np.float32) for n, v in m.items()}, e, s) for c, m, e, s in replies(w, draw, 5)]
    out = fs.server_step(recipe, w, sent(rs), population=N, lr=LR)
    exact = [(c, {n: v.astype(np.float64) for n, v in m.items()}, e, s) for c, m, e, s in rs]
    expected = truth({n: v.astype(np.float64) for n, v in w.items()}, exact, {})
    for n in w:
        np.testing.assert_allclose(out.model[n], expected[n], rtol=1e-5, atol=2e-6, err_msg=n)
        assert out.model[n].dtype == np.float32


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_replies_changes_not_one_bit(name):
    recipe, draw = CASES[name][0], np.random.default_rng(2)
    w = {n: v.astype(np.float32) for n, v in model(draw).items()}
    rs = replies(w, draw, 6)
    one, other = (
        fs.server_step(recipe, w, sent(rs, order), population=N, lr=LR) for order in (None, draw.permutation(6))
    )
    assert all(one.model[n].tobytes() == other.model[n].tobytes() for n in w)
    assert torch.equal(one.notes["weights"], other.notes["weights"])


@pytest.mark.parametrize("name", CASES)
def test_a_client_without_examples_does_not_count(name):
    recipe, draw = CASES[name][0], np.random.default_rng(2)
    w = model(draw)
    rs = replies(w, draw, 6)
    client, moved, _, stats = rs[2]
    more = [*sent(rs[:2]), fs.Reply(client=client, model=moved, examples=0, stats=stats), *sent(rs[3:])]
    one, other = (fs.server_step(recipe, w, r, population=N, lr=LR) for r in (more, sent(rs[:2] + rs[3:])))
    assert all(one.model[n].tobytes() == other.model[n].tobytes() for n in w)
    assert one.dropped == [client]


def test_scaffolds_control_variate_is_the_oracles():
    draw = np.random.default_rng(0)
    w, memory, state = model(draw), {}, None
    for _ in range(3):
        rs = replies(w, draw)
        out = fs.server_step(R.scaffold(), w, sent(rs), state, population=N, lr=LR)
        c = o.scaffold_c(w, rs, memory, N, LR)
        order = ["conv.weight", "conv.bias", "norm.weight", "fc.weight", "fc.bias", "scale"]
        np.testing.assert_allclose(out.state["local.0"]["c"].numpy(), o.vector(c, order), rtol=1e-9, atol=1e-10)
        w, state = out.model, out.state


def test_an_upload_is_taken_where_it_is_given_by_name_or_flat():
    draw = np.random.default_rng(0)
    w = model(draw)
    dc = {n: draw.standard_normal(v.shape) for n, v in w.items()}
    for form in (dc, o.vector(dc, list(w))):
        reply = fs.Reply(client=2, model=w, examples=5, uploads={"dc": form})
        out = fs.server_step(R.scaffold(), w, [reply], population=4)
        np.testing.assert_allclose(out.state["local.0"]["c"].numpy(), o.vector(dc, list(w)) / 4)


def test_adaptive_mu_is_the_oracles():
    draw, memory, state = np.random.default_rng(0), {}, None
    w = model(draw)
    for _ in range(3):
        out = fs.server_step(R.adaptive_fedprox(mu=0.2, alpha=0.3), w, sent(replies(w, draw)), state)
        np.testing.assert_allclose(out.notes["mu"].numpy(), o.adaptive_mu(w, out.model, memory, 0.2, 0.3), rtol=1e-9)
        w, state = out.model, out.state


def test_the_state_is_plain_tensors_two_levels_deep():
    draw = np.random.default_rng(0)
    w = model(draw)
    out = fs.server_step(R.combine(R.fedlayerwise(), R.fedadam()), w, sent(replies(w, draw)))
    assert all(isinstance(v, torch.Tensor) for part in out.state.values() for v in part.values())
    again = {
        p: {n: torch.tensor(json.loads(json.dumps(v.tolist())), dtype=v.dtype) for n, v in s.items()}
        for p, s in out.state.items()
    }
    rs = sent(replies(out.model, draw))
    one, other = (
        fs.server_step(R.combine(R.fedlayerwise(), R.fedadam()), out.model, rs, s) for s in (out.state, again)
    )
    assert all(np.array_equal(one.model[n], other.model[n]) for n in w)


def test_clients_beyond_the_population_are_remembered_too():
    w = {"a.w": np.ones(3)}
    first = [fs.Reply(client=i, model={"a.w": np.ones(3) + i}, examples=1) for i in (0, 1)]
    out = fs.server_step(R.fedlayerwise(), w, first)
    late = [fs.Reply(client=i, model={"a.w": np.ones(3) * [1, i, -i]}, examples=1) for i in (1, 40)]
    out = fs.server_step(R.fedlayerwise(), w, late, out.state)
    assert out.state["weigh"]["turns"][[0, 1, 40], 0].tolist() == [1, 2, 1]


def test_buffers_follow_the_specification_and_tensors_stay_tensors():
    w = {"bn.weight": torch.ones(2), "bn.running_mean": torch.zeros(2), "bn.num_batches_tracked": torch.tensor(4)}
    sent_back = [({"bn.weight": torch.full((2,), 1.0 + i), "bn.running_mean": torch.full((2,), float(i)),
                   "bn.num_batches_tracked": torch.tensor(4 + 3 * i)}, n) for i, n in ((1, 10), (3, 30))]  # fmt: skip
    rs = [fs.Reply(client=i, model=m, examples=n) for i, (m, n) in enumerate(sent_back)]
    out = fs.server_step(R.fedlws(beta=3.0), w, rs)
    assert out.layers == ("bn",)
    assert (out.model["bn.weight"] < 1 + 0.25 * 1 + 0.75 * 3).all()  # shrunk
    torch.testing.assert_close(out.model["bn.running_mean"], torch.full((2,), 2.5))
    assert out.model["bn.num_batches_tracked"] == round(0.25 * 7 + 0.75 * 13)
    assert out.model["bn.num_batches_tracked"].dtype == torch.int64
    named = fs.server_step(R.fedlws(beta=3.0), w, rs, buffers=["bn.weight", "bn.num_batches_tracked"])
    torch.testing.assert_close(named.model["bn.weight"], torch.full((2,), 1 + 0.25 * 1 + 0.75 * 3))


def test_bad_replies():
    w = {"a.w": np.ones(3), "a.b": np.zeros(1)}
    good = fs.Reply(client=1, model={"a.w": np.ones(3) * 2, "a.b": np.ones(1)}, examples=3)
    bad = fs.Reply(client=4, model={"a.w": np.array([1, np.nan, 1]), "a.b": np.ones(1)}, examples=3)
    out = fs.server_step(R.fedavg(), w, [bad, good])
    assert out.dropped == [4]
    np.testing.assert_allclose(out.model["a.w"], 2.0)
    empty = fs.server_step(R.fedadam(), w, [bad])
    np.testing.assert_array_equal(empty.model["a.w"], w["a.w"])
    assert float(empty.state["server.0"]["steps"]) == 0
    for wrong, sentence in (
        ({"a.w": np.ones(3)}, "client 7: the parameter 'a.b' is missing"),
        ({"a.w": np.ones(4), "a.b": np.ones(1)}, r"client 7: 'a.w' has shape \(4,\) where the model has \(3,\)"),
        ({"a.w": np.ones((3, 1)), "a.b": np.ones(1)}, r"'a.w' has shape \(3, 1\)"),
        ({"a.w": np.ones(3), "a.b": np.ones(1), "c": np.ones(1)}, "no trainable parameter 'c'"),
    ):
        with pytest.raises(ModelError, match=sentence):
            fs.server_step(R.fedavg(), w, [good, fs.Reply(client=7, model=wrong, examples=1)])
    with pytest.raises(DataError, match="client 1 replied twice"):
        fs.server_step(R.fedavg(), w, [good, good])
    with pytest.raises(NeedError, match="Disco needs 'labels' in the stats of every reply; client 1 has none"):
        fs.server_step(R.feddisco(), w, [good])
    short = fs.Reply(client=5, model=good.model, examples=1, stats={"gradient": np.ones(3)})
    with pytest.raises(ModelError, match=r"client 5: 'gradient' has shape \(3,\), where \(4,\) is needed"):
        fs.server_step(R.folb(), w, [short])
    with pytest.raises(NeedError, match="Learned needs data of the server's own"):
        fs.server_step(R.fedlaw(), w, [good])
    with pytest.raises(NeedError, match="Scaffold needs each client's upload 'dc'"):
        fs.server_step(R.scaffold(), w, [good])
    with pytest.raises(ModelError, match=r"the model has no buffer 'a\.c'"):
        fs.server_step(R.fedavg(), w, [good], buffers=["a.c"])


def test_fedlaw_starts_at_fedavg_and_lowers_the_proxy_loss():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3))
    start = net.state_dict()
    x, y = torch.randn(60, 4), torch.randint(0, 3, (60,))
    proxy = fs.Proxy.of(net, x, y)
    rs = [
        fs.Reply(client=i, model={n: v + 0.5 * torch.randn_like(v) for n, v in start.items()}, examples=10 + i)
        for i in range(4)
    ]
    none = fs.server_step(R.fedlaw(epochs=0), start, rs, proxy=proxy)
    plain = fs.server_step(R.fedavg(), start, rs)
    torch.testing.assert_close(none.model, plain.model)

    def loss(out: fs.Outcome) -> float:
        return float(proxy.loss(proxy.task.layout.flatten(out.model)))

    for by in ("exp", "quad"):
        learned = fs.server_step(R.fedlaw(epochs=50, by=by), start, rs, proxy=proxy)
        assert loss(learned) < loss(plain)
        assert (learned.notes["weights"] >= 0).all()


def test_folbs_two_samples_are_halves_of_the_cohort():
    draw = np.random.default_rng(3)
    w = model(draw)
    rs = replies(w, draw, 6)
    out = fs.server_step(R.folb(two_sample=True), w, sent(rs), population=N)
    weights, g = out.notes["weights"][:, 0].numpy(), np.array([s["gradient"] for _, _, _, s in rs])
    first = weights != 0
    assert first.sum() == 3
    above, below = g[first] @ g[first].mean(0), g[~first] @ g[~first].mean(0)
    np.testing.assert_allclose(weights[first], above / np.abs(below).sum())
    again = fs.server_step(R.folb(two_sample=True), w, sent(rs), population=N, seed=1).notes["weights"][:, 0].numpy()
    assert ((again != 0) != first).any()
    alone = fs.server_step(R.folb(two_sample=True), w, sent(rs[:1]), population=N)
    assert alone.notes["weights"].tolist() == [[1.0]]


def test_a_buffer_that_is_not_finite_on_the_server_condemns_nobody():
    w = {"a.w": np.ones(2), "mask": np.array([0, -np.inf, np.nan])}
    good, bad = ({"a.w": np.full(2, 3.0), "mask": np.array(m)} for m in ([0, -np.inf, np.nan], [np.nan, 0, 0]))
    rs = [fs.Reply(client=0, model=good, examples=1), fs.Reply(client=1, model=bad, examples=1)]
    out = fs.server_step(R.fedavg(), w, rs, buffers=["mask"])
    assert out.dropped == [1]
    np.testing.assert_array_equal(out.model["mask"], w["mask"])
    np.testing.assert_array_equal(out.model["a.w"], [3, 3])
