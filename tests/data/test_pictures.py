"""Folders of pictures, by client and class."""

import numpy as np
import pytest

from fedstrata.data import dataset
from fedstrata.errors import DataError


def test_pictures_by_client_and_class(tmp_path):
    from PIL import Image

    for client in ("anna", "berta"):
        for k, kind in enumerate(("cat", "dog")):
            (tmp_path / "p" / client / kind).mkdir(parents=True)
            for i in range(5):
                Image.new("RGB", (6, 5), (255 * k, 0, 255)).save(tmp_path / "p" / client / kind / f"{i}.png")
    data = dataset(str(tmp_path / "p"))
    assert data.owner is not None
    assert sorted(set(data.owner.tolist())) == ["anna", "berta"]
    assert data.shape == (3, 5, 6)
    assert data.train[0][data.train[1] == 1].mean((0, 2, 3)).tolist() == [1.0, -1.0, 1.0]
    flat = dataset(str(tmp_path / "p" / "anna"))
    assert flat.owner is None
    assert flat.classes == 2
    Image.new("RGB", (3, 3)).save(tmp_path / "p" / "anna" / "cat" / "small.png")
    with pytest.raises(DataError, match="have different sizes"):
        dataset(str(tmp_path / "p"))


def test_pictures_of_16_bits_are_refused_since_they_would_turn_white(tmp_path):
    from PIL import Image

    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        for i in range(5):
            Image.fromarray(np.full((4, 4), 30_000, np.uint16)).save(tmp_path / kind / f"{i}.png")
    with pytest.raises(DataError, match=r"0.png has more than 8 bits a pixel \(I.*\); make it one of 8 bits first"):
        dataset(str(tmp_path))


def test_hidden_files_and_folders_are_no_pictures(tmp_path):
    from PIL import Image

    for kind in ("cat", "dog", ".trash"):
        (tmp_path / kind).mkdir()
        for i in range(5):
            Image.new("L", (4, 4)).save(tmp_path / kind / f"{i}.png")
    (tmp_path / "cat" / "._0.png").write_text("what a file system left")
    (tmp_path / "cat" / "folder.png").mkdir()
    data = dataset(str(tmp_path))
    assert (data.classes, len(data.train[1]) + len(data.test[1])) == (2, 10)


@pytest.mark.parametrize("odd", ["0.png", "cat/0.png", "berta/dog/old/0.png"])
def test_a_picture_elsewhere_is_named(odd, tmp_path):
    for place in ("anna/cat/1.png", odd):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    with pytest.raises(DataError, match=r"class/picture, all of them alike; .*\d\.png is elsewhere"):
        dataset(str(tmp_path))


def test_nobody_looks_deeper_than_pictures_may_be(tmp_path):
    (tmp_path / "a/b/c/d").mkdir(parents=True)
    (tmp_path / "a/b/c/d/0.png").touch()
    with pytest.raises(DataError, match="class/picture; found none"):
        dataset(str(tmp_path))
