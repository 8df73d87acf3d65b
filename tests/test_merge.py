"""A round closes over merged replies as over those of every client, or the recipe says why it cannot."""

from typing import Any

import pytest
import torch
from torch import Tensor

import fedstrata as fs
from fedstrata.core import Cohort, Recipe
from fedstrata.errors import NeedError, SettingError
from fedstrata.layout import Layout
from fedstrata.merge import merged
from fedstrata.parts import LWS, FixedShrink, SelectiveProx
from fedstrata.runtimes.visit import joined
from fedstrata.server import Replies, Server, close_round, screen

LAYOUT = Layout.of_tensors({n: torch.zeros(s, dtype=torch.float64) for n, s in {"a.w": 5, "a.b": 2, "b.w": 4}.items()})
CLIENTS = 7
IDS = torch.tensor([0, 2, 3, 5, 6, 8, 9])
CUTS = ((slice(0, 3), slice(3, 4), slice(4, 7)), (slice(0, 7),), tuple(slice(i, i + 1) for i in range(7)))

OTHERS: dict[str, Recipe] = {
    "fedavg, uniform": fs.recipes.fedavg(weighting="uniform"),
    "fedavg, lr": fs.recipes.fedavg(lr=0.5),
    "fedlws, fixed": fs.recipes.fedlws(mode="fixed"),
    "scaffold by size": fs.recipes.scaffold(weighting="samples", lr=0.5),
    "fedpbs, a number": fs.recipes.fedpbs(threshold=0.5),
    "everything": fs.recipes.adaptive_fedprox(server=fs.parts.Yogi(), shrink=(FixedShrink(), fs.parts.AWD())),
    "fedproc by clients": fs.recipes.fedproc(by="clients"),
    "fedavg + lws": fs.recipes.fedavg(shrink=LWS()),
}
RECIPES = {n: make() for n, make in fs.recipes.METHODS.items()} | OTHERS
STREAMS = {n: r for n, r in RECIPES.items() if not r.single}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def case(recipe: Recipe) -> tuple[Server, Cohort, Replies]:
    """A round of seven clients with running statistics and a counter, uploads and measurements."""
    old = draw(LAYOUT.size, seed=1)
    buffers = {"a.mean": draw(3, seed=2), "a.count": torch.tensor(4)}
    table = {"examples": torch.arange(1.0, 11, dtype=torch.float64), "loss": draw(10, seed=6)}
    stats = {n: v[IDS] for n, v in table.items()}
    sent = {"a.mean": draw(CLIENTS, 3, seed=3), "a.count": torch.arange(CLIENTS) ** 2}
    uploads = {"local.0": {"dc": draw(CLIENTS, LAYOUT.size, seed=4), "dg": draw(CLIENTS, LAYOUT.size, seed=5)}}
    measured = {"class_features": draw(CLIENTS, 3, 4, seed=7).abs(), "steps": torch.arange(1.0, 8).double()}
    server = Server(LAYOUT, old, buffers, recipe.init(LAYOUT, 10), table)
    cohort = Cohort(LAYOUT, IDS, stats, old, 10)
    return server, cohort, Replies(IDS, draw(CLIENTS, LAYOUT.size), sent, uploads if recipe.local else {}, measured)


def some(replies: Replies, part: slice) -> Replies:
    keep = torch.zeros(len(replies.ids), dtype=torch.bool)
    keep[part] = True
    return replies.only(keep)


def same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("cuts", CUTS, ids=len)
@pytest.mark.parametrize("name", STREAMS)
def test_a_streamed_round_is_the_round_of_all_clients(name: str, cuts: tuple[slice, ...]):
    recipe = STREAMS[name]
    server, cohort, replies = case(recipe)
    whole, notes = close_round(recipe, server, cohort, replies)
    pieces = [merged(recipe, server, cohort, screen(some(replies, c), 0, "drop")[0]) for c in cuts]
    assert [len(p.delta) for p in pieces] == [1] * len(cuts)
    streamed, others = close_round(recipe, server, cohort, joined(pieces))
    same((whole.model, whole.buffers, whole.state), (streamed.model, streamed.buffers, streamed.state))
    assert {n: b.dtype for n, b in streamed.buffers.items()} == {n: b.dtype for n, b in server.buffers.items()}
    assert set(notes) - set(others) == {"drift"}  # which is of single clients
    same(server.stats, streamed.stats)  # what nobody said of itself is not written down as any client's


@pytest.mark.parametrize("name", [n for n in RECIPES if n not in STREAMS])
def test_a_recipe_that_must_see_single_clients_says_which_part_must(name: str):
    recipe = RECIPES[name]
    server, cohort, replies = case(recipe)
    with pytest.raises(SettingError, match=rf"{recipe.single[0]}.* must see each client's update by itself"):
        merged(recipe, server, cohort, replies)


def test_the_methods_that_stream():
    assert {n for n in fs.recipes.METHODS if not RECIPES[n].single} == {
        "fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedprox", "adaptive_fedprox", "scaffold", "moon",
        "fedproc", "fedetf", "ccvr", "awd", "adadecay", "fedprox_fedlaw", "fedadam_fedlaw", "fedadam_flower",
    }  # fmt: skip
    assert RECIPES["fedavg + lws"].single == ("LWS",)
    assert fs.recipes.fedlayerwise(local=SelectiveProx(), shrink=(LWS(), LWS(0.2))).single == (
        "Angle", "SelectiveProx", "LWS",
    )  # fmt: skip


def test_merged_replies_can_be_merged_again():
    for recipe in (fs.recipes.fedavg(), fs.recipes.scaffold(), fs.recipes.fedproc()):
        server, cohort, replies = case(recipe)
        pieces = [merged(recipe, server, cohort, some(replies, c)) for c in CUTS[2]]
        twice = merged(
            recipe, server, cohort, joined([merged(recipe, server, cohort, joined(pieces[:4])), *pieces[4:]])
        )
        whole, once = (close_round(recipe, server, cohort, r)[0] for r in (replies, twice))
        same((whole.model, whole.buffers, whole.state), (once.model, once.buffers, once.state))


def test_merging_by_the_wrong_weights_would_be_noticed():
    """Two chunks of unequal size: the plain mean of their means is not the mean."""
    recipe = fs.recipes.fedavg(weighting="uniform")
    server, cohort, replies = case(recipe)
    pieces = joined([merged(recipe, server, cohort, some(replies, c)) for c in CUTS[0]])
    wrong = Replies(pieces.ids, pieces.delta, pieces.buffers, {}, {"examples": pieces.stats["examples"]})
    right, other = (close_round(recipe, server, cohort, r)[0] for r in (pieces, wrong))
    assert not torch.allclose(right.model, other.model, atol=1e-3)


def test_clients_without_examples_do_not_count():
    recipe = fs.recipes.fedavg(weighting="uniform")
    server, cohort, replies = case(recipe)
    cohort.stats["examples"][:3] = 0
    pieces = [merged(recipe, server, cohort, some(replies, c)) for c in CUTS[0]]
    whole, streamed = (close_round(recipe, server, cohort, r)[0] for r in (replies, joined(pieces)))
    same(whole.model, streamed.model)


def test_scaffold_without_uploads_cannot_be_merged_silently():
    recipe = fs.recipes.scaffold()
    server, cohort, replies = case(recipe)
    bare = Replies(replies.ids, replies.delta, {}, {}, replies.stats)
    close_round(recipe, server, cohort, bare, lr=0.1)
    with pytest.raises(NeedError, match="upload 'dc'"):
        close_round(recipe, server, cohort, merged(recipe, server, cohort, bare), lr=0.1)
