"""Numbers that cannot be are left out of every kind of reply, and recorded: no arithmetic of the server meets them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message

from fedstrata.errors import NotFiniteError
from fedstrata.flower import serve
from fedstrata.flower.records import unpacked
from tests.flower.federation import BAD, changed, content, equal, experiment, lines, over_grid, own_files
from tests.flower.federation import network as network_in
from tests.flower.grid import InProcess


def filled(value: float, *names: str) -> Any:
    """All numbers of these arrays are this one."""

    def change(arrays: dict[str, Array], facts: dict[str, Any]) -> None:
        for name in names:
            w = arrays[name].numpy()
            arrays[name] = Array(np.full(w.shape, value, w.dtype))

    return change


def said(folder: Path, kind: str = "quarantined") -> list[dict[str, str]]:
    return [line.get(kind, {}) for line in lines(folder / "net")]


def _arrays(reply: Message) -> dict[str, Any]:
    return dict(reply.content["arrays"])


@pytest.mark.parametrize(("name", "value", "why"), [
    ("accuracy", 1e9, "stats/accuracy has "),
    ("accuracy", np.nan, "NaN or infinite"),
    ("loss", np.nan, "NaN or infinite"),
    ("loss", -1.0, "and can have numbers from 0"),
    ("examples", np.inf, "its number of examples is inf"),
    ("examples", 0.5, "its number of examples is 0.5"),
    ("examples", 1e7, "it claims 10,000,000 examples and enrolled with"),
])  # fmt: skip
def test_scores_that_cannot_be_do_not_count(name: str, value: float, why: str, tmp_path: Path):
    bad = changed(filled(value, f"train/{name}"), "score")
    over_grid(experiment(), tmp_path, bad, stop_target=0.999)
    found = lines(tmp_path / "net")
    assert len(found) == 3
    assert why in said(tmp_path)[0]["1"]  # it was asked about the model of round 1, after round 0
    assert found[0]["by_client"].keys() == {"0", "2"}
    assert 0 <= found[0]["train"]["loss"] < 100


@pytest.mark.parametrize("value", [np.nan, -1.0, 1e300])
def test_a_measurement_that_cannot_be_is_told_of_and_its_client_left_out(value: float, tmp_path: Path):
    bad = changed(filled(value, "stats/loss_variance"), "survey")
    over_grid(experiment("fedbs(normalise=True, variance='loss')"), tmp_path, bad)
    assert [list(q) for q in said(tmp_path)] == [[], ["1"], []]
    assert lines(tmp_path / "net")[1]["cohort"] == [0, 2]


@pytest.mark.parametrize(("method", "name", "value", "why"), [
    ("fednova", "stats/steps", -1.0, "stats/steps has -1, and can have whole numbers from 1 to 3"),
    ("fednova", "stats/steps", 1e300, "from 1 to 3"),
    ("fednova", "stats/steps", 1.5, "from 1 to 3"),
    ("qfedavg", "stats/loss", -1.0, "stats/loss has -1, and can have numbers from 0 to 1e+30"),
    ("qfedavg", "stats/loss", 1e300, "stats/loss has 1e+300"),
    ("fairfed", "stats/accuracy", 2.0, "stats/accuracy has 2, and can have numbers from 0 to 1"),
    ("scaffold", "uploads/local.0/dc", 1e30, "uploads/local.0/dc has 1e+30"),
    ("fedavg", "delta", 3e38, "delta has 3e+38, and can have numbers from -1e+15 to 1e+15"),
])  # fmt: skip
def test_a_reply_with_numbers_that_cannot_be_is_as_if_it_had_not_come(
    method: str, name: str, value: float, why: str, tmp_path: Path
):
    exp = experiment(method, rounds=2)
    found = over_grid(exp, tmp_path / "bad", changed(filled(value, name)))
    assert why in said(tmp_path / "bad")[1]["1"]
    assert equal(found, over_grid(exp, tmp_path / "none", changed(lambda a, f: a.clear())))


def test_a_running_variance_below_zero_does_not_count(tmp_path: Path):
    exp = experiment(model="resnet20(norm='batch')", training={"steps": 1}, rounds=2)
    over_grid(exp, tmp_path, changed(filled(-5, "buffers/features.stem.1.running_var")))
    assert "running_var has -5, and can have numbers from 0" in said(tmp_path)[1]["1"]


def test_who_has_no_example_to_train_on_does_not_end_the_run(tmp_path: Path):
    exp = experiment("fedavg(select=Sample(k=1))", rounds=6)

    def none(node: int, message: Message, reply: Message) -> Message:
        _, facts = unpacked(reply.content)
        if node != BAD or facts["kind"] != "train":
            return reply
        return Message(content(_arrays(reply), facts | {"examples": 0}), reply_to=message)

    over_grid(exp, tmp_path, none)
    found = lines(tmp_path / "net")
    assert {"1": "it has no example to train on"} in said(tmp_path)
    assert len(found) == 6
    assert all(line.get("empty", False) == (line["cohort"] == [1]) for line in found)


def test_ten_times_the_examples_is_ten_times_those_that_one_enrolled_with(tmp_path: Path):
    def growing(node: int, message: Message, reply: Message) -> Message:
        _, facts = unpacked(reply.content)
        if node != BAD or facts["kind"] != "train":
            return reply
        facts["examples"] *= 9 ** (facts["round"] + 1)
        return Message(content(_arrays(reply), facts), reply_to=message)

    over_grid(experiment(), tmp_path, growing)
    assert [list(q) for q in said(tmp_path)] == [[], ["1"], ["1"]]


def test_how_scores_spread_over_clients_is_told_of_what_they_train_on(tmp_path: Path):
    """As in the simulator, though nodes have test examples of their own too."""
    serve(InProcess(own_files(tmp_path)), experiment(rounds=1), network_in(tmp_path))
    (line,) = lines(tmp_path / "net")
    means = {n: [c[n]["accuracy"] for c in line["by_client"].values()] for n in ("train", "test")}
    assert line["clients"]["mean"] == pytest.approx(np.mean(means["train"]))
    assert np.mean(means["train"]) != np.mean(means["test"])


def test_where_every_reply_has_nan_it_is_said_who_moved_the_model_most(tmp_path: Path):
    """One number of 1e14 is no NaN, and all that clients make of such a model is."""
    over_grid(experiment(), tmp_path, changed(filled(1e14, "delta"), number=0))
    _, second, third = lines(tmp_path / "net")
    assert second["dropped"] == third["dropped"] == [0, 1, 2]
    assert second["empty"]
    for line in (second, third):
        assert "the global model itself may be broken: 1 moved it by 9.47e+15 when it last" in line["warnings"][-1]
    with pytest.raises(NotFiniteError, match="clients 0, 1, 2 returned"):
        over_grid(experiment(on_nonfinite="raise"), tmp_path / "raise", changed(filled(1e14, "delta"), number=0))
