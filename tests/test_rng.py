import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.rng import rng, seeded, torch_seed

KEYS = st.tuples(
    st.integers(0, 2**40), st.sampled_from(["batches", "probe", "select"]), st.integers(0, 999), st.integers(0, 999)
)


@given(KEYS, KEYS)
@settings(max_examples=60, deadline=None)
def test_streams_are_equal_exactly_when_their_keys_are(
    one: tuple[int, str, int, int], other: tuple[int, str, int, int]
):
    a, b = rng(*one).integers(2**62, size=4).tolist(), rng(*other).integers(2**62, size=4).tolist()
    assert (a == b) == (one == other)
    assert a == rng(*one).integers(2**62, size=4).tolist()


def test_neighbouring_streams_differ():
    keys = [(0, "batches", 0, 0), (1, "batches", 0, 0), (0, "probe", 0, 0), (0, "batches", 1, 0), (0, "batches", 0, 1)]
    assert len({rng(*k).integers(2**62) for k in keys}) == len(keys)
    assert len({torch_seed(*k) for k in keys}) == len(keys)


def test_a_stream_is_the_same_in_every_release():
    """Should these change, so does everybody's old experiment."""
    assert rng(3, "batches", 1, 2).integers(1000, size=4).tolist() == [422, 100, 488, 166]
    assert rng(3, "batches", 1, 2).permutation(6).tolist() == [4, 0, 2, 3, 1, 5]
    assert torch_seed(3, "model") == 6444676835510490009


def test_a_stream_is_apart_from_what_was_drawn_before():
    first = rng(0, "select", 5).random()
    np.random.default_rng(0).random(100)
    torch.rand(100)
    rng(0, "select", 5).random(7)
    assert rng(0, "select", 5).random() == first


@given(KEYS)
@settings(max_examples=30, deadline=None)
def test_torch_takes_the_seeds(key: tuple[int, str, int, int]):
    seed = torch_seed(*key)
    assert 0 <= seed < 2**63
    with seeded(seed):
        a = torch.rand(3).tolist()
    with seeded(seed):
        assert torch.rand(3).tolist() == a


def test_seeded_puts_the_generator_back():
    torch.manual_seed(1)
    expected = torch.rand(5)[2:]
    torch.manual_seed(1)
    torch.rand(2)
    with seeded(7):
        torch.rand(100)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_seeded_puts_the_generator_back_after_an_error():
    def broken() -> None:
        with seeded(7):
            torch.rand(100)
            raise RuntimeError("stop")

    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with pytest.raises(RuntimeError, match="stop"):
        broken()
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_what_is_drawn_while_seeded_depends_on_the_seed_alone():
    with seeded(7):
        a = torch.rand(3)
    torch.rand(10)
    with seeded(7):
        b = torch.rand(3)
    with seeded(8):
        c = torch.rand(3)
    assert a.tolist() == b.tolist()
    assert a.tolist() != c.tolist()
