"""A model and its loss as functions of a flat parameter vector."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from fedstrata.batchnorm import real_examples
from fedstrata.bind import Place, bound, places, seen_by
from fedstrata.dropout import client_noise, heed_noise
from fedstrata.errors import DataError, ModelError, SettingError, near
from fedstrata.fold import fold, folds, heed_folds, unfold
from fedstrata.layout import Arrays, Layout
from fedstrata.pooled import heed_pools, pooling
from fedstrata.precision import casting
from fedstrata.rng import generators, seeded

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, ...], targets [B, ...]) -> one loss an example, [B], or their mean."""


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """One loss an example, [B]."""
    return nn.functional.cross_entropy(outputs, y, reduction="none")


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the squared distance between output and target, one an example, [B]."""
    outputs, y = outputs.reshape(len(outputs), -1), y.reshape(len(y), -1)
    if outputs.shape[1] != y.shape[1]:
        raise DataError(f"the model puts out {outputs.shape[1]} numbers an example but the targets have {y.shape[1]}")
    gap = outputs - y
    return 0.5 * gap.square().sum(-1)


def accuracy(outputs: Tensor, y: Tensor) -> Tensor:
    """1 where the largest output is the label, else 0, [B]."""
    return (outputs.argmax(-1) == y).to(outputs.dtype)


def are_labels(y: Tensor, classes: int | None = None) -> bool:
    """Whether every target is a class: one whole number an example, below so many."""
    return not y.is_floating_point() and y.dim() == 1 and (classes is None or int(y.max()) < classes)


LOSSES: dict[str, tuple[Loss, dict[str, Loss]]] = {
    "cross_entropy": (cross_entropy, {"accuracy": accuracy}),
    "squared_error": (squared_error, {}),
}
"""Losses by name, each with the metrics that go with it unless others are given."""

TABLES = (nn.Embedding, nn.EmbeddingBag)


class Forward(NamedTuple):
    """What one pass of the model over a batch gave; of K clients, everything has a leading axis more."""

    outputs: Tensor  # [B, ...]
    features: Tensor | None  # [B, d] what the classifier saw, if the model has one
    buffers: Arrays  # after the pass


@dataclass(frozen=True)
class Batch:
    """A batch of one client, and what its model made of it."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B, ...]
    mask: Tensor | None = None  # [B] false for padding; None when every example is real
    outputs: Tensor | None = None  # [B, ...] of the model being trained
    features: Tensor | None = None  # [B, d] of the model being trained
    loss: Tensor | None = None  # [] its mean loss

    def total(self, values: Tensor) -> Tensor:
        """Sum over the real examples, [B, ...] -> [...], in float64."""
        if self.mask is not None:
            values = torch.where(self.mask.view(-1, *[1] * (values.dim() - 1)), values, 0.0)
        return values.double().sum(0)

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the real examples of one value an example, [B] -> []."""
        if self.mask is None:
            return values.mean()
        return torch.where(self.mask, values, 0.0).sum() / self.mask.sum()


@dataclass(frozen=True, eq=False)
class Task:
    """A model and its loss, as functions of a flat parameter vector.

    The parameters and buffers inside the two modules are never read: every call brings its own.
    """

    layout: Layout
    train_mode: nn.Module
    eval_mode: nn.Module
    frozen: Arrays  # parameters that nobody trains
    loss: Loss
    metrics: Mapping[str, Loss] = field(default_factory=dict)
    classifier: str | None = None  # the module whose input the features are
    noisy: bool = False  # it has dropout
    folds: bool = False  # K clients can be folded into one batch
    channels_last: bool = False  # images and kernels are laid out so: faster for convolutions on a CPU
    pooled: bool = False  # convolutions are pooled as they are made, and only the largest answers have gradients
    compiled: bool = False  # it is logistic regression, and numba's loops are used

    @classmethod
    def of(
        cls,
        model: nn.Module,
        loss: str | Loss = "cross_entropy",
        metrics: Mapping[str, Loss] | None = None,
        device: torch.device | str = "cpu",
    ) -> "Task":
        """The task of training this model on a device; the model itself is left as it is."""
        if isinstance(loss, str):
            if loss not in LOSSES:
                raise SettingError(f"no loss is called {loss!r}; {near(loss, LOSSES)}, or give a function")
            loss, usual = LOSSES[loss]
            metrics = usual if metrics is None else metrics
        if "loss" in (metrics or {}):
            raise SettingError("a metric cannot be called 'loss', as the loss is told by that name; choose another")
        if any(isinstance(m, TABLES) and m.max_norm is not None for m in model.modules()):
            raise ModelError("an embedding with max_norm rewrites its own table as it is read; leave max_norm out")
        named = model.named_parameters(remove_duplicate=False)
        frozen = {n: p.detach().to(device) for n, p in named if not p.requires_grad}
        layout = Layout.of(model).to(device)  # of the model as given: moving it would untie what shares storage
        train, evaluate = (heed_pools(heed_folds(deepcopy(model).to(device))) for _ in range(2))
        train, evaluate = train.train(), evaluate.eval()
        noisy = heed_noise(train)
        return cls(layout, train, evaluate, frozen, loss, metrics or {}, classifier_of(model), noisy, folds(model))

    def forward(
        self,
        w: Tensor,
        buffers: Arrays,
        x: Tensor,
        mode: Literal["train", "eval"] = "eval",
        mask: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Forward:
        """One pass over a batch; the buffers that come back are new. `noise` is what dropout draws from."""
        return self._pass(self.layout.unflatten(w), buffers, x, mode, mask, noise)

    @contextmanager
    def scoring(self, w: Tensor, buffers: Arrays) -> Iterator[Callable[[Tensor], Tensor]]:
        """Within this block: what the model puts out in evaluation mode, [B, ...] -> [B, ...], for several threads."""
        values = self._laid_out(self.layout.unflatten(w)) | self.frozen | buffers

        def outputs(x: Tensor) -> Tensor:
            with torch.no_grad(), casting(x.device), pooling(self.pooled):
                return self.eval_mode(self._image(x)).to(self.layout.dtype)

        with bound(self._places["eval"], values):
            yield outputs

    def stacked(
        self, named: Arrays, buffers: Arrays, x: Tensor, mask: Tensor | None = None, noise: Tensor | None = None
    ) -> Forward:
        """One pass in training mode of K clients over their own batches: parameters [K, ...] each, x [K, B, ...]."""
        k, given = len(x), {n: v for n, v in (("mask", mask), ("noise", noise)) if v is not None}
        if k == 1:
            own, laid_out = {n: b[0] for n, b in buffers.items()}, self._laid_out(_only(named))
            seen = self._pass(laid_out, own, self._image(x[0]), "train", **{n: v[0] for n, v in given.items()})
            return tree_map(lambda v: None if v is None else v[None], seen)
        if not self.folds:
            return self._vmapped(named, buffers, x, given)
        folded = {"mask": mask.T} if mask is not None else {}
        seen = self._pass(named, buffers, fold(x), "train", **given | folded)
        features = None if seen.features is None else unfold(seen.features, k)
        return Forward(unfold(seen.outputs, k), features, seen.buffers)

    def folds_well(self, w: Tensor, buffers: Arrays, x: Tensor, y: Tensor) -> bool:
        """Whether different clients folded together give what each gives alone, on a few different examples."""
        return self._as_alone(w, buffers, x, y, [max(1, len(x) // 3)] * 3)

    def pads_well(self, w: Tensor, buffers: Arrays, x: Tensor, y: Tensor) -> bool:
        """Whether stacked clients whose batches are padded give what each gives alone."""
        return self._as_alone(w, buffers, x, y, [3, 2, 2])

    def draws(self, w: Tensor, buffers: Arrays, x: Tensor) -> bool:
        """Whether the model draws from torch's generators by itself, which its dropout layers do not."""
        noise = torch.zeros((), dtype=torch.long, device=w.device) if self.noisy else None
        with torch.no_grad(), seeded(0, w.device):
            before = [g.get_state() for g in generators(w.device)]
            self.forward(w, buffers, x, "train", noise=noise)
            return any(not torch.equal(s, g.get_state()) for s, g in zip(before, generators(w.device), strict=True))

    def _as_alone(self, w: Tensor, buffers: Arrays, x: Tensor, y: Tensor, counts: list[int]) -> bool:
        """Whether stacked clients with so many examples each give what each gives alone."""
        k, size = len(counts), max(counts)
        models = _near(w, k)
        real = torch.arange(size, device=x.device) < torch.tensor(counts, device=x.device)[:, None]  # [K, B]
        rows = torch.arange(k * size, device=x.device).view(k, size) % len(x)
        rows = torch.where(real, rows, rows[:, :1])  # as batches are padded
        mine = [r[:n] for r, n in zip(rows, counts, strict=True)]
        own = {n: b.expand(k, *b.shape) for n, b in buffers.items()}
        noise = torch.arange(k, device=w.device) if self.noisy else None
        draws = [None] * k if noise is None else list(noise)
        with torch.no_grad(), seeded(0, w.device):
            try:
                mask = None if min(counts) == size else real
                both = self.stacked(self.layout.unflatten(models), own, x[rows], mask, noise)
                losses = self._losses_of(both.outputs, y[rows])
                alone = [self.forward(models[i], buffers, x[r], "train", noise=draws[i]) for i, r in enumerate(mine)]
                each = [self.losses(a.outputs, y[r]) for a, r in zip(alone, mine, strict=True)]
            except Exception:
                return False
        pairs = [(both.outputs[i][:n], alone[i].outputs) for i, n in enumerate(counts)]
        pairs += [(losses[i][:n], each[i]) for i, n in enumerate(counts)]
        pairs += [(b[i], alone[i].buffers[n]) for n, b in both.buffers.items() for i in range(k)]
        return all(_close(a, b, 1e-3, _largest(b)) for a, b in pairs)

    def _losses_of(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss an example of stacked clients, [K, B], as local steps take them."""
        if self.folds:
            return self.losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(outputs.shape[:2])
        return vmap(self.losses, randomness="different")(outputs, y)

    def takes_channels_last(self, w: Tensor, buffers: Arrays, x: Tensor) -> bool:
        """Whether outputs and gradients are the same for images laid out so, and for one image alone.

        Some models take for granted how numbers lie in memory; torch's InstanceNorm gives one image a wrong gradient.
        """
        return self._equals(replace(self, channels_last=True), w, buffers, x)

    def takes_pooled(self, w: Tensor, buffers: Arrays, x: Tensor) -> bool:
        """Whether they are the same with channels last, and convolutions pooled as they are made."""
        return self._equals(replace(self, channels_last=True, pooled=True), w, buffers, x)

    def _equals(self, other: "Task", w: Tensor, buffers: Arrays, x: Tensor) -> bool:
        """Whether another way to do it gives the same, for some images and for one."""
        w = _near(w, 1)[0]
        try:
            pairs = [p for b in (x, x[:1]) for p in zip(*(t._tried(w, buffers, b) for t in (self, other)), strict=True)]
        except Exception:
            return False
        tolerance = max(1e-3, 30 * torch.finfo(self.layout.dtype).eps)
        most = max(_largest(a) for a, _ in pairs)
        return all(_close(a, b, tolerance, _largest(a) + 0.01 * most) for a, b in pairs)

    def _tried(self, w: Tensor, buffers: Arrays, x: Tensor) -> list[Tensor]:
        """Outputs in both modes, and the gradients of something that all outputs matter to, tensor by tensor."""
        own, noise = {n: b[None] for n, b in buffers.items()}, torch.zeros(1, dtype=torch.long) if self.noisy else None
        with seeded(0, w.device), torch.enable_grad():
            with self.scoring(w, buffers) as outputs:
                found = [outputs(x)]
            w = w.detach().requires_grad_()
            made = self.stacked(self.layout.unflatten(w[None]), own, x[None], None, noise).outputs[0]
            weights = torch.linspace(-1, 2, made.numel(), dtype=made.dtype).view(made.shape)
            (gradient,) = torch.autograd.grad((weights * made).square().sum(), w)
        return [*found, made.detach(), *self.layout.unflatten(gradient).values()]

    def _vmapped(self, named: Arrays, buffers: Arrays, x: Tensor, given: Arrays) -> Forward:
        def alone(named: Arrays, buffers: Arrays, x: Tensor, given: Arrays) -> tuple[Tensor, list[Tensor], Arrays]:
            outputs, features, after = self._pass(named, buffers, x, "train", **given)
            return outputs, [] if features is None else [features], after

        x = x.contiguous()  # some models view a batch as something else
        outputs, features, after = vmap(alone, randomness="different")(named, buffers, x, given)
        return Forward(outputs, features[0] if features else None, after)

    def _laid_out(self, parameters: Arrays) -> Arrays:
        """Parameters with kernels as a CPU's convolutions like them."""
        if not self.channels_last:
            return parameters
        kernels = {n: v for n, v in parameters.items() if v.dim() == 4}
        return parameters | {n: v.to(memory_format=torch.channels_last) for n, v in kernels.items()}

    def _image(self, x: Tensor) -> Tensor:
        # `contiguous` would leave images of one channel as they are, and convolutions not see what is meant
        return x.to(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x

    def _pass(
        self,
        parameters: Arrays,
        buffers: Arrays,
        x: Tensor,
        mode: Literal["train", "eval"],
        mask: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Forward:
        model = self.train_mode if mode == "train" else self.eval_mode
        after = {n: b.clone() for n, b in buffers.items()} if mode == "train" else buffers
        seen: list[Tensor] = []
        head = model.get_submodule(self.classifier) if self.classifier is not None else None
        values = parameters | self.frozen | after
        watching = seen_by(head, seen.append)
        given = real_examples(mask), client_noise(noise), bound(self._places[mode], values)
        with watching, given[0], given[1], given[2] as put, casting(x.device), pooling(self.pooled):
            outputs = model(x)
        if not isinstance(outputs, Tensor):
            it_gives = f"its forward gives {type(outputs).__name__}; wrap it in a module that gives the tensor alone"
            raise ModelError(f"the model must put out one tensor, and {it_gives}")
        if put and mode == "train":
            after |= self._renewed(after, put)
        dtype = self.layout.dtype
        outputs = outputs.to(dtype) if outputs.is_floating_point() else outputs
        return Forward(outputs, seen[-1].to(dtype) if seen else None, after)

    def _renewed(self, buffers: Arrays, put: Mapping[str, Tensor | None]) -> Arrays:
        """What a pass put in the place of buffers. One that no state_dict has is a cache, whose shape may change."""
        found: Arrays = {}
        for name in [n for n in put if n in buffers]:
            old, new = buffers[name], put[name]
            if new is not None and new.shape == old.shape:
                found[name] = new.detach().to(old.dtype)
            elif name in self.layout.names:
                given = "nothing" if new is None else f"a tensor of shape {tuple(new.shape)}"
                where = f"the place of its buffer {name!r} of shape {tuple(old.shape)}, which cannot be averaged then"
                cure = "keep the shape, or register it with persistent=False"
                raise ModelError(f"the model's forward puts {given} in {where}; {cure}")
        return found

    @cached_property
    def _places(self) -> dict[str, dict[str, list[Place]]]:
        return {"train": places(self.train_mode), "eval": places(self.eval_mode)}

    @cached_property
    def layers(self) -> str:
        """The layers of the model and their settings, as torch writes them."""
        return str(self.train_mode)

    def features(self, w: Tensor, buffers: Arrays, x: Tensor) -> Tensor:
        """What the classifier sees, [B, d], in evaluation mode."""
        features = self.forward(w, buffers, x).features
        if features is None:
            raise ModelError(f"the model's forward does not call {self.classifier!r}, so there are no features to take")
        return features

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss an example, [B]; a loss that averages is asked about each example by itself."""
        values = self.loss(outputs, y)
        if values.dim() > 0:
            return values.reshape(len(outputs), -1).mean(-1)
        return vmap(lambda o, t: self.loss(o[None], t[None]))(outputs, y)


def _only(named: Arrays) -> Arrays:
    """One client's parameters without their first axis; a select's gradient would fill all of it with zeros first."""
    return {n: v.squeeze(0) for n, v in named.items()}


def _close(a: Tensor, b: Tensor, tolerance: float, size: float) -> bool:
    """Whether two are the same to this share of their size; examples may hold NaN or infinity, in the same places."""
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * size, equal_nan=True)


def _largest(v: Tensor) -> float:
    """The size of its largest finite number."""
    return float(v.double().abs().nan_to_num(0.0, 0.0, 0.0).max())


def _near(w: Tensor, k: int) -> Tensor:
    """Some models near one, [k, P], and not at it, where zeros of an initialisation could hide what is behind them."""
    draw = torch.randn(k, len(w), generator=torch.Generator().manual_seed(0)).to(w)
    return w + 0.3 * max(0.01, float(w.double().square().mean().sqrt())) * draw


class Head(nn.Module):
    """What a part puts in place of a model's classifier; `within` is the module inside that sees the features."""

    within = ""  # the head itself


def classifier_of(model: nn.Module) -> str | None:
    """The module that sees the features: of a head that a part put there, called classifier, or the last linear one."""
    heads = [f"{n}.{m.within}".strip(".") for n, m in model.named_modules() if isinstance(m, Head)]
    if heads:
        return heads[-1]
    if isinstance(getattr(model, "classifier", None), nn.Module):
        return "classifier"
    return next((n for n, m in reversed(list(model.named_modules())) if isinstance(m, nn.Linear)), None)


def buffers_of(model: nn.Module) -> Arrays:
    """A copy of the model's buffers: running statistics, counters."""
    return {n: b.detach().clone() for n, b in model.named_buffers()}
