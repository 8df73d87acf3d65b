"""All that can be told of a method without running it."""

import re
from dataclasses import dataclass

from fedstrata.core import Recipe
from fedstrata.cost import CostCard, cost_card
from fedstrata.decisions import Decision, decisions_of
from fedstrata.models import model as make_model
from fedstrata.optim import SGD
from fedstrata.papers import references
from fedstrata.parse import parse_recipe
from fedstrata.recipes import METHODS
from fedstrata.task import Task, buffers_of


@dataclass(frozen=True)
class Explanation:
    """What a text means, what it costs for a model, where its sources disagree, and whom to cite."""

    text: str
    methods: tuple[str, ...]  # that the text names
    recipe: Recipe
    model: str
    parameters: int
    cost: CostCard
    decisions: list[Decision]
    references: list[str]


def explain(text: str, model: str = "mlp") -> Explanation:
    """Explain a recipe, with its costs for a model of handwritten digits."""
    recipe = parse_recipe(text)
    network, _ = recipe.adapt(make_model(model, (1, 8, 8), 10), SGD(), seed=0)
    task = Task.of(network)
    recipe.check(frozenset(recipe.needs) - ({"features"} if task.classifier is None else set()))
    cost = cost_card(recipe, task, buffers_of(network))
    methods = tuple(n for n in re.findall(r"[a-z_]+", re.sub(r"\(.*?\)", "", text)) if n in METHODS)
    found = decisions_of(recipe, *methods)
    return Explanation(text, methods, recipe, model, task.layout.size, cost, found, references(recipe))
