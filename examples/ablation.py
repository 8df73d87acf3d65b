"""What each slot of a recipe is worth: the whole recipe against itself without one part after another."""

from dataclasses import fields, replace

import fedstrata as fs

WHOLE = fs.parse_recipe("fedprox(mu=0.01) + fedavgm(beta=0.5) + lws(beta=0.01)")
EXPERIMENT = {"data": "digits", "rounds": 5, "partition": {"clients": 5}, "training": {"epochs": 2}}
PLAIN = fs.recipes.fedavg()


def without(recipe: fs.Recipe, slot: str) -> fs.Recipe:
    """The recipe with FedAvg's part, or none, in a slot."""
    return replace(recipe, **{slot: getattr(PLAIN, slot)})


slots = [f.name for f in fields(WHOLE) if f.name != "kind" and getattr(WHOLE, f.name) != getattr(PLAIN, f.name)]
recipes = {"all of it": WHOLE} | {f"without {slot}": without(WHOLE, slot) for slot in slots} | {"fedavg": PLAIN}
texts = {fs.recipe_text(recipe): name for name, recipe in recipes.items()}

found = fs.compare(list(texts), EXPERIMENT, seeds=3, jobs=1)
for row in found.rows:
    against, tail = row["against_first"], row["tail"]
    worth = f"{-100 * against['difference']:+5.1f} points lost, {against['verdict']}" if against else ""
    print(f"{texts[row['method']]:16} accuracy {tail['mean']:.3f} {worth}")
