"""Runs told to TensorBoard or MLflow as they happen: settings, the numbers of every round, the run folder at the end.

with tracking(["tensorboard"], "runs/a", experiment.settings()) as told:
    experiment.run("runs/a", on_round=told)
"""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from time import time
from typing import Any, Literal

from fedstrata import toml
from fedstrata.errors import DataError, SettingError, in_short, near
from fedstrata.toml import flattened

Ended = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ended, in MLflow's words."""

Told = Callable[[dict[str, Any]], None]
"""What wants to hear every round's line of the record."""

PARAMETERS = 100
"""That MLflow takes at a time."""

LONGEST = 6000
"""Characters of a parameter's value there."""


class Tracker(ABC):
    """Somebody who wants to know how a run goes."""

    @abstractmethod
    def round(self, line: Mapping[str, Any]) -> None:
        """What the record says of a round."""

    @abstractmethod
    def close(self, ended: Ended) -> None:
        """The run is over."""


class TensorBoard(Tracker):
    """Event files in the folder `tensorboard` of the run folder, once there is a round."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], _title: str):
        try:
            self.kit = import_module("torch.utils.tensorboard")
        except ImportError:
            raise SettingError(_missing("tensorboard", "tensorboard")) from None
        self.folder, self.settings = folder / "tensorboard", settings
        self.writer: Any = None

    def round(self, line: Mapping[str, Any]) -> None:
        found = numbers(line)
        if self.writer is None:
            self.writer = self._opened(line["round"], found)
        for name, value in found.items():
            self.writer.add_scalar(name, value, line["round"])
        self.writer.flush()

    def close(self, ended: Ended) -> None:
        if self.writer is not None:
            self.writer.close()

    def _opened(self, first: int, found: Mapping[str, float]) -> Any:
        """A writer that has said the settings; what an earlier one said of rounds from this one on does not count."""
        writer = self.kit.SummaryWriter(str(self.folder), purge_step=first)
        writer.add_text("settings", f"```toml\n{toml.dumps(self.settings)}```")
        for piece in self.kit.summary.hparams(flattened(self.settings), dict.fromkeys(found, 0.0)):
            writer.file_writer.add_summary(piece)
        return writer


class MLflow(Tracker):
    """A run in the store that MLFLOW_TRACKING_URI names, or else in mlflow.db beside the run folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], title: str):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its makers about the use of it
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        try:
            with _quietly():
                self.kit, *_ = (import_module(n) for n in ("mlflow", "sqlalchemy", "alembic"))  # for its SQLite store
        except ImportError as e:
            raise SettingError(_missing("mlflow", e.name or "mlflow")) from None
        self.folder = folder.resolve()
        try:
            with _quietly():
                self.client, experiment = self._store()
                self.run = self.client.create_run(experiment, run_name=title or folder.name).info.run_id
                said = [self.kit.entities.Param(n, str(v)[:LONGEST]) for n, v in flattened(settings).items()]
                for i in range(0, len(said), PARAMETERS):
                    self.client.log_batch(self.run, params=said[i : i + PARAMETERS])
        except (self.kit.exceptions.MlflowException, OSError) as e:
            raise DataError(f"MLflow's store cannot be used ({in_short(e)}); see MLFLOW_TRACKING_URI") from None

    def round(self, line: Mapping[str, Any]) -> None:
        now = int(1000 * time())
        found = [self.kit.entities.Metric(n, v, now, line["round"]) for n, v in numbers(line).items()]
        with _quietly():
            self.client.log_batch(self.run, metrics=found)

    def close(self, ended: Ended) -> None:
        with _quietly():
            if self.folder.is_dir():
                self.client.log_artifacts(self.run, str(self.folder))
            self.client.set_terminated(self.run, ended)

    def _store(self) -> tuple[Any, str]:
        """(the client of the store, the number of the experiment there)."""
        beside = self.folder.parent
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            beside.mkdir(parents=True, exist_ok=True)
        client = self.kit.MlflowClient(uri or f"sqlite:///{beside / 'mlflow.db'}")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedstrata")
        known = client.get_experiment_by_name(name)
        if known is not None:
            return client, known.experiment_id
        return client, client.create_experiment(name, None if uri else (beside / "mlflow").as_uri())


TRACKERS = {"tensorboard": TensorBoard, "mlflow": MLflow}
"""Those that can be asked for."""


def refuse_unknown_trackers(names: Sequence[str]) -> None:
    """Raise about the first name that is not a tracker's."""
    for name in names:
        if name not in TRACKERS:
            raise SettingError(f"no tracker is called {name!r}; {near(name, TRACKERS)}")


@contextmanager
def tracking(
    names: Sequence[str], folder: str | Path, settings: Mapping[str, Any], title: str = "", also: Told | None = None
) -> Iterator[Told]:
    """A function to be told every round of a run into this folder: `on_round` of `simulate` or an experiment.

    It tells the trackers of these names, and before them `also`.
    """
    refuse_unknown_trackers(names)
    ended: Ended = "FAILED"
    with ExitStack() as closing:
        trackers = []
        for name in dict.fromkeys(names):
            trackers.append(TRACKERS[name](Path(folder), settings, title))
            closing.callback(lambda t=trackers[-1]: t.close(ended))

        def told(line: dict[str, Any]) -> None:
            if also is not None:
                also(line)
            for tracker in trackers:
                tracker.round(line)

        try:
            yield told
            ended = "FINISHED"
        except KeyboardInterrupt:
            ended = "KILLED"
            raise


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round by name, test/accuracy; of lists of clients, how many there are."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{n}": v for n, v in numbers(value).items()}
        elif isinstance(value, list) and name != "warnings":
            found[name] = float(len(value))
        elif isinstance(value, (int, float)) and name != "round":
            found[name] = float(value)
    return found


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what MLflow has to hear about its use of other packages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _missing(tracker: str, package: str) -> str:
    return f"tracking by {tracker} needs {package}: pip install 'fedstrata[track]'"
