"""In float32 a method does what it does in float64."""

import numpy as np
from hypothesis import given

from tests.properties.cases import (
    DIRECTIONS,
    PROFILE,
    SIGNS,
    Case,
    assert_near,
    cases,
    each,
    in_float32,
    is_parameter,
    others,
    step,
)


def cancels(case: Case) -> bool:
    """Whether the mean update of some tensor is far shorter than the clients' own."""
    mean = step("fedavg", case).model

    def shortened(name: str) -> bool:
        old = case.start[name]
        longest = max(np.abs(r.model[name] - old).max() for r in case.replies)
        return bool(np.abs(mean[name] - old).max() < 0.01 * longest)

    return any(shortened(n) for n, v in case.start.items() if is_parameter(n, v))


@PROFILE
@given(case=cases())
def test_float32_is_float64_up_to_rounding(case: Case):
    single = case.remade(in_float32)
    for name in each(others(SIGNS, DIRECTIONS if cancels(case) else set())):
        assert_near(step(name, single).model, step(name, case).model, case, 1e-5)
