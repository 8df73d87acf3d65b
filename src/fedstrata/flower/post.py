"""Messages to nodes, and what comes back in time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedstrata.flower.quarantine import printable

EXPIRED = 3
"""Flower's code for a message that is gone, as it is at its deadline."""


@dataclass(frozen=True)
class Answers:
    """By node: what came back, and what Flower says of those that failed. Who is in neither did not answer in time."""

    there: dict[int, RecordDict] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Post:
    """Sends a message to each of some nodes, and looks for replies every so many seconds."""

    grid: Grid
    poll: float = 0.5

    def online(self) -> list[int]:
        """The nodes that are there."""
        return sorted(self.grid.get_node_ids())

    def ask(
        self, contents: Mapping[int, RecordDict], kind: str, deadline: float = 0.0, enough: int | None = None
    ) -> Answers:
        """The replies of these nodes until the deadline, in seconds from now, or until enough of them came."""
        found, end = Answers(), monotonic() + deadline if deadline else None
        waiting = self.send(contents, kind, deadline)
        found.failed.update(
            {node: "Flower did not take the message" for node in contents if node not in waiting.values()}
        )
        while waiting:
            self.look(waiting, found, end)
            if not waiting or (enough is not None and len(found.there) >= enough):
                break
            if end is not None and monotonic() >= end:
                break
            sleep(self.poll if end is None else max(0.01, min(self.poll, end - monotonic())))
        return found

    def send(self, contents: Mapping[int, RecordDict], kind: str, deadline: float) -> dict[str, int]:
        """The messages that are under way now, and to which node each goes."""
        messages = [self._message(node, content, kind, deadline) for node, content in contents.items()]
        ids = list(self.grid.push_messages(messages))
        return {i: node for i, node in zip(ids, contents, strict=False) if i}  # Flower has None for what it refused

    def look(self, waiting: dict[str, int], found: Answers, end: float | None = None) -> None:
        """Put what has come by now among what was found; it is waited for no longer."""
        for reply in self.grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)  # the sender of a failure is the SuperLink
            if node is None:
                continue
            if not reply.has_error():
                found.there[node] = reply.content
            elif reply.error.code != EXPIRED or end is None or monotonic() < end:  # else it is just late
                found.failed[node] = printable(f"{reply.error.reason} (Flower's code {reply.error.code})")

    def _message(self, node: int, content: RecordDict, kind: str, deadline: float) -> Message:
        """One that nobody works on any more once it is too late."""
        return Message(content, node, kind, ttl=deadline or None)
