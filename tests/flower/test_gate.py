"""Who comes in: whatever a node says of itself, the run goes on, and who is refused leaves nothing behind."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, RecordDict

from fedstrata.errors import DataError, SettingError
from fedstrata.flower import serve
from fedstrata.flower.records import unpacked
from fedstrata.flower.roster import Roster
from tests.flower.federation import (
    BAD,
    changed,
    content,
    experiment,
    lines,
    model,
    network,
    over_grid,
    own_files,
    parts,
)  # fmt: skip
from tests.flower.grid import InProcess


def _facts(**said: Any) -> Callable[..., None]:
    return lambda arrays, facts: facts.update(said)


def _labels(make: Callable[[np.ndarray], np.ndarray]) -> Callable[..., None]:
    return lambda arrays, facts: arrays.update(labels=Array(make(arrays["labels"].numpy())))


def _archive() -> bytes:
    file = BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


MALFORMED: dict[str, tuple[Any, str]] = {
    "no partition": (lambda a, f: f.pop("partition") and None, "it does not say its partition"),
    "text": (_facts(partition="1"), "its partition must be a whole number or nothing; got '1'"),
    "part of many": (_facts(partition=10**30), "it has part 1000000000000000000000000000000, of 3"),
    "no name": (_facts(name=["a"]), "its name must be a text"),
    "surrogate": (_facts(name="\ud800"), "its name is '\\ud800'; give it one that can be printed"),
    "log line": (_facts(name="x\x1b[2J\nINFO : round 7"), "give it one that can be printed"),
    "long": (_facts(examples="y" * 5_000_000), "its examples must be a whole number; got 'yyyy"),
    "shape": (_facts(shape=[0]), "the shape of its examples is [0]"),
    "huge": (_facts(shape=[10**9, 10**9]), "the shape of its examples is [1000000000, 1000000000], of 1 to 10,000,000"),
    "brackets": (lambda a, f: content({}, "[" * 100_000), "it cannot be read: RecursionError"),
    "no array": (
        lambda a, f: RecordDict({"arrays": ConfigRecord({"x": 1.0}), "facts": content({}, f)["facts"]}),
        "it is not a reply of fedstrata's",
    ),
    "longer labels": (_labels(lambda v: np.r_[v, np.zeros(5)]), "labels is float64 [15], and should be float64 [10]"),
    "complex labels": (_labels(lambda v: v.astype(complex)), "labels is complex128 [10], and should be float64 [10]"),
    "half a patient": (_labels(lambda v: v + np.eye(10)[0] / 2 - np.eye(10)[1] / 2), "do not add up to its"),
    "archive": (
        lambda a, f: a.update(labels=Array("float64", (10,), "numpy.ndarray", _archive())),
        "it cannot be read: ValueError",
    ),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_what_is_no_enrolment_is_refused_and_ends_no_run(fault: str, tmp_path: Path):
    change, why = MALFORMED[fault]
    over_grid(experiment("feddisco", rounds=1), tmp_path, changed(change, "enrol"), min_online=2)
    (said,) = lines(tmp_path / "net")
    assert said["cohort"] == [0, 2]
    assert list(said["refused"]) == [str(BAD)]
    assert why in said["refused"][str(BAD)]
    assert len(said["refused"][str(BAD)]) < 400


@pytest.mark.parametrize("what", ["shape", "classes", "parts"])
def test_a_stranger_has_no_say_in_what_the_data_looks_like(what: str, tmp_path: Path):
    configs = own_files(tmp_path)
    serve(InProcess(configs), experiment(rounds=1), network(tmp_path, out=str(tmp_path / "alone")))
    x, y = np.zeros((30, 9 if what == "shape" else 4)), np.arange(30) * (33 if what == "classes" else 1) % 990
    np.savez(tmp_path / "odd.npz", x=x, y=y)
    stranger: dict[str, Any] = {"client": "aaa", "data": str(tmp_path / "odd.npz")}  # the first by its name
    configs[9] = {"client": "aaa", "partition-id": 0} if what == "parts" else stranger
    serve(InProcess(configs), experiment(rounds=1), network(tmp_path, clients="east, north, west"))
    assert "'aaa' does not belong to this federation" in lines(tmp_path / "net")[0]["refused"]["9"]
    told, alone = (Roster.read(tmp_path / n) for n in ("net", "alone"))
    assert told is not None
    assert alone is not None
    assert told.facts == alone.facts
    assert told.names == alone.names
    assert model(tmp_path / "net").keys() == model(tmp_path / "alone").keys()


def test_who_is_refused_is_not_asked_again_until_it_comes_back(tmp_path: Path):
    configs = parts(tmp_path) | {200: {"partition-id": 0, "client": "x"}}
    grid, asked = InProcess(configs), []

    def listen(node: int, message: Message, reply: Message) -> Message:
        if node == 200:
            asked.append(unpacked(message.content)[1]["kind"])
        return reply

    def watch(line: dict[str, Any]) -> None:
        grid.offline = {200} if line["round"] == 2 else set()

    grid.spoil = listen
    serve(grid, experiment(rounds=5, training={"steps": 1}), network(tmp_path), watch)
    assert asked == ["enrol"] * 2
    assert ["200" in line["refused"] for line in lines(tmp_path / "net")] == [True] * 5


def test_nobody_waits_for_a_newcomer_that_does_not_answer(tmp_path: Path):
    """Nor is one forgotten that answers late: it is in the next round."""
    late: dict[str, Message] = {}

    def spoil(node: int, message: Message, reply: Message) -> Message | None:
        if node != 102 or late:
            return reply
        late[message.metadata.message_id] = reply
        return None

    grid = InProcess(parts(tmp_path, 2), spoil=spoil)

    def watch(line: dict[str, Any]) -> None:
        if line["round"] == 0:
            grid.configs = parts(tmp_path)
        if line["round"] == 2:
            grid.arrived.update(late)

    serve(grid, experiment(rounds=5, training={"steps": 1}), network(tmp_path, min_online=2), watch)
    said = lines(tmp_path / "net")
    assert [line["cohort"] for line in said] == [[0, 1], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert all(line["seconds"] < 100 for line in said)


@pytest.mark.parametrize("wrong", ["a cell", "a label", "a path"])
def test_what_a_node_says_of_its_data_stays_on_the_node(wrong: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    configs = own_files(tmp_path)
    file = Path(configs[3]["data"])
    head, *rows = file.read_text().splitlines()
    if wrong == "a cell":
        file.write_text("\n".join([f"{head},note", *(f"{row},Jane Doe" for row in rows)]))
    elif wrong == "a label":
        file.write_text("\n".join([head, rows[0][:-1] + "Jane Doe", *rows[1:]]))
    else:
        file.rename(tmp_path / "Jane Doe.csv")
        configs[3]["data"] = str(tmp_path / "Jane Doe")
    serve(InProcess(configs), experiment(rounds=1), network(tmp_path, min_online=2))
    assert "DataError on this node; its log says what happened" in lines(tmp_path / "net")[0]["refused"]["3"]
    assert not any("Jane" in path.read_text() for path in (tmp_path / "net").glob("*.json*"))
    assert "Jane Doe" in caplog.text  # which is the node's log here


def test_columns_of_a_table_are_taken_in_the_order_of_the_first_client(tmp_path: Path):
    """The same model and the same test, though a node and the server have theirs the other way round."""
    models, scores = [], []
    for turned in (False, True):
        folder = tmp_path / str(turned)
        folder.mkdir()
        configs = own_files(folder)
        test = folder / "test.csv"
        test.write_text(Path(configs[2]["data"]).read_text())
        for path in [folder / "west.csv", test] if turned else []:
            path.write_text("\n".join(",".join(row.split(",")[::-1]) for row in path.read_text().splitlines()))
        serve(InProcess(configs), experiment(label="ill"), network(folder, test=str(test)))
        models.append((folder / "net" / "model.safetensors").read_bytes())
        scores.append(lines(folder / "net")[-1]["test"])
    assert models[0] == models[1]
    assert scores[0] == scores[1]


def test_a_node_with_other_columns_is_refused(tmp_path: Path):
    configs = own_files(tmp_path)
    file = Path(configs[3]["data"])
    file.write_text(file.read_text().replace("a,b,c,d", "a,b,x,y"))
    serve(InProcess(configs), experiment(rounds=1), network(tmp_path, min_online=2))
    why = "it has other columns than the others: it lacks 'c' and 1 more and has 'x' and 1 more"
    assert lines(tmp_path / "net")[0]["refused"] == {"3": why}
    with pytest.raises(DataError, match=r"north.csv has other columns than the others: it lacks 'c'"):
        serve(InProcess(configs), experiment(label="ill"), network(tmp_path / "b", min_online=2, test=str(file)))


@pytest.mark.parametrize(("rows", "warned"), [(60, False), (30, True), ("one class", True)])
def test_a_test_file_that_is_scaled_by_too_little_is_warned_of(rows: Any, warned: bool, tmp_path: Path, caplog):
    configs, test = own_files(tmp_path), tmp_path / "test.csv"
    count = rows if isinstance(rows, int) else 60
    body = [f"{i}.5,{i % 7},{i % 5}.5,{i % 3},{i % 2 if count == rows else 1}" for i in range(count)]
    test.write_text("\n".join(["a,b,c,d,ill", *body]))
    serve(InProcess(configs), experiment(label="ill", rounds=1), network(tmp_path, test=str(test)))
    assert ("test.csv is scaled by its own" in caplog.text) == warned


def test_what_never_began_is_not_resumed(tmp_path: Path):
    with pytest.raises(SettingError, match=r"there is no run in .*net to go on with; say out"):
        serve(InProcess(parts(tmp_path)), experiment(rounds=1), network(tmp_path, resume=True))
    assert not (tmp_path / "net").exists()
