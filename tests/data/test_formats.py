"""The publishers' formats, read from small files, and what is said about broken ones."""

import gzip
import re

import numpy as np
import pytest
import torch

from fedstrata.data import dataset, formats
from fedstrata.data.check import check_files
from fedstrata.errors import DataError, SettingError
from tests.data.publishers import idx_bytes, write_cifar, write_mnist, write_news


def test_mnist_images_are_scaled_as_asked(store):
    arrays = write_mnist(store / "mnist")
    raw = torch.from_numpy(arrays["train-images-idx3-ubyte.gz"])[:, None].float() / 255
    for scaling, wanted in (("unit", raw), ("half", raw * 2 - 1), ("standard", (raw - 0.1307) / 0.3081)):
        data = dataset(f'mnist(scaling="{scaling}")')
        torch.testing.assert_close(data.train[0], wanted)
        assert data.train[1].tolist() == [i % 10 for i in range(30)]
        assert data.shape == (1, 28, 28)
    torch.testing.assert_close(dataset("mnist").train[0], wanted)


def test_decoded_arrays_are_made_once_and_anew_when_the_files_change(store, tmp_path, monkeypatch):
    write_mnist(store / "mnist")
    dataset("mnist")
    monkeypatch.setattr(formats, "idx", lambda _: 1 / 0)
    assert len(dataset("mnist").train[1]) == 30
    monkeypatch.undo()
    monkeypatch.setenv("FEDSTRATA_DATA", str(store))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_mnist(store / "mnist", train=20)
    assert len(dataset("mnist").train[1]) == 20


def test_writing_into_a_loaded_set_changes_no_file(store):
    write_mnist(store / "mnist")
    dataset("mnist").train[0].zero_()
    assert dataset("mnist").train[0].abs().sum() > 0


def test_cifar_records(store):
    folder = store / "cifar-10-batches-bin"
    records = write_cifar(folder, [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"])
    data = dataset('cifar10(scaling="unit")')
    assert data.train[1].tolist() == records[:35, 0].tolist()
    torch.testing.assert_close(data.test[0], torch.from_numpy(records[35:, 1:].reshape(-1, 3, 32, 32)).float() / 255)
    records = write_cifar(store / "cifar-100-binary", ["train.bin", "test.bin"], labels=2)
    assert dataset("cifar100").train[1].tolist() == records[:7, 1].tolist()  # the fine label


def test_news_become_word_numbers_of_the_training_text(store):
    write_news(store / "ag_news_csv/train.csv", [(1, "the cat sat"), (2, "the dog sat"), (4, 'the "cat" ran')])
    write_news(store / "ag_news_csv/test.csv", [(3, "the zebra sat")])
    data = dataset("ag_news(length=4)")
    assert data.train[1].tolist() == [0, 1, 3]
    assert data.shape == (4,)
    the, cat, sat = data.train[0][0, :3].tolist()
    assert data.train[0].tolist()[0] == [the, cat, sat, 0]
    assert data.test[0].tolist() == [[the, 1, sat, 0]]
    assert data.vocabulary is not None
    assert int(data.train[0].max()) < data.vocabulary


def test_reviews_become_bags_of_the_training_words(store):
    for d in ("books", "dvd", "electronics", "kitchen"):
        for s in ("negative", "positive"):
            (store / "processed_acl" / d).mkdir(parents=True, exist_ok=True)
            lines = [f"{d}:2 {s}:1 very_{i}:1 #label#:{s}" for i in range(5)]
            (store / "processed_acl" / d / f"{s}.review").write_text("\n".join(lines))
    data = dataset("amazon(words=6)")
    assert data.owner is not None
    assert data.owner.tolist() == [d for d in range(4) for _ in range(8)]
    assert data.train[1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1] * 4
    assert len(data.test[1]) == 8
    assert data.shape == (6,)
    assert data.train[0].sum(1).eq(2).all()  # its kind of product and its side; the rest is rare


def test_windows_of_movement(store):
    folder, signals = store / "UCI HAR Dataset", ["body_acc", "body_gyro", "total_acc"]
    for s, n in (("train", 5), ("test", 3)):
        (folder / s / "Inertial Signals").mkdir(parents=True)
        np.savetxt(folder / s / f"X_{s}.txt", np.arange(n * 561).reshape(n, 561))
        np.savetxt(folder / s / f"y_{s}.txt", np.arange(n) % 6 + 1, fmt="%d")
        np.savetxt(folder / s / f"subject_{s}.txt", np.arange(n) // 2 + 1, fmt="%d")
        for c, name in enumerate(f"{kind}_{axis}" for kind in signals for axis in "xyz"):
            np.savetxt(folder / s / "Inertial Signals" / f"{name}_{s}.txt", np.full((n, 128), c))
    data = dataset("uci_har")
    assert data.shape == (561,)
    assert data.owner is not None
    assert data.owner.tolist() == [1, 1, 2, 2, 3]
    assert data.test[1].tolist() == [0, 1, 2]
    raw = dataset("uci_har(signals=True)")
    assert raw.shape == (9, 128)
    assert raw.train[0][0, :, 0].tolist() == list(range(9))


def test_small_pictures_of_tiny_imagenet(store):
    from PIL import Image

    folder = store / "tiny-imagenet-200"
    for i, name in enumerate(("n02", "n01")):
        (folder / "train" / name / "images").mkdir(parents=True)
        for j in range(2):
            Image.new("RGB", (64, 64), (10 * i, 20 * j, 30)).save(folder / "train" / name / "images" / f"{j}.JPEG")
    (folder / "val" / "images").mkdir(parents=True)
    Image.new("L", (64, 64), 200).save(folder / "val" / "images" / "v.JPEG")
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "val" / "val_annotations.txt").write_text("v.JPEG\tn01\t0\t0\t1\t1\n")
    data = dataset("tiny_imagenet")
    assert data.shape == (3, 64, 64)
    assert data.train[1].tolist() == [1, 1, 0, 0]
    assert data.test[1].tolist() == [1]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda raw: b"no gzip", "is not a gzip file"),
        (lambda raw: raw[:-40], "is not a gzip file"),
        (lambda raw: gzip.compress(b"\x00\x00\x09\x01"), "is not in the idx format"),
        (lambda raw: gzip.compress(gzip.decompress(raw)[:-5]), "is cut short"),
    ],
    ids=["text", "cut gzip", "magic", "cut"],
)
def test_a_broken_idx_file_is_a_sentence(damage, sentence, store):
    write_mnist(store / "mnist")
    path = store / "mnist/train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=sentence):
        dataset("mnist")


def test_other_broken_files_are_sentences(store, tmp_path):
    write_cifar(store / "cifar-10-batches-bin", [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"])
    (store / "cifar-10-batches-bin/test_batch.bin").write_bytes(b"12345")
    with pytest.raises(DataError, match="it is not a CIFAR batch"):
        dataset("cifar10")
    write_news(tmp_path / "a.csv", [(7, "x")])
    with pytest.raises(DataError, match="row 1: needs a class from 1 to 4"):
        formats.news(tmp_path / "a.csv", 4)
    (tmp_path / "b.txt").write_text("1 2\n3 x\n")
    with pytest.raises(DataError, match="is not a table of numbers"):
        formats.numbers(tmp_path / "b.txt")
    (tmp_path / "c.review").write_text("word\n")
    with pytest.raises(DataError, match="line 1: is not a review"):
        formats.word_counts(tmp_path / "c.review")
    with pytest.raises(DataError, match="cannot be read as a picture"):
        formats.image(tmp_path / "b.txt")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mnits", "by its path); did you mean 'mnist'?"),
        ("mnist(scalling='unit')", "mnist has no setting 'scalling'; did you mean 'scaling'"),
        ("mnist(scaling='x')", "mnist.scaling must be one of 'standard', 'half', 'unit'; got 'x'"),
        ("mnist(", "'mnist(' is not a data set; write e.g. mnist, mnist(scaling='unit')"),
        ("mnist('unit')", "need their names, e.g. mnist(scaling='unit')"),
        ("mnist(scaling=unit)", "'unit' in 'mnist(scaling=unit)' is neither a number nor a text in quotes"),
    ],
)
def test_a_wrong_name_is_a_sentence(text, sentence):
    with pytest.raises((DataError, SettingError), match=re.escape(sentence)):
        dataset(text)


@pytest.mark.parametrize("text", ["amazon(words=0)", "amazon(words=-5)", "ag_news(words=1)", "ag_news(length=0)"])
def test_a_size_that_makes_no_sense_is_refused_before_anything_is_read(text, store):
    with pytest.raises(SettingError, match=r"must be at least"):
        dataset(text)


def test_texts_that_are_not_in_utf8_or_not_numbered_are_sentences(tmp_path):
    for raw, sentence in ((b'"1","a","\xff"\n', "is not a text in UTF-8"), ('"²","a","b"\n'.encode(), "needs a class")):
        (tmp_path / "a.csv").write_bytes(raw)
        with pytest.raises(DataError, match=sentence):
            formats.news(tmp_path / "a.csv", 4)
    (tmp_path / "a.review").write_bytes(b"good:1 \xff:1")
    with pytest.raises(DataError, match="is not a text in UTF-8"):
        formats.word_counts(tmp_path / "a.review")


def test_a_gzip_file_with_a_wrong_bit_is_a_sentence(tmp_path):
    raw = bytearray(gzip.compress(np.random.default_rng(0).integers(0, 9, 5000).astype(np.uint8).tobytes()))
    for i in range(12, 200):
        (tmp_path / "a.gz").write_bytes(raw[:i] + bytes([raw[i] ^ 255]) + raw[i + 1 :])
        with pytest.raises(DataError, match="is not a gzip file, or a broken one"):
            formats.idx(tmp_path / "a.gz")


def test_check_looks_at_labels_and_counts(store):
    arrays = write_mnist(store / "mnist")
    assert check_files("mnist").state == "readable"
    path = store / "mnist" / "t10k-labels-idx1-ubyte.gz"
    for wrong, sentence in ((np.arange(10) + 1, "has the label 10, but"), (np.arange(9), "10 examples but 9 targets")):
        path.write_bytes(idx_bytes(wrong))
        found = check_files("mnist")
        assert found.state == "broken"
        assert sentence in found.said
    path.write_bytes(idx_bytes(arrays[path.name]))
    assert check_files("mnist").usable


def test_the_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    from fedstrata.data.public import _digits

    for ours, theirs in zip(_digits(), load_digits(return_X_y=True), strict=True):
        assert np.array_equal(ours, theirs)
