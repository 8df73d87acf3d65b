"""The clients' examples: who owns which, and the batches of K clients stacked, padded and masked."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.errors import DataError
from fedstrata.optim import Training
from fedstrata.rng import rng
from fedstrata.task import are_labels


class Rows(Sequence[np.ndarray]):
    """Row numbers of each client, all in one array: a hundred thousand clients are two arrays, not as many."""

    def __init__(self, rows: Iterable[np.ndarray]):
        each = [np.asarray(r, dtype=np.int64) for r in rows]
        self.flat = np.concatenate([np.empty(0, np.int64), *each])
        self.ends = np.cumsum([0, *map(len, each)])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"client {i} of {len(self)}")
        i = int(i) % len(self)
        return self.flat[self.ends[i] : self.ends[i + 1]]

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each client, [N]."""
        return np.diff(self.ends)


@dataclass(frozen=True, eq=False)
class Clients:
    """The examples of all clients in one pair of tensors, and the rows that each client owns."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n, ...]
    rows: Rows  # of each client, row numbers into x and y; several may own the same

    def __post_init__(self) -> None:
        if not isinstance(self.rows, Rows):
            object.__setattr__(self, "rows", Rows(self.rows))

    @classmethod
    def of(cls, clients: "Clients | Sequence[tuple[Any, Any]]") -> "Clients":
        """From a list of (x, y) pairs, one a client; what a partitioner returned passes through."""
        if isinstance(clients, Clients):
            return clients
        clients = list(clients)
        if len(clients) == 0:
            raise DataError("there are no clients: give a list of (x, y) pairs, one for each")
        pairs = [pair(c, f"client {i}") for i, c in enumerate(clients)]
        for what, i in (("examples", 0), ("targets", 1)):
            shapes = {tuple(p[i].shape[1:]) for p in pairs if len(p[i])}
            if len(shapes) > 1:
                raise DataError(f"the clients' {what} have different shapes: {', '.join(map(str, sorted(shapes)))}")
        ends = np.cumsum([len(x) for x, _ in pairs])
        rows = Rows(np.arange(end - len(x), end) for end, (x, _) in zip(ends, pairs, strict=True))
        filled = [p for p in pairs if len(p[0])]
        if not filled:
            raise DataError(f"none of the {len(pairs)} clients has an example")
        return cls(torch.cat([x for x, _ in filled]), torch.cat([y for _, y in filled]), rows)

    @classmethod
    def split(cls, x: Any, y: Any, rows: Sequence[np.ndarray]) -> "Clients":
        """From all examples and the rows of each client."""
        x, y = pair((x, y), "the data")
        owned = Rows(rows)
        if not len(owned.flat):
            raise DataError(f"none of the {len(owned)} clients has an example")
        if wrong := owned.flat[(owned.flat < 0) | (owned.flat >= len(x))].tolist():
            raise DataError(f"a client owns row {wrong[0]}, but there are {len(x)} examples")
        return cls(x, y, owned)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> np.ndarray:
        """Examples of each client, [N]."""
        return self.rows.sizes

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with who owns which rows, the labels, and the shape of an example."""
        found = hashlib.sha256(repr(tuple(self.x.shape)).encode())
        for a in (self.rows.ends, self.rows.flat, *([] if self.y.is_floating_point() else [self.y.cpu().numpy()])):
            found.update(np.ascontiguousarray(a).data)
        return found.hexdigest()[:12]

    def labels(self) -> Tensor:
        """Class counts of each client, [N, C]."""
        if not are_labels(self.y):
            given = f"{self.y.dtype} targets of shape {tuple(self.y.shape)}"
            raise DataError(f"class counts need one whole-number label an example; got {given}")
        y = self.y.cpu().numpy()
        classes = int(y.max()) + 1
        return torch.from_numpy(np.stack([np.bincount(y[r], minlength=classes) for r in self.rows])).double()

    def owned(self) -> "Clients":
        """Only the examples that some client owns: nothing is copied where that is all of them."""
        has = np.zeros(len(self.x), dtype=bool)
        has[self.rows.flat] = True
        if has.all():
            return self
        index = torch.from_numpy(has.nonzero()[0]).to(self.x.device)
        now = np.cumsum(has) - 1  # where each row is afterwards
        return Clients(self.x[index], self.y[index], Rows(now[r] for r in self.rows))

    def thinned(self, share: float, seed: int) -> "Clients":
        """Each client with this share of its examples, drawn from the seed, and one at least."""
        if share == 1.0:
            return self
        draws = (rng(seed, "thinned", k).permutation(r) for k, r in enumerate(self.rows))
        return replace(self, rows=Rows(np.sort(d[: max(1, round(share * len(d)))]) for d in draws))

    def to(self, device: torch.device, dtype: torch.dtype) -> "Clients":
        """The same clients on a device, floating-point values in a type."""
        return replace(self, x=cast(self.x, device, dtype), y=cast(self.y, device, dtype))


@dataclass(frozen=True)
class Lengths:
    """How many rows each batch of K clients has, [K, S]; none where a client has finished."""

    count: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence["Lengths"]) -> "Lengths":
        """Those of the clients of several in one."""
        count = np.zeros((sum(len(p.count) for p in parts), max(p.count.shape[1] for p in parts)), dtype=np.int64)
        begin = 0
        for part in parts:
            count[begin : begin + len(part.count), : part.count.shape[1]] = part.count
            begin += len(part.count)
        return cls(count)

    @property
    def steps(self) -> np.ndarray:
        """Local steps of each client, [K]."""
        return (self.count > 0).sum(1)

    @property
    def active(self) -> list[int]:
        """How many clients still have a batch at each step, [S]; a prefix where they are sorted by their steps."""
        return (self.count > 0).sum(0).tolist()

    def width(self, step: int, active: int) -> tuple[int, np.ndarray | None]:
        """The longest batch of the first A clients in a step, and the mask [A, B] of real rows where some are short."""
        count = self.count[:active, step]
        width = int(count.max())
        return width, None if (count == width).all() else np.arange(width) < count[:, None]


@dataclass(frozen=True)
class Schedule(Lengths):
    """The batches of K clients: row numbers [K, S, B], padded, and how many of each batch are real."""

    index: np.ndarray

    @classmethod
    def of(cls, batches: Sequence[Sequence[np.ndarray]]) -> "Schedule":
        """From each client's list of batches. Padding repeats the batch's own first row: nothing foreign is read."""
        batches = [[b for b in mine if len(b)] for mine in batches]
        steps = max(map(len, batches))
        count = np.zeros((len(batches), steps), dtype=np.int64)
        for k, mine in enumerate(batches):
            count[k, : len(mine)] = [len(b) for b in mine]
        index = np.zeros((*count.shape, max(1, count.max(initial=0))), dtype=np.int64)
        place = np.arange(index.shape[2])
        for mine, lengths, rows in zip(batches, count, index, strict=True):
            if mine:
                flat, lengths, rows = np.concatenate(mine), lengths[: len(mine)], rows[: len(mine)]
                rows[:] = flat[np.cumsum(lengths) - lengths][:, None]
                rows[place < lengths[:, None]] = flat
        return cls(count, index)

    def first(self, steps: np.ndarray) -> "Schedule":
        """Only the first steps of each client, [K] of them."""
        longest = int(steps.max())
        count = np.where(np.arange(longest) < steps[:, None], self.count[:, :longest], 0)
        return Schedule(count, np.ascontiguousarray(self.index[:, :longest]))

    def ordered(self, order: np.ndarray) -> "Schedule":
        """The same batches with the clients in another order."""
        return Schedule(self.count[order], self.index[order])


def training_batches(clients: Clients, ids: Sequence[int], training: Training, seed: int, round: int) -> Schedule:
    """What these clients train on in this round; each one's batches depend on nothing but (seed, round, client)."""
    return Schedule.of([training.batches(clients.rows[i], rng(seed, "batches", round, i)) for i in ids])


def probe_batches(clients: Clients, ids: Sequence[int], training: Training, seed: int, round: int) -> Schedule:
    """One mini-batch of each client, for what it measures at the model it received."""

    def draw(i: int) -> np.ndarray:
        mine = clients.rows[i]
        return rng(seed, "probe", round, i).permutation(mine)[: training.batch or len(mine)]

    return Schedule.of([[draw(i)] for i in ids])


def all_batches(clients: Clients, ids: Sequence[int], size: int) -> Schedule:
    """All data of each client, in batches of this size."""
    return Schedule.of([[r[a : a + size] for a in range(0, len(r), size)] for r in (clients.rows[i] for i in ids)])


def cast(t: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """On the device; floating-point values in this type, whole numbers as they are."""
    return t.to(device, dtype if t.is_floating_point() else t.dtype)


def pair(given: Any, who: str) -> tuple[Tensor, Tensor]:
    """Examples and targets as tensors, or a sentence about what is wrong with them."""
    try:
        x, y = (v if isinstance(v, Tensor) else _tensor(np.asarray(v)) for v in given)
    except (TypeError, ValueError) as e:
        raise DataError(f"{who} must be a pair (x, y) of arrays or tensors; got {type(given).__name__} ({e})") from None
    if x.dim() == 0 or y.dim() == 0:
        raise DataError(f"{who} must be a pair (x, y) of arrays with a row for each example; got single numbers")
    if len(x) != len(y):
        raise DataError(f"{who} has {len(x)} examples but {len(y)} targets")
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise DataError(f"{who} has features that are NaN or infinite; clean them first")
    if y.is_floating_point() and not bool(y.isfinite().all()):
        raise DataError(f"{who} has targets that are NaN or infinite; clean them first")
    if not y.is_floating_point():
        y = y.long()
        if y.numel() and int(y.min()) < 0:
            raise DataError(f"{who} has the label {int(y.min())}; labels are counted from 0")
    return x, y


def _tensor(a: np.ndarray) -> Tensor:
    """torch takes no arrays that run backwards."""
    return torch.as_tensor(a.copy() if any(s < 0 for s in a.strides) else a)
