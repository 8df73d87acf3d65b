"""Files that are whole or not there: what a crash, a kill or a full disk leaves behind can always be read."""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from fedstrata.errors import DataError

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "the file is too large"}
"""What a disk says when it takes no more."""

KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""What safetensors calls the types."""

PART = ".{}.part"
"""What a file is called while it is written."""


@dataclass(frozen=True)
class Pieces:
    """A tensor that is written piece by piece, so that it need never be in memory as a whole."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: Iterable[Tensor]

    @classmethod
    def of(cls, t: Tensor) -> "Pieces":
        """A tensor in one piece."""
        return cls(t.dtype, tuple(t.shape), [t])

    @property
    def size(self) -> int:
        """Its bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def refuse_occupied(path: Path) -> None:
    """Raise unless a new run folder can be made here; what `replacing` leaves where it is killed does not count."""
    try:
        free = not path.exists() or (path.is_dir() and all(p.match(PART.format("*")) for p in path.iterdir()))
    except OSError as e:
        raise DataError(f"the folder {path} cannot be made: {e.strerror or e}") from None
    if not free:
        raise DataError(f"{path} is not an empty folder; give another one, or remove it first")


def make_folder(path: str | Path, empty: bool = False) -> Path:
    """A folder, made with those above it unless it is there; one that must be empty, and is not, is refused."""
    path = Path(path)
    if empty:
        refuse_occupied(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise DataError(f"the folder {path} cannot be made: {e.strerror or e}") from None
    return path


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of this one when the block ends: written under another name, synced, renamed."""
    other = path.with_name(PART.format(path.name))
    try:
        with other.open("wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        other.replace(path)
        sync(path.parent)
    except BaseException:
        other.unlink(missing_ok=True)
        raise


def write(path: Path, text: str) -> None:
    """A text in place of what the file held."""
    with replacing(path) as f:
        f.write(text.encode())


def held(path: Path) -> BinaryIO:
    """A file in a folder that is this process's alone until it closes the file, or ends, however that comes.

    Where a system has no such locks, nobody is kept out.
    """
    file = path.open("ab")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise DataError(f"another process is writing into {path.parent}; wait until it has ended") from None
    except (ImportError, OSError):
        pass
    return file


def sync(path: Path) -> None:
    """What was written to this file, or renamed within this folder, has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def told(what: str, remedy: str = "make room and run it again") -> Iterator[None]:
    """What a disk refuses within this block is said in a sentence."""
    try:
        yield
    except OSError as e:
        why = FULL.get(e.errno or 0)
        if why is None:
            raise DataError(f"{what} cannot be written: {e.strerror or e}") from e
        raise DataError(f"{why}, so {what} cannot be written; {remedy}") from e


def raw(t: Tensor) -> memoryview:
    """The bytes of a tensor as they lie in memory."""
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def write_tensors(path: Path, tensors: Mapping[str, Pieces]) -> str:
    """A safetensors file, written piece by piece; its SHA-256."""
    order = sorted(tensors, key=lambda n: (-tensors[n].dtype.itemsize, n))  # so that every tensor is aligned
    header, end = {}, 0
    for name in order:
        t = tensors[name]
        header[name] = {"dtype": KINDS[t.dtype], "shape": list(t.shape), "data_offsets": [end, end + t.size]}
        end += t.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with replacing(path) as f:
        for part in [len(text).to_bytes(8, "little"), text]:
            digest.update(part)
            f.write(part)
        for name in order:
            for piece in tensors[name].pieces:
                digest.update(raw(piece))
                f.write(raw(piece))
    return digest.hexdigest()


def checksum(path: Path, size: int | None = None) -> str:
    """The SHA-256 of a file, or of its first bytes; "" where it is shorter than that, or not there."""
    digest, left = hashlib.sha256(), size
    try:
        with path.open("rb") as f:
            while left != 0 and (block := f.read(min(left or 1 << 20, 1 << 20))):
                digest.update(block)
                left = None if left is None else left - len(block)
    except OSError:
        return ""
    return "" if left else digest.hexdigest()
