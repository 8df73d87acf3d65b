"""The Flower app of an experiment."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from fedstrata.deploy.app import RUN, add_client, write_app
from fedstrata.errors import SettingError
from fedstrata.experiment import Experiment, read_toml

EXPERIMENT = Experiment.of({"method": "fedprox(mu=0.3)", "rounds": 7})


def config_of(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_it_holds_the_experiment_and_every_key_of_the_run_config(tmp_path: Path):
    write_app(tmp_path / "app", EXPERIMENT, {"clients": "a,b", "deadline": 5.0})
    assert Experiment.of(read_toml(tmp_path / "app" / "fedstrata_app" / "experiment.toml")) == EXPERIMENT
    assert config_of(tmp_path / "app") == {k: v for k, (v, _) in RUN.items()} | {"clients": "a,b", "deadline": 5.0}


def test_these_are_the_keys_and_defaults_of_the_runtime():
    pytest.importorskip("flwr")
    from fedstrata.flower import Network

    network = Network()
    assert {k: v for k, (v, _) in RUN.items()} == {
        f.name.replace("_", "-"): getattr(network, f.name) for f in fields(Network) if f.name != "kind"
    }
    assert Network.of({k: v for k, (v, _) in RUN.items()}) == network


def test_a_key_that_is_not_among_them_is_refused(tmp_path: Path):
    with pytest.raises(SettingError, match="did you mean 'deadline'"):
        write_app(tmp_path / "app", EXPERIMENT, {"dedline": 5.0})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within Flower
def test_flower_builds_it_and_both_halves_load(tmp_path: Path):
    build = pytest.importorskip("flwr.cli.build")
    write_app(tmp_path / "app", EXPERIMENT)
    held = build.build_fab_from_disk(tmp_path / "app")
    assert b"fedstrata_app/experiment.toml" in held
    for half in ("server_app", "client_app"):
        found: dict = {"__file__": str(tmp_path / "app" / "fedstrata_app" / f"{half}.py")}
        exec((tmp_path / "app" / "fedstrata_app" / f"{half}.py").read_text(), found)
        assert type(found["app"]).__name__ == {"server_app": "ServerApp", "client_app": "ClientApp"}[half]


def test_a_client_is_added_to_those_that_are_named(tmp_path: Path):
    write_app(tmp_path / "app", EXPERIMENT, {"clients": "a,b"})
    before = config_of(tmp_path / "app")
    assert add_client(tmp_path / "app", "c")
    assert config_of(tmp_path / "app") == before | {"clients": "a,b,c"}


def test_where_nobody_is_named_everybody_may_come(tmp_path: Path):
    write_app(tmp_path / "app", EXPERIMENT)
    before = (tmp_path / "app" / "pyproject.toml").read_text()
    assert not add_client(tmp_path / "app", "c")
    assert (tmp_path / "app" / "pyproject.toml").read_text() == before
