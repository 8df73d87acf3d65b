"""One run is one folder of plain files: what was run, what happened in every round, the model that came out.

recipe.json         the algorithm
experiment.toml     the whole experiment; `fedstrata run experiment.toml` runs it again
rounds.jsonl        one line a round, written as it ends
notes.npz           diagnostics of every round, e.g. "gamma/00003"; "layers" and "tensors" name their last axis
model.safetensors   the trained global model; written last
environment.json    what it ran on
checkpoint, notes   while it runs: all that it takes to go on, and the notes until then
"""

import hashlib
import json
import os
import platform
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import deepcopy
from functools import cached_property
from math import isfinite
from pathlib import Path
from shutil import rmtree
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fedstrata import toml
from fedstrata.checkpoint import newest, newest_number, restored, save
from fedstrata.clients import Clients
from fedstrata.core import Recipe
from fedstrata.errors import DataError, ModelError, SettingError
from fedstrata.files import PART, Pieces, checksum, held, make_folder, replacing, sync, told, write, write_tensors
from fedstrata.layout import Arrays, Layout
from fedstrata.parse import load_outside
from fedstrata.runtimes import Vault
from fedstrata.server import Server
from fedstrata.version import __version__

MAY_CHANGE = {"rounds", "checkpoint", "engine", "chunk", "workers", "memory", "ray_address"}
"""Settings that a run may be gone on with changed."""


class Recorder:
    """Writes a run folder as the run goes; without a folder it only remembers."""

    def __init__(
        self,
        folder: str | Path | None,
        recipe: Recipe,
        settings: Mapping[str, Any],
        layout: Layout,
        vault: Vault,
        clients: Clients | None = None,  # where they are here
    ):
        self.folder = Path(folder) if folder is not None else None
        self.recipe, self.settings, self.layout, self.vault, self.clients = recipe, settings, layout, vault, clients
        self.mine: BinaryIO | None = None  # held as long as the folder is written to
        self.lines: list[dict[str, Any]] = []  # of rounds.jsonl
        self.notes: list[Arrays] = []  # of every round
        self.kept: dict[str, dict[str, Any]] = {}  # files of notes beside the last checkpoint

    def begin(self) -> None:
        """Make the folder, which must be new or empty, if there is to be one."""
        if self.folder is None:
            return
        make_folder(self.folder, empty=True)
        with self._told("the experiment"):
            write(self.folder / "experiment.toml", toml.dumps(self.settings))
            self._complete()
            self.mine = held(self.folder / "rounds.jsonl")

    def resume(self, server: Server, rounds: int) -> Server:
        """Go on in a folder where a run was broken off: the server as its last whole checkpoint has it."""
        if self.folder is None:
            raise SettingError("resume needs the run folder that is to be gone on with: give out = ...")
        if not (self.folder / "experiment.toml").exists():
            raise DataError(f"{self.folder} has no experiment.toml, so there is nothing to resume; start it anew")
        with self._told("the record"):
            self.mine = held(self.folder / "rounds.jsonl")
        if finished(self.folder):
            raise DataError(f"the run in {self.folder} has come to its end meanwhile: nothing is left to go on with")
        found = newest(self.folder / "checkpoint", self.folder)
        if found is not None and found.begun:
            refuse_other(self.begun, found.begun, self.folder)
        else:
            refuse_other_file(self.settings, self.folder)
        if found is not None and rounds < found.number:
            on = f"give rounds = {found.number} or more, or run {rounds} into another folder"
            raise SettingError(f"the run in {self.folder} has {found.number} rounds already; {on}")
        for part in self.folder.rglob(PART.format("*")):
            part.unlink()
        (self.folder / "notes.npz").unlink(missing_ok=True)  # of a run that ended with an error
        self.kept = {n: f for n, f in (found.record if found else {}).items() if n != "rounds.jsonl"}
        for chunk in (self.folder / "notes").glob("*.npz"):
            if f"notes/{chunk.name}" not in self.kept:
                chunk.unlink()
        write(self.folder / "experiment.toml", toml.dumps(self.settings))  # it may have more rounds now
        self._complete()
        os.truncate(self.folder / "rounds.jsonl", found.record["rounds.jsonl"]["bytes"] if found else 0)
        if found is None:
            return server
        self.lines = read_rounds(self.folder)
        self.notes = notes_by_round(read_notes(self.folder), found.number)
        return restored(found, server, self.vault)

    def round(self, line: dict[str, Any], notes: Arrays | None = None) -> None:
        """Add a round to the record, or what came after the last."""
        self.lines.append(line)
        if notes is not None:
            self.notes.append({n: v.cpu() for n, v in notes.items()})
        if self.folder is not None:
            with self._told("the record"), (self.folder / "rounds.jsonl").open("a") as f:
                f.write(json_text(line) + "\n")

    def checkpoint(self, server: Server) -> None:
        """Keep all that it takes to go on from here."""
        if self.folder is None:
            return
        with self._told("the checkpoint"):
            (self.folder / "notes").mkdir(exist_ok=True)
            done = max((int(Path(n).stem) + f["rounds"] for n, f in self.kept.items()), default=0)
            if done < server.number:
                name = f"notes/{done:05d}.npz"
                self._write_notes(self.folder / name, done)
                self.kept[name] = _facts(self.folder / name) | {"rounds": server.number - done}
            sync(self.folder / "rounds.jsonl")
            record = {"rounds.jsonl": _facts(self.folder / "rounds.jsonl")} | self.kept
            save(self.folder / "checkpoint", server, self.vault, record, self.begun)

    def finish(self, model: nn.Module) -> None:
        """Save all notes and then the trained model, each tied tensor once under every one of its names."""
        if self.folder is None:
            return
        with self._told("the model"):
            self._write_notes(self.folder / "notes.npz")
            named = {n: Pieces.of(t.detach().cpu()) for n, t in model.state_dict().items()}
            write_tensors(self.folder / "model.safetensors", named)  # what is there tells that the run has ended
        for folder in ("checkpoint", "notes"):
            rmtree(self.folder / folder, ignore_errors=True)

    def close(self) -> None:
        """Let go of the folder."""
        if self.mine is not None:
            self.mine.close()

    @cached_property
    def begun(self) -> dict[str, Any]:
        """What tells this experiment from others: settings that may not change, who has what, the model's tensors."""
        said = tomllib.loads(toml.dumps({k: v for k, v in self.settings.items() if k not in MAY_CHANGE}))
        told = repr((self.layout.tensors, self.layout.aliases, self.layout.names)).encode()
        many = f"{len(self.layout.tensors)} of {self.layout.size} numbers"
        said["tensors"] = f"{many} ({hashlib.sha256(told).hexdigest()[:12]})"
        if self.clients is not None:
            many = f"{len(self.clients.x)} examples of {len(self.clients)} clients"
            said["trained_on"] = f"{many} ({self.clients.digest})"
        return json.loads(json.dumps(said, default=str))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within this block an error leaves the notes of all rounds behind."""
        try:
            yield
        except Exception:
            if self.folder is not None:
                with suppress(OSError):
                    self._write_notes(self.folder / "notes.npz")
            raise

    def _complete(self) -> None:
        """Write what else a folder has from the beginning; what it ran on at first stays."""
        assert self.folder is not None
        write(self.folder / "recipe.json", json.dumps(self.recipe.to_dict(), indent=2) + "\n")
        if not (self.folder / "environment.json").exists():
            write(self.folder / "environment.json", json.dumps(environment(self.layout), indent=2) + "\n")

    def _write_notes(self, path: Path, begin: int = 0) -> None:
        """The notes of the rounds from this one on, and the names of their axes."""
        names = {"layers": self.layout.layers, "tensors": self.layout.at("tensor").layers}
        named: dict[str, Any] = {n: np.array(v) for n, v in names.items()}
        for number, notes in enumerate(self.notes[begin:], begin):
            named |= {f"{n}/{number:05d}": v.numpy() for n, v in notes.items()}
        with replacing(path) as f:
            np.savez(f, **named)

    def _told(self, what: str) -> AbstractContextManager[None]:
        last = newest_number(self.folder / "checkpoint") if self.folder is not None else None
        there = f"the checkpoint of round {last} is intact: " if last is not None else ""
        return told(f"{what} in {self.folder}", f"{there}make room and run fedstrata run --resume {self.folder}")


def json_text(value: Any) -> str:
    """JSON that every reader takes: numbers that are not finite are null."""

    def plain(v: Any) -> Any:
        if isinstance(v, Mapping):
            return {k: plain(x) for k, x in v.items()}
        if isinstance(v, list):
            return [plain(x) for x in v]
        return None if isinstance(v, float) and not isfinite(v) else v

    return json.dumps(plain(value), allow_nan=False)


def environment(layout: Layout) -> dict[str, Any]:
    """What a run ran on."""
    cuda = layout.device.type == "cuda"
    return {
        "fedstrata": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(layout.device) if cuda else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "parameters": layout.size,
    }


def read_rounds(folder: str | Path) -> list[dict[str, Any]]:
    """The rounds of a run folder."""
    path = Path(folder) / "rounds.jsonl"
    if not path.exists():
        raise DataError(f"{folder} is not a run folder: it has no rounds.jsonl")
    with _whole(path):
        return [_line(text, i) for i, text in enumerate(path.read_text("utf-8").splitlines(), 1)]


def _line(text: str, number: int) -> dict[str, Any]:
    """What a line of rounds.jsonl says, if it says what every one does."""
    try:
        said = json.loads(text)
    except json.JSONDecodeError as e:
        raise ValueError(f"line {number} is no JSON: {e.msg}") from None
    kinds = {"round": int, "cohort": list, "dropped": list, "seconds": (int, float)}
    if not isinstance(said, dict) or not all(isinstance(said.get(n), kind) for n, kind in kinds.items()):
        raise ValueError(f"line {number} is not what is said of a round: {text[:40]}")
    return said


def read_recipe(folder: str | Path) -> Recipe:
    """The recipe of a run folder."""
    path = Path(folder) / "recipe.json"
    if not path.exists():
        raise DataError(f"{folder} is not a run folder: it has no recipe.json")
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise DataError(f"{path} cannot be read as JSON: {e}") from None
    if not isinstance(said, Mapping):
        raise DataError(f"{path} is not a recipe, which has a select, a weigh and other parts")
    load_outside()  # a part of somebody else's may be in it
    return Recipe.from_dict(said)


def finished(folder: str | Path) -> bool:
    """Whether a run folder holds a run that came to its end."""
    return (Path(folder) / "model.safetensors").exists()


def read_notes(folder: str | Path) -> dict[str, np.ndarray]:
    """The diagnostics of a run folder, also of a run that has not come to its end."""
    folder = Path(folder)
    whole = folder / "notes.npz"
    found: dict[str, np.ndarray] = {}
    for path in [whole] if whole.exists() else sorted((folder / "notes").glob("*.npz")):
        with _whole(path), path.open("rb") as f, np.load(f, allow_pickle=False) as notes:
            found |= dict(notes)
    return found


def read_model(folder: str | Path, model: nn.Module) -> nn.Module:
    """A copy of the model with the parameters and buffers that a run ended with."""
    path, trained = Path(folder) / "model.safetensors", deepcopy(model)
    with _whole(path):
        tensors = load_file(path)
    try:
        trained.load_state_dict(tensors)
    except RuntimeError as e:
        why = " ".join(str(e).split())
        raise ModelError(f"{path} is of another model than the one given; give that of the run ({why})") from None
    return trained


def notes_by_round(notes: Mapping[str, np.ndarray], rounds: int) -> list[Arrays]:
    """The notes of each round by name."""
    found: list[Arrays] = [{} for _ in range(rounds)]
    for name, v in notes.items():
        what, _, number = name.rpartition("/")
        if what:
            found[int(number)][what] = torch.from_numpy(v)
    return found


def _facts(path: Path) -> dict[str, Any]:
    """What tells whether a file is still as it was, whatever was added to it."""
    size = path.stat().st_size
    return {"bytes": size, "sha256": checksum(path, size)}


def refuse_other(now: Mapping[str, Any], then: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on with another experiment than the one that was begun."""
    now, then = (toml.flattened({k: v for k, v in said.items() if k not in MAY_CHANGE}) for said in (now, then))
    for key in sorted(now.keys() | then.keys()):
        if now.get(key) != then.get(key):
            was, got = (str(v.get(key)) for v in (then, now))
            raise SettingError(f"{folder} was begun with {key} = {was}, and cannot be gone on with {key} = {got}")


def refuse_other_file(now: Mapping[str, Any], folder: Path) -> None:
    """The same by experiment.toml, where the run was made in Python: an experiment reads its file by itself."""
    if "made_in_python" in now:
        with _whole(folder / "experiment.toml"):
            then = tomllib.loads((folder / "experiment.toml").read_text("utf-8"))
        refuse_other(tomllib.loads(toml.dumps(now)), then, folder)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """What is wrong with a file of a run folder that is read within this block is a sentence."""
    try:
        yield
    except (OSError, EOFError, ValueError, KeyError, BadZipFile, SafetensorError) as e:
        folder = path.parent.parent if path.parent.name == "notes" else path.parent
        anew = f"put back a copy of it, or remove {folder} and run it again"
        remedy = anew if finished(folder) else f"fedstrata run --resume {folder} goes back to what is whole"
        raise DataError(f"{folder} cannot be read as a run folder: {path.name} is damaged ({e}); {remedy}") from None
