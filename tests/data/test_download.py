"""Downloading: checked, continued after an interruption, safe with two processes, clear without a network."""

import subprocess
import sys
from dataclasses import replace
from hashlib import md5
from pathlib import Path

import pytest

from fedstrata.data import dataset, sources
from fedstrata.data.download import PIECE, files_of
from fedstrata.errors import DataError
from tests.data.publishers import Mirror, write_mnist

FIRST = "mnist/train-images-idx3-ubyte.gz"


@pytest.fixture
def mirror(store, tmp_path, monkeypatch):
    """A server with a small MNIST, whose checksums are the known ones."""
    write_mnist(tmp_path / "published" / "mnist")
    source = sources.SOURCES["mnist"]
    files = tuple(replace(f, md5=md5((tmp_path / "published" / f.path).read_bytes()).hexdigest()) for f in source.files)
    monkeypatch.setitem(sources.SOURCES, "mnist", replace(source, files=files))
    with Mirror(tmp_path / "published").running() as running:
        monkeypatch.setenv("FEDSTRATA_MIRROR", running.url)
        yield running


def test_what_is_missing_is_downloaded_once_and_then_the_network_is_left_alone(mirror, store):
    assert len(dataset("mnist").train[1]) == 30
    assert len(mirror.asked) == 4
    dataset("mnist")
    assert len(mirror.asked) == 4
    (store / FIRST).unlink()
    files_of("mnist")
    assert [path for path, _ in mirror.asked[4:]] == [f"/{FIRST}"]


def test_a_file_with_another_checksum_is_not_kept(mirror, store):
    (mirror.folder / FIRST).write_bytes(b"something else")
    with pytest.raises(DataError, match="is not the published file"):
        dataset("mnist")
    assert not (store / FIRST).exists()


def test_an_interrupted_download_goes_on_where_it_stopped(mirror, store):
    mirror.break_after = 20_000
    with pytest.raises(DataError, match="mnist needs the files"):
        files_of("mnist")
    assert (store / f"{FIRST}.part").stat().st_size == PIECE
    mirror.break_after = None
    assert len(dataset("mnist").train[1]) == 30
    assert (f"/{FIRST}", f"bytes={PIECE}-") in mirror.asked
    assert not list(store.rglob("*.part"))


def test_a_server_that_knows_no_ranges_begins_anew(mirror, store):
    (store / "mnist").mkdir(parents=True)
    (store / f"{FIRST}.part").write_bytes(b"x" * 500)
    mirror.ranges = False
    assert len(dataset("mnist").train[1]) == 30


def test_a_partial_file_longer_than_the_published_one_is_dropped(mirror, store):
    (store / "mnist").mkdir(parents=True)
    (store / f"{FIRST}.part").write_bytes(b"x" * 10**6)
    assert len(dataset("mnist").train[1]) == 30


def test_without_data_and_network_a_sentence_names_the_files_and_the_folder(store, monkeypatch):
    monkeypatch.setenv("FEDSTRATA_MIRROR", "http://127.0.0.1:9")
    with pytest.raises(DataError) as refused:
        dataset("mnist")
    assert "mnist needs the files mnist/train-images-idx3-ubyte.gz, mnist/train-labels" in str(refused.value)
    assert f"in the folder {store} (downloading failed: no connection to http://127.0.0.1:9/" in str(refused.value)


def test_a_file_that_the_server_has_not_is_said(mirror):
    (mirror.folder / FIRST).unlink()
    with pytest.raises(DataError, match=f"downloading failed: {mirror.url}/{FIRST} answered 404"):
        dataset("mnist")


def test_two_processes_at_once_do_not_disturb_each_other(mirror):
    code = (
        "import sys; from fedstrata.data import sources; from dataclasses import replace\n"
        "s = sources.SOURCES['mnist']\n"
        "sources.SOURCES['mnist'] = replace(s, files=tuple(replace(f, md5=None) for f in s.files))\n"
        "from fedstrata.data import dataset; sys.exit(len(dataset('mnist').train[1]) != 30)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [p.wait(timeout=60) for p in both] == [0, 0]
    assert len(mirror.asked) == 4


@pytest.mark.parametrize("kind", ["tar", "zip in zip"])
def test_archives_are_unpacked_into_the_data_folder(kind, mirror, store, tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    (inside / "some set").mkdir(parents=True)
    (inside / "some set" / "a.txt").write_text("hello")
    archive = _packed(kind, inside, mirror.folder)
    source = sources.Source("a set", "http://127.0.0.1", 1, (sources.File("some set/a.txt"),), archive)
    monkeypatch.setitem(sources.SOURCES, "some", source)
    assert files_of("some")["some set/a.txt"].read_text() == "hello"
    assert not list((store / "downloads").iterdir())


def _packed(kind: str, inside: Path, to: Path) -> sources.Archive:
    import shutil
    import zipfile

    if kind == "tar":
        shutil.make_archive(str(to / "some"), "gztar", inside)
        return sources.Archive("http://127.0.0.1/some.tar.gz", "some.tar.gz", checksum_of(to / "some.tar.gz"))
    inner = Path(shutil.make_archive(str(to / "inner"), "zip", inside))
    with zipfile.ZipFile(to / "some.zip", "w") as outer:
        outer.write(inner, "inner.zip")
    return sources.Archive("http://127.0.0.1/some.zip", "some.zip", checksum_of(to / "some.zip"), within="inner.zip")


def checksum_of(path: Path) -> str:
    return md5(path.read_bytes()).hexdigest()
