from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstrata.clients import Clients, Rows, Schedule, cast, probe_batches, training_batches
from fedstrata.errors import DataError
from fedstrata.optim import SGD


def pair(count: int, start: int = 0, width: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Examples whose every feature is their own number, with labels in turn."""
    numbers = np.arange(start, start + count)
    return np.repeat(numbers[:, None], width, 1).astype(np.float32), numbers % 3


def federation(*sizes: int) -> Clients:
    starts = np.cumsum([0, *sizes])
    return Clients.of([pair(n, s) for n, s in zip(sizes, starts, strict=False)])


def lists(schedule: Schedule, k: int) -> list[list[int]]:
    """The real rows of one client's batches."""
    return [schedule.index[k, s, : schedule.count[k, s]].tolist() for s in range(schedule.steps[k])]


def test_pairs_become_rows_of_one_pair_of_tensors():
    clients = federation(2, 0, 3)
    assert len(clients) == 3
    assert clients.sizes.tolist() == [2, 0, 3]
    assert [r.tolist() for r in clients.rows] == [[0, 1], [], [2, 3, 4]]
    assert clients.x[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert clients.y.tolist() == [0, 1, 2, 0, 1]
    assert clients.y.dtype == torch.int64


def test_clients_pass_through():
    clients = federation(2, 3)
    assert Clients.of(clients) is clients


def test_lists_arrays_and_tensors_are_all_examples():
    x, y = pair(3)
    for given_ in ((x, y), (torch.from_numpy(x), torch.from_numpy(y)), (x.tolist(), y.tolist())):
        clients = Clients.of([given_])
        assert clients.x.tolist() == x.tolist()
        assert clients.y.tolist() == y.tolist()


def test_small_whole_numbers_are_labels_and_floats_are_targets():
    x, y = pair(3)
    assert Clients.of([(x, y.astype(np.uint8))]).y.dtype == torch.int64
    assert Clients.of([(x, np.array([True, False, True]))]).y.tolist() == [1, 0, 1]
    assert Clients.of([(x, y.astype(np.float32))]).y.dtype == torch.float32


def test_split_gives_each_client_its_rows():
    x, y = pair(5)
    clients = Clients.split(x, y, [np.array([4, 0]), np.array([], dtype=np.int64), [2]])  # pyright: ignore[reportArgumentType]
    assert [r.tolist() for r in clients.rows] == [[4, 0], [], [2]]
    assert all(r.dtype == np.int64 for r in clients.rows)
    assert len(clients.x) == 5


def test_owned_keeps_what_somebody_owns():
    clients = Clients.split(*pair(6), [np.array([4, 0]), np.array([], dtype=np.int64), np.array([2])]).owned()
    assert clients.x[:, 0].tolist() == [0, 2, 4]
    assert clients.y.tolist() == [0, 2, 1]
    assert [r.tolist() for r in clients.rows] == [[2, 0], [], [1]]


def test_owned_copies_nothing_when_all_are_owned():
    clients = federation(2, 3)
    assert clients.owned() is clients
    shared = Clients.split(*pair(5), [np.array([1, 0, 4]), np.array([2, 3, 4])])
    assert shared.owned() is shared


def test_rows_are_a_sequence():
    rows = Rows([np.array([3, 1]), np.array([], dtype=np.int32), np.array([2])])
    assert len(rows) == 3
    assert [r.tolist() for r in rows] == [[3, 1], [], [2]]
    assert rows[-1].tolist() == [2]
    assert [r.tolist() for r in rows[:2]] == [[3, 1], []]
    assert rows.sizes.tolist() == [2, 0, 1]
    with pytest.raises(IndexError, match="client 3 of 3"):
        rows[3]


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6).filter(any), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_owned_clients_see_the_same_examples(sizes: list[int], seed: int):
    numbers = np.random.default_rng(seed).permutation(sum(sizes) + 5)
    clients = Clients.split(*pair(len(numbers)), np.split(numbers[:-5], np.cumsum(sizes)[:-1]))
    owned = clients.owned()
    assert owned.sizes.tolist() == clients.sizes.tolist()
    assert len(owned.x) == sum(sizes)
    for mine, before in zip(owned.rows, clients.rows, strict=True):
        torch.testing.assert_close(owned.x[mine], clients.x[before], rtol=0, atol=0)
        torch.testing.assert_close(owned.y[mine], clients.y[before], rtol=0, atol=0)


def test_labels_are_counted_for_every_client():
    x = np.zeros((7, 1))
    y = np.array([0, 0, 3, 1, 1, 1, 3])
    clients = Clients.split(x, y, [np.array([0, 1, 2]), np.array([], dtype=np.int64), np.array([5, 6])])
    assert clients.labels().tolist() == [[2, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]]
    assert clients.labels().dtype == torch.float64


def test_only_floating_point_values_change_their_type():
    clients = federation(2, 3).to(torch.device("cpu"), torch.float64)
    assert clients.x.dtype == torch.float64
    assert clients.y.dtype == torch.int64
    assert [r.tolist() for r in clients.rows] == [[0, 1], [2, 3, 4]]
    assert cast(torch.tensor([1, 2]), torch.device("cpu"), torch.float16).dtype == torch.int64


BAD = np.array([[1.0, 2.0], [np.nan, 0.0]], dtype=np.float32)


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([], "there are no clients: give a list of (x, y) pairs, one for each"),
        ([pair(2), (pair(3)[0], pair(2)[1])], "client 1 has 3 examples but 2 targets"),
        ([pair(2), (BAD, pair(2)[1])], "client 1 has features that are NaN or infinite; clean them first"),
        ([(np.where(np.isnan(BAD), np.inf, BAD), pair(2)[1])], "client 0 has features that are NaN or infinite"),
        ([(pair(2)[0], np.array([0, -1]))], "client 0 has the label -1; labels are counted from 0"),
        ([pair(2), pair(2, width=3)], "the clients' examples have different shapes: (2,), (3,)"),
        ([pair(0), pair(0)], "none of the 2 clients has an example"),
        ([3], "client 0 must be a pair (x, y) of arrays or tensors; got int"),
        ([(pair(2)[0],)], "client 0 must be a pair (x, y) of arrays or tensors; got tuple"),
        ([(pair(2)[0], np.array(["a", "b"]))], "client 0 must be a pair (x, y) of arrays or tensors; got tuple"),
    ],
)
def test_unusable_clients_are_a_sentence(clients: Any, sentence: str):
    with pytest.raises(DataError) as error:
        Clients.of(clients)
    assert sentence in str(error.value)


def test_targets_of_different_shapes_are_a_sentence():
    x, y = pair(2)
    with pytest.raises(DataError, match="different shapes"):
        Clients.of([(x, y), (x, y[:, None])])


def test_single_numbers_are_not_examples():
    with pytest.raises(DataError, match=r"client 0 must be a pair \(x, y\)"):
        Clients.of([(1.0, 2)])


def test_unusable_data_to_split_is_a_sentence():
    with pytest.raises(DataError, match="the data has 3 examples but 2 targets"):
        Clients.split(pair(3)[0], pair(2)[1], [np.array([0])])
    with pytest.raises(DataError, match="the data has features that are NaN"):
        Clients.split(BAD, pair(2)[1], [np.array([0])])


def test_a_schedule_pads_with_the_batchs_own_first_row():
    schedule = Schedule.of([[np.array([5, 6, 7]), np.array([8])], [np.array([2, 1])]])
    assert schedule.count.tolist() == [[3, 1], [2, 0]]
    assert schedule.steps.tolist() == [2, 1]
    assert schedule.index.shape == (2, 2, 3)
    assert schedule.index[0].tolist() == [[5, 6, 7], [8, 8, 8]]
    assert schedule.index[1, 0].tolist() == [2, 1, 2]


def test_a_mask_is_there_only_where_some_batch_is_short():
    schedule = Schedule.of([[np.array([5, 6, 7]), np.array([8])], [np.array([2, 1, 0])], [np.array([3, 4])]])
    width, mask = schedule.width(0, 3)
    assert width == 3
    assert mask is not None
    assert mask.tolist() == [[True, True, True], [True, True, True], [True, True, False]]
    assert schedule.width(0, 2)[1] is None


def test_a_batch_is_as_wide_as_its_longest_active_client():
    schedule = Schedule.of([[np.array([5, 6, 7]), np.array([8])], [np.array([2, 1, 0])]])
    assert schedule.active == [2, 1]
    assert schedule.width(1, 1) == (1, None)


def test_clients_in_another_order_keep_their_batches():
    batches = [[np.array([1])], [np.array([2, 3]), np.array([4])], [np.array([5, 6, 7])]]
    schedule = Schedule.of(batches)
    ordered = schedule.ordered(np.array([1, 2, 0]))
    assert ordered.steps.tolist() == [2, 1, 1]
    for now, before in enumerate([1, 2, 0]):
        assert lists(ordered, now) == lists(schedule, before) == [b.tolist() for b in batches[before]]


def test_a_client_without_examples_has_no_steps():
    schedule = training_batches(federation(3, 0), [0, 1], SGD(batch=2), seed=0, round=0)
    assert schedule.steps.tolist() == [2, 0]
    assert lists(schedule, 1) == []


@given(
    sizes=st.lists(st.integers(0, 12), min_size=2, max_size=6).filter(any),
    batch=st.none() | st.integers(1, 6),
    seed=st.integers(0, 1000),
    round=st.integers(0, 50),
    data=st.data(),
)
@settings(max_examples=50, deadline=None)
def test_batches_depend_on_nothing_but_seed_round_and_client(
    sizes: list[int], batch: int | None, seed: int, round: int, data: st.DataObject
):
    clients, training = federation(*sizes), SGD(batch=batch, epochs=2)
    filled = [i for i, n in enumerate(sizes) if n]
    ids = data.draw(st.lists(st.sampled_from(filled), min_size=1, unique=True))
    together = training_batches(clients, ids, training, seed, round)
    asked = probe_batches(clients, ids, training, seed, round)
    for k, i in enumerate(ids):
        alone = training_batches(clients, [i], training, seed, round)
        assert lists(together, k) == lists(alone, 0)
        assert lists(asked, k) == lists(probe_batches(clients, [i], training, seed, round), 0)


def test_batches_differ_between_seeds_rounds_and_clients():
    clients = Clients.split(*pair(50), [np.arange(50), np.arange(50)])
    draws = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    found = {str(lists(training_batches(clients, [i], SGD(), seed, round), 0)) for seed, round, i in draws}
    assert len(found) == len(draws)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_a_client_trains_on_its_own_examples_each_once_an_epoch(sizes: list[int], batch: int):
    clients = federation(*sizes)
    schedule = training_batches(clients, range(len(sizes)), SGD(batch=batch), seed=0, round=0)
    for k, mine in enumerate(clients.rows):
        assert sorted(row for b in lists(schedule, k) for row in b) == mine.tolist()
        padding = schedule.index[k, : schedule.steps[k]]
        assert set(padding.flatten().tolist()) == set(mine.tolist()), "nothing foreign is read"


def test_a_probe_is_one_mini_batch_of_ones_own():
    clients = federation(30, 4)
    schedule = probe_batches(clients, [0, 1], SGD(batch=10), seed=0, round=0)
    assert schedule.count.tolist() == [[10], [4]]
    assert set(lists(schedule, 0)[0]) <= set(range(30))
    assert sorted(lists(schedule, 1)[0]) == [30, 31, 32, 33]
    assert probe_batches(clients, [0], SGD(batch=None), seed=0, round=0).count.tolist() == [[30]]


def test_a_probe_is_not_the_first_training_batch():
    clients = federation(100)
    probe = lists(probe_batches(clients, [0], SGD(batch=20), 0, 0), 0)[0]
    assert sorted(probe) != sorted(lists(training_batches(clients, [0], SGD(batch=20), 0, 0), 0)[0])


def test_thinned_clients_keep_a_share_drawn_from_the_seed_and_one_example_at_least():
    rows = [np.arange(20), np.arange(20, 21), np.arange(21, 23)]
    clients = Clients.split(torch.arange(23.0)[:, None], torch.zeros(23), rows)
    half = clients.thinned(0.5, 0)
    assert half.sizes.tolist() == [10, 1, 1]
    assert set(half.rows[0]) < set(range(20))
    assert half.rows[0].tolist() == clients.thinned(0.5, 0).rows[0].tolist() != clients.thinned(0.5, 1).rows[0].tolist()
    assert clients.thinned(1.0, 0) is clients
