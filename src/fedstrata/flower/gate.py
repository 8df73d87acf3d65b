"""Who comes in: every node is asked once who it is, and what it says is checked before it has a seat."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedstrata.data.columns import unlike
from fedstrata.errors import NeedError
from fedstrata.experiment import Experiment
from fedstrata.flower import quarantine
from fedstrata.flower.enrolment import Enrolment
from fedstrata.flower.post import Answers, Post
from fedstrata.flower.quarantine import CUT, Refused, printable
from fedstrata.flower.records import Tree, packed
from fedstrata.flower.roster import Roster
from fedstrata.flower.settings import Network

PATIENCE = 120.0
"""Seconds for a node to say who it is: it may have to read its data first."""

AGAIN = 10.0
"""Seconds after which a node that was turned away may try again, while clients are waited for."""


@dataclass(frozen=True)
class Member:
    """A client that came in."""

    name: str
    examples: int
    labels: Tensor | None  # [C], where the recipe asks for them


@dataclass
class Gate:
    """Lets nodes in, and remembers who was turned away and why."""

    post: Post
    exp: Experiment
    net: Network
    roster: Roster
    members: dict[str, Member] = field(default_factory=dict)
    new: set[str] = field(default_factory=set)  # of those, who came in since `news` was last asked for
    refused: dict[int, str] = field(default_factory=dict)  # by node
    barred: set[int] = field(default_factory=set)  # of those, for what they said: it will not be another thing
    asked: set[int] = field(default_factory=set)
    waiting: dict[str, int] = field(default_factory=dict)  # messages under way, and to which node
    until: dict[int, float] = field(default_factory=dict)  # when these are given up
    begun: bool = False

    def gather(self) -> list[int]:
        """The clients that are there, once they are enough; a sentence where they do not become so in time.

        At first all who are asked are waited for, so that clients' ids do not depend on who is quick. Later nobody is:
        a newcomer is in the first round that begins after it has answered.
        """
        end, again = monotonic() + self.net.wait, monotonic() + AGAIN
        self.asked &= (self.barred & set(self.post.online())) | self.until.keys()  # who went and came may try again
        while True:
            self._ask()
            self._hear()
            there = self.present()
            if len(there) >= self.net.min_online and (self.begun or not self.until):
                self.begun = True
                return there
            if monotonic() >= (end + PATIENCE if self.until else end):
                raise NeedError(self._too_few(there))
            if monotonic() >= again:
                self.asked, again = set(self.until), monotonic() + AGAIN
            sleep(self.net.poll)

    def news(self) -> dict[str, Member]:
        """Who came in since this was last asked."""
        found = {n: self.members[n] for n in self.new}
        self.new.clear()
        return found

    def present(self) -> list[int]:
        """The ids of the clients whose nodes are online and that have data."""
        online, seats = set(self.post.online()), self.roster.nodes
        here = [n for n, m in self.members.items() if seats.get(n) in online and m.examples]
        return sorted(self.roster.names.index(n) for n in here)

    def _ask(self) -> None:
        """Ask those online who they are that have no seat yet, once."""
        seated = {at for name, at in self.roster.nodes.items() if name in self.members}
        nodes = [n for n in self.post.online() if n not in seated | self.asked]
        if not nodes:
            return
        job = packed({}, {"kind": "enrol", "run": self.roster.run, "experiment": self.exp.settings()})
        self.waiting |= self.post.send(dict.fromkeys(nodes, job), "query", PATIENCE)
        self.until |= dict.fromkeys(nodes, monotonic() + PATIENCE)
        self.asked.update(nodes)

    def _hear(self) -> None:
        """Let in those whose answers have come; of several, seats go by their names."""
        found, now = Answers(), monotonic()
        self.post.look(self.waiting, found, end=now)
        under_way = set(self.waiting.values())
        answered = found.there | found.failed
        silent = {n for n, end in self.until.items() if n not in answered and (now >= end or n not in under_way)}
        self.refused |= found.failed | dict.fromkeys(silent, "it did not say who it is")
        self.until = {n: end for n, end in self.until.items() if n not in answered.keys() | silent}
        self.waiting = {i: n for i, n in self.waiting.items() if n in self.until}
        said = {}
        for node, content in found.there.items():
            try:
                said[node] = self._said(content)
            except Refused as e:
                self._turn_away(node, str(e))
        for node in sorted(said, key=lambda n: (said[n][0].name, n)):
            if (why := self._let_in(node, *said[node])) is not None:
                self._turn_away(node, why)

    def _turn_away(self, node: int, why: str) -> None:
        self.refused[node] = printable(why)
        self.barred.add(node)

    def _said(self, content: RecordDict) -> tuple[Enrolment, Tensor | None]:
        """(what a node says of itself, its counts of classes where those are asked for)."""
        asked = "labels" in self.exp.recipe.told

        def like(said: Mapping[str, Any]) -> Tree:
            classes = Enrolment.of(said).classes
            return {"labels": torch.empty(classes, dtype=torch.float64, device="meta")} if asked else {}

        arrays, said = quarantine.admitted(content, like, {"kind": "enrol", "run": self.roster.run})
        who = Enrolment.of(said)
        count = quarantine.examples(who.examples, self.net.max_examples)
        return who, quarantine.labels(arrays["labels"], count) if asked else None

    def _let_in(self, node: int, who: Enrolment, labels: Tensor | None) -> str | None:
        """Give it a seat, if it fits those who are here; or why not, and then nothing that it says counts."""
        if self.net.names and who.name not in self.net.names:
            return f"{who.name!r} does not belong to this federation, which is of {', '.join(self.net.names)}"
        agreed, dealt = self.roster.facts, list[str]()
        mine = {"shape": list(who.shape), "words": who.words, "names": who.names and list(who.names)}
        mine["parts"] = who.partition is not None
        if not agreed and mine["parts"]:  # clients are parts of the experiment's own data: as many as it says
            dealt = [str(i) for i in range(len(self.exp.clients()))]
        why = self._unlike(mine, who, len(dealt or self.roster.names))
        why = why or self.roster.seat(who.name, node, self.net.pin, who.partition, dealt)
        if why is not None:
            return why
        agreed |= ({} if agreed else mine) | {"classes": max(who.classes, agreed.get("classes", 0))}
        agreed["columns"] = agreed.get("columns") or list(who.columns)
        self.refused.pop(node, None)
        self.barred.discard(node)
        self.members[who.name] = Member(who.name, who.examples, labels)
        self.new.add(who.name)
        return None

    def _unlike(self, mine: Mapping[str, Any], who: Enrolment, parts: int) -> str | None:
        """Why its data does not fit that of the others. The first one says what it is to be like."""
        agreed = self.roster.facts
        for name, value in mine.items():
            if agreed and agreed[name] != value:
                return f"the {name} of its data is {CUT.repr(value)}, and that of the others {CUT.repr(agreed[name])}"
        if who.columns and agreed.get("columns") and (why := unlike(who.columns, agreed["columns"])):
            return f"it {why}"
        if who.partition is not None and not 0 <= who.partition < parts:
            return f"it has part {who.partition}, of {parts}"
        if agreed.get("settled") and who.classes > agreed["classes"]:
            return f"it has {who.classes} classes, and the model {agreed['classes']}"
        return None

    def _too_few(self, there: list[int]) -> str:
        names = ", ".join(self.roster.names[i] for i in there) or "nobody"
        why = "".join(f"; node {n} was turned away: {r}" for n, r in list(self.refused.items())[:3])
        need = f"{self.net.min_online} are needed (min-online)"
        again = "then resume" if self.roster.facts.get("settled") else "and begin again"
        return f"after {self.net.wait:.0f} s {names} is online, and {need}{why}; start more nodes, {again}"


def known_of(members: Mapping[str, Member], roster: Roster, classes: int) -> dict[str, Tensor]:
    """What the server knows of all clients of the roster, [N, ...] each; of those who are not here yet, nothing."""
    here = [members.get(n) for n in roster.names]
    stats = {"examples": torch.tensor([m.examples if m else 0 for m in here], dtype=torch.float64)}
    if any(m is not None and m.labels is not None for m in here):
        none = torch.zeros(classes, dtype=torch.float64)
        rows = [none if m is None or m.labels is None else m.labels for m in here]
        stats["labels"] = torch.stack([torch.cat([r, none[len(r) :]]) for r in rows])
    return stats
