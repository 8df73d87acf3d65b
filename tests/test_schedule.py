"""Schedules of batches against plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.clients import Clients, Schedule, all_batches, probe_batches
from fedstrata.optim import SGD

ROWS = st.lists(st.integers(0, 99), min_size=1, max_size=5)
BATCHES = st.lists(st.lists(ROWS, max_size=4), min_size=1, max_size=5)


def arrays(batches: list[list[list[int]]]) -> list[list[np.ndarray]]:
    return [[np.array(b) for b in mine] for mine in batches]


@given(BATCHES)
@settings(max_examples=100, deadline=None)
def test_a_schedule_holds_every_batch_and_pads_it_with_its_first_row(batches: list[list[list[int]]]):
    schedule = Schedule.of(arrays(batches))
    steps = max(len(mine) for mine in batches)
    width = max([len(b) for mine in batches for b in mine], default=1)
    assert schedule.index.shape == (len(batches), steps, width)
    assert schedule.index.dtype == schedule.count.dtype == np.int64
    assert schedule.steps.tolist() == [len(mine) for mine in batches]
    for k, mine in enumerate(batches):
        for s in range(steps):
            batch = mine[s] if s < len(mine) else []
            assert schedule.count[k, s] == len(batch)
            padding = batch[:1] * (width - len(batch)) if batch else [0] * width
            assert schedule.index[k, s].tolist() == batch + padding


@given(BATCHES)
@settings(max_examples=100, deadline=None)
def test_sorted_by_their_steps_those_who_have_a_batch_are_the_first(batches: list[list[list[int]]]):
    schedule = Schedule.of(arrays(batches))
    order = np.argsort(-schedule.steps, kind="stable")
    batches, schedule = [batches[i] for i in order], schedule.ordered(order)
    active = schedule.active
    assert active == [sum(len(mine) > s for mine in batches) for s in range(schedule.index.shape[1])]
    for s, count in enumerate(active):
        lengths = [len(mine[s]) for mine in batches[:count]]
        width, mask = schedule.width(s, count)
        assert all(len(mine) <= s for mine in batches[count:])
        assert width == max(lengths)
        if min(lengths) == width:
            assert mask is None
        else:
            assert mask is not None
            assert mask.tolist() == [[i < n for i in range(width)] for n in lengths]


def test_the_width_is_that_of_the_clients_asked_for():
    schedule = Schedule.of([[np.array([7, 8])], [np.array([1, 2, 3, 4])]])
    width, mask = schedule.width(0, 1)
    assert (width, mask) == (2, None)


@pytest.mark.parametrize("sizes", [(3, 0, 5), (0, 0, 1), (7, 7, 7)])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_all_batches_are_all_data_once(sizes: tuple[int, ...], size: int):
    rows = np.split(np.arange(sum(sizes))[::-1], np.cumsum(sizes)[:-1])
    clients = Clients.split(np.zeros((sum(sizes), 2)), np.zeros(sum(sizes), int), rows)
    schedule = all_batches(clients, [0, 1, 2], size)
    for k, mine in enumerate(rows):
        seen = [schedule.index[k, s, : schedule.count[k, s]] for s in range(schedule.steps[k])]
        assert np.concatenate([*seen, np.empty(0, int)]).tolist() == mine.tolist()
        assert all(len(b) == size for b in seen[:-1])


def test_a_client_without_data_has_an_empty_probe():
    clients = Clients.of([(np.zeros((0, 2)), np.zeros(0, int)), (np.zeros((3, 2)), np.zeros(3, int))])
    schedule = probe_batches(clients, [0, 1], SGD(batch=2), 0, 0)
    assert schedule.count.tolist() == [[0], [2]]
    assert schedule.steps.tolist() == [0, 1]
