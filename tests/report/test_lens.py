"""The layer lens shows what the parts noted."""

import numpy as np
import pytest

import fedstrata as fs
from fedstrata.parts import Sample
from fedstrata.report.folders import read_run
from fedstrata.report.lens import effective, in_words, lens, thinned, variation
from tests.federations import mlp, unequal_clients
from tests.report.runs import run_into


def seen(folder, recipe: fs.Recipe | str, **settings):
    fs.simulate(recipe, mlp(), unequal_clients(), out=folder, **{"rounds": 3, **settings})
    run = read_run(folder)
    return run, lens(run)


def test_what_layers_have_is_shown_over_the_rounds(tmp_path):
    run, found = seen(tmp_path / "r", "adaptive_fedprox + fedlayerwise + lws(beta=0.1)")
    heats = {h.title: h for h in found.heats}
    gamma, mu = heats["\u03b3, shrinking"], heats["μ, proximal strength"]
    assert gamma.layers == ["0", "2"]
    assert mu.layers == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert gamma.rounds == [1, 2, 3]
    assert gamma.values[:, 2].tolist() == run.notes["gamma/00002"].tolist()
    assert heats["drift |Δ|"].values[:, 1] == pytest.approx(run.notes["drift/00001"].mean(0))
    assert {"angle, mean", "τ, disagreement", "uneven drift", "clients that count"} <= heats.keys()


def test_what_clients_have_in_layers_is_shown_round_by_round(tmp_path):
    run, found = seen(tmp_path / "r", fs.recipes.fedlayerwise(select=Sample(k=4)))
    frames = {f.title: f for f in found.frames}
    assert frames["angle"].clients == [line["cohort"] for line in run.rounds]
    assert frames["weight"].values[1].tolist() == run.notes["weights/00001"].tolist()
    assert frames["drift |Δ|"].values[0].shape == (4, 2)


def test_clients_that_were_dropped_have_no_column(tmp_path):
    clients = unequal_clients()
    clients.x[clients.rows[2]] *= 1e200  # whose gradients overflow
    test = clients.x[:9], clients.y[:9]
    fs.simulate("fedavg", mlp(), clients, rounds=2, out=tmp_path / "r", evaluate_train=False, test=test)
    frames = lens(read_run(tmp_path / "r")).frames
    assert all(f.clients == [[0, 1, 3, 4, 5, 6]] * 2 for f in frames)


def test_a_number_a_client_is_not_taken_for_a_number_a_layer(tmp_path):
    _, found = seen(tmp_path / "r", fs.recipes.fednova(select=Sample(k=2)))  # as many clients as layers
    assert "effective steps" in {f.title for f in found.frames}
    assert "effective steps" not in {h.title for h in found.heats}


def test_updates_that_were_merged_are_no_clients(tmp_path):
    _, found = seen(tmp_path / "r", "fedavg", memory=6 * 53 * 8 / 2**30)  # a few at a time
    assert found.frames == []


def test_the_sentence_names_the_layer_in_which_clients_disagree_most(tmp_path):
    run, found = seen(tmp_path / "r", "fedlayerwise")
    late = run.notes["angle/00002"].mean(0)
    assert f"disagree most in layer {run.notes['layers'][late.argmax()]} ({late.max():.3g})" in in_words(found)


def test_summaries_over_clients():
    equal = np.full((5, 2), 0.2)
    assert effective(equal).tolist() == pytest.approx([5, 5])
    assert effective(np.array([[1.0], [0.0], [0.0]])).tolist() == [1]
    assert variation(equal).tolist() == pytest.approx([0, 0])


def test_thinning_keeps_both_ends():
    assert thinned(5, 10) == [0, 1, 2, 3, 4]
    assert thinned(1001, 3) == [0, 500, 1000]
    assert thinned(1, 1) == [0]


def test_a_run_without_notes_has_an_empty_lens(tmp_path):
    folder = run_into(tmp_path / "r")
    (folder / "notes.npz").unlink()
    found = lens(read_run(folder))
    assert (found.heats, found.frames) == ([], [])
