"""Where data lives: published files below one folder, and what was decoded of them as memory-mapped arrays."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import time

import numpy as np

from fedstrata.errors import DataError

DECODING = 1
"""Raised whenever decoded arrays change, so that old ones are made anew."""

CACHE = "XDG_CACHE_HOME names another folder for the cache"


def user_cache() -> Path:
    """The user's cache folder for fedstrata."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedstrata"


def root() -> Path:
    """The folder of published files: FEDSTRATA_DATA, or the user's cache."""
    return Path(os.environ.get("FEDSTRATA_DATA") or user_cache() / "data").expanduser()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time in this block, by name; where a system has no such locks, renames alone protect files."""
    folder = user_cache() / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"{name}.lock").open("w")
    except OSError as e:
        raise DataError(f"{folder} cannot be written to ({e.strerror or e}); {CACHE}") from None
    with lock as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:
            pass
        yield


def decoded(
    name: str, inputs: Sequence[Path], decode: Callable[[], dict[str, np.ndarray]], **settings: object
) -> dict[str, np.ndarray]:
    """The arrays that `decode` makes of these files, memory-mapped; made once for files and settings like these."""
    folder = user_cache() / "decoded" / f"{name}-{_signature(inputs, settings)}"
    if not folder.is_dir():
        with locked(folder.name):
            if not folder.is_dir():
                _write(folder, decode())
    # copy on write: torch wants arrays it could write to, and processes share the pages as long as nobody does
    return {p.stem: np.load(p, mmap_mode="c") for p in sorted(folder.glob("*.npy"))}


def _write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """All or nothing: the folder appears when it is complete."""
    begun = f".partial-{folder.name}-"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _tidy(folder.parent, begun)
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=begun))
        try:
            for name, array in arrays.items():
                np.save(partial / f"{name}.npy", array)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as e:
        raise DataError(f"decoded data cannot be written to {folder.parent} ({e.strerror or e}); {CACHE}") from None


def _tidy(folder: Path, begun: str) -> None:
    """Remove what killed processes left half-written; what is younger than an hour may still be in the making."""
    for partial in folder.glob(f"{begun}*"):
        if time() - partial.stat().st_mtime > 3600:
            shutil.rmtree(partial, ignore_errors=True)


def _signature(inputs: Sequence[Path], settings: dict[str, object]) -> str:
    """Twelve digits that change with the files or the settings."""
    seen = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in inputs]
    text = json.dumps([DECODING, seen, settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
