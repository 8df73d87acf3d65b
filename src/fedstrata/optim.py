"""How a client trains: the optimiser and its schedule, written once for flat stacked vectors, [K, P] or [P]."""

from abc import abstractmethod
from dataclasses import dataclass
from math import ceil
from typing import final

import numpy as np
import torch
from torch import Tensor

from fedstrata.errors import check
from fedstrata.layout import Arrays
from fedstrata.values import Value

Rate = float | Tensor
"""A learning rate; a tensor, [], where a captured step must see it change."""


@dataclass(frozen=True, kw_only=True)
class Training(Value):
    """What every optimiser shares. Either `epochs` over a client's data or a fixed number of `steps`."""

    lr: float = 0.1
    batch: int | None = 20  # None: all of a client's data in one batch
    epochs: int = 1
    steps: int | None = None  # instead of epochs
    drop_last: bool = False  # leave out the short last batch of an epoch, unless it is the only one
    decay: float = 1.0  # the rate of round t is lr * decay**t
    clip: float | None = None  # largest norm of a client's gradient, corrections included
    reset_optimizer: bool = True  # fresh optimiser state every round

    def validate(self) -> None:
        name = type(self).__name__
        check(self.lr > 0, f"{name}.lr must be above 0; got {self.lr}")
        check(self.batch is None or self.batch >= 1, f"{name}.batch must be at least 1; got {self.batch}")
        check(self.epochs >= 1, f"{name}.epochs must be at least 1; got {self.epochs}")
        check(self.steps is None or self.steps >= 1, f"{name}.steps must be at least 1; got {self.steps}")
        check(self.decay > 0, f"{name}.decay must be above 0; got {self.decay}")
        check(self.clip is None or self.clip > 0, f"{name}.clip must be above 0; got {self.clip}")

    @abstractmethod
    def init(self, w: Tensor) -> Arrays:
        """The optimiser's state before the first step, of one client, for parameters like w [P]."""

    @abstractmethod
    def update(self, w: Tensor, grad: Tensor, state: Arrays, lr: Rate) -> None:
        """One step of K clients, [K, P], in place: parameters and state are changed, the gradient is not."""

    def rate(self, number: int) -> float:
        """The learning rate of a round."""
        return self.lr * self.decay**number

    def clipped(self, grad: Tensor) -> Tensor:
        """The gradients, [K, P], with each client's norm at most `clip`."""
        if self.clip is None:
            return grad
        norm = torch.linalg.vector_norm(grad, dim=-1, keepdim=True)
        return grad * (self.clip / (norm + 1e-6)).clamp(max=1.0)

    def batches(self, rows: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """The rows of each local step of one client: shuffled anew every epoch, no row twice in one."""
        if len(rows) == 0:
            return []
        size = self.batch or len(rows)
        per_epoch = max(1, len(rows) // size if self.drop_last else ceil(len(rows) / size))
        steps = self.steps or self.epochs * per_epoch
        shuffled = [rng.permutation(rows) for _ in range(ceil(steps / per_epoch))]
        return [order[i * size : (i + 1) * size] for order in shuffled for i in range(per_epoch)][:steps]


def in_rows(w: Tensor, state: Arrays) -> bool:
    """Whether parameters and state lie in memory one number after another."""
    return w.is_contiguous() and all(v.is_contiguous() for v in state.values())


@final
@dataclass(frozen=True, kw_only=True)
class SGD(Training):
    """Stochastic gradient descent, as torch.optim.SGD."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def validate(self) -> None:
        super().validate()
        check(0 <= self.momentum < 1, f"SGD.momentum must be in [0, 1); got {self.momentum}")
        check(not self.nesterov or self.momentum > 0, "SGD.nesterov needs a momentum above 0")
        check(self.weight_decay >= 0, f"SGD.weight_decay must not be negative; got {self.weight_decay}")

    def init(self, w: Tensor) -> Arrays:
        return {"velocity": torch.zeros_like(w)} if self.momentum else {}

    def update(self, w: Tensor, grad: Tensor, state: Arrays, lr: Rate) -> None:
        grad = grad.to(w.dtype).contiguous()  # the fused ones look at memory alone
        if not isinstance(lr, Tensor) and in_rows(w, state):  # one pass over memory instead of four
            fused = torch._fused_sgd_  # pyright: ignore[reportPrivateImportUsage]
            velocity = [state["velocity"]] if self.momentum else []
            how = {"momentum": self.momentum, "nesterov": self.nesterov, "weight_decay": self.weight_decay}
            fused([w], [grad], velocity, lr=lr, dampening=0.0, maximize=False, is_first_step=False, **how)
            return
        grad = grad.add(w, alpha=self.weight_decay) if self.weight_decay else grad
        if self.momentum:
            velocity = state["velocity"].mul_(self.momentum).add_(grad)
            grad = grad.add(velocity, alpha=self.momentum) if self.nesterov else velocity
        w.addcmul_(grad, torch.as_tensor(lr, dtype=w.dtype, device=w.device), value=-1)


@dataclass(frozen=True, kw_only=True)
class _Adaptive(Training):
    """What Adam and AdamW share."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def validate(self) -> None:
        super().validate()
        name = type(self).__name__
        check(0 <= self.beta1 < 1, f"{name}.beta1 must be in [0, 1); got {self.beta1}")
        check(0 <= self.beta2 < 1, f"{name}.beta2 must be in [0, 1); got {self.beta2}")
        check(self.eps > 0, f"{name}.eps must be above 0; got {self.eps}")
        check(self.weight_decay >= 0, f"{name}.weight_decay must not be negative; got {self.weight_decay}")

    def init(self, w: Tensor) -> Arrays:
        t = torch.zeros((), dtype=torch.float64, device=w.device)  # in bfloat16, 0.999**t would be 1
        return {"m": torch.zeros_like(w), "v": torch.zeros_like(w), "t": t}

    def _move(self, w: Tensor, grad: Tensor, state: Arrays, lr: Rate, weight_decay: float = 0.0) -> None:
        grad = grad.to(w.dtype).contiguous()
        t = state["t"].add_(1)  # [K]: clients that keep their state may stand at different steps
        if w.device.type == "cpu" and not isinstance(lr, Tensor) and in_rows(w, state):  # one pass instead of eight
            each = (v.unbind() if v.dim() > 1 else [v] for v in (w, grad, state["m"], state["v"]))
            steps = t.float().reshape(-1).unbind()
            betas = {"beta1": self.beta1, "beta2": self.beta2, "eps": self.eps, "weight_decay": weight_decay}
            fused = torch._fused_adam_  # pyright: ignore[reportPrivateImportUsage]
            fused(*each, [], steps, lr=lr, amsgrad=False, maximize=False, **betas)  # pyright: ignore[reportCallIssue]
            return
        grad = grad.add(w, alpha=weight_decay) if weight_decay else grad
        m = state["m"].mul_(self.beta1).add_(grad, alpha=1 - self.beta1)
        v = state["v"].mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        size = (v.sqrt() / (1 - self.beta2**t).sqrt()[..., None].to(w.dtype)).add_(self.eps)
        w.sub_((lr / (1 - self.beta1**t))[..., None].to(w.dtype) * m / size)


@final
@dataclass(frozen=True, kw_only=True)
class Adam(_Adaptive):
    """Adam, as torch.optim.Adam: weight decay is added to the gradient."""

    def update(self, w: Tensor, grad: Tensor, state: Arrays, lr: Rate) -> None:
        self._move(w, grad, state, lr, self.weight_decay)


@final
@dataclass(frozen=True, kw_only=True)
class AdamW(_Adaptive):
    """AdamW, as torch.optim.AdamW: weight decay acts on the parameters themselves."""

    weight_decay: float = 0.01

    def update(self, w: Tensor, grad: Tensor, state: Arrays, lr: Rate) -> None:
        w.mul_(1 - lr * self.weight_decay)
        self._move(w, grad, state, lr)
