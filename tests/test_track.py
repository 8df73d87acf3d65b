"""What was tracked is read back by TensorBoard's and MLflow's own readers."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import fedstrata as fs
from fedstrata.cli import main
from fedstrata.errors import SettingError
from fedstrata.record import read_rounds
from fedstrata.track import flattened, numbers, tracking
from tests.federations import mlp, unequal_clients

pytest.importorskip("tensorboard")
pytest.importorskip("mlflow")

PLAN = {
    "method": "fedprox(mu=0.3)", "rounds": 3, "evaluate_every": 2, "faults": {"dropout": 0.3},
    "partition": {"clients": 8}, "training": {"epochs": 1},
}  # fmt: skip
SHOWN = {"test/accuracy", "test/loss", "val/accuracy", "train/loss", "clients/mean", "clients/worst10", "seconds"}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run folder that both trackers were told of."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    experiment = fs.Experiment.of(PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        with tracking(["tensorboard", "mlflow"], folder, experiment.settings(), "a title") as told:
            experiment.run(folder, told)
        yield folder


def wanted(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every number of the record, with its round."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in read_rounds(folder):
        for name, value in numbers(line).items():
            found.setdefault(name, []).append((line["round"], value))
    return found


def test_tensorboard_reads_the_numbers_of_every_round(tracked: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked / "tensorboard")).Reload()
    want = wanted(tracked)
    assert want.keys() >= SHOWN
    assert set(events.Tags()["scalars"]) == want.keys()
    for name, values in want.items():
        found = [(e.step, e.value) for e in events.Scalars(name)]
        assert found == [(step, pytest.approx(value, rel=1e-6)) for step, value in values]  # in float32
    assert [step for step, _ in want["test/accuracy"]] == [1, 2]
    assert len(want["seconds"]) == 3


def test_tensorboard_reads_the_settings(tracked: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked / "tensorboard")).Reload()
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '{kind = "Prox", mu = 0.3' in text
    messages = import_module("tensorboard.plugins.hparams.plugin_data_pb2")  # which has no types
    said = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = messages.HParamsPluginData.FromString(said).session_start_info.hparams
    assert hparams["training.epochs"].number_value == 1
    assert hparams["recipe.local.0.kind"].string_value == "Prox"


def test_a_run_that_is_gone_on_with_has_every_round_once_in_tensorboard(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def trip(line: Any) -> None:
        if line["round"] == 3:
            raise RuntimeError("power cut")

    folder, experiment = tmp_path / "run", fs.Experiment.of(PLAN | {"rounds": 6, "checkpoint": 2})
    with pytest.raises(RuntimeError), tracking(["tensorboard"], folder, {}) as told:
        experiment.run(folder, lambda line: (told(line), trip(line))[0])
    with tracking(["tensorboard"], folder, {}) as told:
        experiment.run(folder, told, resume=True)
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("seconds")] == list(range(6))


def mlflow_run(folder: Path) -> tuple[Any, Any]:
    """(MLflow's client, the only run in the store)."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedstrata")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], order_by=["start_time DESC"], max_results=1)
    return client, run


def test_mlflow_reads_the_numbers_and_the_settings(tracked: Path):
    client, run = mlflow_run(tracked)
    want = wanted(tracked)
    assert run.data.metrics.keys() == want.keys()
    for name, values in want.items():
        assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)] == values
    assert run.data.params.items() >= {"rounds": "3", "recipe.local.0.mu": "0.3", "faults.dropout": "0.3"}.items()
    assert (run.info.run_name, run.info.status) == ("a title", "FINISHED")


def test_mlflow_keeps_the_run_folder(tracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    client, run = mlflow_run(tracked)
    names = {a.path for a in client.list_artifacts(run.info.run_id)}
    assert names == {p.name for p in tracked.iterdir()}
    copy = client.download_artifacts(run.info.run_id, "rounds.jsonl", str(tmp_path))
    assert Path(copy).read_bytes() == (tracked / "rounds.jsonl").read_bytes()


def test_a_second_run_stands_beside_the_first_and_says_how_it_ended(tracked: Path):
    def trip(line: Any) -> None:
        told(line)
        if line["round"] == 1:
            raise KeyboardInterrupt

    folder = tracked.parent / "two"
    experiment = fs.Experiment.of(PLAN)
    with pytest.raises(KeyboardInterrupt), tracking(["mlflow"], folder, experiment.settings()) as told:
        experiment.run(folder, trip)
    client, run = mlflow_run(tracked)
    assert (run.info.run_name, run.info.status) == ("two", "KILLED")
    assert len(client.get_metric_history(run.info.run_id, "seconds")) == 2


def test_all_of_it_is_beside_the_run_folder(tracked: Path):
    assert {p.name for p in tracked.parent.iterdir()} <= {"one", "two", "mlflow.db", "mlflow"}
    assert list(Path.cwd().iterdir()) == []


def test_a_store_that_cannot_be_used_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "carrier-pigeon://home")
    with (
        pytest.raises(fs.FedstrataError, match=r"MLflow's store cannot be used .*; see MLFLOW_TRACKING_URI"),
        tracking(["mlflow"], tmp_path / "run", {}),
    ):
        pass


def test_the_command_tracks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "run",
                "--method",
                "fedavg",
                "--rounds",
                "1",
                "--set",
                "training.epochs=1",
                "--track",
                "tensorboard",
                "--out",
                "a",
            ]
        )
    assert not stop.value.code
    assert len(list((tmp_path / "a/tensorboard").iterdir())) == 1


@pytest.mark.parametrize(("tracker", "package"), [("tensorboard", "tensorboard"), ("mlflow", "sqlalchemy")])
def test_a_missing_package_is_a_sentence_before_anything_runs(
    tracker: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    for name in [n for n in sys.modules if n.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as stop:
        main(["run", "--rounds", "1", "--track", tracker])
    assert stop.value.code == 2
    assert f"tracking by {tracker} needs {package}: pip install 'fedstrata[track]'" in capsys.readouterr().err
    assert list((tmp_path / "runs").iterdir()) == []


def test_an_unknown_tracker_is_a_sentence(tmp_path: Path):
    with (
        pytest.raises(SettingError, match="no tracker is called 'tensorbord'; did you mean 'tensorboard'"),
        tracking(["tensorbord"], tmp_path, {}),
    ):
        pass


def test_a_run_from_python_is_tracked_by_a_callback(tmp_path: Path):
    with tracking(["tensorboard"], tmp_path / "run", {"made": "here"}) as told:
        fs.simulate("fedavg", mlp(), unequal_clients(), rounds=1, out=tmp_path / "run", on_round=told)
    assert list((tmp_path / "run/tensorboard").glob("events.out.tfevents.*"))


def test_names_of_settings_and_numbers():
    said = {"a": 1, "b": {"c": True}, "d": [{"e": "x"}, 2.0]}
    assert flattened(said) == {"a": 1, "b.c": True, "d.0.e": "x", "d.1": 2.0}
    line = {"round": 7, "test": {"loss": 0.5}, "cohort": [1, 2], "faults": {"late": [1]}, "warnings": ["!"]}
    assert numbers(line) == {"test/loss": 0.5, "cohort": 2.0, "faults/late": 1.0}
