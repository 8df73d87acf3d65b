"""What the server's step makes of N, and of uploads, states and numbers that do not fit."""

# pyright: reportCallIssue=false

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import fedstrata as fs
from fedstrata.errors import DataError, ModelError, NotFiniteError, SettingError
from fedstrata.server_step import Outcome

R = fs.recipes


@pytest.mark.parametrize("recipe", [R.scaffold(), R.feddyn(alpha=0.3), R.feddc()], ids=str)
def test_means_over_all_clients_count_newcomers_in(recipe):
    """Three rounds in which clients 0, then 4, then 9 are seen first end like three of ten clients."""
    draw, ends = np.random.default_rng(0), []
    w = {"a.w": draw.standard_normal(3), "a.b": draw.standard_normal(1)}
    sent = [[fs.Reply(i, {n: v + draw.random() for n, v in w.items()}, 1, uploads=dict.fromkeys(("dc", "dg"), w))]
            for i in (0, 4, 9)]  # fmt: skip
    for population in (None, 10):
        state = None
        for rs in sent:
            out = fs.server_step(recipe, w, rs, state, population)
            state = out.state
        ends.append((out.model, state))  # pyright: ignore[reportPossiblyUnboundVariable]
    (one, state), (other, of_ten) = ends
    for n in w:
        np.testing.assert_allclose(one[n], other[n], rtol=1e-12, err_msg=n)
    torch.testing.assert_close(state, of_ten)


def test_n_is_what_was_said_or_else_what_was_seen():
    zero = {"a": np.zeros(1)}

    def moved(client: int, state: Any = None, population: int | None = None) -> Any:
        reply = fs.Reply(client, {"a": np.ones(1)}, 1, uploads={"dg": np.zeros(1)})
        return fs.server_step(R.feddc(), zero, [reply], state, population)

    assert moved(9, moved(0).state).model["a"] == pytest.approx(1 + 2 / 10)
    assert moved(0, moved(0, population=4).state).model["a"] == pytest.approx(1 + 2 / 4)
    assert moved(0, moved(0).state, population=8).model["a"] == pytest.approx(1 + 2 / 8)
    with pytest.raises(SettingError, match="population is 2, and 3 clients replied; it counts all clients"):
        fs.server_step(R.fedavg(), zero, [fs.Reply(i, zero, 1) for i in range(3)], population=2)


def test_rules_that_divide_by_steps_or_the_rate_are_given_some():
    w = {"a.w": np.ones(3, np.float32)}
    rs = [fs.Reply(client=i, model=w, examples=1, stats={"steps": 3 * i}) for i in (0, 1)]
    with pytest.raises(DataError, match="divides by a client's steps, and client 0 took none; leave its reply out"):
        fs.server_step(R.scaffold(), w, rs, lr=0.1)
    assert fs.server_step(R.fedavg(), w, rs).dropped == []
    for lr in (0.0, -0.1, np.nan):
        with pytest.raises(SettingError, match="lr, the clients' learning rate, must be above 0"):
            fs.server_step(R.scaffold(), w, rs[1:], lr=lr)


UPLOAD = "client 4: Scaffold's upload 'dc'"


@pytest.mark.parametrize(
    ("recipe", "uploads", "sentence"),
    [
        (R.scaffold(), {"dc": np.float32(0.1)}, rf"{UPLOAD} has shape \(\), where \(4,\) is needed"),
        (R.scaffold(), {"dc": np.ones(5)}, rf"{UPLOAD} has shape \(5,\), where \(4,\) is needed"),
        (R.scaffold(), {"dc": np.ones(4) * 1j}, rf"{UPLOAD} is complex"),
        (R.scaffold(), {"dc": {"a.w": np.ones(3)}}, rf"{UPLOAD}: the parameter 'a.b' is missing"),
        (R.feddc(), {"dg": np.ones((4, 4))}, r"client 4: DC's upload 'dg' has shape \(4, 4\), where \(4,\) is needed"),
        (R.fedprox(), {"mine": np.ones(2)}, r"client 4: Prox's upload 'mine' has shape \(2,\), where \(3,\) is needed"),
    ],
)
def test_uploads_that_do_not_fit_are_named(recipe, uploads, sentence):
    w = {"a.w": np.ones(3), "a.b": np.ones(1)}
    rs = [fs.Reply(1, w, 1, uploads={"dc": np.ones(4), "dg": np.ones(4), "mine": np.ones(3)}),
          fs.Reply(4, w, 1, uploads=uploads)]  # fmt: skip
    with pytest.raises(ModelError, match=sentence):
        fs.server_step(recipe, w, rs)


def test_an_upload_in_float64_leaves_the_state_as_it_is():
    w = {"a.w": np.ones(3, np.float32)}
    out = fs.server_step(R.scaffold(), w, [fs.Reply(0, w, 1, uploads={"dc": np.full(3, 0.5)})])
    assert out.state["local.0"]["c"].dtype == torch.float32
    assert out.state["local.0"]["c"].tolist() == [0.5] * 3


def test_a_state_of_another_recipe_or_model_is_refused():
    w = {"a.w": np.ones(3)}
    good = fs.Reply(client=0, model=w, examples=1, uploads={"dc": np.ones(3), "dg": np.ones(3)})
    of_scaffold = fs.server_step(R.scaffold(), w, [good]).state
    small = {"a.w": np.ones(1)}
    of_one = fs.server_step(R.feddyn(), small, [fs.Reply(client=0, model=small, examples=1)], population=7).state
    for recipe, state, sentence in (
        (R.combine(R.scaffold(), R.fedadam()), of_scaffold, "the state has no 'server.0', which this recipe leaves"),
        (R.feddc(), of_scaffold, "the state of 'local.0' has no 'h', as DC keeps; give the state of the round before"),
        (R.feddyn(), of_one, r"'local.0', Dyn, has a 'h' of shape \(1,\), where the model needs \(3,\)"),
        (R.fedavg(), {"weigh": {}}, "the state has no 'server'"),
    ):
        with pytest.raises(DataError, match=sentence):
            fs.server_step(recipe, w, [good], state)


def test_complex_numbers_are_refused_and_not_cut():
    real, odd = {"a": np.ones(2), "b": np.ones(1)}, {"a": np.ones(2) * 1j, "b": np.ones(1)}
    with pytest.raises(ModelError, match="the parameter 'a' is complex; make it pairs of real numbers"):
        fs.server_step(R.fedavg(), odd, [fs.Reply(client=0, model=odd, examples=1)])
    with pytest.raises(ModelError, match="client 3: 'a' is complex where the model has real numbers"):
        fs.server_step(R.fedavg(), real, [fs.Reply(client=3, model=odd, examples=1)])
    out = fs.server_step(R.fedavg(), odd, [fs.Reply(client=0, model=odd, examples=1)], buffers=["a"])
    np.testing.assert_array_equal(out.model["a"], odd["a"])


def test_a_server_state_that_overflows_is_a_sentence():
    w = {"a.w": np.zeros(2, np.float32)}
    far = fs.Reply(client=0, model={"a.w": np.full(2, 3e19, np.float32)}, examples=1)
    with pytest.raises(NotFiniteError, match="round 0: the server's step gave Adam a state 'v' with NaN or infinite"):
        fs.server_step(R.fedadam(), w, [far])


@dataclass(frozen=True)
class Gaps(fs.Step):
    """A table with NaN for clients never heard of is no fault."""

    def init(self, layout, population):
        return {"table": layout.at("model").full(np.nan).expand(population).clone()}

    def step(self, state, proposal, round):
        heard = state["table"].index_fill(0, round.cohort.ids, 1.0)
        return proposal, {"table": heard, "first": torch.full_like(heard, np.nan)}


def test_a_server_state_may_have_gaps():
    w = {"a.w": np.ones(2)}
    out = fs.server_step(R.fedavg(server=Gaps()), w, [fs.Reply(client=1, model=w, examples=1)], population=3)
    assert out.state["server.0"]["table"].isnan().tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fedadam_in_half_precision_is_that_of_float32_rounded(dtype):
    """A parameter that nobody moved stays, a small move stays small, a large one does not freeze it for good."""
    w = {"a.w": torch.tensor([1.0, 2.0, 0.0, 0.0], dtype=dtype)}
    for recipe in (R.fedadam_flower(), R.fedadam()):
        states = [None, None]
        for move in ([0, 0.5, 1e-4, 400], [0, 0.1, 0, 1]):
            to = {"a.w": w["a.w"] + torch.tensor(move, dtype=dtype)}
            given = ((w, to), ({"a.w": w["a.w"].float()}, {"a.w": to["a.w"].float()}))
            half, whole = (
                fs.server_step(recipe, a, [fs.Reply(0, b, 1)], s) for (a, b), s in zip(given, states, strict=True)
            )
            assert torch.equal(half.model["a.w"], whole.model["a.w"].to(dtype))
            states = [half.state, whole.state]


def test_a_recipe_may_be_a_text():
    w, replies = {"a.w": np.zeros(2)}, [fs.Reply(client=0, model={"a.w": np.ones(2)}, examples=1)]
    assert fs.server_step("fedavg + lws", w, replies).model["a.w"].tolist() == [1, 1]
    with pytest.raises(SettingError, match="recipe must be a Recipe"):
        fs.server_step(3, w, replies)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("steps", [2.0, np.array([2.0]), torch.tensor([[2.0]]), torch.tensor(2.0, requires_grad=True)])
def test_one_number_of_a_client_may_come_in_any_shape(steps):
    w = {"a.w": np.zeros(4)}
    moves, others = np.eye(4)[:3], (2.0, 1.0, 4.0)
    one, other = (
        fs.server_step("fednova", w, [
            fs.Reply(client=k, model={"a.w": d}, examples=k + 1, stats={"steps": s})
            for k, (d, s) in enumerate(zip(moves, (first, *others[1:]), strict=True))
        ]) for first in (steps, 2.0)
    )  # fmt: skip
    assert one.model["a.w"].shape == (4,)
    assert one.model["a.w"].tolist() == other.model["a.w"].tolist()


def test_several_numbers_for_one_are_a_sentence_and_half_precision_is_none():
    w = {"a.w": np.zeros(2)}
    sent = {"model": {"a.w": np.ones(2)}, "examples": 1}
    with pytest.raises(ModelError, match=r"client 0: 'loss' has shape \(2,\), where \(\) is needed"):
        fs.server_step("afl", w, [fs.Reply(client=0, stats={"loss": [1.0, 2.0]}, **sent)])
    half = torch.tensor(0.5, dtype=torch.bfloat16)
    assert fs.server_step("afl", w, [fs.Reply(client=0, stats={"loss": half}, **sent)]).model["a.w"].tolist() == [1, 1]


def test_gradients_by_name_keep_the_digits_that_the_model_has_none_for():
    w = {"a.w": torch.zeros(2, dtype=torch.float16)}
    named = [{"a.w": np.array([1e-8, 0])}, {"a.w": np.array([3e-8, 0])}]
    plain = [g["a.w"] for g in named]
    found = [
        fs.server_step("folb", w, [
            fs.Reply(client=k, model={"a.w": np.ones(2)}, examples=1, stats={"gradient": g})
            for k, g in enumerate(gradients)
        ]).notes["weights"][:, 0].tolist() for gradients in (named, plain)
    ]  # fmt: skip
    assert found[0] == found[1] == pytest.approx([0.25, 0.75])


def test_counters_are_rounded_once_all_are_there_and_nan_among_them_condemns_its_client():
    w = {"a.w": np.zeros(1), "bn.num_batches_tracked": np.array(5)}

    def step(*counts: float) -> Outcome:
        sent = [{"a.w": np.ones(1), "bn.num_batches_tracked": np.array(c)} for c in counts]
        return fs.server_step("fedavg", w, [fs.Reply(client=k, model=m, examples=10) for k, m in enumerate(sent)])

    assert step(7.9, 7.9).model["bn.num_batches_tracked"] == 8
    out = step(7, np.nan)
    assert (out.dropped, out.model["bn.num_batches_tracked"]) == ([1], 7)
    assert step(np.inf).dropped == [0]
