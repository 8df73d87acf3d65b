"""What several commands share: options, settings from a file and the options, run folders."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstrata.data import is_own
from fedstrata.errors import DataError, ModelError, NeedError, SettingError
from fedstrata.experiment import Experiment, merged, put, read_toml
from fedstrata.lab.sweep import SWEEP, checked_axes
from fedstrata.models import MODELS
from fedstrata.parse import parse_recipe

MODEL_HELP = f"{', '.join(MODELS)}; options as in resnet20(norm='group'); or your own, package.module:make."

Data = Annotated[str | None, typer.Option(help="A data set (fedstrata data list), or a file of yours.")]
Label = Annotated[str | None, typer.Option(help="The column of the labels in a file of yours.")]
Client = Annotated[str | None, typer.Option(help="The column of the clients in a file of yours.")]
HowMany = Annotated[int | None, typer.Option("--clients", help="How many clients the data is split over.")]
Alpha = Annotated[float | None, typer.Option(help="Label skew of the Dirichlet split: small is strong.")]
Seed = Annotated[int | None, typer.Option(help="Of everything that is drawn.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Any setting, e.g. training.lr=0.05.")]
Model = Annotated[str | None, typer.Option(help=MODEL_HELP)]
Rounds = Annotated[int | None, typer.Option(help="How many rounds.")]
Json = Annotated[bool, typer.Option("--json", help="End with one JSON object on standard output.")]
Jobs = Annotated[int | None, typer.Option(help="Runs at a time: one a core unless given.")]


@dataclass(frozen=True)
class Options:
    """A TOML file, and what the command's options put in its place."""

    file: Path | None = None
    method: str | None = None
    plain: Mapping[str, Any] | None = None  # settings by name; None where an option was not given
    split: Mapping[str, Any] | None = None  # those of the partition
    more: Sequence[str] | None = None  # key=value

    def given(self) -> list[str]:
        """The settings that options name."""
        plain = {"method": self.method} | dict(self.plain or {})
        plain |= {f"partition.{k}": v for k, v in (self.split or {}).items()}
        return [k for k, v in plain.items() if v is not None] + [m.partition("=")[0].strip() for m in self.more or ()]

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What is wrong with the settings within this block is said with the file's name."""
        where = f"{self.file} and the options given" if self.given() else str(self.file)
        try:
            yield
        except (SettingError, DataError, ModelError, NeedError) as e:
            if self.file is None or str(self.file) in str(e):
                raise
            raise type(e)(f"{where}: {e}") from None

    def read(self) -> tuple[str, dict[str, Any]]:
        """(what the method is called, the settings), after a look at the file alone."""
        settings = read_toml(self.file) if self.file is not None else {}
        if self.file is not None:
            with Options(self.file).blamed():
                sweep = checked_axes(settings)
                Experiment.of({k: v for k, v in settings.items() if k != SWEEP and not (k == "method" and k in sweep)})
        with self.blamed():
            return self._overruled(settings)

    def _overruled(self, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        stem = self.file.stem if self.file is not None else ""
        name = str(self.method or settings.get("method") or (stem if "recipe" in settings else "fedavg"))
        if self.method is not None:
            settings.pop("recipe", None)
        if "recipe" not in settings:
            settings["recipe"] = parse_recipe(name).to_dict()
            settings.pop("method", None)
        given = {k: v for k, v in (self.split or {}).items() if v is not None}
        plain = dict(self.plain or {}) | {"partition": given or None}
        settings = merged(settings, {k: v for k, v in plain.items() if v is not None})
        for assignment in self.more or ():
            put(settings, assignment)
        if is_own(str(settings.get("data", ""))):
            settings["data"] = str(Path(str(settings["data"])).resolve())  # the record can be run from anywhere
        return name, settings


def called(data: str) -> str:
    """A data set by its name, a file by its own without the folders."""
    return Path(data).name if is_own(data) else data


@contextmanager
def run_folder(given: Path | None, name: str) -> Iterator[Path]:
    """The folder that was given, or a new one below runs/, which goes away if nothing was written into it."""
    folder = given or new_folder(name)
    try:
        yield folder
    finally:
        if given is None:
            with suppress(OSError):  # it is not empty, as it should be
                folder.rmdir()


def new_folder(name: str) -> Path:
    """A new folder below runs/, made at once: another process that starts now gets another one."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    for i in count():
        folder = Path("runs") / (f"{stem}-{i}" if i else stem)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not Path("runs").is_dir():
                raise DataError("runs is a file, and the folder of the runs; give another by --out") from None
        except OSError as e:
            raise DataError(f"{folder} cannot be made ({e.strerror or e}); give another folder by --out") from None
        else:
            return folder
    raise AssertionError
