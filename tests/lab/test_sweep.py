"""A [sweep] table becomes a grid of experiments."""

import tomllib

import pytest

from fedstrata.errors import SettingError
from fedstrata.experiment import Experiment
from fedstrata.lab.sweep import expand
from fedstrata.partition import IID, Dirichlet

GRID = """
rounds = 4
[sweep]
method = ["fedavg", "fedprox(mu=0.5)"]
"training.lr" = [0.1, 0.01]
seed = [0, 1, 2]
"""


def test_every_combination_is_an_experiment_the_last_setting_fastest():
    points = expand(tomllib.loads(GRID))
    assert len(points) == 12
    assert [p.experiment.seed for p in points[:4]] == [0, 1, 2, 0]
    assert [p.experiment.training.lr for p in points[:4]] == [0.1, 0.1, 0.1, 0.01]
    assert [len(p.experiment.recipe.local) for p in points[5:7]] == [0, 1]
    assert {p.experiment.rounds for p in points} == {4}
    assert len({p.experiment.fingerprint for p in points}) == 12
    assert points[6].name == "fedprox(mu=0.5), lr=0.1"


def test_dotted_names_may_be_tables_and_quoted_ones_alike():
    tables = "[sweep.training]\nlr = [0.1, 0.2]\n[sweep]\nseed = [1]"
    quoted = '[sweep]\n"training.lr" = [0.1, 0.2]\nseed = [1]'
    dotted = "[sweep]\ntraining.lr = [0.1, 0.2]\nseed = [1]"
    found = [{p.experiment for p in expand(tomllib.loads(text))} for text in (tables, quoted, dotted)]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 2


def test_whole_tables_and_settings_of_parts_can_be_swept():
    points = expand({"sweep": {"partition": [{"kind": "IID", "clients": 3}, {"alpha": 0.5}]}})
    assert [p.experiment.partition for p in points] == [IID(3), Dirichlet(20, alpha=0.5)]
    assert points[0].name == "partition=IID(clients=3)"
    points = expand({"method": "fedprox", "sweep": {"recipe.local.0.mu": [0.1, 0.2]}})
    assert [p.experiment.recipe.local[0].to_dict()["mu"] for p in points] == [0.1, 0.2]


def test_settings_of_one_name_are_told_apart_by_their_tables():
    [point] = expand({"method": "fedprox", "sweep": {"training.lr": [0.1], "recipe.local.0.mu": [0.1], "seed": [3]}})
    assert point.name == "lr=0.1, mu=0.1"
    [point] = expand({"sweep": {"training.kind": ["Adam"], "partition.kind": ["IID"]}})
    assert point.name == "training.kind=Adam, partition.kind=IID"


def test_without_a_sweep_there_is_one_experiment():
    [point] = expand({"method": "fedprox", "rounds": 2})
    assert point.experiment == Experiment.of({"method": "fedprox", "rounds": 2})
    assert point.name == "all"


def test_a_single_experiment_takes_no_sweep():
    with pytest.raises(SettingError, match="makes many experiments"):
        Experiment.of(tomllib.loads(GRID))
