"""Who belongs to the federation: clients by name, the ids that the recipe knows them by, the nodes they are on."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from fedstrata.errors import DataError
from fedstrata.files import write

FILE = "federation.json"


@dataclass
class Roster:
    """Names in the order of their ids, and the node that each was last seen on. It is kept in the run folder."""

    names: list[str] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)  # the last round in which each one's reply counted
    closed: bool = False  # only those named belong to it
    run: str = field(default_factory=lambda: uuid4().hex[:16])  # what nodes keep memories under
    facts: dict[str, Any] = field(default_factory=dict)  # shape, classes and such, on which all must agree

    @classmethod
    def read(cls, folder: Path) -> "Roster | None":
        """That of a run folder, if there is one."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as e:
            raise DataError(f"{path} cannot be read: {e}") from None

    def write(self, folder: Path) -> None:
        """Keep it, whole or not at all."""
        write(folder / FILE, json.dumps(asdict(self), indent=2) + "\n")

    def node(self, client: int) -> int:
        """Where a client was last seen."""
        return self.nodes[self.names[client]]

    def last_turn(self, client: int, number: int) -> int | None:
        """The last round before this one in which a client's reply counted."""
        turn = self.turns.get(self.names[client])
        return turn if turn is not None and turn < number else None  # a round may be played again

    def seat(self, name: str, node: int, pin: bool, part: int | None = None, dealt: Sequence[str] = ()) -> str | None:
        """Put a client on a node, a new one behind all others; or why that is not done, and then nothing is changed.

        With a part it is the client of that id, which it may call by its own name as long as nobody has the seat. Where
        clients are parts, those `dealt` are all there are from now on.
        """
        names = list(dealt or self.names)
        if part is not None and names[part] != name:
            if names[part] in self.nodes or name in names:
                taken = f"but that seat is {names[part]!r}'s, or the name is taken"
                return f"it is client {part} by the name of {name!r}, {taken}"
            names[part] = name
        if self.closed and name not in names:
            return f"{name!r} does not belong to this federation, which is of {', '.join(names)}"
        was = self.nodes.get(name)
        if was is not None and was != node and pin:
            return f"{name!r} belongs to node {was}, which used that name first; set pin = false if nodes change"
        self.names[:] = names if name in names else [*names, name]
        self.nodes[name], self.closed = node, self.closed or bool(dealt)
        return None
