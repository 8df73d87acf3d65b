"""Layers are independent where a method says so, wherever they stand, and at every scale."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import fedstrata as fs
from fedstrata.parts import LWS
from tests.properties.cases import (
    OFFICIAL,
    PROFILE,
    WHOLE_MODEL,
    Case,
    Model,
    assert_near,
    cases,
    each,
    is_parameter,
    others,
    step,
    two_rounds,
)

MORE = settings(PROFILE, max_examples=60)
factors = st.sampled_from((2**-10, 0.5, 8.0, 1024.0))
grains = st.sampled_from(("tensor", "layer", "model"))


@PROFILE
@given(case=cases(), data=st.data())
def test_the_order_of_names_does_not_matter(case: Case, data):
    order = data.draw(st.permutations(list(case.start)))
    shuffled = case.remade(lambda m: {n: m[n] for n in order if n in m})
    for name in each(others(OFFICIAL)):
        one, other = step(name, case), step(name, shuffled)
        assert list(other.model) == order
        assert_near(one.model, other.model, case, 1e-7)  # angles near 0 and pi are known to 2e-8


@PROFILE
@given(case=cases(), data=st.data())
def test_one_layer_more_changes_nothing_in_the_others(case: Case, data):
    layers = {n.rpartition(".")[0] for n, v in case.start.items() if is_parameter(n, v)}
    assume(len(layers) > 1)
    gone = data.draw(st.sampled_from(sorted(layers)))
    fewer = case.remade(lambda m: {n: v for n, v in m.items() if n.rpartition(".")[0] != gone})
    for name in each(others(WHOLE_MODEL)):
        one, other = step(name, case), step(name, fewer)
        assert other.model.keys() == fewer.start.keys()
        assert_near(one.model, other.model, case)


def farther(case: Case, factor: float) -> Case:
    """Every client moved so many times as far."""

    def moved(model: Model) -> Model:
        return {n: v + (factor - 1) * (v - case.start[n]) if is_parameter(n, v) else v for n, v in model.items()}

    return case.sent_by([replace(r, model=moved(dict(r.model))) for r in case.replies])


@MORE
@given(case=cases(), factor=factors)
def test_angles_do_not_depend_on_how_far_the_clients_moved(case: Case, factor: float):
    for name in each(["fedadp", "fedlayerwise"]):
        one, other = (step(name, c).notes["weights"] for c in (case, farther(case, factor)))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@MORE
@given(case=cases(), factor=factors, grain=grains)
def test_gamma_is_the_same_at_every_scale_with_beta_in_proportion(case: Case, factor: float, grain):
    larger = case.remade(lambda m: {n: v * factor if is_parameter(n, v) else v for n, v in m.items()})
    one = step(fs.recipes.fedavg(shrink=LWS(0.3, grain)), case).notes["gamma"]
    other = step(fs.recipes.fedavg(shrink=LWS(0.3 / factor, grain)), larger).notes["gamma"]
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


@MORE
@given(case=cases(), beta=st.floats(0, 100), grain=grains)
def test_gamma_is_above_zero_and_at_most_one(case: Case, beta: float, grain):
    for out in two_rounds(fs.recipes.fedavg(shrink=LWS(beta, grain)), case):
        assert (out.notes["gamma"] > 0).all()
        assert (out.notes["gamma"] <= 1).all()


@MORE
@given(case=cases(), mu=st.just(0.0) | st.floats(1e-6, 10), alpha=st.floats(0, 1), grain=grains)
def test_adaptive_mu_stays_between_zero_and_mu(case: Case, mu: float, alpha: float, grain):
    for out in two_rounds(fs.recipes.adaptive_fedprox(mu, alpha, grain), case):
        assert (out.notes["mu"] >= 0).all()
        assert (out.notes["mu"] <= mu * (1 + 1e-12)).all()


@PROFILE
@example(move=0.7)
@given(move=st.floats(0.01, 10))
def test_a_tensor_that_moves_evenly_is_decayed_evenly(move: float):
    start = {"weight": np.ones(3)}
    reply = fs.Reply(0, {"weight": start["weight"] + move}, 1)
    decayed = fs.server_step(fs.recipes.adadecay(strength=0.1), start, [reply]).model["weight"]
    np.testing.assert_allclose(decayed, 1 + move - 0.1)
