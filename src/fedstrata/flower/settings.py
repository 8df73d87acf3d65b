"""What a deployment says of its network: the run-config of the Flower app."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, final

from fedstrata.errors import SettingError, check, near
from fedstrata.values import Value


@final
@dataclass(frozen=True)
class Network(Value):
    """Whom to wait for, and for how long."""

    out: str = ""  # the run folder, on the server; a new one in ~/fedstrata/runs unless given
    resume: bool = False  # go on in that folder from its last checkpoint
    clients: str = ""  # names of those who belong to the federation, with commas; whoever comes, unless given
    min_online: int = 2  # clients that must be there before a round begins
    wait: float = 300.0  # seconds to wait for them; then the run ends with a sentence
    deadline: float = 600.0  # seconds that a round waits for replies; 0: as long as it takes
    over_select: float = 1.0  # ask so many times the clients that a round needs; it closes when enough replied
    min_replies: int = 1  # with fewer usable replies a round changes nothing
    max_examples: int = 10_000_000  # a client that claims more is not believed
    poll: float = 0.5  # seconds between looks for replies
    stop_target: float = 0.0  # end when the accuracy reaches this share; 0: never
    stop_patience: int = 0  # end when it has not become better for so many evaluations; 0: never
    test: str = ""  # a file on the server to test on, where nodes bring data of their own
    pin: bool = True  # a client's name belongs to the first node that used it

    @classmethod
    def called(cls, name: str) -> str:
        return name.replace("_", "-")  # as in the run-config

    def validate(self) -> None:
        check(self.min_online >= 1, f"min-online must be at least 1; got {self.min_online}")
        check(self.min_replies >= 1, f"min-replies must be at least 1; got {self.min_replies}")
        check(self.wait >= 0, f"wait must not be negative; got {self.wait}")
        check(self.deadline >= 0, f"deadline must not be negative; got {self.deadline}")
        check(self.poll > 0, f"poll must be above 0; got {self.poll}")
        check(self.over_select >= 1, f"over-select must be at least 1; got {self.over_select}")
        check(self.max_examples >= 1, f"max-examples must be at least 1; got {self.max_examples}")
        check(0 <= self.stop_target <= 1, f"stop-target must be in [0, 1]; got {self.stop_target}")
        check(self.stop_patience >= 0, f"stop-patience must not be negative; got {self.stop_patience}")
        twice = [n for n in self.names if self.names.count(n) > 1]
        check(not twice, f"clients names {twice[0] if twice else ''} twice; every client has a name of its own")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Network":
        """From a Flower app's run-config, whose keys have hyphens."""
        known = {f.name.replace("_", "-"): f.name for f in fields(cls)}
        for key in config:
            if key not in known:
                raise SettingError(f"the run-config has no key {key!r}; {near(key, known)}")
        return cls(**{known[k]: v for k, v in config.items()})

    @property
    def names(self) -> list[str]:
        """Of those who belong to the federation, in the order of their ids; nobody is named unless somebody did."""
        return [n.strip() for n in self.clients.split(",") if n.strip()]
