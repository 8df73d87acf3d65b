"""The sections of the page, in its order: each is HTML, and the figures that belong into it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from inspect import cleandoc
from typing import Any

from fedstrata import toml
from fedstrata.decisions import decisions_of
from fedstrata.papers import OWN, references
from fedstrata.parse import recipe_text
from fedstrata.partition.describe import describe
from fedstrata.report import plots
from fedstrata.report.again import Again, different_splits
from fedstrata.report.folders import Found, Group, RunFolder, method_name, uncounted
from fedstrata.report.lens import Lens, in_words, lens
from fedstrata.report.markup import Cell, citation, code, definitions, details, paragraphs, table, ticked
from fedstrata.report.series import SETS, measures
from fedstrata.report.split import facts_in_words
from fedstrata.report.style import COLOURS, DASHES
from fedstrata.report.summary import comparison_table, dropped, groups_table, rounds_of, runs_table, watched

LENS_NUMBERS = 400_000
"""Numbers in all pictures of clients by layers together: some megabytes of the page."""

FAULTS = {
    "dropout": "never answered",
    "straggle": "made fewer steps",
    "late": "came too late",
    "nan": "sent NaN",
    "garbage": "sent garbage",
    "sign_flip": "flipped signs",
    "scale": "scaled updates",
    "label_flip": "flipped labels",
}
"""What was done to clients on purpose, in words."""

LOST_ROWS = 200
"""Rounds in the table of what was left out."""


@dataclass(eq=False)
class Draft:
    """A page in the making: what was found, and the figures so far."""

    found: Found
    again: Again = field(default_factory=Again)
    figures: dict[str, plots.Figure] = field(default_factory=dict)

    def figure(self, name: str, figure: plots.Figure, caption: str = "", title: str = "") -> str:
        """Put a figure into the page: its place in HTML."""
        self.figures[name] = figure
        head = f"<h4>{escape(title)}</h4>" if title else ""
        below = f"<figcaption>{caption}</figcaption>" if caption else ""
        size = f'style="height:{figure["height"]}px"'
        return (
            f'<figure class="plot" data-figure="{escape(name)}">{head}<div class="controls"></div>'
            f'<div class="canvas" {size}></div>{below}</figure>'
        )


def results(draft: Draft) -> str:
    """What came out: the table of the comparison, or else of the groups, and every run."""
    found = draft.found
    tables = [comparison_table(said) for said in found.comparisons] or [groups_table(found.groups)]
    several = any(len(g.runs) > 1 for g in found.groups)
    means = "Means over seeds with their 95&nbsp;% intervals."
    said = f"{means} The best of a column is bold." if found.comparisons else f"The last round. {means}"
    said = said if several else "The last round of each run."
    hint = " One seed says little about which method is better." if not several and len(found.groups) > 1 else ""
    every = details(f"every run ({len(found.runs)})", runs_table(found.groups))
    if found.repeated:
        some = ", ".join(f"<code>{escape(str(path))}</code>" for path in found.repeated)
        hint += f" Left out, as they have the settings and the seed of another run: {some}."
    return f'<p class="lead">{said}{hint} A click on a column sorts by it.</p>{"".join(tables)}{every}'


def learning(draft: Draft) -> str:
    """Scores over the rounds."""
    groups = draft.found.groups
    names = sorted({m for where in SETS for m in measures(groups, where)}, key=lambda m: (m != "accuracy", m == "loss"))
    several = any(len(g.runs) > 1 for g in groups)
    said = "Lines are means over seeds, bands their 95&nbsp;% intervals." if several else "One line a run."
    plotted = [draft.figure(f"curves-{m}", plots.curves(groups, m), title=m) for m in names]
    return f'<p class="lead">{said}</p>{_legend(groups)}<div class="pair">{"".join(plotted)}</div>'


def split(draft: Draft) -> str:
    """Who owned what."""
    shown, told = [], []
    for run in different_splits([g.runs[0] for g in draft.found.groups]):
        made = draft.again.split(run)
        if made.clients is None:
            told.append(f'<p class="missing">No picture of {escape(made.title)}: {ticked(made.why_not)}</p>')
        else:
            says = f"{made.title}: {facts_in_words(describe(made.clients))}."
            shown.append(plots.split_figure(made) | {"says": says})
    figure = draft.figure("split", {"choices": shown, "height": 380}) if shown else ""
    said = '<p class="lead">How many examples of which class each client owns.</p>'
    return said + figure + "".join(told)


def layers(draft: Draft) -> str:
    """The layer lens: which layers disagree, over the rounds and over the clients."""
    groups = draft.found.groups
    lenses = [lens(g.runs[0]) for g in groups]
    pictures = sum(len(found.frames) for found in lenses)
    options = "".join(f'<option value="{i}">{escape(g.name)}</option>' for i, g in enumerate(groups))
    pick = f'<label class="pick">method <select id="lens-method">{options}</select></label>' if len(groups) > 1 else ""
    panels = [
        f'<div class="lens" data-lens="{i}"{" hidden" if i else ""}>'
        f"{_lens(draft, i, group.runs[0], found, LENS_NUMBERS // max(1, pictures))}</div>"
        for i, (group, found) in enumerate(zip(groups, lenses, strict=True))
    ]
    said = "What the recipe noted of every layer. Rows are layers, from the input at the top to the output."
    return f'<p class="lead">{said}</p>{pick}{"".join(panels)}'


def clients(draft: Draft) -> str:
    """How scores spread over the clients: over the rounds, and at the end."""
    groups = draft.found.groups
    if not measures(groups, "clients"):
        why = "The runs did not look at the clients' own data (<code>evaluate_train = false</code>)."
        return f'<p class="missing">{why}</p>'
    kind = watched(groups)
    over = draft.figure("fairness", plots.fairness(groups, kind), title="over the rounds")
    again = [(i, g.name, draft.again.scores(g.runs[0])) for i, g in enumerate(groups)]
    scored = [(i, name, *found) for i, name, found in again if found is not None]
    caption = "A point is a client; the final model of the first seed, on the examples that the client trained on."
    last = draft.figure("distribution", plots.distribution(scored, kind), caption, "at the end") if scored else ""
    said = f"The global model's {kind} on each client's own data. A good mean can hide clients that are left behind."
    return f'<p class="lead">{said}</p>{_legend(groups)}<div class="pair">{over}{last}</div>'


def left_out(draft: Draft) -> str:
    """Which replies did not count, and why."""
    lost = [
        (group, run, line) for group in draft.found.groups for run in group.runs for line in run.rounds if _lost(line)
    ]
    if not lost:
        return '<p class="lead">Nothing: every reply of every round counted.</p>'
    empty = sum("empty" in line for _, _, line in lost)
    replies = sum(dropped(run) for run in draft.found.runs)
    said = f"{replies:,} replies did not count" + (f", and in {empty:,} rounds nothing changed." if empty else ".")
    rows = [_lost_row(*one) for one in lost[:LOST_ROWS]]
    more = f"<p>The first {LOST_ROWS} of {len(lost)} rounds; rounds.jsonl has all.</p>" if len(lost) > LOST_ROWS else ""
    shown = table(["method", "seed", "round", "clients", "why"], rows)
    return f'<p class="lead">{said}</p><div class="prose">{shown}</div>{more}'


def recipes(draft: Draft) -> str:
    """Each recipe with its equations, what was decided where sources disagree, and whom to cite."""
    told = dict.fromkeys(g.recipe.fingerprint for g in draft.found.groups)
    first = [next(g for g in draft.found.groups if g.recipe.fingerprint == f) for f in told]
    own = details("fedstrata itself", code(OWN, copied=True))
    return '<p class="lead">What ran, part by part, and where it comes from.</p>' + "".join(map(_recipe, first)) + own


def made(draft: Draft) -> str:
    """What the runs ran on, and how to run them again."""
    found = draft.found
    machines: dict[tuple[tuple[str, object], ...], list[RunFolder]] = {}
    for run in found.runs:
        machines.setdefault(tuple(run.environment.items()), []).append(run)
    boxes = [f'<div class="card">{definitions([("runs", len(runs)), *said])}</div>' for said, runs in machines.items()]
    again = [details(f"{g.name}: experiment.toml", _experiment(g.runs[0])) for g in found.groups]
    said = '<p class="lead">Where the runs ran, and the files that repeat them.</p>'
    return f'{said}<div class="cards">{"".join(boxes)}</div>{"".join(again)}'


SECTIONS: dict[str, tuple[str, Callable[[Draft], str]]] = {
    "results": ("Results", results),
    "learning": ("Learning curves", learning),
    "split": ("Who owns what", split),
    "layers": ("Layer lens", layers),
    "clients": ("Clients", clients),
    "left-out": ("Left out", left_out),
    "recipes": ("Recipes", recipes),
    "made": ("Environment", made),
}
"""The sections by their anchors."""


def facts(found: Found) -> list[tuple[str, str]]:
    """What all runs are about, in a few words: the strip below the title."""
    runs = found.runs
    rounds = sorted({rounds_of(r) for r in runs})
    told = [("methods", str(len(found.groups))), ("runs", str(len(runs)))]
    told += [("rounds", "\u2013".join(map(str, dict.fromkeys([rounds[0], rounds[-1]]))))]
    for key in ("data", "model"):
        said = dict.fromkeys(str(r.settings[key]).rpartition("/")[2] for r in runs if key in r.settings)
        told += [(key, ", ".join(said) if len(said) < 4 else f"{len(said)} of them")] if said else []
    sizes = sorted({int(r.environment["parameters"]) for r in runs if "parameters" in r.environment})
    return told + (
        [("parameters", "\u2013".join(f"{n:,}" for n in dict.fromkeys([sizes[0], sizes[-1]])))] if sizes else []
    )


def _legend(groups: Sequence[Group]) -> str:
    """The lines of the groups; a click hides one in all figures."""
    dashes = {"solid": "", "dash": "6 4", "dashdot": "8 3 2 3", "dot": "2 3"}
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-group="g{i}">'
        '<svg viewBox="0 0 26 8" aria-hidden="true">'
        f'<line x1="0" y1="4" x2="26" y2="4" stroke="var(--c{i % len(COLOURS)})" stroke-width="2.5" '
        f'stroke-dasharray="{dashes[DASHES[i % len(DASHES)]]}"/></svg>{escape(g.name)}</button>'
        for i, g in enumerate(groups)
    )
    return f'<div class="legend">{chips}</div>'


def _lens(draft: Draft, i: int, run: RunFolder, found: Lens, numbers: int) -> str:
    """The pictures of one run."""
    if not found.heats and not found.frames:
        return '<p class="missing">This run has no notes.</p>'
    said = in_words(found)
    heats = [
        draft.figure(f"lens-{i}-{n}", plots.heat_map(heat), escape(heat.says), heat.title)
        for n, heat in enumerate(found.heats)
    ]
    grid = f'<div class="pair">{"".join(heats)}</div>'
    maps = ""
    if found.frames:
        maps = draft.figure(f"clients-{i}", plots.client_maps(found.frames, numbers), title="clients by layers")
    return f'<p class="finding">{escape(said)} Shown is seed {run.seed}.</p>{maps}{grid}'


def _recipe(group: Group) -> str:
    parts = "".join(
        f'<div class="part"><span class="slot">{escape(slot.partition(".")[0])}</span><code>{escape(repr(part))}</code>'
        f"{paragraphs(cleandoc(type(part).__doc__ or ''))}</div>"
        for slot, part in group.recipe.parts().items()
    )
    found = decisions_of(group.recipe, method_name(group.recipe))
    unclear = "".join(f"<li><b>{d.id}</b> {ticked(str(d))}</li>" for d in found)
    entries = references(group.recipe)
    papers = "".join(f"<li>{citation(e)}</li>" for e in entries)
    return (
        f'<article class="card"><h3>{escape(group.name)}</h3>{code(recipe_text(group.recipe), copied=True)}{parts}'
        + (details(f"where sources are unclear or disagree ({len(found)})", f"<ul>{unclear}</ul>") if found else "")
        + f'<h4>References</h4><ul class="papers">{papers}</ul>'
        + details("BibTeX", code("\n\n".join(entries), copied=True))
        + "</article>"
    )


def _experiment(run: RunFolder) -> str:
    """How to run it again, and what that runs."""
    return code(f"fedstrata run {run.path / 'experiment.toml'}", copied=True) + code(toml.dumps(run.settings))


def _lost_row(group: Group, run: RunFolder, line: dict[str, Any]) -> list[Cell]:
    counts = run.seed, line["round"] + 1, len(uncounted(line))
    faults = [f"{FAULTS.get(n, n)}: {', '.join(map(str, ids))}" for n, ids in line.get("faults", {}).items()]
    why = "; ".join([*faults, *line.get("warnings", [])])
    return [Cell.text(group.name), *(Cell.number(n, "whole") for n in counts), Cell.text(why or "nothing changed")]


def _lost(line: dict[str, Any]) -> bool:
    return any(line.get(what) for what in ("dropped", "empty", "warnings", "faults"))
