"""Runs that go on together give what each gives by itself."""

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch

import fedstrata as fs
from fedstrata.augment import Augment
from fedstrata.clients import Lengths, Schedule
from fedstrata.runtimes import choose, company, together, visit
from tests.federations import PLAIN, flat, mlp, unequal_clients
from tests.runtimes.test_unequal_clients import bn_cnn, image_clients
from tests.slow import bn_mlp

R = fs.recipes
TRAIN = fs.SGD(lr=0.1, batch=5, epochs=2, momentum=0.5)


def run(recipe: fs.Recipe, seed: int = 0, **settings: Any) -> torch.Tensor:
    given = {"rounds": 3, "training": TRAIN, "engine": "stacked"} | settings
    model, clients = given.pop("model", mlp), given.pop("clients", unequal_clients)
    return flat(fs.simulate(recipe, model(), clients(), seed=seed, **given).model)


def equal_together_and_alone(runs: Sequence[Callable[[], torch.Tensor]]) -> list[torch.Tensor]:
    found, alone = together(runs), [r() for r in runs]
    for a, b in zip(found, alone, strict=True):
        assert isinstance(a, torch.Tensor), a
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    return alone


@pytest.mark.parametrize("name", PLAIN)
def test_two_seeds_of_a_method_are_what_each_is_alone(name):
    one, other = equal_together_and_alone([partial(run, R.METHODS[name](), seed) for seed in (0, 1)])
    assert not torch.allclose(one, other, atol=1e-6)


def test_methods_that_differ_on_the_server_alone_take_their_steps_in_one_pass(monkeypatch):
    stacked: list[int] = []
    take = choose.take_steps

    def counted(desk, feed):
        stacked.append(len(desk.w))
        take(desk, feed)

    monkeypatch.setattr(choose, "take_steps", counted)
    runs = [partial(run, m, clients=unequal_clients) for m in (R.fedavg(), R.fedlws(), R.fedlayerwise(), R.fedadam())]
    equal_together_and_alone(runs)
    assert stacked[:3] == [28] * 3  # seven clients of four runs
    assert stacked[3:] == [7] * 12  # alone


def test_methods_whose_clients_differ_go_on_beside_each_other():
    runs = [partial(run, m) for m in (R.fedavg(), R.fedprox(), R.scaffold(), R.moon(), R.fedprox(mu=0.3))]
    equal_together_and_alone(runs)


@pytest.mark.parametrize(("model", "clients"), [(bn_mlp, unequal_clients), (bn_cnn, image_clients)])
def test_running_statistics_stay_with_their_run(model, clients):
    equal_together_and_alone([partial(run, R.fedavg(), s, model=model, clients=clients) for s in (0, 1, 2)])


def tanh() -> torch.nn.Module:
    model = mlp()
    assert isinstance(model, torch.nn.Sequential)
    model[1] = torch.nn.Tanh()
    return model


def test_models_that_differ_in_a_layer_without_parameters_go_on_beside_each_other():
    equal_together_and_alone([partial(run, R.fedavg(), model=m) for m in (mlp, tanh)])


def noisy() -> torch.nn.Module:
    return torch.nn.Sequential(mlp(6, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 3).double())


def seeded_noisy() -> torch.nn.Module:
    torch.manual_seed(3)
    return noisy()


def test_dropout_draws_what_it_draws_alone():
    equal_together_and_alone([partial(run, R.fedavg(), s, model=seeded_noisy) for s in (0, 1)])


def test_images_are_changed_as_they_are_alone():
    change = Augment(crop=1, flip=True)
    equal_together_and_alone([
        partial(run, R.fedavg(), s, model=bn_cnn, clients=image_clients, augment=change) for s in (0, 1)
    ])  # fmt: skip


@pytest.mark.parametrize(
    "training",
    [fs.Adam(lr=0.01, reset_optimizer=False), fs.SGD(lr=0.1, steps=7, clip=0.5), fs.SGD(lr=0.1, batch=4, decay=0.8)],
    ids=repr,
)
def test_every_optimiser_and_cohorts_of_any_size(training):
    """Of other data, other cohorts, and for other numbers of rounds."""
    some = R.fedavg(select=fs.parts.Sample(k=3))
    runs = [
        partial(run, R.fedavg(), 0, training=training),
        partial(run, some, 1, training=training, rounds=5),
        partial(run, R.fedlws(), 2, training=training, clients=partial(unequal_clients, (40, 2, 9), seed=4)),
        partial(run, some, 3, training=training, chunk=2),
    ]
    equal_together_and_alone(runs)


def test_logistic_regression_in_closed_form():
    def line() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Linear(6, 3).double()

    equal_together_and_alone([partial(run, m, model=line) for m in (R.fedavg(), R.fedprox(mu=0.1), R.fedlws())])


def test_examples_that_two_runs_share_are_there_once():
    seen: list[fs.Clients] = []

    def look(_line: dict[str, Any]) -> None:
        here = company.seat()
        assert here is not None
        seen.append(here.company.examples)

    c, other = unequal_clients(), unequal_clients(seed=5)
    together([partial(run, R.fedavg(), s, clients=lambda: c, on_round=look, rounds=1) for s in (0, 1)])
    assert len(seen[0].x) == len(c.x)
    assert len(seen[0]) == 2 * len(c)
    seen.clear()
    mixed = [partial(run, R.fedavg(), clients=lambda d=d: d, on_round=look, rounds=1) for d in (c, other)]
    together(mixed)
    assert len(seen[0].x) == len(c.x) + len(other.x)


def test_so_are_the_sets_that_they_are_tested_on(monkeypatch):
    seen: set[int] = set()
    score = visit.score

    def watched(task, model, buffers, x, y):
        seen.add(x.data_ptr())
        return score(task, model, buffers, x, y)

    monkeypatch.setattr(visit, "score", watched)

    def tested(seed: int) -> torch.Tensor:
        c, t = unequal_clients(), unequal_clients(seed=5)
        return run(R.fedavg(), seed, test=(t.x, t.y), clients=lambda: c)

    assert all(isinstance(found, torch.Tensor) for found in together([partial(tested, s) for s in (0, 1, 2)]))
    assert len(seen) == 2  # what they train on, and what they are tested on


def test_one_that_fails_does_not_hold_up_the_others():
    def fails() -> torch.Tensor:
        def stop(line: dict[str, Any]) -> None:
            if line["round"] == 1:
                raise ValueError("enough")

        return run(R.fedavg(), on_round=stop)

    found = together([fails, partial(run, R.fedavg(), 1)])
    assert isinstance(found[0], ValueError)
    torch.testing.assert_close(found[1], run(R.fedavg(), 1), rtol=0, atol=1e-11)


def test_what_goes_wrong_in_the_common_steps_is_told_to_all(monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(choose, "take_steps", broken)
    found = together([partial(run, R.fedavg(), s) for s in (0, 1)])
    assert all(isinstance(e, fs.FedstrataError) and "out of memory" in str(e) for e in found)


def test_labels_that_one_run_flips_are_flipped_for_it_alone():
    """It has the examples of the others, and targets of its own."""
    c, flips = unequal_clients(), fs.Faults(label_flip=0.5)
    equal_together_and_alone([partial(run, R.fedavg(), s, clients=lambda: c, faults=flips) for s in (0, 1)])


@pytest.mark.parametrize("faults", [fs.Faults(dropout=0.7), fs.Faults(straggle=0.5, nan=0.3, late=0.2)], ids=str)
def test_faults_strike_whom_they_strike_alone(faults):
    """With rounds that nobody takes part in, after which the runs are at rounds of different numbers and rates."""
    train = fs.SGD(lr=0.1, batch=5, decay=0.5)
    few = R.fedavg(select=fs.parts.Sample(k=2))
    equal_together_and_alone([partial(run, few, s, training=train, rounds=6, faults=faults) for s in (0, 1, 2)])


def test_clients_of_fewer_classes_go_on_beside_the_others():
    """FedETF's know how many examples of each class they have, up to the last one that their run has seen."""
    sizes = (9, 4, 7)
    runs = [partial(run, R.fedetf(), clients=partial(unequal_clients, sizes, classes=n)) for n in (3, 2)]
    equal_together_and_alone(runs)


def test_what_runs_brought_is_let_go_of_before_they_go_on(monkeypatch):
    held: dict[int, weakref.ref[torch.Tensor]] = {}
    join = company.joined

    def watched(fed, desks, feeds, offsets):
        held.update({len(d.w): weakref.ref(d.w) for d in desks})
        return join(fed, desks, feeds, offsets)

    def look(line: dict[str, Any]) -> None:
        assert held[len(line["cohort"])]() is None

    monkeypatch.setattr(company, "joined", watched)
    some = R.fedavg(select=fs.parts.Sample(k=3))
    found = together([partial(run, m, on_round=look, rounds=2) for m in (R.fedavg(), some)])
    assert all(isinstance(f, torch.Tensor) for f in found), found
    assert held.keys() == {7, 3}


def test_one_that_never_takes_a_step_does_not_hold_up_the_others():
    found = together([partial(run, R.fedavg(), training=fs.SGD(batch=3), chunk=-1), partial(run, R.fedavg(), 1)])
    assert isinstance(found[0], fs.FedstrataError)
    assert isinstance(found[1], torch.Tensor)
    mixed = [partial(run, R.fedavg(), engine="apart"), partial(run, R.fedavg(), 1), partial(run, R.fedavg(), 2)]
    equal_together_and_alone(mixed)


def test_a_run_that_another_begins_takes_its_steps_by_itself():
    """As a callback may: the others know nothing of its examples."""
    other = partial(run, R.fedavg(), 3, clients=partial(unequal_clients, seed=5), rounds=1)
    found: list[torch.Tensor] = []

    def begins(_line: dict[str, Any]) -> None:
        found.append(other())

    runs = [partial(run, R.fedavg(), on_round=begins), partial(run, R.fedavg(), 1)]
    assert all(isinstance(f, torch.Tensor) for f in together(runs))
    assert len(found) == 3
    torch.testing.assert_close(found[0], other(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("where", ["take_steps", "_alike"])
def test_when_whoever_keeps_them_is_interrupted_no_run_is_left_waiting(where, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(choose if where == "take_steps" else company, where, interrupted)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        together([partial(run, R.fedavg(), s) for s in (0, 1)])
    assert set(threading.enumerate()) == before


def test_seconds_are_those_spent_on_the_run():
    """Those of two runs together add up to no more than both took, though each waited for the other."""
    lines: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    began = company.perf_counter()
    together([partial(run, R.fedavg(), s, on_round=lines[s].append, rounds=5) for s in (0, 1)])
    took = company.perf_counter() - began
    assert 0 < sum(line["seconds"] for mine in lines.values() for line in mine) <= took


def test_each_counts_its_share_of_what_a_device_takes(monkeypatch):
    """Steps of a GPU are still to be done when they have been told."""
    monkeypatch.setattr(company, "_await", lambda _device: sleep(0.2))
    lines: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    together([partial(run, R.fedavg(), s, on_round=lines[s].append, rounds=1) for s in (0, 1)])
    assert all(lines[s][0]["seconds"] >= 0.1 for s in (0, 1))


def test_batches_are_joined_with_padding_that_is_each_clients_own():
    one = Schedule.of([[np.array([3, 4]), np.array([5])]])
    two = Schedule.of([[np.array([0, 1, 2])], [np.array([7])]])
    assert Lengths.joined([one, two]).count.tolist() == [[2, 1], [3, 0], [1, 0]]
    rows = company.beside([torch.from_numpy(s.index.transpose(1, 2, 0)) for s in (one, two)])  # [S, B, K]
    assert rows[:, :, 0].tolist() == [[3, 4, 3], [5, 5, 5]]
    assert rows[0, :, 1:].T.tolist() == [[0, 1, 2], [7, 7, 7]]
