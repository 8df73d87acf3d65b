"""A split in numbers, and as a picture."""

import re
import tomllib
from math import log
from pathlib import Path

import numpy as np
import pytest

from fedstrata.clients import Clients
from fedstrata.errors import DataError
from fedstrata.experiment import Experiment
from fedstrata.partition import IID, Dealt, Dirichlet, IIDMix, Partition, Quantity, describe
from fedstrata.report import draw_split
from fedstrata.report.split import by_main_class, facts_in_words
from fedstrata.values import kinds

DOCS = Path(__file__).parent.parent / "docs" / "partitions.md"


def split(partition: Dealt, y: np.ndarray) -> Clients:
    return partition.split(np.zeros((len(y), 1)), y)


def labels(count: int, classes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(classes, size=count)


def test_a_description_counts_sizes_classes_and_distance():
    y = np.array([0, 0, 0, 1, 1, 1, 0, 1, 1])
    clients = Clients.split(np.zeros((9, 1)), y, [np.arange(3), np.arange(3, 6), np.arange(6, 8), np.arange(0)])
    assert describe(clients) == {
        "clients": 4,
        "examples": 8,
        "left_out": 1,
        "smallest": 0,
        "median": 2.5,
        "largest": 3,
        "sizes": [3, 3, 2, 0],
        "effective_classes": pytest.approx((1 + 1 + 2) / 3),
        "label_distance": pytest.approx((0.5 + 0.5 + 0) / 3),
        "label_entropy": pytest.approx(log(2) / 3),
        "label_entropies": [0.0, 0.0, pytest.approx(log(2)), None],
        "classes": {"min": 0, "median": 1.0, "max": 2},
    }


@pytest.mark.parametrize("y", [np.linspace(0, 1, 10), np.zeros((10, 2), dtype=np.int64)])
def test_a_description_of_targets_says_nothing_about_classes(y: np.ndarray):
    facts = describe(split(IID(clients=2), y))
    sizes = {"smallest": 5, "median": 5.0, "largest": 5, "sizes": [5, 5]}
    assert facts == {"clients": 2, "examples": 10, "left_out": 0} | sizes


def test_examples_of_two_clients_are_left_out_once():
    shared = Clients.split(np.zeros((5, 1)), np.zeros(5, int), [np.arange(3), np.arange(3)])
    assert describe(shared)["left_out"] == 2


@pytest.mark.parametrize(
    ("clients", "count", "classes"),
    [(10, 1000, 10), (100, 2000, 10), (250, 5000, 10), (10, 2000, 100), (250, 5000, 100), (5, 50, 1), (70, 99, 1)],
)
def test_a_split_of_any_size_is_drawn(clients: int, count: int, classes: int, tmp_path: Path):
    y = labels(count, classes)
    path = draw_split(split(Dirichlet(clients, alpha=0.3), y), tmp_path / "split.png", title="A title")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("clients", [5, 200])
def test_a_split_of_targets_is_drawn_by_size(clients: int, tmp_path: Path):
    path = draw_split(split(Quantity(clients), labels(1000, 9) / 9), tmp_path / "split.svg")
    assert "class" not in re.findall(r"<!-- (\w+) -->", path.read_text())
    assert f"{clients} clients" in path.read_text()


def test_a_picture_names_axes_classes_and_facts(tmp_path: Path):
    clients = split(IIDMix(6, iid=3, size=20), labels(500, 3))
    drawn = draw_split(clients, tmp_path / "split.svg", "Two kinds", ["ant", "bee", "cow"])
    said = re.findall(r"<!-- (.+) -->", drawn.read_text())
    assert {"ant", "bee", "cow", "class", "client", "examples", "Two kinds", *map(str, range(6))} <= set(said)
    assert any(s.startswith("120 examples, 20 a client; 380 left out; ") and "classes in effect" in s for s in said)


def test_names_must_do_for_all_classes(tmp_path: Path):
    with pytest.raises(DataError, match="there are 3 classes, but 2 names for them"):
        draw_split(split(IID(2), labels(50, 3)), tmp_path / "split.png", names=["a", "b"])


def test_the_line_below_the_title_says_only_what_is_known():
    assert facts_in_words(describe(split(IID(3), np.linspace(0, 1, 10)))) == "10 examples, 3 to 4 a client"


def test_clients_are_ordered_by_their_commonest_class():
    assert by_main_class(np.array([[0, 5], [6, 2], [0, 0], [3, 0], [1, 2]])).tolist() == [3, 1, 2, 0, 4]


def test_the_table_of_partitions_is_complete():
    ours = {n for n, c in kinds(Partition).items() if c.__module__.startswith("fedstrata.")}
    listed = re.findall(r"^\| `(\w+)", DOCS.read_text(), re.M)
    assert sorted(listed) == sorted(ours)


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)), {})
    assert Path("split.png").exists()
    table = tomllib.loads(re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.S)[0])
    assert Experiment.of({"method": "fedavg"} | table).clients().sizes.sum() == 1257


def test_a_picture_that_cannot_be_written_is_a_sentence(tmp_path):
    clients = split(IID(2), labels(50, 3))
    for name in ("none/split.png", "split.xyz"):
        with pytest.raises(DataError, match=r"the picture cannot be written to .*; give e.g. split.png"):
            draw_split(clients, tmp_path / name)
    assert draw_split(clients, tmp_path / "split") == tmp_path / "split.png"
    assert (tmp_path / "split.png").exists()
    drawn = draw_split(clients, tmp_path / "dollars.svg", r"mine$\x$.csv")  # no formula
    assert drawn.exists()
