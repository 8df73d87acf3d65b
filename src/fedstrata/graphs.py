"""Local steps on a GPU without the host: the schedule lies on the device, and a step is one captured CUDA graph.

Everything that a step reads and changes lives in buffers that stay where they are from round to round. A graph is
captured for each number of active clients; with very many, for a few sizes that they are rounded up to, the same ones
for different numbers of clients, because cuDNN tries its algorithms for each. A client that has finished is copied out
at once, so that what the rounded-up steps do to its place does not matter.
"""

import gc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedstrata.capture import captured
from fedstrata.descent import Desk, Federation, Feed, gathered, take_step
from fedstrata.layout import Arrays

SIZES = 32
"""Different numbers of active clients that are captured, at most."""

Step = Callable[[Desk, Arrays], None]


@dataclass(frozen=True)
class Plate:
    """The batches of a round on the device, where every round finds them."""

    rows: Tensor  # [S, B, K]
    mask: Tensor  # [S, B, K] which of them are real
    share: Tensor  # [S, B, K] what each counts in its batch's mean
    noise: Tensor | None  # [K]
    changes: Tensor | None  # [S, B, K, 3]
    step: Tensor  # [1] the number of the step to come

    @classmethod
    def of(cls, fed: Federation, clients: int) -> "Plate":
        """Room for the longest client's steps of so many clients."""
        sizes, training = fed.clients.sizes, fed.training
        batch = min(training.batch or int(sizes.max()), int(sizes.max()))
        steps = training.steps or training.epochs * ceil(int(sizes.max()) / batch)
        device = fed.clients.x.device

        def room(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        whole = steps, batch, clients
        noise = room(clients) if fed.task.noisy else None
        changes = room(*whole, 3) if fed.augment is not None else None
        mask, share = room(*whole, dtype=torch.bool), room(*whole, dtype=fed.task.layout.dtype)
        return cls(room(*whole), mask, share, noise, changes, room(1))

    def load(self, feed: Feed) -> None:
        """Put a round's batches in their places."""
        s, b, k = feed.rows.shape
        self.rows[:s, :, :k].copy_(feed.rows[:, :1])  # padding repeats a client's own rows
        self.rows[:s, :b, :k].copy_(feed.rows)
        count = torch.from_numpy(feed.schedule.count.T.copy()).to(feed.rows.device)[:, None]  # [S, 1, K]
        self.mask.zero_()
        self.mask[:s, :, :k] = torch.arange(self.mask.shape[1], device=count.device)[:, None] < count
        self.share.copy_(self.mask.to(self.share.dtype) / self.mask.sum(1, keepdim=True).clamp_min(1))
        if self.noise is not None and feed.noise is not None:
            self.noise[:k].copy_(feed.noise)
        if self.changes is not None and feed.changes is not None:
            self.changes[:s, :b, :k].copy_(feed.changes)
        self.step.zero_()

    def batch(self, fed: Federation, active: int, masked: bool) -> Arrays:
        """What the first clients look at in the step to come, [A, B, ...] each."""

        def now(v: Tensor) -> Tensor:
            return v.index_select(0, self.step)[0]

        rows = now(self.rows)[:, :active]
        batch = gathered(fed.clients, rows)
        if self.changes is not None and fed.augment is not None:
            batch["x"] = fed.augment.apply(batch["x"], now(self.changes)[:, :active].transpose(0, 1))
        if masked:
            batch |= {"mask": now(self.mask)[:, :active].T, "share": now(self.share)[:, :active].T}
        return batch | ({} if self.noise is None else {"noise": self.noise[:active] + self.step})


class Captured:
    """Takes the local steps of K clients by replaying graphs; what is captured once serves all rounds."""

    def __init__(self, fed: Federation, compiled: bool = False, tiny: bool = False):
        self.fed, self.compiled = fed, compiled
        self.one_shape = compiled and tiny  # where launches are all that counts, one compiled step serves every size
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph | None] = {}
        self.steps: dict[tuple[int, bool], Step] = {}
        self.stream = torch.cuda.Stream(fed.clients.x.device)
        self.pool = torch.cuda.graph_pool_handle()
        self.desk: Desk | None = None
        self.plate: Plate | None = None
        gc.collect()  # what runs before left on the device in circles, once: it is no matter of each capture

    def __call__(self, desk: Desk, feed: Feed) -> None:
        """All local steps; what the desk has is changed in place."""
        here = torch.cuda.current_stream(self.stream.device)  # which need not be the first of several GPUs
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            place, plate = self._laid(desk, feed)
            schedule, batch = feed.schedule, plate.rows.shape[1]
            active = schedule.active
            for step, count in enumerate(active):
                masked = self.one_shape or bool((schedule.count[:count, step] < batch).any())
                self._step(place, plate, self._size(count), masked)
                following = active[step + 1] if step + 1 < len(active) else 0
                _finished(place, desk, following, count)
        here.wait_stream(self.stream)

    def _laid(self, desk: Desk, feed: Feed) -> tuple[Desk, Plate]:
        """The round's start and batches in the buffers that stay."""
        k = len(desk.w)
        if self.desk is None or self.plate is None or k > len(self.desk.w) or _shapes(desk) != _shapes(self.desk):
            lr = torch.tensor(0.0, dtype=torch.float64, device=desk.w.device)
            own = tree_map(torch.empty_like, (desk.given, desk.w, desk.buffers, desk.optimizer))
            self.desk, self.plate = Desk(torch.empty_like(desk.start), lr, *own), Plate.of(self.fed, k)
            self.graphs, self.steps = {}, {}
        assert isinstance(self.desk.lr, Tensor)
        self.desk.lr.fill_(desk.lr)
        if desk.start.dim() == 1:
            self.desk.start.copy_(desk.start)
        else:
            self.desk.start[:k].copy_(desk.start)
        for kept, new in zip(_leaves(self.desk), _leaves(desk), strict=True):
            kept[:k].copy_(new)
        self.plate.load(feed)
        return self.desk, self.plate

    def _size(self, count: int) -> int:
        assert self.desk is not None
        everyone = len(self.desk.w)
        return everyone if self.one_shape else rounded(count, everyone)

    def _step(self, place: Desk, plate: Plate, size: int, masked: bool) -> None:
        """One step: as it is when a shape is new, captured when it comes again, replayed from then on."""
        key = size, masked
        if key not in self.steps:
            self.steps[key] = self._way(place.first(size), plate, masked)
            self._run(place, plate, key)
            return
        if key not in self.graphs:
            self.graphs[key] = captured(lambda: self._run(place, plate, key), self.stream, self.pool)
        graph = self.graphs[key]
        if graph is None:
            self._run(place, plate, key)
        else:
            graph.replay()

    def close(self) -> None:
        """Let go of all graphs and buffers."""
        self.graphs, self.steps, self.desk, self.plate = {}, {}, None, None

    def _run(self, place: Desk, plate: Plate, key: tuple[int, bool]) -> None:
        size, masked = key
        self.steps[key](place.first(size), plate.batch(self.fed, size, masked))
        plate.step.add_(1)

    def _way(self, desk: Desk, plate: Plate, masked: bool) -> Step:
        """The step itself; compiled where all clients are there, which is where the time goes."""
        if self.compiled and self.desk is not None and len(desk.w) == len(self.desk.w):
            return compiled(self.fed, desk, plate.batch(self.fed, len(desk.w), masked))
        return lambda desk, batch: take_step(self.fed, desk, batch)


def rounded(count: int, everyone: int) -> int:
    """So many active clients rounded up to one of the sizes that are captured: multiples of a power of two."""
    piece = 1 << (ceil(everyone / SIZES) - 1).bit_length()
    return min(everyone, piece * ceil(count / piece))


def compiled(fed: Federation, desk: Desk, batch: Arrays) -> Step:
    """A step of clients and batches like these, compiled: the pass forward and back and the update as one program."""

    def flat(desk: Desk, batch: Arrays) -> tuple[list[Any], Any]:
        return tree_flatten((desk.start, desk.lr, desk.given, desk.w, desk.buffers, desk.optimizer, batch))

    values, form = flat(desk, batch)

    def step(*values: Tensor) -> None:
        *of_desk, batch = tree_unflatten(list(values), form)
        take_step(fed, Desk(*of_desk), batch)

    with warnings.catch_warnings():  # about what the compiler itself imports
        warnings.simplefilter("ignore")
        from torch.fx.experimental.proxy_tensor import make_fx

        program = torch.compile(make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*values), dynamic=False)

    def run(desk: Desk, batch: Arrays) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program(*flat(desk, batch)[0])

    return run


def _leaves(desk: Desk) -> list[Tensor]:
    """What has a client axis."""
    return tree_flatten((desk.given, desk.w, desk.buffers, desk.optimizer))[0]


def _shapes(desk: Desk) -> Sequence[Any]:
    leaves, form = tree_flatten((desk.given, desk.w, desk.buffers, desk.optimizer))
    return [form, desk.start.dim(), *((v.shape[1:], v.dtype) for v in leaves)]


def _finished(place: Desk, desk: Desk, first: int, end: int) -> None:
    """Copy out the clients whose last step this was."""
    if first == end:
        return
    changed = ((d.w, d.buffers, d.optimizer) for d in (place, desk))
    tree_map(lambda kept, out: out[first:end].copy_(kept[first:end]), *changed)
