"""Faults on purpose do what they say, the same wherever a run is computed."""

import json
import tomllib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedstrata as fs
from fedstrata import closed, toml
from fedstrata.clients import training_batches
from fedstrata.errors import DataError, NotFiniteError, SettingError
from fedstrata.faults import Fates
from fedstrata.record import read_rounds
from fedstrata.runtimes import choose
from tests.federations import PLAIN, flat, mlp, unequal_clients
from tests.slow import FIVE, TRAIN, cross_entropy, descend, library, load, shares, steps

R = fs.recipes
ALL = fs.Faults(
    dropout=0.2, straggle=0.3, late=0.2, nan=0.1, garbage=0.1, sign_flip=0.2, scale=0.2, scale_by=-3, label_flip=0.3
)
A_FEW = 3 * 3 * 8 * sum(p.numel() for p in mlp().parameters()) / 2**30
"""GiB for three updates."""

CHANCES, ATTACKS = list(ALL.chances), list(ALL.attacks)

Send = Callable[[Tensor, int], Tensor]
"""(a client's true update, the client) -> what it sends."""


def struck(run: fs.Run, fault: str) -> list[list[int]]:
    return [r.get("faults", {}).get(fault, []) for r in run.rounds]


def by_hand(run: fs.Run, away: str = "", send: Send = lambda d, _: d, short: str = "", share: float = 1.0) -> Tensor:
    """FedAvg, client by client, without those whom the run says were away."""
    clients, w = unequal_clients(FIVE), flat(mlp())
    for r in run.rounds:
        faults = r.get("faults", {})
        here = [k for k in r["cohort"] if k not in faults.get(away, [])]
        deltas = []
        for k in here:
            part = max(1, round(share * steps(clients, k, r["round"]))) if k in faults.get(short, []) else None
            mine = descend(load(w), clients, k, r["round"], cross_entropy, TRAIN, part)
            deltas.append(send(flat(mine) - w, k))
        w = w + sum((p * d for p, d in zip(shares(clients, here), deltas, strict=True)), torch.zeros_like(w))
    return w


def close(found: fs.Run, want: Tensor) -> None:
    torch.testing.assert_close(flat(found.model), want, rtol=0, atol=1e-11)


def happened(lines: list[list[int]]) -> None:
    """To some client and not to all."""
    assert 0 < sum(map(len, lines)) < len(FIVE) * len(lines)


@pytest.mark.parametrize("fault", ["dropout", "late", "nan"])
def test_updates_that_never_come_or_too_late_or_as_nan_do_not_count(fault: str):
    run = library(R.fedavg(), 3, FIVE, faults=fs.Faults.from_dict({fault: 0.4}))
    happened(struck(run, fault))
    close(run, by_hand(run, fault))
    assert [r["dropped"] for r in run.rounds] == (struck(run, fault) if fault == "nan" else [[]] * 3)


def test_nan_can_be_an_error():
    with pytest.raises(NotFiniteError, match="round 0: client"):
        library(R.fedavg(), 3, FIVE, faults=fs.Faults(nan=1), on_nonfinite="raise")


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_stragglers_make_their_first_steps_only(share: float):
    run = library(R.fedavg(), 3, FIVE, faults=fs.Faults(straggle=0.5, straggle_share=share))
    happened(struck(run, "straggle"))
    close(run, by_hand(run, short="straggle", share=share))


def test_the_server_hears_how_many_steps_a_straggler_made():
    faults = fs.Faults(straggle=1, straggle_share=0.01)
    slow = library(R.fednova(), 1, FIVE, faults=faults)
    one = library(R.fednova(), 1, FIVE, training=fs.SGD(lr=TRAIN.lr, batch=TRAIN.batch, epochs=1))
    assert not torch.allclose(flat(slow.model), flat(one.model))
    close(slow, flat(library(R.fedavg(), 1, FIVE, faults=faults).model))  # one step each: nothing to normalise


@pytest.mark.parametrize(
    ("faults", "factor"),
    [(fs.Faults(sign_flip=0.4), -1.0), (fs.Faults(scale=0.4), 10.0), (fs.Faults(scale=0.4, scale_by=-0.5), -0.5)],
)
def test_attackers_send_another_update_in_every_round(faults: fs.Faults, factor: float):
    run = library(R.fedavg(), 2, FIVE, faults=faults)
    attack = "sign_flip" if faults.sign_flip else "scale"
    first, second = struck(run, attack)
    assert first == second
    assert len(first) == 2
    close(run, by_hand(run, send=lambda delta, k: factor * delta if k in first else delta))


def test_garbage_is_as_large_as_the_model_and_new_every_time():
    run = library(R.fedavg(), 2, FIVE, faults=fs.Faults(garbage=1))
    assert struck(run, "garbage") == [[0, 1, 2, 3, 4]] * 2
    drift = run.notes[0]["drift"].square().sum(1).sqrt()  # [K]
    size = float(flat(mlp()).norm())
    assert ((drift > 0.6 * size) & (drift < 1.6 * size)).all()
    assert len(set(drift.tolist())) == 5
    assert not torch.equal(run.notes[0]["drift"], run.notes[1]["drift"])


def test_garbage_for_a_model_that_is_zero_is_not_zero():
    run = library(R.fedavg(), 1, FIVE, model=load(torch.zeros_like(flat(mlp()))), faults=fs.Faults(garbage=1))
    assert (run.notes[0]["drift"] > 0).all()


def test_flipped_labels_are_trained_on_and_true_ones_evaluated_on():
    run = library(R.fedavg(), 2, FIVE, faults=fs.Faults(label_flip=0.4))
    attackers = struck(run, "label_flip")[0]
    clients = unequal_clients(FIVE)
    y = clients.y.clone()
    for k in attackers:
        y[clients.rows[k]] = 2 - y[clients.rows[k]]
    assert len(attackers) == 2
    by_others = library(R.fedavg(), 2, clients=fs.Clients(clients.x, y, clients.rows))
    close(run, flat(by_others.model))
    assert run.final["train"]["loss"] != by_others.final["train"]["loss"]
    model = load(flat(run.model))
    want = float(cross_entropy(model, clients.x, clients.y).detach())
    assert run.final["train"]["loss"] == pytest.approx(want)


def test_flipping_needs_labels_and_one_owner_of_each_example():
    x = torch.zeros(4, 6, dtype=torch.float64)
    with pytest.raises(DataError, match="needs class labels, and the targets are numbers"):
        fs.simulate(
            R.fedavg(), mlp(classes=1), [(x, x[:, :1])] * 2, rounds=1, loss="squared_error",
            faults=fs.Faults(label_flip=0.5),
        )  # fmt: skip
    twice = fs.Clients.split(x, [0, 1, 2, 0], [np.arange(3), np.arange(2, 4)])
    with pytest.raises(DataError, match="examples that have one client each; some have several"):
        fs.simulate(R.fedavg(), mlp(), twice, rounds=1, faults=fs.Faults(label_flip=1))


def test_the_late_remember_what_they_did_and_those_who_dropped_out_or_broke_do_not():
    keeping = fs.SGD(lr=0.1, batch=5, momentum=0.9, reset_optimizer=False)
    away, late, broken = (
        library(R.fedavg(), 4, FIVE, training=keeping, faults=fs.Faults.from_dict({f: 0.4}))
        for f in ("dropout", "late", "nan")
    )

    def turns(run: fs.Run, fault: str) -> Tensor:
        """The model after the clients' steps with momentum of their own; who dropped out lost a turn."""
        clients, w, memory = unequal_clients(FIVE), flat(mlp()), dict[int, Tensor]()
        for r in run.rounds:
            gone = r.get("faults", {}).get(fault, [])
            here = [k for k in r["cohort"] if k not in gone]
            after = {}
            for k in r["cohort"] if fault == "late" else here:
                after[k], memory[k] = with_momentum(w, clients, k, r["round"], memory.get(k))
            w = w + sum(p * (after[k] - w) for p, k in zip(shares(clients, here), here, strict=True))
        return w

    close(away, turns(away, "dropout"))
    close(late, turns(late, "late"))
    close(broken, turns(broken, "nan"))


def with_momentum(
    w: Tensor, clients: fs.Clients, k: int, number: int, velocity: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One client's steps of SGD with momentum that goes on where it was: (its model, its velocity)."""
    schedule = training_batches(clients, [k], fs.SGD(batch=5), 0, number)
    velocity = torch.zeros_like(w) if velocity is None else velocity
    for rows, count in zip(schedule.index[0], schedule.count[0], strict=True):
        model = load(w)
        cross_entropy(model, clients.x[rows[:count]], clients.y[rows[:count]]).backward()
        grad = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        velocity = 0.9 * velocity + grad
        w = w - 0.1 * velocity
    return w, velocity


def records(run: fs.Run) -> list[Any]:
    return [(r["cohort"], r["dropped"], r.get("faults")) for r in run.rounds]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "moon", "fednova", "fedlws"])
def test_every_engine_has_the_same_faults(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choose, "cores", lambda: 2)
    given = {"seed": 3, "faults": ALL, "clients": unequal_clients((9, 4, 20, 1, 7) * 3)}
    recipe = R.METHODS[name](select=fs.parts.Sample(k=9))
    apart = library(recipe, 4, engine="apart", **given)
    others = [library(recipe, 4, engine="stacked", chunk=4, **given), library(recipe, 4, engine="pool", **given)]
    for other in others:
        assert records(other) == records(apart)
        torch.testing.assert_close(flat(other.model), flat(apart.model), rtol=1e-9, atol=1e-9)
    told = {fault for r in apart.rounds for fault in r.get("faults", {})}
    assert told == {*CHANCES, *ATTACKS}  # all of them happened


def test_workers_and_compiled_loops_change_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choose, "cores", lambda: 3)
    given = {"faults": ALL, "clients": unequal_clients((9, 4, 20, 1) * 2)}
    one, three = (library(R.fedavg(), 3, engine="pool", workers=w, **given) for w in (1, 3))
    assert torch.equal(flat(one.model), flat(three.model))
    linear = torch.nn.Linear(6, 3, dtype=torch.float64)
    plain = library(R.fedavg(), 3, model=linear, **given)
    monkeypatch.setattr(closed, "PAYS", 0)
    close(library(R.fedavg(), 3, model=linear, **given), flat(plain.model))


@pytest.mark.parametrize("name", PLAIN)
def test_faults_that_never_strike_change_not_a_bit(name: str):
    settings = {"select": fs.parts.Sample(k=3)}
    with_, without = (library(R.METHODS[name](**settings), 2, FIVE, faults=f) for f in (fs.Faults(), None))
    assert torch.equal(flat(with_.model), flat(without.model))
    lines = [[{k: v for k, v in r.items() if k != "seconds"} for r in run.rounds] for run in (with_, without)]
    assert json.dumps(lines[0]) == json.dumps(lines[1])


@pytest.mark.parametrize("fault", ["dropout", "late"])
@pytest.mark.parametrize("memory", [None, A_FEW])
def test_rounds_to_which_nobody_comes_are_empty(fault: str, memory: float | None):
    run = library(R.fedavg(), 2, FIVE, faults=fs.Faults.from_dict({fault: 1}), memory=memory)
    assert torch.equal(flat(run.model), flat(mlp()))
    assert struck(run, fault) == [[0, 1, 2, 3, 4]] * 2
    assert all(r["empty"] and r["warnings"] == ["no client was usable, so nothing changed"] for r in run.rounds)


def test_cohorts_that_are_merged_as_they_come_have_the_same_faults():
    whole, pieces = (library(R.scaffold(), 3, FIVE, faults=ALL, memory=m) for m in (None, A_FEW))
    assert records(whole) == records(pieces)
    torch.testing.assert_close(flat(pieces.model), flat(whole.model), rtol=1e-9, atol=1e-9)


def test_one_seed_gives_one_set_of_faults_and_another_seed_another():
    one, again, other = (library(R.fedavg(), 3, FIVE, faults=ALL, seed=s) for s in (5, 5, 6))
    assert records(one) == records(again)
    assert torch.equal(flat(one.model), flat(again.model))
    assert records(one) != records(other)


def test_more_of_one_fault_leaves_the_others_where_they_were():
    clients = range(200)
    some, more = (Fates.of(f, 0, np.ones(200)) for f in (fs.Faults(late=0.2), fs.Faults(late=0.2, garbage=0.5)))
    assert some.told(3, clients)["late"] == more.told(3, clients)["late"]


@pytest.mark.parametrize("fault", CHANCES)
def test_chances_are_met(fault: str):
    fates = Fates.of(fs.Faults.from_dict({fault: 0.3}), 1, np.ones(500))
    found = np.mean([fates.struck(fault, number, range(500)) for number in range(8)])
    assert found == pytest.approx(0.3, abs=0.03)  # four deviations


def test_no_client_has_two_attacks_and_none_without_data_has_one():
    sizes = np.ones(30)
    sizes[:10] = 0
    fates = Fates.of(fs.Faults(sign_flip=0.2, scale=0.3, label_flip=0.5), 0, sizes)
    assert sorted(fates.attackers) == list(range(10, 30))
    assert [list(fates.attackers.values()).count(a) for a in ATTACKS] == [4, 6, 10]


def test_who_drops_out_does_nothing_else():
    fates = Fates.of(fs.Faults(dropout=0.5, straggle=1, late=1, nan=1, sign_flip=1), 0, np.ones(50))
    kinds = {fates.at(0, i) for i in range(50)}
    assert kinds == {("dropout",), ("straggle", "late")}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dropout": 1.5}, "Faults.dropout must be a chance in [0, 1]; got 1.5"),
        ({"nan": -0.1}, "Faults.nan must be a chance"),
        ({"late": "often"}, "Faults.late must be a number; got 'often'"),
        ({"straggle_share": 0}, "Faults.straggle_share must be in (0, 1]"),
        ({"sign_flip": 2}, "Faults.sign_flip must be a share of the clients"),
        ({"sign_flip": 0.6, "label_flip": 0.6}, "add up to 1.2 of the clients"),
        ({"drop_out": 0.1}, "Faults has no setting 'drop_out'; did you mean 'dropout'?"),
        ({"scale_by": float("inf")}, "Faults.scale_by must be a number"),
    ],
)  # fmt: skip
def test_wrong_values_get_a_sentence(settings: dict[str, Any], sentence: str):
    with pytest.raises(SettingError) as e:
        fs.Faults.from_dict(settings)
    assert sentence in str(e.value)


def test_faults_travel_as_toml(tmp_path):
    said = tomllib.loads('method = "fedavg"\nrounds = 2\n[faults]\ndropout = 0.3\nsign_flip = 0.2\n')
    experiment = fs.Experiment.of(said)
    assert experiment.faults == fs.Faults(dropout=0.3, sign_flip=0.2)
    assert fs.Experiment.of(tomllib.loads(toml.dumps(experiment.settings()))) == experiment
    assert "faults" not in fs.Experiment.of({"method": "fedavg"}).settings()
    run = experiment.run(tmp_path / "one")
    again = fs.Experiment.of(tomllib.loads((tmp_path / "one/experiment.toml").read_text())).run(tmp_path / "two")
    assert records(run) == records(again)
    lines = read_rounds(tmp_path / "one")
    assert [r.get("faults") for r in lines] == [r.get("faults") for r in run.rounds]
    assert len(lines[0]["faults"]["sign_flip"]) in range(1, 5)  # four of twenty, some of whom may have dropped out


def test_a_run_from_python_records_its_faults(tmp_path):
    library(R.fedavg(), 1, FIVE, faults=fs.Faults(late=0.5), out=tmp_path / "run")
    assert tomllib.loads((tmp_path / "run/experiment.toml").read_text())["faults"]["late"] == 0.5


def test_a_run_that_is_gone_on_with_has_the_same_faults(tmp_path):
    def trip(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise RuntimeError("power cut")

    given = {"faults": ALL, "checkpoint": 2, "seed": 4}
    whole = library(R.scaffold(), 6, FIVE, **given)
    with pytest.raises(RuntimeError, match="power cut"):
        library(R.scaffold(), 6, FIVE, out=tmp_path / "run", on_round=trip, **given)
    rest = library(R.scaffold(), 6, FIVE, out=tmp_path / "run", resume=True, **given)
    assert records(rest) == records(whole)
    assert torch.equal(flat(rest.model), flat(whole.model))


def accuracy(method: str, **faults: float) -> float:
    """On digits, after six rounds of twelve clients alike."""
    plan = {"method": method, "rounds": 6, "evaluate_train": False, "partition": {"kind": "IID", "clients": 12}}
    return fs.Experiment.of(plan | {"faults": faults}).run().final["test"]["accuracy"]


def test_nan_is_screened_out_and_garbage_is_averaged():
    assert accuracy("fedavg", nan=0.3) > 0.85
    assert accuracy("fedavg", garbage=0.8) < 0.8


def test_weights_by_angle_bear_flipped_signs_better_than_an_average():
    sound, average, by_angle = accuracy("fedadp"), accuracy("fedavg", sign_flip=0.3), accuracy("fedadp", sign_flip=0.3)
    assert average < sound - 0.1
    assert by_angle > sound - 0.05
