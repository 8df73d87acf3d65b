"""A run that is wanted, whoever runs it: found again, gone on with, its data loaded once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstrata.data import Dataset, is_own
from fedstrata.errors import DataError, FedstrataError
from fedstrata.experiment import Experiment, read_toml
from fedstrata.record import finished as has_ended
from fedstrata.stopping import Stopped


@dataclass(frozen=True)
class Job:
    """A run that is wanted: what it is called, its experiment, and its folder."""

    name: str
    experiment: Experiment
    folder: Path


Told = Callable[[Job, dict[str, Any] | None], None]
"""Is told every round of every run, and None when a run has ended, or was there already."""


def finished(job: Job) -> bool:
    """Whether the folder holds this very run, come to its end; one that was broken off there is gone on with.

    A folder that holds another run is refused.
    """
    if not (job.folder / "experiment.toml").exists():
        return False  # what else may be there is refused as the run begins
    found = Experiment.of(read_toml(job.folder / "experiment.toml"))
    if found.fingerprint != job.experiment.fingerprint:
        raise DataError(f"{job.folder} holds a run with other settings; give another folder by --out, or remove it")
    return has_ended(job.folder)


def play(exp: Experiment, folder: Path, on_round: Callable[[dict[str, Any]], None]) -> None:
    """Run one experiment here, or go on with it."""
    exp.run(folder, on_round, loaded(exp), (folder / "experiment.toml").exists())


def loaded(exp: Experiment) -> Dataset:
    """The data of an experiment, kept for the next one."""
    changed = Path(exp.data).stat().st_mtime_ns if is_own(exp.data) and Path(exp.data).exists() else 0
    key = *exp.source, changed
    if (found := _last.get(key)) is None:
        found = exp.dataset()
        _last.clear()
        _last[key] = found
    return found


_last: dict[tuple[Any, ...], Dataset] = {}
"""The data that was loaded last."""


@contextmanager
def named(job: Job) -> Iterator[None]:
    """An error within this block says in which run."""
    try:
        yield
    except FedstrataError as e:
        raise type(e)(f"{job.name}: {e}") from None
    except Stopped as e:
        raise Stopped(f"stopped in {job.name}; the same command with the same --out goes on", e.code - 128) from None
