"""A Flower grid in this process: the real records, messages and client app, without sockets.

Message() can only be built inside a run; what that takes of Flower's inside is here and nowhere else.
"""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedstrata.flower import client_app

Spoil = Callable[[int, Message, Message], "Message | None"]
"""(node, message, its reply) -> what arrives instead of it; None: nothing does."""


class InProcess(Grid):
    """Runs the client app for every message at once; `configs` are those of the nodes, by node."""

    def __init__(self, configs: dict[int, dict[str, Any]], app: Any = client_app, spoil: Spoil | None = None):
        self.configs, self.app, self.spoil = configs, app, spoil or (lambda node, message, reply: reply)
        self.offline: set[int] = set()
        self.arrived: dict[str, Message] = {}
        self.sent: list[Message] = []
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Any) -> None:
        return

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [n for n in self.configs if n not in self.offline]

    def get_nodes(self) -> Any:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            about = message.metadata.__dict__
            about["_run_id"], about["_src_node_id"], about["_message_id"] = 1, 1, uuid4().hex
            ids.append(message.metadata.message_id)
            self.sent.append(message)
            if (reply := self._reply(message)) is not None:
                self.arrived[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.arrived.pop(i) for i in reversed(list(message_ids)) if i in self.arrived]  # in any order

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        if node in self.offline:
            return Message(Error(code=5, reason="the node is gone"), reply_to=message)
        context = Context(run_id=1, node_id=node, node_config=self.configs[node], state=RecordDict(), run_config={})
        try:
            return self.spoil(node, message, self.app(message, context))
        except Exception as e:
            return Message(Error(code=2, reason=f"{type(e).__name__}: {e}"), reply_to=message)
