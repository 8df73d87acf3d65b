"""The columns of a table are brought to one scale, that of the examples that are trained on."""

import pytest
import torch

from fedstrata.data import dataset
from fedstrata.experiment import Experiment
from tests.data.test_own import write_csv


def test_features_are_scaled_by_the_training_part(tmp_path):
    write_csv(tmp_path / "mine.csv")
    data = dataset(str(tmp_path / "mine.csv"))
    assert data.shape == (2,)
    torch.testing.assert_close(data.train[0].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train[0].std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)


def test_validation_examples_have_no_part_in_the_scale(tmp_path):
    write_csv(tmp_path / "mine.csv")
    x = Experiment.of({"data": str(tmp_path / "mine.csv"), "val": 0.5}).dataset()
    assert x.val is not None
    torch.testing.assert_close(x.train[0].mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.train[0].std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)
    assert (x.val[0].mean(0).abs() > 1e-3).all()


@pytest.mark.parametrize("value", ["3e15", "202401150930001234567", "1e-300", "-7", "0"])
def test_a_column_that_is_the_same_everywhere_tells_nothing(value, tmp_path):
    rows = [f"{i % 7},{value},{i % 2}" for i in range(60)]
    (tmp_path / "mine.csv").write_text("\n".join(["age,when,label", *rows]))
    x = dataset(str(tmp_path / "mine.csv")).train[0]
    assert (x[:, 1] == 0).all()
    assert x[:, 0].std() > 0.9


def test_the_largest_numbers_have_a_deviation_too(tmp_path):
    rows = [f"{i}e300,{i % 2}" for i in range(40)]
    (tmp_path / "mine.csv").write_text("\n".join(["huge,label", *rows]))
    x = dataset(str(tmp_path / "mine.csv")).train[0]
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(1), atol=1e-5, rtol=0)
