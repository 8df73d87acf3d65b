"""Get published files: with a progress bar, checked, continued where they were interrupted, one process at a time."""

import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from hashlib import md5
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fedstrata.data.sources import SOURCES, Archive, Source
from fedstrata.data.store import locked, root
from fedstrata.errors import DataError

PIECE = 1 << 14
TIMEOUT = (10, 60)
"""Seconds to connect, and to wait for the next piece."""


def files_of(name: str, download: bool = True) -> dict[str, Path]:
    """The files of a data set by their names below the data folder; what is missing is downloaded first."""
    source = SOURCES[name]
    if missing(source) and download:
        with locked(f"get-{name}"):
            if missing(source):
                _get(name, source)
    if lacking := missing(source):
        raise DataError(_where(name, source, lacking))
    return {f.path: root() / f.path for f in source.files}


def missing(source: Source) -> list[str]:
    """Which of its files are not there."""
    return [f.path for f in source.files if not (root() / f.path).is_file()]


def checksum(path: Path) -> str:
    """md5 of a file."""
    digest = md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _get(name: str, source: Source) -> None:
    """Download what is missing, in one archive or file by file."""
    try:
        if source.archive is not None:
            archive = _fetch(
                source.archive.url, source.archive.name, source.archive.md5, f"downloads/{source.archive.name}"
            )
            _unpack(archive, source.archive)
            archive.unlink()
            return
        for file in source.files:
            if file.url is not None and not (root() / file.path).is_file():
                _fetch(file.url, file.path, file.md5, file.path)
    except OSError as e:  # no network, no such address, no room on the disk
        raise DataError(_where(name, source, missing(source), _why(e))) from e


def _fetch(url: str, name: str, known: str | None, path: str) -> Path:
    """One file into the data folder, from its address or from the mirror FEDSTRATA_MIRROR."""
    try:
        import pooch
    except ImportError:
        raise DataError("downloading needs pooch: pip install pooch") from None
    mirror = os.environ.get("FEDSTRATA_MIRROR")
    address = f"{mirror.rstrip('/')}/{name}" if mirror else url
    pooch.get_logger().setLevel("ERROR")
    target = root() / path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.part")
    try:
        got = pooch.retrieve(
            address, f"md5:{known}" if known else None, target.name, target.parent,
            downloader=lambda url, out, _: _resumed(url, out, partial),  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
    except ValueError as e:
        raise DataError(f"{address} is not the published file ({' '.join(str(e).split())}); nothing was kept") from None
    return Path(got)


def _resumed(url: str, out: Any, partial: Path) -> None:
    """Download into a partial file, from where it ends, and hand it over once it is complete."""
    import requests

    there = partial.stat().st_size if partial.exists() else 0
    headers = {"Range": f"bytes={there}-"} if there else {}
    with requests.get(url, stream=True, timeout=TIMEOUT, headers=headers) as answer:
        if answer.status_code == 416:  # nothing beyond: it was complete, or is no part of this file
            partial.unlink()
            return _resumed(url, out, partial)
        answer.raise_for_status()
        there = there if answer.status_code == 206 else 0
        length = answer.headers.get("Content-Length")
        total = there + int(length) if length is not None else None
        with partial.open("ab" if there else "wb") as file, _progress() as bar:
            task = bar.add_task(partial.name.removesuffix(".part"), total=total, completed=there)
            for piece in answer.iter_content(PIECE):
                file.write(piece)
                bar.update(task, advance=len(piece))
    if total is not None and partial.stat().st_size < total:
        raise OSError(
            f"{url} broke off after {partial.stat().st_size:,} of {total:,} bytes; the next try goes on there"
        )
    shutil.move(partial, out)
    return None


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    return Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True), transient=True)


def _unpack(archive: Path, what: Archive) -> None:
    """Extract into the data folder; an archive within goes the same way."""
    try:
        if tarfile.is_tarfile(archive):
            with tarfile.open(archive) as tar:
                tar.extractall(root(), filter="data")
            return
        with zipfile.ZipFile(archive) as zipped:
            if what.within is None:
                zipped.extractall(root())
                return
            inner = Path(zipped.extract(what.within, root() / "downloads"))
        with zipfile.ZipFile(inner) as zipped:
            zipped.extractall(root())
        inner.unlink()
    except (tarfile.TarError, zipfile.BadZipFile, KeyError) as e:
        raise DataError(f"{archive} cannot be unpacked ({e}); remove it and try again") from None


def _why(error: OSError) -> str:
    """A failed download in a few words."""
    from requests import ConnectionError, HTTPError, Timeout

    if isinstance(error, HTTPError) and error.response is not None:
        return f"{error.response.url} answered {error.response.status_code}"
    if isinstance(error, (ConnectionError, Timeout)) and error.request is not None:
        return f"no connection to {error.request.url}"
    return str(error).splitlines()[0]


def _where(name: str, source: Source, lacking: Iterable[str], why: str = "") -> str:
    """Which files to put where."""
    paths = list(lacking)
    shown = ", ".join(paths[:4]) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")
    tried = f" (downloading failed: {why})" if why else ""
    return (
        f"{name} needs the files {shown} in the folder {root()}{tried}. Get them from {source.page}, or on a machine "
        f"with a network by `fedstrata data get {name}`; FEDSTRATA_DATA names the folder"
    )
