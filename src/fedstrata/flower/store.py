"""What a client remembers, kept on its node: it survives restarts and never leaves.

RUN/CLIENT/00007.safetensors   after its turn in round 7
RUN/CLIENT/00007.json          its checksum, and the round of its first turn; what has none counts for nothing

The last few turns are kept. A server that went on from a checkpoint may ask for a round again, and then the client
must remember what it did before that round, not after it: only so is the run the same, bit for bit.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from fedstrata.core import State
from fedstrata.errors import DataError
from fedstrata.files import Pieces, checksum, told, write, write_tensors
from fedstrata.flower.records import by_part, flat

KEPT = 3
"""Turns that are kept: a server keeps two checkpoints."""


@dataclass(frozen=True)
class Store:
    """The memories of one client in one run."""

    folder: Path

    @classmethod
    def of(cls, root: Path, run: str, client: str) -> "Store":
        """Where a run's client keeps them; names become names of folders that stay below the root."""
        return cls(root / _plain(run) / _plain(client))

    def before(self, number: int, fresh: State) -> tuple[State, int | None]:
        """(what it remembered before this round, and from which round); the fresh memory where there is none."""
        there = self._rounds()
        if not there or self._said(there[0])["first"] >= number:
            return fresh, None
        there = [r for r in there if r < number]
        if not there:
            raise DataError(f"what this client remembered before round {number} is no longer in {self.folder}")
        path, said = self.folder / f"{there[-1]:05d}.safetensors", self._said(there[-1])
        damaged = f"what this client remembers in {path} is damaged; remove {self.folder}, and it begins anew"
        if checksum(path) != said["sha256"]:
            raise DataError(damaged)
        try:
            memory = by_part(load_file(path), fresh)
        except (OSError, SafetensorError) as e:
            raise DataError(damaged) from e
        if {n: v.shape for n, v in flat(memory).items()} != {n: v.shape for n, v in flat(fresh).items()}:
            raise DataError(f"{path} is of another recipe or model; remove {self.folder}, and the client begins anew")
        return memory, there[-1]

    def keep(self, number: int, memory: State) -> None:
        """Remember this after a round; what is of later rounds, from before the server went back, is forgotten."""
        if not flat(memory):
            return
        with told("what this client remembers"):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            there = self._rounds()
            first = min(number, self._said(there[0])["first"]) if there else number
            path = self.folder / f"{number:05d}.safetensors"
            path.with_suffix(".json").unlink(missing_ok=True)
            digest = write_tensors(path, {n: Pieces.of(v) for n, v in flat(memory).items()})
            write(path.with_suffix(".json"), json.dumps({"sha256": digest, "first": first}) + "\n")
            self._only([r for r in self._rounds() if r <= number][-KEPT:])

    def _said(self, number: int) -> dict[str, Any]:
        return json.loads((self.folder / f"{number:05d}.json").read_text())

    def _rounds(self) -> list[int]:
        return sorted(int(p.stem) for p in self.folder.glob("*.json"))

    def _only(self, rounds: list[int]) -> None:
        """Remove all but these; the checksum first."""
        for suffix in ("json", "safetensors"):
            for path in self.folder.glob(f"*.{suffix}"):
                if path.stem.isdigit() and int(path.stem) not in rounds:
                    path.unlink()


def _plain(name: str) -> str:
    """A name that can be that of a folder, different for different names."""
    return re.sub(r"[^A-Za-z0-9-]", lambda m: f"_{ord(m[0]):x}_", name) or "_"
