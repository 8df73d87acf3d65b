"""Any combination of parts either runs, reproducibly and finitely, or is refused with a sentence before it begins."""

from typing import Any

import numpy as np
import pytest
import torch

import fedstrata as fs
from fedstrata.core import Finish, Local, Part, Select, Step, Weigh
from fedstrata.parts import Sample
from fedstrata.values import kinds
from tests.federations import flat, mlp, unequal_clients


def parts(kind: type) -> list[Part]:
    """Every part of the package of this kind, with its defaults."""
    found: list[Any] = [
        c for c in kinds(kind).values() if c.__module__.startswith("fedstrata.parts") and c is not Sample
    ]
    return [c() for c in found] + ([Sample(k=3)] if kind is Select else [])


def composition(seed: int) -> fs.Recipe:
    """A random one: up to two local parts, two server steps, two shrinkings."""
    draw = np.random.default_rng(seed)

    def some(kind: type, most: int) -> tuple[Part, ...]:
        pool = parts(kind)
        return tuple(pool[i] for i in draw.choice(len(pool), draw.integers(0, most + 1), replace=False))

    steps = some(Step, 3)
    one = {"select": draw.choice(parts(Select)), "weigh": draw.choice(parts(Weigh))}  # pyright: ignore
    many = {slot: tuple(p for p in steps if p.slot == slot) for slot in ("server", "shrink")}
    return fs.recipes.recipe(**one, local=some(Local, 2), **many, finish=some(Finish, 1))


@pytest.mark.parametrize("seed", [*range(50), *(pytest.param(s, marks=pytest.mark.slow) for s in range(50, 200))])
def test_a_random_composition_runs_or_is_refused(seed, tmp_path):
    recipe, clients = composition(seed), unequal_clients((9, 4, 1, 7))
    proxy = {"proxy": (clients.x[:9], clients.y[:9])} if seed % 2 else {}
    settings = {"rounds": 3, "training": fs.SGD(lr=0.02, batch=4), "evaluate_every": 3, **proxy}
    if "proxy" in recipe.needs and not proxy:
        with pytest.raises(fs.FedstrataError, match="proxy"):
            fs.simulate(recipe, mlp(), clients, out=tmp_path / "a", **settings)
        assert not (tmp_path / "a").exists()
        return
    models = [flat(fs.simulate(recipe, mlp(), clients, **settings).model) for _ in range(2)]
    assert models[0].isfinite().all()
    assert torch.equal(models[0], models[1])
    assert fs.parse_recipe(fs.recipe_text(recipe)) == recipe


def test_the_compositions_are_many():
    recipes = {composition(s).fingerprint for s in range(200)}
    assert len(recipes) > 180
    refused = [s for s in range(0, 200, 2) if "proxy" in composition(s).needs]
    assert 0 < len(refused) < 50


def test_shrinking_acts_after_base_methods_and_their_state_is_unshrunk():
    """FedLWS over FedDyn: h is that of FedDyn alone after one round, though the model is not."""
    start = {"a.w": np.array([1.0, -2.0, 3.0])}
    replies = [fs.Reply(client=k, model={"a.w": start["a.w"] + k + 1}, examples=k + 1) for k in range(2)]
    replies.append(fs.Reply(client=2, model={"a.w": start["a.w"] * 2}, examples=4))
    plain = fs.server_step(fs.recipes.feddyn(alpha=0.5), start, replies)
    shrunk = fs.server_step(fs.parse_recipe("feddyn(alpha=0.5) + lws(beta=1.0)"), start, replies)
    assert torch.equal(plain.state["local.0"]["h"], shrunk.state["local.0"]["h"])
    np.testing.assert_allclose(shrunk.model["a.w"], float(shrunk.notes["gamma"][0]) * plain.model["a.w"])
    assert float(shrunk.notes["gamma"][0]) < 1
