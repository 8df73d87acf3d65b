"""What captured steps keep from round to round, tried without a GPU: everything but the graphs themselves."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedstrata as fs
from fedstrata import graphs
from fedstrata.augment import Augment
from fedstrata.descent import Federation, take_step
from fedstrata.runtimes import choose, together
from tests.federations import unequal_clients
from tests.runtimes.test_company import R, run, seeded_noisy
from tests.runtimes.test_unequal_clients import bn_cnn, image_clients
from tests.slow import bn_mlp


@pytest.fixture(params=[False, True], ids=["rounded sizes", "one shape"])
def captured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[graphs.Captured]:
    """Steps are those of a GPU, here and one by one: its streams do nothing, and no graph can be had."""
    stream = SimpleNamespace(wait_stream=lambda _: None, device=torch.device("cpu"))
    fakes = {"Stream": lambda _: stream, "current_stream": lambda _: stream, "stream": lambda _: nullcontext()}
    for name, fake in (fakes | {"graph_pool_handle": lambda: None}).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(graphs, "captured", lambda *_: None)
    monkeypatch.setattr(graphs, "compiled", lambda fed, *_: partial(take_step, fed))
    monkeypatch.setattr(graphs, "SIZES", 4)
    made: list[graphs.Captured] = []

    def steps_of(fed: Federation, _clients: int | None = None, **_: object) -> graphs.Captured:
        made.append(graphs.Captured(fed, request.param, tiny=True))
        return made[-1]

    monkeypatch.setattr(choose, "steps_of", steps_of)
    return made


def equal_to_plain_steps(monkeypatch: pytest.MonkeyPatch, *runs: Any) -> None:
    beside, alone = together(runs), [r() for r in runs]
    monkeypatch.undo()
    for r, *found in zip(runs, beside, alone, strict=True):
        for f in found:
            assert isinstance(f, torch.Tensor), f
            torch.testing.assert_close(f, r(), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "training",
    [fs.SGD(lr=0.05, batch=6, decay=0.8), fs.SGD(steps=7, momentum=0.5), fs.Adam(lr=0.01, reset_optimizer=False)],
    ids=repr,
)
def test_more_and_fewer_clients_at_other_rates(training, captured, monkeypatch):
    """Cohorts of any size from other data, some with flipped labels, of runs that do not end at the same time."""
    faults, some = fs.Faults(dropout=0.4, straggle=0.4, label_flip=0.4), R.fedlws(select=fs.parts.Sample(k=3))
    how: dict[str, Any] = {"training": training, "faults": faults}
    few = partial(run, some, 1, rounds=5, clients=partial(unequal_clients, (40, 2, 9, 1), seed=4), **how)
    equal_to_plain_steps(monkeypatch, partial(run, R.fedavg(), 0, **how), few, partial(run, R.fedadam(), 2, **how))
    assert len(captured) == 4  # of those together, and of each alone


@pytest.mark.parametrize("name", ["scaffold", "moon", "fedprox"])
@pytest.mark.usefixtures("captured")
def test_what_clients_are_told_and_remember(name, monkeypatch):
    equal_to_plain_steps(monkeypatch, *(partial(run, R.METHODS[name](), s, rounds=2 + s) for s in (0, 1)))


@pytest.mark.parametrize(
    "what",
    [
        {"model": bn_cnn, "clients": image_clients, "augment": Augment(crop=1, flip=True)},
        {"model": bn_mlp, "buffers": "local"},
        {"model": seeded_noisy},
    ],
    ids=["images", "buffers", "dropout"],
)
@pytest.mark.usefixtures("captured")
def test_images_buffers_and_noise(what, monkeypatch):
    equal_to_plain_steps(monkeypatch, *(partial(run, R.fedavg(), s, rounds=2 + s, **what) for s in (0, 1)))


def test_few_sizes_are_captured_and_companies_share_them():
    """cuDNN tries its algorithms for each size: a company of 260 clients shall find those of one of 480 known."""

    def sizes(everyone: int) -> set[int]:
        found = {count: graphs.rounded(count, everyone) for count in range(1, everyone + 1)}
        assert all(count <= size <= everyone for count, size in found.items())
        return set(found.values())

    assert sizes(20) == set(range(1, 21))
    assert all(len(sizes(n)) <= graphs.SIZES for n in (33, 100, 260, 480, 2000))
    assert sizes(260) - {260} <= sizes(480)
