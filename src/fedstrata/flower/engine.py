"""The engine that is a network: a round's clients are nodes, reached through Flower.

To the round loop it is one engine among others. Replies are looked at before they count, and put into the order of
the clients' ids, since they come in any; who does not reply in time is not in the round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedstrata.core import Cohort, State
from fedstrata.descent import Federation
from fedstrata.evaluate import Sets, fairness, score
from fedstrata.flower import quarantine
from fedstrata.flower.gate import Member
from fedstrata.flower.post import Post
from fedstrata.flower.quarantine import NotFinite, Refused, Said, admitted
from fedstrata.flower.records import Tree, below, by_part, flat, packed
from fedstrata.flower.roster import Roster
from fedstrata.flower.settings import Network
from fedstrata.layout import Arrays
from fedstrata.probes import PROBES
from fedstrata.runtimes import Apart, Vault
from fedstrata.runtimes.visit import nobody
from fedstrata.server import Replies, Server
from fedstrata.simulate import first_stats, fresh_memory
from fedstrata.task import buffers_of

T = TypeVar("T")


@dataclass
class Told:
    """What went wrong in a round, for its line of the record; by the clients' names."""

    quarantined: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # what they remembered

    def line(self) -> dict[str, Any]:
        """As far as there is something to tell."""
        return {n: v for n, v in vars(self).items() if v}


@dataclass
class OnFlower:
    """Asks nodes to train, measure and score."""

    fed: Federation  # with examples that are made up
    sets: Sets  # of the server's own
    post: Post
    roster: Roster
    members: Mapping[str, Member]  # by name
    net: Network
    settings: Mapping[str, Any]  # of the experiment
    classes: int
    likeness: Replies  # what a client's reply looks like, of a made-up one
    told: Told = field(default_factory=Told)
    sound: list[str] = field(default_factory=list)  # whose replies were, when clients trained last

    def survey(self, server: Server, names: frozenset[str], ids: Sequence[int]) -> Arrays:
        """NaN for those who do not answer."""
        looks = _rehearsed(self.fed).survey(server, names, [0])
        jobs = {i: self._job("survey", server, i, probes=sorted(names)) for i in ids}
        like = {"stats": {n: v[0] for n, v in looks.items()}}
        found = self._asked(jobs, server, "query", like, self._measured)
        missing = {n: torch.full_like(v[0], torch.nan) for n, v in looks.items()}
        rows = [found.get(i, missing) for i in ids]
        return {n: torch.stack([r[n].to(server.model.device) for r in rows]) for n in names}

    def train(self, server: Server, cohort: Cohort, brief: State, probes: frozenset[str]) -> Replies:
        silent = {*self.told.silent, *self.told.failed, *self.told.quarantined}
        jobs = {}
        for j, i in enumerate(cohort.ids.tolist()):
            if self.roster.names[i] in silent:  # it was asked already in this round, and did not answer
                continue
            told = {part: {n: v[j] for n, v in own.items()} for part, own in brief.items()}
            known = {n: v[j] for n, v in cohort.stats.items() if v.dim() == 1}
            facts = {"population": cohort.population, "mean_examples": cohort.mean_examples, "probes": sorted(probes)}
            facts |= {"since": self.roster.last_turn(i, server.number)}
            jobs[i] = self._job("train", server, i, {"brief": told, "stats": known}, **facts)
        enough = min(len(jobs), self.fed.recipe.select.size(len(jobs))) if self.net.over_select > 1 else None
        own, spoiled = flat({"buffers": server.buffers}), list[int]()

        def look(i: int, arrays: Arrays, said: Said) -> Arrays:
            try:
                return self._trained(i, arrays, said, own)
            except NotFinite:
                spoiled.append(i)
                raise

        kept = self._asked(jobs, server, "train", _row(self.likeness), look, enough)
        self.sound = [self.roster.names[i] for i in kept]
        if len(kept) < self.net.min_replies:
            return replace(nobody(server, cohort), left_out=tuple(spoiled))
        return self._stacked(server, kept, spoiled)

    def score(self, model: Tensor, buffers: Arrays, name: str) -> Arrays:
        return score(self.fed.task, model, buffers, *self.sets[name])

    def evaluate(self, server: Server, model: Tensor, ids: Sequence[int]) -> dict[str, Any]:
        """Loss and metrics on these clients' own data: over all, how they spread, and of each."""
        like = {n: torch.zeros((), dtype=torch.float64) for n in ("loss", *self.fed.task.metrics, "examples")}
        own = not self.roster.facts["parts"]
        looks = {"train": like} | ({"test": like} if own else {})
        jobs = {i: self._job("score", server, i, {"model": model}) for i in ids}
        found = self._asked(jobs, server, "evaluate", looks, self._scored)
        line: dict[str, Any] = {"by_client": {}}
        for name in looks:
            sums = {i: sets[name] for i, sets in found.items() if name in sets}
            if not sums:
                continue
            total = sum(s["examples"] for s in sums.values())
            measures = [n for n in like if n != "examples"]
            line[name] = {n: sum(s[n] for s in sums.values()) / total for n in measures}
            means = {i: {n: s[n] / s["examples"] for n in measures} for i, s in sums.items()}
            for i, each in means.items():
                line["by_client"].setdefault(self.roster.names[i], {})[name] = each
            watched, best = ("accuracy", "high") if "accuracy" in measures else ("loss", "low")
            spread = fairness(np.array([m[watched] for m in means.values()]), best)
            line.setdefault("clients", spread)  # on what they train on, as in the simulator
        return line

    def close(self) -> None:
        return

    def _job(self, kind: str, server: Server, client: int, more: Tree | None = None, **facts: Any) -> Any:
        """What a node is sent: the model, and who asks for what."""
        tree = {"model": server.model, "buffers": server.buffers} | dict(more or {})
        said = {"kind": kind, "run": self.roster.run, "round": server.number, "client": client, "classes": self.classes}
        facts |= {"experiment": self.settings, "columns": self.roster.facts.get("columns", [])}
        return packed(tree, said | facts)

    def _asked(
        self,
        jobs: Mapping[int, Any],
        server: Server,
        kind: str,
        like: Tree,
        look: Callable[[int, Arrays, Said], T],
        enough: int | None = None,
    ) -> dict[int, T]:
        """What a look at each sound reply gave, by client in rising order; of the others the record tells."""
        at = {self.roster.node(i): i for i in jobs}
        answers = self.post.ask({n: jobs[i] for n, i in at.items()}, kind, self.net.deadline, enough)
        name = self.roster.names
        self.told.failed.update({name[at[n]]: why for n, why in answers.failed.items()})
        if enough is None or len(answers.there) < enough:
            quiet = at.keys() - answers.there.keys() - answers.failed.keys()
            self.told.silent += [name[at[n]] for n in sorted(quiet, key=at.__getitem__)]
        found = {}
        for i, content in sorted({at[n]: c for n, c in answers.there.items()}.items()):
            try:
                asked = {"run": self.roster.run, "round": server.number, "client": i}
                found[i] = look(i, *admitted(content, like, asked))
            except Refused as e:
                self.told.quarantined[name[i]] = str(e)
        return found

    def _measured(self, client: int, arrays: Arrays, said: Said) -> Arrays:
        """What a client measured, if it can be."""
        quarantine.sound(arrays, {})
        return below("stats", arrays)

    def _trained(self, client: int, arrays: Arrays, said: Said, own: Arrays) -> Arrays:
        """What a client sends back from training, if all of it can be, with its number of examples."""
        count = quarantine.examples(said.get("examples"), self.net.max_examples, self._enrolled(client))
        if not count:
            raise Refused("it has no example to train on")
        quarantine.sound(arrays, own, steps=self.fed.training.steps or self.fed.training.epochs * count)
        if said.get("lost"):
            self.told.lost.append(self.roster.names[client])
        return arrays | {"stats/examples": torch.tensor(count, dtype=torch.float64)}

    def _scored(self, client: int, arrays: Arrays, said: Said) -> dict[str, dict[str, float]]:
        """A client's sums over each of its sets that is not empty, and the number of examples, if all of it can be."""
        found = {}
        for name in ("train", "test"):
            sums = {n: float(v) for n, v in below(name, arrays).items()}
            count = sums.get("examples", 0.0)
            whole = int(count) if count.is_integer() else count
            if quarantine.examples(whole, self.net.max_examples, self._enrolled(client) if name == "train" else None):
                means = {
                    f"stats/{n}": torch.tensor(v / count, dtype=torch.float64)
                    for n, v in sums.items()
                    if n != "examples"
                }
                quarantine.sound(means, {})
                found[name] = sums
        return found

    def _enrolled(self, client: int) -> int:
        """The examples that a client had when it came in."""
        return self.members[self.roster.names[client]].examples

    def _stacked(self, server: Server, kept: Mapping[int, Arrays], spoiled: list[int]) -> Replies:
        """The replies of a cohort as one, in the order of the clients' ids."""
        device = server.model.device
        rows = list(kept.values())
        all_of = {n: torch.stack([r[n] for r in rows]).to(device) for n in rows[0]}
        uploads = by_part(below("uploads", all_of), self.fed.recipe.locals())
        parts = all_of["delta"], below("buffers", all_of), uploads, below("stats", all_of)
        self.roster.turns |= dict.fromkeys(self.sound, server.number)
        return Replies(torch.tensor(list(kept), device=device), *parts, left_out=tuple(spoiled))


def rehearsal(fed: Federation, server: Server) -> Replies:
    """What the reply of a client looks like: a made-up one is sent through a round, here."""
    recipe, engine, device = fed.recipe, _rehearsed(fed), server.model.device
    asked = recipe.select.asks | recipe.briefing
    stats = {n: v.to(device) for n, v in first_stats(fed).items()} | engine.survey(server, asked, [0])
    cohort = Cohort(server.layout, torch.zeros(1, dtype=torch.long, device=device), stats, server.model, population=1)
    brief = recipe.brief(recipe.init(server.layout, 1), cohort)
    return engine.train(server, cohort, brief, (recipe.needs & PROBES.keys()) - asked)


def _rehearsed(fed: Federation) -> Apart:
    """Made-up clients, here."""
    w = fed.task.layout.zeros()
    buffers = {n: b.to(w.device) for n, b in buffers_of(fed.task.train_mode).items()}
    return Apart(fed, Vault(fresh_memory(fed, w, buffers)), {})


def _row(replies: Replies) -> Tree:
    """What one client's reply holds, by the names that it travels under."""
    uploads = {part: {n: v[0] for n, v in own.items()} for part, own in replies.uploads.items()}
    return {
        "delta": replies.delta[0],
        "buffers": {n: v[0] for n, v in replies.buffers.items()},
        "uploads": uploads,
        "stats": {n: v[0] for n, v in replies.stats.items()},
    }
