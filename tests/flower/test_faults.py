"""What nodes do wrong never reaches the model, and the record says what happened."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, Error, Message

from fedstrata.errors import DataError, FedstrataError, NeedError, NotFiniteError
from fedstrata.flower import Network, serve
from fedstrata.flower import store as stores
from fedstrata.flower.post import EXPIRED
from fedstrata.flower.records import unpacked
from fedstrata.flower.server import enough
from tests.flower.federation import (
    BAD,
    changed,
    content,
    equal,
    experiment,
    lines,
    model,
    network,
    over_grid,
    own_files,
    parts,
    simulated,
)
from tests.flower.grid import InProcess


def _nan(arrays, facts):
    w = arrays["delta"].numpy().copy()
    w[3] = np.nan
    arrays["delta"] = Array(w)


def _put(name: str, make: Callable[[np.ndarray], np.ndarray]):
    def change(arrays, facts):
        arrays[name] = Array(make(arrays[name].numpy()))

    return change


def _lie(arrays, facts):
    """The right shape beside the wrong bytes."""
    w = arrays["delta"].numpy()
    arrays["delta"] = Array(str(w.dtype), w.shape, "numpy.ndarray", Array(np.zeros((1, len(w)), "f4")).data)


def _head(shape: str, kind: str = "<f4") -> Any:
    """An array of as many bytes as there should be, whose head says this."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    raw = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + bytes(4 * 8970)
    return lambda arrays, facts: arrays.update(delta=Array("float32", (8970,), "numpy.ndarray", raw))


WRONG: dict[str, tuple[Any, str]] = {
    "NaN": (_nan, "delta has 1 of 8970 values that are NaN or infinite"),
    "shape": (_put("delta", lambda w: w[:-1]), r"delta is float32 \[8969\], and should be float32 \[8970\]"),
    "broadcast": (_put("delta", lambda w: w[:1]), r"delta is float32 \[1\], and should be float32 \[8970\]"),
    "scalar": (_put("delta", lambda w: np.array(7, w.dtype)), r"delta is float32 \[\]"),
    "type": (_put("delta", lambda w: w.astype("f8")), r"delta is float64 \[8970\], and should be float32"),
    "missing": (lambda a, f: a.pop("delta"), "delta is missing"),
    "more": (lambda a, f: a.update(extra=Array(np.zeros(3))), "it has 'extra', which was not asked for"),
    "large": (_put("delta", lambda w: np.zeros(10**6, w.dtype)), r"delta is float32 \[1000000\]"),
    "lie": (_lie, r"delta is float32 \[1, 8970\]"),
    "bytes": (
        lambda a, f: a.update(delta=Array("float32", (8970,), "numpy.ndarray", b"x" * 9)),
        "delta has 9 bytes, where 35,880 and a header are expected",
    ),
    "unreadable": (
        lambda a, f: a.update(delta=Array("float32", (8970,), "numpy.ndarray", b"x" * 35_900)),
        "it cannot be read",
    ),
    "pickle": (
        lambda a, f: a.update(delta=Array("float32", (8970,), "pickle", a["delta"].data)),
        "it cannot be read",
    ),
    "claim": (_head(f"({10**15},)"), r"delta is float32 \[1000000000000000\]"),
    "short": (_head("(-5,)"), r"delta is float32 \[-5\], and should be"),
    "broken head": (_head("[[[[["), "it cannot be read: "),
    "other end": (_head("(8970,)", ">f4"), r"delta is >f4 \[8970\], and should be float32 \[8970\]"),
    "struct": (_head("(8970,)", "V4"), r"delta is \|V4 \[8970\], and should be"),
    "zip": (
        lambda a, f: a.update(delta=Array("float32", (8970,), "numpy.ndarray", b"PK\x03\x04" + bytes(35_900))),
        "it cannot be read: ",
    ),
    "brackets": (lambda a, f: content(a, "[" * 100_000), "it cannot be read: RecursionError"),
    "another client": (lambda a, f: f.update(client=0), "it answers for client 0, and was asked for 1"),
    "another round": (lambda a, f: f.update(round=0), "it answers for round 0, and was asked for 1"),
    "count": (lambda a, f: f.update(examples=10**12), "it claims 1,000,000,000,000 examples; at most"),
    "more than before": (lambda a, f: f.update(examples=10**6), "it claims 1,000,000 examples and enrolled with"),
    "no count": (lambda a, f: f.update(examples=-3), "its number of examples is -3, which is no count"),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The model where nothing of the bad node arrives in that round."""
    trained = over_grid(experiment("scaffold"), tmp_path_factory.mktemp("without"), silent, deadline=0.3)
    assert all(torch.isfinite(v).all() for v in trained.values())
    return trained


@pytest.mark.parametrize("fault", WRONG)
def test_a_bad_reply_is_left_out_and_told_of(fault: str, without: dict[str, torch.Tensor], tmp_path: Path):
    change, why = WRONG[fault]
    trained = over_grid(experiment("scaffold"), tmp_path, changed(change))
    said = lines(tmp_path / "net")
    assert list(said[1]["quarantined"]) == ["1"]
    assert re.search(why, said[1]["quarantined"]["1"])
    assert "quarantined" not in said[0] | said[2]
    assert equal(trained, without)


def silent(node: int, message: Message, reply: Message) -> Message | None:
    """The bad node trains in round 1, but nothing arrives."""
    _, facts = unpacked(reply.content)
    return None if node == BAD and facts["kind"] == "train" and facts["round"] == 1 else reply


def raising(node: int, message: Message, reply: Message) -> Message:
    _, facts = unpacked(reply.content)
    if node == BAD and facts["kind"] == "train" and facts["round"] == 1:
        raise RuntimeError("out of memory")
    return reply


def test_who_is_silent_is_left_out_after_the_deadline(tmp_path: Path):
    over_grid(experiment(), tmp_path, silent, deadline=0.3)
    assert [r.get("silent") for r in lines(tmp_path / "net")] == [None, ["1"], None]


def test_who_is_late_is_silent_where_flower_notices_first(tmp_path: Path):
    """At the deadline both do; without one, a message that is gone is a failure."""

    def expired(node: int, message: Message, reply: Message) -> Message:
        return reply if silent(node, message, reply) else Message(Error(EXPIRED, "it expired"), reply_to=message)

    for name, deadline in (("with", 1e-3), ("without", 0.0)):
        over_grid(experiment(), tmp_path / name, expired, deadline=deadline)
    said = {n: lines(tmp_path / n / "net")[1] for n in ("with", "without")}
    assert said["with"]["silent"] == ["1"]
    assert "failed" not in said["with"]
    assert said["without"]["failed"] == {"1": "it expired (Flower's code 3)"}


def test_who_raises_is_left_out_with_its_reason(tmp_path: Path):
    over_grid(experiment(), tmp_path, raising)
    assert lines(tmp_path / "net")[1]["failed"] == {"1": "RuntimeError: out of memory (Flower's code 2)"}


def test_nan_can_be_made_to_end_the_run(tmp_path: Path):
    with pytest.raises(NotFiniteError, match="client 1 returned"):
        over_grid(experiment(on_nonfinite="raise"), tmp_path, changed(_nan))


def test_too_few_replies_change_nothing(tmp_path: Path):
    over_grid(experiment(), tmp_path, silent, deadline=0.3, min_replies=3)
    said = lines(tmp_path / "net")
    assert said[1]["empty"]
    assert said[1]["test"] == said[0]["test"]
    assert said[2]["test"] != said[0]["test"]


def test_too_few_nodes_end_the_run_with_a_sentence(tmp_path: Path):
    grid = InProcess(parts(tmp_path, 2))
    with pytest.raises(NeedError, match=r"0, 1 is online, and 3 are needed \(min-online\).*start more nodes"):
        serve(grid, experiment(), network(tmp_path, wait=0.2))
    assert not (tmp_path / "net").exists()


def test_a_node_that_leaves_and_one_that_comes_back(tmp_path: Path):
    grid = InProcess(parts(tmp_path))

    def watch(line: dict[str, Any]) -> None:
        grid.offline = {BAD} if line["round"] == 0 else set()

    serve(grid, experiment("scaffold", rounds=4), network(tmp_path, min_online=2), watch)
    said = lines(tmp_path / "net")
    assert [r["cohort"] for r in said] == [[0, 1, 2], [0, 2], [0, 1, 2], [0, 1, 2]]
    assert "lost" not in said[2]


def test_over_selection_closes_a_round_when_enough_replied(tmp_path: Path):
    exp = experiment("fedavg(select=Sample(k=2))")
    over_grid(exp, tmp_path, silent, over_select=1.5, deadline=600.0)
    said = lines(tmp_path / "net")
    assert [len(r["cohort"]) for r in said] == [3, 3, 3]
    assert all(r["seconds"] < 300 for r in said)  # nobody waited for the deadline
    weights = np.load(tmp_path / "net" / "notes.npz")["weights/00001"]
    assert len(weights) == 2


def test_a_measurement_that_does_not_come_leaves_a_client_out_of_the_round(tmp_path: Path):
    def mute(node, message, reply):
        _, facts = unpacked(reply.content)
        return None if node == BAD and facts["kind"] == "survey" and facts["round"] == 1 else reply

    over_grid(experiment("fedbs(normalise=True)"), tmp_path, mute, deadline=0.3)
    said = lines(tmp_path / "net")
    assert 1 not in said[1]["cohort"]
    assert said[1]["silent"] == ["1"]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedlayerwise + lws(beta=0.1)", "adaptive_fedprox", "moon"])
def test_a_server_that_was_killed_goes_on_bit_for_bit(method: str, tmp_path: Path):
    """It dies in the middle of a round, when clients have trained in it already and remember that."""
    exp = experiment(method, rounds=5)
    grid = InProcess(parts(tmp_path))

    def dies(node: int, message: Message, reply: Message) -> Message:
        _, facts = unpacked(reply.content)
        if facts["kind"] == "train" and facts["round"] == 3 and node == 102:
            raise KeyboardInterrupt
        return reply

    grid.spoil = dies
    with pytest.raises(KeyboardInterrupt):
        serve(grid, exp, network(tmp_path))
    grid.spoil = lambda node, message, reply: reply
    serve(grid, exp, network(tmp_path, resume=True))
    assert equal(model(tmp_path / "net"), simulated(exp, tmp_path))
    assert [r["round"] for r in lines(tmp_path / "net")] == [0, 1, 2, 3, 4]
    assert serve(grid, exp, network(tmp_path, resume=True)) == tmp_path / "net"  # it has ended: nothing happens


def test_a_run_goes_on_with_another_client(tmp_path: Path):
    """Angles have a row for each client: the newcomer gets one."""
    exp = experiment("fedlayerwise", rounds=4)
    configs = own_files(tmp_path)
    grid = InProcess({n: c for n, c in configs.items() if c["client"] != "north"})

    def watch(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            grid.configs = configs

    serve(grid, exp, network(tmp_path, min_online=2), watch)
    assert [len(r["cohort"]) for r in lines(tmp_path / "net")] == [2, 2, 3, 3]


def test_csv_files_on_nodes(tmp_path: Path):
    serve(InProcess(own_files(tmp_path)), experiment(), network(tmp_path))
    assert lines(tmp_path / "net")[-1]["by_client"].keys() == {"west", "east", "north"}


def test_words_for_labels_on_nodes_have_the_order_that_all_were_told(tmp_path: Path):
    """The same model as with numbers, though one node has a class less, and the server's file has words too."""
    models = []
    for words in (False, True):
        folder = tmp_path / str(words)
        folder.mkdir()
        configs = own_files(folder, **({"classes": "well, ill"} if words else {}))
        west = Path(configs[1]["data"])
        west.write_text(re.sub(r",\d$", ",1", west.read_text(), flags=re.M))
        if words:
            for path in folder.glob("*.csv"):
                path.write_text(
                    re.sub(r",(\d)$", lambda m: f",{['well', 'ill'][int(m[1])]}", path.read_text(), flags=re.M)
                )
        serve(InProcess(configs), replace(experiment(), label="ill"), network(folder, test=str(folder / "east.csv")))
        models.append((folder / "net" / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def _refused(configs: dict[int, dict[str, Any]], folder: Path, **settings: Any) -> str:
    grid = InProcess(configs)
    serve(grid, experiment(rounds=1), network(folder, min_online=2, **settings))
    (why,) = lines(folder / "net")[0]["refused"].values()
    return why


def test_a_node_whose_data_is_of_another_shape_is_turned_away(tmp_path: Path):
    configs = own_files(tmp_path)
    np.savez(tmp_path / "odd.npz", x=np.zeros((30, 9)), y=np.arange(30) % 2)
    configs[3]["data"] = str(tmp_path / "odd.npz")
    assert "the shape of its data is [9], and that of the others [4]" in _refused(configs, tmp_path)


def test_a_node_that_takes_anothers_name_is_turned_away(tmp_path: Path):
    configs = own_files(tmp_path)
    configs[3]["client"] = "east"
    assert "'east' belongs to node 2, which used that name first" in _refused(configs, tmp_path)


def test_a_node_that_is_not_on_the_list_is_turned_away(tmp_path: Path):
    why = _refused(own_files(tmp_path), tmp_path, clients="east, west")
    assert "'north' does not belong to this federation, which is of east, west" in why


@pytest.mark.parametrize(("config", "why"), [
    ({"client": ""}, "has data but no client"),
    ({"lable": "ill"}, "no key 'lable'; did you mean 'label'?"),
])  # fmt: skip
def test_a_node_that_is_set_up_wrongly_says_what_to_do(config: dict, why: str, tmp_path: Path):
    configs = own_files(tmp_path)
    configs[3] |= config
    assert why in _refused(configs, tmp_path)


@pytest.mark.parametrize(("settings", "why"), [
    ({"min-online": 0}, "min-online must be at least 1"),
    ({"minonline": 2}, "did you mean 'min-online'"),
    ({"over-select": 0.5}, "over-select must be at least 1"),
    ({"clients": "a, b, a"}, "clients names a twice"),
])  # fmt: skip
def test_a_wrong_run_config_is_a_sentence(settings: dict, why: str):
    with pytest.raises(FedstrataError, match=why):
        Network.of(settings)


def test_a_run_ends_early_when_enough_is_reached():
    shown = [{"test": {"accuracy": a}} for a in (0.5, 0.7, 0.6, 0.65)]
    assert enough(shown, Network()) is None
    assert "0.6500, and 0.6 was wanted" in str(enough(shown, Network(stop_target=0.6)))
    assert "better than 0.7000 in 2 evaluations" in str(enough(shown, Network(stop_patience=2)))
    assert enough(shown, Network(stop_patience=3)) is None


def test_and_its_folder_is_that_of_a_run_that_ended(tmp_path: Path):
    over_grid(experiment(rounds=50), tmp_path, stop_target=0.3)
    said = lines(tmp_path / "net")
    assert len(said) < 50
    assert said[-1]["stopped"].startswith("stopped: the accuracy is")


def test_a_damaged_memory_is_told_of_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    exp, grid = experiment("scaffold"), InProcess(parts(tmp_path))

    def watch(line: dict[str, Any]) -> None:
        if line["round"] == 0:
            (path,) = (tmp_path / "memory" / "1").rglob("*.safetensors")
            path.write_bytes(path.read_bytes()[:-1] + b"?")

    serve(grid, exp, network(tmp_path), watch)
    said = lines(tmp_path / "net")
    assert "DataError on this node; its log says" in said[1]["failed"]["1"]
    assert "is damaged; remove" in caplog.text
    assert said[2]["failed"].keys() == {"1"}


class Masked(torch.nn.Linear):
    """Its mask is not finite, anywhere."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__(int(np.prod(shape)), classes)
        self.register_buffer("mask", torch.full((2,), -torch.inf), persistent=False)

    def forward(self, input):
        return super().forward(input.flatten(1))


def test_a_mask_of_minus_infinity_is_no_reason_for_quarantine(tmp_path: Path):
    exp = experiment(model="tests.flower.test_faults:Masked")
    found = over_grid(exp, tmp_path, spoil=changed(_nan))
    assert [list(line.get("quarantined", {})) for line in lines(tmp_path / "net")] == [[], ["1"], []]
    assert "delta has 1 of" in lines(tmp_path / "net")[1]["quarantined"]["1"]
    assert not equal(found, simulated(exp, tmp_path))


def test_buffers_that_nobody_averages_are_not_sent(tmp_path: Path):
    sent: list[list[str]] = []

    def look(node: int, message: Message, reply: Message) -> Message:
        sent.append([n for n in unpacked(reply.content)[0] if n.startswith("buffers/")])
        return reply

    for policy in ("average", "local"):
        sent.clear()
        over_grid(experiment(model="tests.flower.test_faults:Masked", buffers=policy), tmp_path / policy, spoil=look)
        assert any(sent) == (policy == "average")


def test_a_store_keeps_the_last_turns_and_goes_back(tmp_path: Path):
    store = stores.Store.of(tmp_path, "run", "../../evil/name")
    assert tmp_path in store.folder.parents
    fresh = {"local.0": {"c": torch.zeros(2)}}
    assert store.before(4, fresh) == (fresh, None)
    for number in (4, 6, 7, 9):
        store.keep(number, {"local.0": {"c": torch.full((2,), float(number))}})
    assert store.before(12, fresh)[1] == 9
    assert store.before(9, fresh)[1] == 7
    assert store.before(4, fresh) == (fresh, None)  # before its first turn
    with pytest.raises(DataError, match="before round 6 is no longer"):
        store.before(6, fresh)
    store.keep(7, {"local.0": {"c": torch.full((2,), 70.0)}})  # the server went back
    memory, since = store.before(12, fresh)
    assert (since, memory["local.0"]["c"].tolist()) == (7, [70.0, 70.0])
    with pytest.raises(DataError, match="of another recipe or model"):
        store.before(12, {"local.0": {"c": torch.zeros(3)}})
