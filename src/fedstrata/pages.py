"""The pages about the methods and the models, written from the code: `python -m fedstrata.pages docs`."""

import inspect
import sys
from collections.abc import Iterable
from dataclasses import fields, replace
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Literal, get_args, get_origin

from fedstrata.core import Part, Recipe
from fedstrata.cost import REVEALED, CostCard
from fedstrata.decisions import DECISIONS, Decision
from fedstrata.equations import EQUATIONS
from fedstrata.errors import REMEDIES, DataError
from fedstrata.explain import Explanation, explain
from fedstrata.models import MODELS, model
from fedstrata.models.zoo import options_of
from fedstrata.parse import recipe_text
from fedstrata.probes import PROBES
from fedstrata.recipes import METHODS
from fedstrata.report.tables import described
from fedstrata.reproduce.plan import Reproduction, find, read
from fedstrata.reproduce.results import Result, results_of
from fedstrata.reproduce.verdict import numbers
from fedstrata.reproduce.words import caption, table
from fedstrata.values import in_words

Kinds = tuple[type[Part], ...]

HEAD = "<!-- Written by `make pages` from the code: change it there. -->"
BEGIN, END = "<!-- decisions, written by `make pages` -->", "<!-- end of decisions -->"

INDEX = f"""\
{HEAD}

# The methods

Every method is a recipe of parts, and every part goes with every other: a further slot is given by keyword, as in
`fedprox(mu=0.1, select=Sample(k=10))`, or by a sum in text, as in `fedprox(mu=0.1) + lws(beta=0.1)`. The pages say what
is in a method, its options, its costs, where its sources disagree, and whom to cite. `fedstrata explain METHOD` and
`fedstrata cite METHOD` say the same of any combination. [How to choose a method](../choose.md) has evidence.

*Sent* is what goes to a client and back in a round, *kept* what it remembers until its next turn, both in times the
model; 2.0 and 0.0 are FedAvg's. *Needs* is what the experiment must offer or clients must tell.

{{table}}

## Left out

- **pFedLA** (Ma et al., CVPR 2022) makes a personal model for every client. A recipe here makes one model for all.
- **F3**, fair face attributes, ranks the clients' models by how their errors differ between groups of people. That
  takes data with sensitive attributes of people, which an experiment here does not have.
"""


ZOO = f"""\
{HEAD}

# The models

`--model NAME` on the command line, `fs.models.model(NAME, shape, classes)` in Python. Options go in brackets, as in
`resnet20(norm="group")`. A model of your own is `package.module:make`, a function that is called as
`make(shape, classes)`, with the shape of one example, and with the options in brackets if there are any. Methods that
look at features take what the module called `classifier` sees, or else what the last linear layer sees. That is the
one made last; where another is called last, such methods refuse the model until the layer that classifies is called
`classifier`.

{{table}}

`textcnn` needs `vocabulary`, how many token ids there are; its size above is for 20,000.

Batch normalisation mixes the clients' statistics, and a batch of few values has none worth speaking of: where that
hurts, `norm="group"` normalises every example by itself, in `groups` groups of channels, or fewer where the channels
demand it.
"""

USUAL: dict[str, tuple[tuple[int, ...], int]] = {
    "layerwise_cnn": ((1, 28, 28), 10),
    "har_mlp": ((561,), 6),
    "har_cnn": ((9, 128), 6),
    "resnet18": ((3, 64, 64), 200),
    "textcnn": ((128,), 4),
}
"""The shape of an example and the classes of the data that a model was made for, where that is not CIFAR-10."""


def pages() -> dict[str, str]:
    """The index and a page for every method, by file name."""
    return {"README.md": index()} | {f"{name}.md": page(name) for name in METHODS}


def index() -> str:
    """All methods in one table."""
    head = "method", "what it adds", "paper", "needs", "sent", "kept"
    return INDEX.format(table=_table(head, map(_method, METHODS)))


def _method(name: str) -> tuple[str, ...]:
    """A method's row: sent is a round, both ways, and kept is on a client, both in times the model."""
    make, card = METHODS[name], explain(name).cost
    sizes = (f"{size / card.model:.1f}" for size in (card.down + card.up, card.memory))
    said = (text.rstrip(".") for text in described(make))
    return f"[`{name}`]({name}.md)", *said, ", ".join(sorted(make().needs)), *sizes


def page(name: str) -> str:
    """All about one method."""
    e = explain(name)
    adds, paper = described(METHODS[name])
    sections = {
        "Recipe": _recipe(name, e.recipe),
        "Options": _options(name),
        "Parts": _parts(e.recipe),
        "Cost": _cost(e.cost, e),
        "What leaves a client": "\n".join(f"- {what}" for what in e.cost.leaves),
        "What it needs": _needs(e.recipe),
        "Where sources are unclear or disagree": _decisions(e.decisions),
        "Published tables with it": _results(e.recipe),
        "References": _fenced("bibtex", "\n\n".join(e.references)),
    }
    told = [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join([HEAD, f"# {name}", adds, *([f"Paper: {paper}"] if paper else []), *told]) + "\n"


def models_page() -> str:
    """All models in one table."""
    return ZOO.format(table=_table(("model", "what it is", "options", "parameters"), map(_model, MODELS)))


def with_decisions(text: str) -> str:
    """A text whose lines between the two markers are the register of decisions."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise DataError(f"the table of decisions goes between the lines {BEGIN} and {END}, which are not there")
    rows = [(d.id, d.where, d.conflict, d.choice, d.option) for d in DECISIONS]
    table = _table(("id", "where", "conflict", "choice", "option"), rows)
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def write(docs: Path) -> None:
    """Write methods/ and models.md anew, and the table in decisions.md."""
    folder, new = docs / "methods", pages()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.md"):
        if old.read_text(encoding="utf-8").startswith(HEAD):
            old.unlink()
    for name, text in new.items():
        (folder / name).write_text(text, encoding="utf-8")
    (docs / "models.md").write_text(models_page(), encoding="utf-8")
    register = docs / "decisions.md"
    register.write_text(with_decisions(register.read_text(encoding="utf-8")), encoding="utf-8")


def _model(name: str) -> tuple[str, ...]:
    """A model's row: its parameters are those for the data it was made for."""
    shape, classes = USUAL.get(name, ((3, 32, 32), 10))
    options = ", ".join(map(_option, options_of(MODELS[name]).values()))
    size = sum(p.numel() for p in model(name, shape, classes, vocabulary=20_000).parameters())
    said = cleandoc(MODELS[name].__doc__ or "").rstrip(".")
    return f"`{name}`", said, options, f"{size:,} for {shape} and {classes} classes"


def _option(option: inspect.Parameter) -> str:
    choices = get_args(option.annotation) if get_origin(option.annotation) is Literal else ()
    others = [f" or `{c!r}`" for c in choices if c != option.default]
    return f"`{option.name}={option.default!r}`{''.join(others)}"


def _recipe(name: str, recipe: Recipe) -> str:
    filled = {f.name: getattr(recipe, f.name) for f in fields(recipe) if getattr(recipe, f.name) != f.default}
    slots = "".join(f"    {slot}={part!r},\n" for slot, part in filled.items())
    python, text = _fenced("python", f"Recipe(\n{slots})"), _fenced("text", recipe_text(recipe))
    return f"`fs.recipes.{name}()` is, in parts,\n\n{python}\n\nand in text `{name}`, or\n\n{text}"


def _options(name: str) -> str:
    options = inspect.signature(METHODS[name], eval_str=True).parameters.values()
    rows = [(f"`{o.name}`", f"`{o.default!r}`", in_words(o.annotation)) for o in options if o.kind != o.VAR_KEYWORD]
    return _table(("option", "default", "what it takes"), rows) if rows else ""


def _parts(recipe: Recipe) -> str:
    told: list[str] = []
    for slot, part in recipe.parts().items():
        equation = EQUATIONS.get(type(part).__name__)
        told += [f"**{slot.partition('.')[0]}** `{part!r}`", *([f"$$\n{equation}\n$$"] if equation else [])]
        told += [_fenced("text", cleandoc(type(part).__doc__ or ""))]
    return "\n\n".join(told)


def _results(recipe: Recipe) -> str:
    """The published tables that have this method among their rows: what came out, beside FedAvg where that is a row."""
    mine, base = _kinds(recipe), _kinds(METHODS["fedavg"]())
    run, waiting = list[str](), list[str]()
    for made, results, kinds in _tables():
        if mine not in kinds.values():
            continue
        rows = [row for row, kind in kinds.items() if kind in (mine, base)]
        part = replace(made, cells=tuple(c for c in made.cells if c.row in rows))
        there = [r for r in results if r.row in rows]
        link = f"[{made.name}](../reproductions.md#{made.name}), {made.place}: {made.title}"
        if any(numbers(part, there).values()):
            run.append(f"{link}. {caption(part)}\n\n{table(part, there)}")
        else:
            waiting.append(f"- {link}")
    return "\n\n".join(run + (["Not run yet:\n\n" + "\n".join(waiting)] if waiting else []))


@cache
def _tables() -> list[tuple[Reproduction, list[Result], dict[str, Kinds]]]:
    """Every published table, the runs there are of it, and the kinds of parts of each of its rows."""
    every = [read(name) for name in find()]
    return [(made, results_of(made), {c.row: _kinds(c.experiment(0).recipe) for c in made.cells}) for made in every]


def _kinds(recipe: Recipe) -> Kinds:
    """Of its parts, but for who is selected."""
    return tuple(type(p) for slot, p in recipe.parts().items() if slot != "select")


def _cost(card: CostCard, e: Explanation) -> str:
    sizes = {"down to a client": card.down, "up from a client": card.up, "kept on a client": card.memory}
    sizes |= {"both ways, once, in the end": card.once} if card.once else {}
    rows = [(what, f"{size:,}", f"{size / card.model:.2f}") for what, size in sizes.items()]
    table = _table(("a round", "bytes", "times the model"), rows)
    return f"For `{e.model}` on handwritten digits, {e.parameters:,} parameters:\n\n{table}"


def _needs(recipe: Recipe) -> str:
    """What an experiment must provide, or every client tell."""
    given = {n: said for n, said in REMEDIES.items() if n not in PROBES}
    told = {n: given.get(n) or f"from every client {REVEALED.get(n, n)}" for n in sorted(recipe.needs)}
    return "\n".join(f"- **{n.replace('_', ' ')}**, {said}" for n, said in told.items()) or "Clients with data."


def _decisions(decisions: Iterable[Decision]) -> str:
    return "\n".join(f"- **{d.id}** {d}" for d in decisions)


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown; a bar within a cell is escaped."""
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
