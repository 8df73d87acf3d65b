"""A cohort's replies within the memory that there is: all of them at once, or a few at a time, merged as they come."""

from fedstrata.core import Cohort, State
from fedstrata.descent import Federation
from fedstrata.errors import SettingError
from fedstrata.memory import memory_of
from fedstrata.merge import merged
from fedstrata.runtimes.visit import Runtime, joined, nobody, part_of
from fedstrata.server import OnNonFinite, Replies, Server, screen

COPIES = 3
"""What a client's update takes: itself, what it uploads besides, and what is worked out from it."""

SHARE_OF_MEMORY = 0.5
"""What the updates of a round may take unless somebody says."""


def updates_at_once(fed: Federation, memory: float | None) -> int:
    """How many updates there is room for; a recipe that must see them all at once says so if they do not fit."""
    layout, clients = fed.task.layout, fed.recipe.select.size(len(fed.clients))
    has = memory * 2**30 if memory is not None else SHARE_OF_MEMORY * memory_of(layout.device)
    each = COPIES * layout.size * layout.dtype.itemsize
    room = max(1, int(has / each))
    if clients > room and fed.recipe.single:
        raise SettingError(
            f"the updates of {clients} clients take {clients * each / 2**30:.3g} GiB, there are {has / 2**30:.3g}, and "
            f"{' and '.join(fed.recipe.single)} must see each by itself; choose fewer clients a round, e.g. "
            f"select = Sample(k={room}), or give more memory"
        )
    return room


def collect(
    fed: Federation,
    runtime: Runtime,
    server: Server,
    cohort: Cohort,
    brief: State,
    probes: frozenset[str],
    on_nonfinite: OnNonFinite,
    room: int | None = None,
) -> tuple[Replies, list[int]]:
    """(the usable replies, the ids of the others); merged where there is no room for all of them."""

    def usable(cohort: Cohort, brief: State) -> tuple[Replies, list[int]]:
        back = runtime.train(server, cohort, brief, probes)
        return screen(back, server.number, on_nonfinite, fed.recipe, cohort, server.buffers)

    if room is None or len(cohort) <= room:
        return usable(cohort, brief)
    parts, dropped = list[Replies](), list[int]()
    for begin in range(0, len(cohort), room):
        some, told = part_of(cohort, brief, slice(begin, begin + room))
        replies, bad = usable(some, told)
        dropped += bad
        if len(replies.ids):
            parts.append(merged(fed.recipe, server, some, replies))
    return (joined(parts) if parts else nobody(server, cohort)), dropped
