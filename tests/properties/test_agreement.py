"""Where clients agree there is nothing to weigh, and a mean lies among those it is of."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given

import fedstrata as fs
from tests.properties.cases import (
    CARRIES_ON,
    NOT_A_MEAN,
    NOT_OF_ONE,
    PROFILE,
    Case,
    assert_near,
    cases,
    each,
    is_parameter,
    kinds,
    others,
    step,
)


def assert_got_back(name: str, case: Case) -> None:
    """The model that the first client sent, up to the rounding of its type."""
    single = any(np.asarray(v).dtype == np.float32 for v in case.start.values())
    assert_near(step(name, case).model, dict(case.replies[0].model), case, 1e-5 if single else 1e-9)


@PROFILE
@given(case=cases(clients=1), kind=kinds)
def test_one_client_gets_its_own_model_back(case: Case, kind):
    for name in each(others(NOT_OF_ONE)):
        assert_got_back(name, case.remade(kind))


def agreed(case: Case) -> Case:
    """Everybody sends what the first client sends."""
    return case.sent_by([replace(case.replies[0], client=r.client, examples=r.examples) for r in case.replies])


@PROFILE
@given(case=cases(fewest_examples=1), kind=kinds)
def test_clients_that_send_the_same_get_it_back(case: Case, kind):
    for name in each(others(NOT_OF_ONE)):
        assert_got_back(name, agreed(case).remade(kind))


@PROFILE
@given(case=cases())
def test_weights_are_shares_of_one(case: Case):
    for name in each(others(NOT_A_MEAN)):
        weights = step(name, case).notes["weights"]
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(0), torch.ones_like(weights[0]))


def only_weighs(name: str) -> bool:
    recipe = fs.recipes.METHODS[name]()
    return not recipe.server and not recipe.shrink


@PROFILE
@given(case=cases())
def test_a_mean_lies_between_the_clients(case: Case):
    for name in each(filter(only_weighs, others(NOT_A_MEAN, CARRIES_ON))):
        model = step(name, case).model
        for n in (n for n, v in case.start.items() if is_parameter(n, v)):
            sent, slack = np.stack([r.model[n] for r in case.replies]), 1e-12 * case.size(n)
            assert (model[n] >= sent.min(0) - slack).all()
            assert (model[n] <= sent.max(0) + slack).all()
