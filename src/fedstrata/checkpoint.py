"""Checkpoints: all that a run needs to go on, so that a crash costs a few rounds and nothing else.

00010.safetensors   the server's model, buffers, state and statistics, what clients remember, torch's random numbers
00010.json          the round to come, the checksums of this file and of the record so far, and what may not change
                    from then on; written last

The last two are kept, and one that is damaged is passed over. Every other random number is drawn from the seed, the
round and the client, so that nothing else need be remembered.
"""

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedstrata.core import State
from fedstrata.files import Pieces, checksum, write, write_tensors
from fedstrata.layout import Arrays
from fedstrata.runtimes import Vault
from fedstrata.server import Server

KEPT = 2
"""How many there are at a time."""


@dataclass(frozen=True)
class Checkpoint:
    """One that was found whole."""

    path: Path  # of the tensors
    number: int  # of the round to come
    record: dict[str, Any]  # what the run folder held then: bytes and checksums by file
    begun: dict[str, Any]  # what tells the experiment from others; nothing in old ones


def save(folder: Path, server: Server, vault: Vault, record: dict[str, Any], begun: dict[str, Any]) -> None:
    """Write one beside the last, and remove those before."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{server.number:05d}.safetensors"
    digest = write_tensors(path, _tensors(server, vault))
    facts = {"round": server.number, "sha256": digest, "record": record, "begun": begun}
    write(path.with_suffix(".json"), json.dumps(facts, indent=2) + "\n")
    for old in sorted(folder.glob("*.json"))[:-KEPT]:
        old.unlink()  # first: without it the other file counts for nothing
    there = {p.stem for p in folder.glob("*.json")}
    for old in folder.glob("*.safetensors"):
        if old.stem not in there:
            old.unlink()


def newest(folder: Path, run: Path) -> Checkpoint | None:
    """The last one that is whole, and whose record is still in the run folder; a damaged one is told of."""
    for path in sorted(folder.glob("*.json"), reverse=True):
        found = _whole(path, run)
        if found is not None:
            return found
        warnings.warn(f"the checkpoint {path.stem} is damaged and was passed over", RuntimeWarning, stacklevel=2)
    return None


def newest_number(folder: Path) -> int | None:
    """The round to come of the last one, whole or not; None where there is none."""
    return max((int(p.stem) for p in folder.glob("*.json")), default=None)


def restored(found: Checkpoint, server: Server, vault: Vault) -> Server:
    """The server as it was then, from one of the same run before its first round; the vault is filled."""
    device = server.model.device
    with safe_open(found.path, "pt") as f:
        flat = {n: f.get_tensor(n) for n in f.keys() if not n.startswith("memory/")}  # noqa: SIM118  it is no mapping
        torch.set_rng_state(flat.pop("torch"))
        visited = flat.pop("visited").tolist()
        rows = {n: f.get_slice(n) for n in f.keys() if n.startswith("memory/")}  # noqa: SIM118
        for j, i in enumerate(visited):
            fresh: State = {part: {} for part in vault.fresh}
            vault.memories[i] = _nested({n.removeprefix("memory/"): rows[n][j].clone() for n in rows}, fresh)
    flat = {n: v.to(device, copy=True) for n, v in flat.items()}  # where numbers lie decides how sums are rounded
    parts: dict[str, Arrays] = {n: _below(n, flat) for n in ("buffers", "state", "stats")}
    state = _nested(parts["state"], {part: {} for part in server.state})
    more = {"buffers": parts["buffers"], "state": state, "stats": parts["stats"]}
    return replace(server, model=flat["model"], number=found.number, **more)


def _tensors(server: Server, vault: Vault) -> dict[str, Pieces]:
    """Everything by name."""
    visited = torch.tensor(list(vault.memories), dtype=torch.long)
    flat = {"model": server.model, "torch": torch.get_rng_state(), "visited": visited}
    flat |= {f"buffers/{n}": v for n, v in server.buffers.items()} | {f"stats/{n}": v for n, v in server.stats.items()}
    flat |= {f"state/{part}/{n}": v for part, own in server.state.items() for n, v in own.items()}
    found = {n: Pieces.of(v) for n, v in flat.items()}
    for part, own in vault.fresh.items():
        for n, v in own.items():
            shape = len(vault.memories), *v.shape
            found[f"memory/{part}/{n}"] = Pieces(v.dtype, shape, _rows(vault, part, n))
    return found


def _rows(vault: Vault, part: str, name: str) -> Iterator[Tensor]:
    """What each client remembers under this name, one after another."""
    return (vault.memories[i][part][name] for i in vault.memories)


def _whole(path: Path, run: Path) -> Checkpoint | None:
    """The checkpoint of this file, if nothing of it is missing or changed."""
    try:
        facts = json.loads(path.read_text())
        record, tensors = facts["record"], path.with_suffix(".safetensors")
        good = checksum(tensors) == facts["sha256"]
        good = good and all(checksum(run / n, f["bytes"]) == f["sha256"] for n, f in record.items())
        with safe_open(tensors, "pt"):
            return Checkpoint(tensors, int(facts["round"]), record, dict(facts.get("begun", {}))) if good else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None


def _below(head: str, flat: Arrays) -> Arrays:
    return {n.removeprefix(f"{head}/"): v for n, v in flat.items() if n.startswith(f"{head}/")}


def _nested(flat: Arrays, into: State) -> State:
    """Names of two parts, "local.0/control", as the dictionaries that they stand for."""
    for name, v in flat.items():
        part, _, own = name.partition("/")
        into[part][own] = v
    return into
