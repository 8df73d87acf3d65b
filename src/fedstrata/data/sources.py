"""Where the public data sets come from: their files, in the layouts of their publishers, and the checksums."""

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A file below the data folder."""

    path: str
    md5: str | None = None  # where the publisher's is known
    url: str | None = None  # None: it comes out of the source's archive


@dataclass(frozen=True)
class Archive:
    """A published archive that holds all files; `within` is an archive inside it."""

    url: str
    name: str
    md5: str | None = None
    within: str | None = None


@dataclass(frozen=True)
class Source:
    """A data set as its publisher distributes it."""

    about: str
    page: str
    mebibytes: int  # to download
    files: tuple[File, ...]
    archive: Archive | None = None


def _idx(folder: str, url: str, sums: tuple[str, str, str, str]) -> tuple[File, ...]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return tuple(File(f"{folder}/{n}", md5, f"{url}/{n}") for n, md5 in zip(names, sums, strict=True))


def _har_files() -> tuple[File, ...]:
    signals = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
    names = [f"{s}/{n}_{s}.txt" for s in ("train", "test") for n in ("X", "y", "subject")]
    names += [f"{s}/Inertial Signals/{n}_{s}.txt" for s in ("train", "test") for n in signals]
    return tuple(File(f"UCI HAR Dataset/{n}") for n in names)


_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
_CIFAR_SUMS = (
    "5dd7e06a14cb22eb9f671a540d1b7c25", "5ea93a67294ea407fff1d09f752e9692", "942cd6a4bcdd0dd3c604fbe906cb4421",
    "ae636b3ba5c66a11e91e8cb52e771fcb", "53f37980c15c3d472c316c40844f3f0d", "803d5f7f4d78ea53de84dbe85f74fb6d",
)  # fmt: skip
_DOMAINS = ("books", "dvd", "electronics", "kitchen")

SOURCES: dict[str, Source] = {
    "mnist": Source(
        "handwritten digits, 60,000 + 10,000 images of 28x28, 10 classes", "http://yann.lecun.com/exdb/mnist", 11,
        _idx("mnist", "https://ossci-datasets.s3.amazonaws.com/mnist", (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c")),
    ),
    "fashion_mnist": Source(
        "articles of clothing, 60,000 + 10,000 images of 28x28, 10 classes",
        "https://github.com/zalandoresearch/fashion-mnist", 30,
        _idx("fashion-mnist", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310")),
    ),
    "cifar10": Source(
        "photographs, 50,000 + 10,000 images of 3x32x32, 10 classes", _CIFAR, 162,
        tuple(File(f"cifar-10-batches-bin/{n}.bin", md5) for n, md5 in zip(
            [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], _CIFAR_SUMS, strict=True)),
        Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530"),
    ),
    "cifar100": Source(
        "photographs, 50,000 + 10,000 images of 3x32x32, 100 classes", _CIFAR, 161,
        (File("cifar-100-binary/train.bin"), File("cifar-100-binary/test.bin")),
        Archive("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "cifar-100-binary.tar.gz",
                "03b5dce01913d631647c71ecec9e9cb8"),
    ),
    "tiny_imagenet": Source(
        "photographs, 100,000 + 10,000 images of 3x64x64, 200 classes", "http://cs231n.stanford.edu", 237,
        (File("tiny-imagenet-200/wnids.txt"), File("tiny-imagenet-200/val/val_annotations.txt")),
        Archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "tiny-imagenet-200.zip",
                "90528d7ca1a48142e341f4ef8d21d0de"),
    ),
    "uci_har": Source(
        "what 30 people do, 7,352 + 2,947 windows from a phone's sensors, 6 classes",
        "https://archive.ics.uci.edu/dataset/240", 58, _har_files(),
        Archive("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
                "uci-har.zip", within="UCI HAR Dataset.zip"),
    ),
    "ag_news": Source(
        "news, 120,000 + 7,600 texts, 4 classes", "http://groups.di.unipi.it/~gulli", 30,
        (File("ag_news_csv/train.csv", "b1a00f826fdfbd249f79597b59e1dc12", f"{_NEWS}/train.csv"),
         File("ag_news_csv/test.csv", "d52ea96a97a2d943681189a97654912d", f"{_NEWS}/test.csv")),
    ),
    "sogou_news": Source(
        "news in pinyin, 450,000 + 60,000 texts, 5 classes", "https://arxiv.org/abs/1509.01626", 368,
        (File("sogou_news_csv/train.csv"), File("sogou_news_csv/test.csv")),
        Archive("https://drive.google.com/uc?export=download&confirm=t&id=0Bz8a_Dbh9QhbUkVqNEszd0pHaFE",
                "sogou_news_csv.tar.gz", "0c1700ba70b73f964dd8de569d3fd03e"),
    ),
    "amazon": Source(
        "reviews of 4 kinds of products, 2,000 each, 2 classes",
        "https://www.cs.jhu.edu/~mdredze/datasets/sentiment", 19,
        tuple(File(f"processed_acl/{d}/{s}.review") for d in _DOMAINS for s in ("negative", "positive")),
        Archive("https://www.cs.jhu.edu/~mdredze/datasets/sentiment/processed_acl.tar.gz", "processed_acl.tar.gz"),
    ),
}  # fmt: skip
"""The public data sets by name."""
