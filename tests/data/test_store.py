"""Decoded arrays: all or nothing, and a sentence where they cannot be kept."""

import os

import numpy as np
import pytest

from fedstrata.data.store import decoded
from fedstrata.errors import DataError


def decode():
    return {"x": np.arange(3)}


def test_a_cache_that_cannot_be_written_is_a_sentence(store, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written to \(Not a directory\); XDG_CACHE_HOME names another"):
        decoded("some", [], decode)


def test_what_a_killed_process_left_is_removed_once_it_is_old(store, tmp_path):
    folder = tmp_path / "cache" / "fedstrata" / "decoded"
    decoded("some", [], decode)
    (made,) = folder.iterdir()
    made.rename(folder / f".partial-{made.name}-old")
    os.utime(folder / f".partial-{made.name}-old", (0, 0))
    (folder / f".partial-{made.name}-new").mkdir()
    assert decoded("some", [], decode)["x"].tolist() == [0, 1, 2]
    assert sorted(p.name for p in folder.iterdir()) == [f".partial-{made.name}-new", made.name]


def test_a_decoder_that_is_interrupted_leaves_nothing(store, tmp_path):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoded("some", [], interrupted)
    assert not (tmp_path / "cache" / "fedstrata" / "decoded").exists()
