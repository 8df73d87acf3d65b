"""Who comes in: every node is asked once who it is, and what it says is checked before it has a seat."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedstrata.errors import NeedError
from fedstrata.experiment import Experiment
from fedstrata.flower import quarantine
from fedstrata.flower.post import Post
from fedstrata.flower.quarantine import Refused
from fedstrata.flower.records import packed, unpacked
from fedstrata.flower.roster import Roster
from fedstrata.flower.settings import Network
from fedstrata.version import __version__

PATIENCE = 120.0
"""Seconds for a node to say who it is: it may have to read its data first."""

AGAIN = 10.0
"""Seconds after which a node that was turned away may try again, while clients are waited for."""

MOST_CLASSES = 1_000_000


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

    def gather(self) -> list[int]:
        """The clients that are there, once they are enough; a sentence where they do not become so in time."""
        end, asked = monotonic() + self.net.wait, None
        while True:
            if asked is None or monotonic() - asked >= AGAIN or self._strangers(new=True):
                self.enrol()
                asked = monotonic()
            there = self.present()
            if len(there) >= self.net.min_online:
                return there
            if monotonic() >= end:
                raise NeedError(self._too_few(there))
            sleep(min(self.net.poll, max(0.01, end - monotonic())))

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

    def enrol(self) -> None:
        """Ask those who they are that have no seat yet; of several that are new, seats go by their names."""
        nodes = self._strangers()
        if not nodes:
            return
        job = packed({}, {"kind": "enrol", "run": self.roster.run, "experiment": self.exp.settings()})
        answers = self.post.ask(dict.fromkeys(nodes, job), "query", PATIENCE)
        self.refused.update(answers.failed)
        self.refused.update({n: "it did not say who it is" for n in nodes if n not in answers.there | answers.failed})
        said = {}
        for node, content in answers.there.items():
            try:
                said[node] = self._said(content)
            except Refused as e:
                self.refused[node] = str(e)
        for node in sorted(said, key=lambda n: (said[n][0]["name"], n)):
            self._let_in(node, *said[node])

    def _strangers(self, new: bool = False) -> list[int]:
        """Nodes online that have no seat, or did not say yet who they are; perhaps only those never asked."""
        known = {at for name, at in self.roster.nodes.items() if name in self.members}
        known |= self.refused.keys() if new else set()
        return [n for n in self.post.online() if n not in known]

    def _said(self, content: RecordDict) -> tuple[dict[str, Any], Tensor | None]:
        """(what a node says of itself, its counts of classes where those are asked for)."""
        try:
            arrays, facts = unpacked(content)
        except (ValueError, TypeError, KeyError, EOFError) as e:
            raise Refused(f"what it says cannot be read: {e}") from None
        version = str(facts.get("fedstrata", "?"))
        if version.split(".")[:2] != __version__.split(".")[:2]:
            raise Refused(f"it has fedstrata {version} and the server {__version__}; install the same")
        if not isinstance(facts.get("name"), str) or not facts["name"].strip():
            raise Refused(f"its name is {facts.get('name')!r}; give it one, client=... in its node-config")
        count, classes = quarantine.examples(facts.get("examples"), self.net.max_examples), facts.get("classes")
        if type(classes) is not int or not 1 <= classes <= MOST_CLASSES:
            raise Refused(f"its number of classes is {classes!r}")
        asked = "labels" in self.exp.recipe.told
        if set(arrays) != ({"labels"} if asked else set()):
            raise Refused(f"it tells {sorted(arrays)}, which is not what was asked for")
        return facts, quarantine.labels(arrays["labels"], count) if asked else None

    def _let_in(self, node: int, facts: Mapping[str, Any], labels: Tensor | None) -> None:
        """Give it a seat, if it fits those who are here."""
        why = self._unlike(facts)
        if why is None and facts["partition"] is not None:
            why = self.roster.rename(facts["partition"], facts["name"])
        why = why or self.roster.seat(facts["name"], node, self.net.pin)
        if why is not None:
            self.refused[node] = why
            return
        self.refused.pop(node, None)
        self.members[facts["name"]] = Member(facts["name"], facts["examples"], labels)
        self.new.add(facts["name"])

    def _unlike(self, facts: Mapping[str, Any]) -> str | None:
        """Why its data does not fit that of the others. The first one says what it is to be like."""
        agreed = self.roster.facts
        mine = {n: facts.get(n) for n in ("shape", "words", "names")} | {"parts": facts["partition"] is not None}
        if not agreed:
            agreed.update(mine | {"classes": facts["classes"]})
            if mine["parts"]:
                self._deal()
        for name, value in mine.items():
            if agreed[name] != value:
                return f"the {name} of its data is {value}, and that of the others {agreed[name]}"
        if mine["parts"] and not 0 <= facts["partition"] < len(self.roster.names):
            return f"it has part {facts['partition']}, of {len(self.roster.names)}"
        if facts["classes"] > agreed["classes"]:
            if agreed.get("settled"):
                return f"it has {facts['classes']} classes, and the model {agreed['classes']}"
            agreed["classes"] = facts["classes"]
        return None

    def _deal(self) -> None:
        """Clients are parts of the experiment's own data: there are as many as it says."""
        self.roster.names[:] = [str(i) for i in range(len(self.exp.clients()))]
        self.roster.closed = True

    def _too_few(self, there: list[int]) -> str:
        names = ", ".join(self.roster.names[i] for i in there) or "nobody"
        why = "".join(f"; node {n} was turned away: {r}" for n, r in list(self.refused.items())[:3])
        need = f"{self.net.min_online} are needed (min-online)"
        return f"after {self.net.wait:.0f} s {names} is online, and {need}{why}; start more nodes, then resume"


def known_of(members: Mapping[str, Member], roster: Roster, classes: int) -> dict[str, Tensor]:
    """What the server knows of all clients of the roster, [N, ...] each; of those who are not here yet, nothing."""
    here = [members.get(n) for n in roster.names]
    stats = {"examples": torch.tensor([m.examples if m else 0 for m in here], dtype=torch.float64)}
    if any(m is not None and m.labels is not None for m in here):
        none = torch.zeros(classes, dtype=torch.float64)
        rows = [none if m is None or m.labels is None else m.labels for m in here]
        stats["labels"] = torch.stack([torch.cat([r, none[len(r) :]]) for r in rows])
    return stats
