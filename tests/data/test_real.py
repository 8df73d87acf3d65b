"""The published data sets themselves, where they are at hand: right counts, shapes and classes."""

import pytest

from fedstrata.data import dataset
from fedstrata.data.check import check_files
from fedstrata.data.download import missing
from fedstrata.data.sources import SOURCES

FACTS = {
    "mnist": (60_000, 10_000, (1, 28, 28), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
    "fashion_mnist": (60_000, 10_000, (1, 28, 28), [6000] * 10),
    "cifar10": (50_000, 10_000, (3, 32, 32), [5000] * 10),
    "uci_har": (7_352, 2_947, (561,), [1226, 1073, 986, 1286, 1374, 1407]),
    "uci_har(signals=True)": (7_352, 2_947, (9, 128), [1226, 1073, 986, 1286, 1374, 1407]),
    "ag_news": (None, 7_600, (64,), None),  # parts of its training set are about
    "amazon": (6_400, 1_600, (5000,), [3200, 3200]),
}


@pytest.mark.real
@pytest.mark.parametrize("name", FACTS)
def test_counts_shapes_and_classes_are_the_published_ones(name, real):
    if missing(SOURCES[name.partition("(")[0]]):
        pytest.skip(f"{name} is not in the data folder")
    data, (train, test, shape, classes) = dataset(name), FACTS[name]
    assert data.shape == shape
    assert len(data.test[1]) == test
    assert train is None or len(data.train[1]) == train
    assert classes is None or data.train[1].bincount().tolist() == classes
    assert data.train[1].unique().tolist() == list(range(data.classes))


@pytest.mark.real
@pytest.mark.parametrize("name", SOURCES)
def test_the_check_finds_them_usable(name, real):
    if missing(SOURCES[name]):
        assert check_files(name).state == "absent"
        pytest.skip(f"{name} is not in the data folder")
    assert check_files(name).usable


@pytest.mark.real
def test_people_and_products_own_their_examples(real):
    for name, owners in (("uci_har", 21), ("amazon", 4)):
        if missing(SOURCES[name]):
            pytest.skip(f"{name} is not in the data folder")
        owner = dataset(name).owner
        assert owner is not None
        assert len(set(owner.tolist())) == owners
