"""What the Ray engine sends and brings back, in this process: the same model, bit for bit, as on one machine."""

import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

import fedstrata as fs
from fedstrata.descent import Federation
from fedstrata.errors import NotFiniteError, SettingError
from fedstrata.parts import Sample
from fedstrata.runtimes import Ray, Vault, choose
from fedstrata.runtimes import ray as rays
from fedstrata.runtimes.crew import packed, unpacked
from fedstrata.task import Task
from tests.federations import PLAIN, flat, mlp, unequal_clients
from tests.runtimes.test_degenerate import with_saboteur
from tests.runtimes.test_unequal_clients import bn_cnn, image_clients

R = fs.recipes
CHUNK = 3
EACH = 3 * 8 * sum(p.numel() for p in mlp().parameters()) / 2**30
"""GiB for one update, three times in float64."""


class Here:
    """A cluster of one worker, which is this process; everything is sent all the same. It loses a job if told to."""

    def __init__(self) -> None:
        self.sent, self.received, self.lose, self.kinds = 0, 0, set[int](), Counter[str]()

    def put(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def equip(self, make: Callable[..., Any], *given: bytes) -> None:
        self.work = make(*map(pickle.loads, given))

    def each(self, job: Callable[[int], Any], numbers: Iterable[int], common: bytes) -> Iterator[tuple[int, Any]]:
        for number in numbers:
            if number in self.lose:
                self._done(common, job(number))
            yield number, unpacked(pickle.loads(self._done(common, job(number))))

    def _done(self, common: bytes, job: Any) -> bytes:
        sent = pickle.dumps(packed(job, copy=False))
        back = pickle.dumps(packed(self.work(unpacked(pickle.loads(common)), unpacked(pickle.loads(sent)))))
        self.sent, self.received = self.sent + len(sent), self.received + len(back)
        self.kinds[job[0]] += 1
        return back

    def close(self) -> None:
        return


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    cluster = Here()
    monkeypatch.setattr(choose, "Cluster", lambda *_: cluster)
    return cluster


def run(recipe: Any, engine: Any, **settings: Any) -> fs.Run:
    given: dict[str, Any] = {"rounds": 3, "training": fs.SGD(lr=0.1, batch=5, epochs=2), "chunk": CHUNK} | settings
    model, clients = given.pop("model", mlp()), given.pop("clients", unequal_clients())
    return fs.simulate(recipe, model, clients, engine=engine, **given)


def lines(run: fs.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in run.rounds]


def assert_same(one: fs.Run, other: fs.Run) -> None:
    assert lines(one) == lines(other)
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    assert all(torch.equal(mine[n], theirs[n]) for n in mine)
    torch.testing.assert_close(one.notes, other.notes, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", PLAIN)
def test_a_run_over_a_cluster_is_that_of_one_machine_with_the_same_chunks(name: str):
    engine = "apart" if name == "fedetf" else "stacked"  # its head cannot be folded, so workers take one by one
    assert_same(run(R.METHODS[name](), "ray"), run(R.METHODS[name](), engine))


@pytest.mark.parametrize("name", [n for n in PLAIN if not R.METHODS[n]().single and n != "fedetf"])
def test_partial_sums_are_those_of_a_cohort_larger_than_memory(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rays, "SMALL", 0)
    assert_same(run(R.METHODS[name](), "ray"), run(R.METHODS[name](), "stacked", memory=(CHUNK + 0.5) * EACH))


@pytest.mark.parametrize("buffers", ["average", "local", "global"])
@pytest.mark.parametrize("name", ["scaffold", "moon", "fedlws", "ccvr"])
def test_convolutions_go_one_by_one_and_keep_what_they_keep(name: str, buffers: str):
    training = fs.SGD(lr=0.05, batch=6, momentum=0.9, reset_optimizer=False)
    given: dict[str, Any] = {"buffers": buffers, "training": training, "model": bn_cnn(), "clients": image_clients()}
    assert_same(run(R.METHODS[name](), "ray", **given), run(R.METHODS[name](), "apart", **given))


def test_sampled_clients_remember():
    recipe = R.scaffold(select=Sample(k=3))
    assert_same(run(recipe, "ray", rounds=6), run(recipe, "stacked", rounds=6))


def test_a_job_that_is_done_twice_changes_nothing(here: Here):
    """What clients remember is told to the worker, and kept when its answer is there."""
    here.lose = {0, 2}
    for name in ("scaffold", "moon"):
        assert_same(run(R.METHODS[name](), "ray"), run(R.METHODS[name](), "stacked"))


FAULTS = fs.Faults(dropout=0.2, straggle=0.3, late=0.2, nan=0.2, sign_flip=0.2, label_flip=0.2)


@pytest.mark.parametrize("small", [rays.SMALL, 0])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedadp"])
def test_faults_strike_the_same_clients(name: str, small: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rays, "SMALL", small)
    mine, theirs = (run(R.METHODS[name](), e, faults=FAULTS, rounds=6, evaluate_every=6) for e in ("ray", "stacked"))
    torch.testing.assert_close(flat(mine.model), flat(theirs.model), rtol=0, atol=1e-12)
    kinds = [{k: line.get(k) for k in ("cohort", "dropped", "faults", "warnings")} for line in mine.rounds]
    assert kinds == [{k: line.get(k) for k in ("cohort", "dropped", "faults", "warnings")} for line in theirs.rounds]
    assert any(line["dropped"] for line in mine.rounds)


@pytest.mark.parametrize("small", [rays.SMALL, 0])
def test_what_is_not_finite_is_left_out_or_a_sentence(small: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rays, "SMALL", small)
    clients = unequal_clients((9, 4, 20, 1, 7) * 2)
    mine, theirs = (run(with_saboteur(R.fedavg(), 20), e, clients=clients) for e in ("ray", "stacked"))
    assert [r["dropped"] for r in mine.rounds] == [[2, 7]] * 3
    torch.testing.assert_close(flat(mine.model), flat(theirs.model), rtol=0, atol=1e-12)
    with pytest.raises(NotFiniteError, match="round 0: clients 2, 7 returned values that are NaN"):
        run(with_saboteur(R.fedavg(), 20), "ray", clients=clients, on_nonfinite="raise")


def test_sets_of_many_examples_are_scored_in_the_batches_of_one_machine(here: Here, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rays, "LIGHT", 0)
    draw = torch.Generator().manual_seed(0)
    test = torch.randn(5000, 6, generator=draw), torch.randint(0, 3, (5000,), generator=draw)
    given = {"model": mlp(dtype=torch.float32), "test": test, "val": (test[0].T.contiguous().T, test[1])}
    assert_same(run("fedavg", "ray", **given), run("fedavg", "stacked", **given))
    assert here.kinds == {"train": 9, "score": 18}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("small", [rays.SMALL, 0])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedadp", "fedbs", "moon"])
def test_a_gpu_is_sent_to_and_received_from(name: str, small: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rays, "SMALL", small)
    monkeypatch.setattr(rays, "LIGHT", 0)
    test = torch.randn(5000, 1, 4, 4), torch.randint(0, 3, (5000,))
    given = {"model": bn_cnn(), "clients": image_clients(), "test": test, "device": "cuda", "chunk": 2}
    mine, theirs, cpu = (
        run(name, e, **given | more) for e, more in (("ray", {}), ("stacked", {}), ("stacked", {"device": "cpu"}))
    )
    for other in (theirs, cpu):
        torch.testing.assert_close(flat(mine.model), flat(other.model), rtol=0, atol=1e-9)
        assert mine.final["test"]["loss"] == pytest.approx(other.final["test"]["loss"], rel=1e-9)


def test_a_run_is_gone_on_with_by_another_engine(tmp_path):
    class Broken(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise Broken

    whole = run("scaffold", "stacked", rounds=6)
    with pytest.raises(Broken):
        run("scaffold", "ray", rounds=6, out=tmp_path / "run", checkpoint=2, on_round=stop)
    again = run("scaffold", "ray", rounds=6, out=tmp_path / "run", checkpoint=2, resume=True)
    assert_same(whole, again)


def test_partial_sums_and_what_is_the_same_for_all_save_bytes(here: Here, monkeypatch: pytest.MonkeyPatch):
    wide, clients = torch.nn.Linear(6, 3000), unequal_clients((5,) * 12)
    given: dict[str, Any] = {"model": wide, "clients": clients, "rounds": 1, "chunk": 6}
    model = 4 * sum(p.numel() for p in wide.parameters())
    run("fedprox", "ray", **given)
    assert 12 * model < here.received < 13 * model
    monkeypatch.setattr(rays, "SMALL", 0)
    here.received = 0
    run("fedprox", "ray", **given)
    assert 2 * model < here.received < 3 * model
    here.sent = 0
    run("scaffold", "ray", **given)
    assert 2 * model < here.sent < 3 * model  # c once a chunk, and nobody remembers anything yet


@pytest.mark.parametrize(
    ("stacked", "count", "step"),
    [(True, 7, 7), (True, 10, 5), (True, 20, 7), (True, 100, 8), (True, 1000, 16), (False, 1, 1), (False, 20, 1),
     (False, 100, 6), (False, 1000, 16), (True, 0, 1)],
)  # fmt: skip
def test_chunks_depend_on_the_cohort_alone(stacked: bool, count: int, step: int, here: Here):
    fed = Federation(R.fedavg(), Task.of(mlp()), unequal_clients(), fs.SGD())
    vault = Vault({})
    made = Ray(fed, vault, {}, here, stacked, None, partial(choose.steps_of, rounds=1, compile="never"))  # pyright: ignore[reportArgumentType]
    assert made.clients_in_a_chunk(count) == step


class Locked(torch.nn.Linear):
    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle '_thread.lock' object")

    def __deepcopy__(self, _: Any) -> "Locked":
        return self


def test_what_cannot_be_sent_is_a_sentence():
    with pytest.raises(SettingError, match=r"cannot be sent to other processes \(TypeError: .*lock.*\); give"):
        run("fedavg", "ray", model=Locked(6, 3))


def test_without_ray_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match=r"engine = 'ray' needs ray: pip install 'fedstrata\[ray\]'"):
        run("fedavg", "ray")


def test_an_address_is_for_ray_alone():
    with pytest.raises(SettingError, match="ray_address is for engine = 'ray', and the engine is 'pool'"):
        run("fedavg", "pool", ray_address="10.0.0.1:6379")
