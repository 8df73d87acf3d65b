"""Client memories by id, created on the first visit: in memory, or on disk where they would take too much of it."""

import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedstrata.core import State
from fedstrata.files import raw, told
from fedstrata.memory import memory_of

SHARE_OF_MEMORY = 0.25
"""What memories may take before they go to disk, unless somebody says."""


class Shelf(MutableMapping[int, State]):
    """Memories on disk, a record a client. The file has no name: it is gone with the process, however that ends."""

    def __init__(self, like: State, folder: Path | None = None):
        self.like, self.places = like, dict[int, int]()
        self.size = sum(v.numel() * v.element_size() for part in like.values() for v in part.values())
        self.folder = folder

    @cached_property
    def file(self) -> IO[bytes]:
        """Opened when there is something to write, which is when the run folder is there."""
        return TemporaryFile(dir=self.folder, buffering=0)

    def __getitem__(self, i: int) -> State:
        record = torch.frombuffer(bytearray(self._read(i)), dtype=torch.uint8)
        memory: State = {part: {} for part in self.like}
        begin = 0
        for part, name, v in self._kinds():
            end = begin + v.numel() * v.element_size()
            memory[part][name] = record[begin:end].clone().view(v.dtype).view(v.shape)
            begin = end
        return memory

    def __setitem__(self, i: int, memory: State) -> None:
        at = self.places.setdefault(i, len(self.places)) * self.size
        record = b"".join(raw(memory[part][name]) for part, name, _ in self._kinds())
        with told("what clients remember", "make room, or keep it in memory: memory = so many GiB"):
            while record:
                written = os.pwrite(self.file.fileno(), record, at)
                record, at = record[written:], at + written

    def _read(self, i: int) -> bytes:
        return os.pread(self.file.fileno(), self.size, self.places[i] * self.size)

    def _kinds(self) -> Iterator[tuple[str, str, Tensor]]:
        return ((part, name, v) for part, own in self.like.items() for name, v in own.items())

    def close(self) -> None:
        """Let go of the file, and so of all that is in it."""
        self.file.close()

    def __delitem__(self, i: int) -> None:
        del self.places[i]

    def __iter__(self) -> Iterator[int]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


class Vault:
    """What each client remembers between its turns. Rows live with the host and travel to the device for a round."""

    def __init__(self, fresh: State, memories: MutableMapping[int, State] | None = None):
        self.fresh = fresh
        self.memories: MutableMapping[int, State] = {} if memories is None else memories

    @classmethod
    def of(cls, fresh: State, population: int, room: float | None, folder: Path | None = None) -> "Vault":
        """For so many clients: on disk where they might take more than `room` bytes, or a quarter of the machine."""
        on_disk = in_memory(fresh, population, room) == 0
        return cls(fresh, Shelf(tree_map(lambda v: v.cpu(), fresh), folder) if on_disk else None)

    def take(self, ids: Sequence[int], device: torch.device, *parts: str) -> State:
        """These clients' memories, stacked, [K, ...] each; of some parts only where those are named."""
        rows = [{n: v for n, v in self.memories.get(i, self.fresh).items() if n in (parts or self.fresh)} for i in ids]
        return tree_map(lambda *vs: torch.stack([v.to(device) for v in vs]), *rows)

    def put(self, ids: Sequence[int], stacked: State, keep: Tensor) -> None:
        """Remember what these clients brought back, except where `keep`, [K], is false."""
        for j, i in enumerate(ids):
            if keep[j]:
                self.memories[i] = tree_map(lambda v, j=j: v[j].to("cpu", copy=True), stacked)

    def some(self, ids: Sequence[int], *parts: str) -> dict[int, State]:
        """What those of these clients remember who have had a turn; of some parts only where those are named."""
        known = {i: m for i in ids if (m := self.memories.get(i)) is not None}
        return {i: {n: v for n, v in m.items() if n in (parts or self.fresh)} for i, m in known.items()}

    def keep(self, memories: Mapping[int, State]) -> None:
        """Remember this of these clients."""
        self.memories.update(memories)

    def close(self) -> None:
        """Forget what is on disk."""
        if isinstance(self.memories, Shelf):
            self.memories.close()


def in_memory(fresh: State, population: int, room: float | None) -> int | None:
    """Of how many runs all memories fit into `room` bytes, or a quarter of the machine; None where there are none."""
    each = sum(v.numel() * v.element_size() for v in tree_leaves(fresh))
    has = SHARE_OF_MEMORY * memory_of(torch.device("cpu")) if room is None else room
    return int(has / (population * each)) if each else None
