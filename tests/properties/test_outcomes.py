"""What comes back has the form of what was given, is finite, and what was given is as it was."""

from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstrata.errors import NeedError
from tests.properties.cases import (
    METHODS,
    PROFILE,
    Case,
    Model,
    bits,
    cases,
    cases_of_any_kind,
    each,
    memory,
    step,
    two_rounds,
)


def form(model: Model) -> list[Any]:
    return [(n, type(v), v.dtype, v.shape) for n, v in model.items()]


@PROFILE
@given(case=cases_of_any_kind)
def test_the_outcome_has_the_form_of_the_model_and_is_finite(case: Case):
    for name in each(METHODS):
        model = step(name, case).model
        assert form(model) == form(case.start)
        assert all(np.isfinite(np.asarray(v)).all() for v in model.values())


@PROFILE
@given(case=cases(fewest_examples=1))
def test_models_and_memories_stay_numbers(case: Case):
    for name in each(METHODS):
        for out in two_rounds(name, case):
            assert not any(np.isnan(np.asarray(v)).any() for v in (out.model | memory(out)).values())


@PROFILE
@given(case=cases_of_any_kind)
def test_nothing_that_was_given_is_written_to(case: Case):
    sent = deepcopy(case)
    for name in each(METHODS):
        first = step(name, case)
        kept = deepcopy(first)
        step(name, Case(first.model, case.replies), first.state)
        assert bits(first.model) == bits(kept.model)
        assert bits(memory(first)) == bits(memory(kept))
        assert bits(case.start) == bits(sent.start)
        assert [bits(dict(r.model)) for r in case.replies] == [bits(dict(r.model)) for r in sent.replies]


def every_second(v: np.ndarray) -> np.ndarray:
    return np.repeat(v[..., None], 2, -1)[..., 0]


def asking_for_gradients(v: np.ndarray) -> torch.Tensor:
    return torch.tensor(v, requires_grad=v.dtype.kind == "f")


def read_only(v: np.ndarray) -> np.ndarray:
    return np.broadcast_to(v, v.shape)


def back_to_front(v: np.ndarray) -> np.ndarray:
    return np.flip(np.flip(v).copy())


def of_other_byte_order(v: np.ndarray) -> np.ndarray:
    return v.astype(v.dtype.newbyteorder())


@pytest.mark.parametrize("of", [every_second, asking_for_gradients, read_only, back_to_front, of_other_byte_order])
@PROFILE
@given(case=cases())
def test_any_array_will_do(of, case: Case):
    odd = case.remade(lambda m: {n: of(v) for n, v in m.items()})
    wanted, got = step("fedlws", case).model, step("fedlws", odd).model
    assert all(np.array_equal(np.asarray(got[n]), v) for n, v in wanted.items())


@PROFILE
@given(case=cases(), kept=st.sets(st.sampled_from(("labels", "variance", "steps", "loss", "accuracy", "gradient"))))
def test_what_is_missing_is_said_in_a_sentence(case: Case, kept: set[str]):
    silent = [replace(r, stats={n: r.stats[n] for n in kept}, uploads={}) for r in case.replies]
    for name in each(METHODS):
        with suppress(NeedError):
            step(name, case.sent_by(silent))
