"""The public data sets, each from its published files; decoded once, memory-mapped ever after."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedstrata.data.download import files_of
from fedstrata.data.examples import Dataset
from fedstrata.data.formats import bag_of_words, cifar, common_words, idx, image, news, numbers, word_counts
from fedstrata.data.store import decoded, root
from fedstrata.data.text import Vocabulary
from fedstrata.errors import DataError, check
from fedstrata.rng import rng

Scaling = Literal["standard", "half", "unit"]
"""Pixels of mean 0 and deviation 1; or from -1 to 1; or from 0 to 1."""

MOMENTS = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "tiny_imagenet": ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
}
"""Mean and deviation of the training pixels, channel by channel."""


def digits() -> Dataset:
    """1,797 handwritten digits of 8x8 pixels, as scikit-learn ships them: 1,257 to train on, 180 and 360 held out."""
    x, y = _digits()
    order = torch.from_numpy(rng(0, "digits").permutation(len(y)))
    images = (torch.from_numpy(x).float().view(-1, 1, 8, 8)[order] / 16 - 0.3053) / 0.3760  # mean 0, deviation 1
    labels = torch.from_numpy(y).long()[order]
    test, val, train = ((images[s], labels[s]) for s in (slice(0, 360), slice(360, 540), slice(540, None)))
    return Dataset(train, test, classes=10, val=val)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """From scikit-learn's file where it is: importing scikit-learn itself takes a second."""
    spec = find_spec("sklearn")
    for folder in spec.submodule_search_locations or () if spec else ():
        if (path := Path(folder) / "datasets" / "data" / "digits.csv.gz").exists():
            table = np.loadtxt(path, delimiter=",")
            return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    return found.data, found.target


def mnist(scaling: Scaling = "standard") -> Dataset:
    """60,000 + 10,000 handwritten digits of 28x28 pixels."""
    return _idx_images("mnist", scaling)


def fashion_mnist(scaling: Scaling = "unit") -> Dataset:
    """60,000 + 10,000 articles of clothing, 28x28 pixels."""
    return _idx_images("fashion_mnist", scaling)


def cifar10(scaling: Scaling = "half") -> Dataset:
    """50,000 + 10,000 photographs of 3x32x32 pixels, 10 classes."""
    return _cifar_images("cifar10", 1, scaling, 10)


def cifar100(scaling: Scaling = "half") -> Dataset:
    """50,000 + 10,000 photographs of 3x32x32 pixels, 100 classes."""
    return _cifar_images("cifar100", 2, scaling, 100)


def tiny_imagenet(scaling: Scaling = "half") -> Dataset:
    """100,000 + 10,000 photographs of 3x64x64 pixels, 200 classes; the published validation set is the test set."""
    files = list(files_of("tiny_imagenet").values())
    return _images("tiny_imagenet", files, _decode_tiny, scaling, 200)


def uci_har(signals: bool = False) -> Dataset:
    """7,352 + 2,947 windows of 30 people's movements: 561 features, or 9 signals of 128 steps. Owner: the person."""
    files = files_of("uci_har")
    folder = root() / "UCI HAR Dataset"
    a = decoded("uci_har", list(files.values()), lambda: _decode_har(folder, signals), signals=signals)
    train, test = ((torch.from_numpy(a[f"{s}_x"]), torch.from_numpy(a[f"{s}_y"])) for s in ("train", "test"))
    return Dataset(train, test, classes=6, owner=a["train_owner"])


def ag_news(length: int = 64, words: int = 20000) -> Dataset:
    """120,000 + 7,600 news of 4 classes, as word numbers."""
    return _news("ag_news", "ag_news_csv", 4, length, words)


def sogou_news(length: int = 256, words: int = 20000) -> Dataset:
    """450,000 + 60,000 news of 5 classes in pinyin, as word numbers."""
    return _news("sogou_news", "sogou_news_csv", 5, length, words)


def amazon(words: int = 5000) -> Dataset:
    """8,000 reviews of books, films, electronics and kitchenware, good or bad: which words they have.

    Every fifth of each kind is for the test. Owner: the kind of product, 0 to 3.
    """
    check(words >= 1, f"amazon.words must be at least 1; got {words}")
    files = list(files_of("amazon").values())
    a = decoded("amazon", files, lambda: _decode_amazon(files, words), words=words)
    train, test = ((torch.from_numpy(a[f"{s}_x"]).float(), torch.from_numpy(a[f"{s}_y"])) for s in ("train", "test"))
    return Dataset(train, test, classes=2, owner=a["train_owner"])


_ALL = (digits, mnist, fashion_mnist, cifar10, cifar100, tiny_imagenet, uci_har, ag_news, sogou_news, amazon)

PUBLIC: dict[str, Callable[..., Dataset]] = {f.__name__: f for f in _ALL}
"""The data sets that can be had by name."""


def _idx_images(name: str, scaling: Scaling) -> Dataset:
    files = list(files_of(name).values())

    def decode() -> dict[str, np.ndarray]:
        arrays = [idx(f) for f in files]
        images = {"train_x": arrays[0][:, None], "test_x": arrays[2][:, None]}
        return images | {"train_y": arrays[1].astype(np.int64), "test_y": arrays[3].astype(np.int64)}

    return _images(name, files, decode, scaling, 10)


def _cifar_images(name: str, labels: int, scaling: Scaling, classes: int) -> Dataset:
    files = list(files_of(name).values())

    def decode() -> dict[str, np.ndarray]:
        train, test = cifar(files[:-1], labels), cifar(files[-1:], labels)
        return {"train_x": train[0], "train_y": train[1], "test_x": test[0], "test_y": test[1]}

    return _images(name, files, decode, scaling, classes)


def _images(
    name: str, files: list[Path], decode: Callable[[], dict[str, np.ndarray]], scaling: Scaling, classes: int
) -> Dataset:
    """Pixels scaled to float32, on the disk as well: the next start reads nothing until it is looked at."""
    mean, std = {"standard": MOMENTS[name], "half": ((0.5,), (0.5,)), "unit": ((0.0,), (1.0,))}[scaling]

    def scaled() -> dict[str, np.ndarray]:
        return {n: _scaled(v, mean, std).numpy() if n.endswith("_x") else v for n, v in decode().items()}

    a = decoded(name, files, scaled, scaling=scaling)
    train, test = ((torch.from_numpy(a[f"{s}_x"]), torch.from_numpy(a[f"{s}_y"])) for s in ("train", "test"))
    return Dataset(train, test, classes)


def _scaled(pixels: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    x = torch.from_numpy(np.array(pixels)).float().div_(255)
    return x.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))


def _decode_har(folder: Path, signals: bool) -> dict[str, np.ndarray]:
    names = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
    found = {}
    for s in ("train", "test"):
        if signals:
            x = np.stack([numbers(folder / s / "Inertial Signals" / f"{n}_{s}.txt") for n in names], 1)
        else:
            x = numbers(folder / s / f"X_{s}.txt")
        y, owner = (numbers(folder / s / f"{n}_{s}.txt")[:, 0].astype(np.int64) for n in ("y", "subject"))
        if not len(x) == len(y) == len(owner):
            raise DataError(f"{folder / s} has {len(x)} windows, {len(y)} labels and {len(owner)} subjects")
        found |= {f"{s}_x": x, f"{s}_y": y - 1, f"{s}_owner": owner}
    return found


def _news(name: str, folder: str, classes: int, length: int, words: int) -> Dataset:
    check(length >= 1, f"{name}.length must be at least 1; got {length}")
    check(words >= 2, f"{name}.words must be at least 2, for padding and unknown words; got {words}")
    files = files_of(name)
    paths = [files[f"{folder}/{s}.csv"] for s in ("train", "test")]

    def decode() -> dict[str, np.ndarray]:
        (train, train_y), (test, test_y) = (news(p, classes) for p in paths)
        vocabulary = Vocabulary.of(train, words)
        x = {"train_x": vocabulary.encode(train, length), "test_x": vocabulary.encode(test, length)}
        return x | {"train_y": train_y, "test_y": test_y, "words": np.array(vocabulary.words)}

    a = decoded(name, paths, decode, length=length, words=words)
    train, test = ((torch.from_numpy(a[f"{s}_x"]), torch.from_numpy(a[f"{s}_y"])) for s in ("train", "test"))
    return Dataset(train, test, classes, vocabulary=len(a["words"]) + 2)  # padding, and words unknown


def _decode_amazon(files: list[Path], words: int) -> dict[str, np.ndarray]:
    reviews = [word_counts(f) for f in files]  # negative and positive of each kind of product
    parts = {"train": [], "test": []}
    for i, some in enumerate(reviews):
        for j, review in enumerate(some):
            parts["test" if j % 5 == 4 else "train"].append((review, i % 2, i // 2))
    common = common_words((r for r, _, _ in parts["train"]), words)
    found = {}
    for s, rows in parts.items():
        found |= {f"{s}_x": bag_of_words((r for r, _, _ in rows), common)}
        found |= {f"{s}_y": np.array([y for _, y, _ in rows]), f"{s}_owner": np.array([o for _, _, o in rows])}
    return found


def _decode_tiny() -> dict[str, np.ndarray]:
    folder = root() / "tiny-imagenet-200"
    names = {n: i for i, n in enumerate((folder / "wnids.txt").read_text().split())}
    train = [
        (p, names[p.parents[1].name]) for n in sorted(names) for p in sorted((folder / "train" / n).rglob("*.JPEG"))
    ]
    lines = [line.split("\t") for line in (folder / "val" / "val_annotations.txt").read_text().splitlines()]
    test = [(folder / "val" / "images" / line[0], names[line[1]]) for line in lines]
    found = {}
    for s, rows in (("train", train), ("test", test)):
        if not rows:
            raise DataError(f"{folder} has no {s} pictures")
        pixels = np.empty((len(rows), 3, 64, 64), np.uint8)
        for i, (path, _) in enumerate(rows):
            pixels[i] = image(path)
        found |= {f"{s}_x": pixels, f"{s}_y": np.array([y for _, y in rows], np.int64)}
    return found
