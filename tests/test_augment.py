"""Crops and flips: what they do to an image, and that nobody else's matter."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedstrata as fs
from fedstrata.augment import Augment
from fedstrata.errors import DataError, SettingError
from tests.federations import flat
from tests.runtimes.test_models import TRAIN, bn_cnn, image_clients


def test_an_image_is_shifted_and_mirrored_as_drawn():
    image = torch.arange(1.0, 13).view(1, 1, 1, 3, 4)
    drawn = torch.tensor([1, 1, 0])
    augment = Augment(crop=1)
    assert torch.equal(augment.apply(image, drawn.view(1, 1, 3)), image)  # the middle is no shift
    assert torch.equal(augment.apply(image, torch.tensor([[[1, 1, 1]]])), image.flip(-1))
    down = augment.apply(image, torch.tensor([[[0, 1, 0]]]))[0, 0, 0]
    assert down[0].tolist() == [0, 0, 0, 0]
    assert torch.equal(down[1:], image[0, 0, 0, :2])
    left = augment.apply(image, torch.tensor([[[1, 2, 0]]]))[0, 0, 0]
    assert left[:, 3].tolist() == [0, 0, 0]
    assert torch.equal(left[:, :3], image[0, 0, 0, :, 1:])


def test_every_image_has_its_own_change():
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(2, 5, 3, 8, 8, generator=draw)
    drawn = torch.from_numpy(Augment().draw(0, 0, 0, 2, 5))
    together = Augment().apply(x, drawn)
    alone = [[Augment().apply(x[i, j][None], drawn[i, j][None])[0] for j in range(5)] for i in range(2)]
    assert torch.equal(together, torch.stack([torch.stack(a) for a in alone]))


def test_draws_cover_all_shifts_and_mirror_half():
    drawn = Augment(crop=2).draw(3, 0, 1, 100, 50).reshape(-1, 3)
    assert [np.unique(drawn[:, i]).tolist() for i in (0, 1)] == [list(range(5))] * 2
    assert 0.45 < drawn[:, 2].mean() < 0.55
    assert not Augment(flip=False).draw(3, 0, 1, 10, 5)[..., 2].any()


def test_it_matters_not_who_else_is_stacked_and_each_seed_has_its_own():
    settings: dict[str, Any] = {"rounds": 2, "training": TRAIN, "augment": Augment(crop=1)}
    others: list[dict[str, Any]] = [{}, {"chunk": 1}, {"engine": "apart"}, {"seed": 1}]
    models = [flat(fs.simulate("fedavg", bn_cnn(), image_clients(), **settings | more).model) for more in others]
    plain = flat(fs.simulate("fedavg", bn_cnn(), image_clients(), rounds=2, training=TRAIN).model)
    for other in models[1:3]:
        torch.testing.assert_close(models[0], other, rtol=0, atol=1e-10)
    assert not torch.allclose(models[0], models[3], atol=1e-4)
    assert not torch.allclose(models[0], plain, atol=1e-4)


def test_vectors_are_refused():
    with pytest.raises(DataError, match=r"Augment changes images .*; the examples have shape \(4,\)"):
        Augment().apply(torch.zeros(2, 3, 4), torch.zeros(2, 3, 3, dtype=torch.long))


def test_vectors_are_refused_before_a_run_folder_is_made(tmp_path):
    experiment = fs.Experiment.of({"method": "fedavg", "augment": {"crop": 1}, "rounds": 1})
    data = experiment.dataset()
    flat_data = replace(
        data, train=(data.train[0].flatten(1), data.train[1]), test=(data.test[0].flatten(1), data.test[1]), val=None
    )
    with pytest.raises(DataError, match=r"Augment changes images"):
        experiment.run(tmp_path / "run", data=flat_data)
    assert not (tmp_path / "run").exists()


def test_a_wrong_setting_is_told_by_its_name():
    for augment, sentence in (
        ({"crop": -1}, "Augment.crop must not be negative"),
        ({"zoom": 1}, "has no setting 'zoom'"),
    ):
        with pytest.raises(SettingError, match=sentence):
            fs.Experiment.of({"method": "fedavg", "augment": augment})
