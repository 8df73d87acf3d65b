"""The same loop as fast as plain PyTorch goes: one model whose parameters are views of one vector, no DataLoader.

The vector makes the proximal term, the optimiser and the average one operation each; Adam is torch's fused one; a
client's epoch is gathered at once. With --channels-last, the channels of images and of kernels lie side by side.
"""

from math import prod
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.script import Job, main
from benchmarks.torch_parts import Tensors, arrays_of, evaluate, evaluated_sets, model_of, tensors_of, use_threads
from benchmarks.workloads import Workload


def run(job: Job):
    """The tuned loop."""
    last = job.options.channels_last
    work, learner = job.work, Learner(job.work, job.dtype, last)
    data = laid_out(tensors_of(work.train(), job.dtype), last)
    sets = {n: laid_out(s, last) for n, s in evaluated_sets(job, data).items()}
    model, mean = learner.vector.clone(), torch.empty_like(learner.vector)
    for round in range(job.rounds):
        began = perf_counter()
        use_threads(job)
        mean.zero_()
        for k, share in zip(work.cohort(round).tolist(), work.shares(round).tolist(), strict=True):
            learner.train(model, data, round, k)
            mean.add_(learner.vector, alpha=share)
        model.copy_(mean)
        learner.vector.copy_(mean)
        trained = perf_counter()
        use_threads(job, evaluating=True)
        metrics = evaluate(learner.module, sets)
        job.lap(trained - began, perf_counter() - trained, metrics)
    return arrays_of(learner.module)


class Learner:
    """A model and its optimiser, made once and used for one client after another."""

    def __init__(self, work: Workload, dtype: str, channels_last: bool = False):
        self.work = work
        self.module, self.vector, self.grad = flat(model_of(work, dtype), channels_last)
        self.velocity = torch.zeros_like(self.vector)
        self.whole = nn.Parameter(self.vector)
        self.whole.grad = self.grad

    def train(self, start: Tensor, data: Tensors, round: int, client: int, first: int = 0) -> None:
        """One client's epochs from the global model; `data` begins at row `first` of all examples."""
        work, self.module.training = self.work, True
        self.vector.copy_(start)
        self.velocity.zero_()
        adam = torch.optim.Adam([self.whole], lr=work.lr, fused=True) if work.optimizer == "adam" else None
        for order in work.orders(round, client):
            rows = torch.from_numpy(order - first)
            x, y = data[0].index_select(0, rows), data[1].index_select(0, rows)
            for xb, yb in zip(x.split(work.batch), y.split(work.batch), strict=True):
                self.grad.zero_()
                F.cross_entropy(self.module(xb), yb).backward()
                self.step(start, adam)

    @torch.no_grad()
    def step(self, start: Tensor, adam: torch.optim.Optimizer | None) -> None:
        """The proximal term and the optimiser, in place."""
        work = self.work
        if work.mu:
            self.grad.add_(self.vector, alpha=work.mu).sub_(start, alpha=work.mu)
        if adam is not None:
            adam.step()
            return
        if work.weight_decay:
            self.grad.add_(self.vector, alpha=work.weight_decay)
        self.velocity.mul_(work.momentum).add_(self.grad)
        self.vector.sub_(self.velocity, alpha=work.lr)


def flat(module: nn.Module, channels_last: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """Make a model's parameters and gradients views of two vectors: (the model, parameters, gradients)."""
    own = list(module.parameters())
    vector, grad = (own[0].new_zeros(sum(p.numel() for p in own), requires_grad=False) for _ in range(2))
    at = 0
    for p in own:
        place = slice(at, at + prod(p.shape))
        view, its_grad = (_shaped(v.detach()[place], p.shape, channels_last) for v in (vector, grad))
        view.copy_(p.detach())
        p.data, p.grad = view, its_grad
        at = place.stop
    return module, vector, grad


def laid_out(pair: Tensors, channels_last: bool) -> Tensors:
    """Images with the channels last in memory, if so wished."""
    x, y = pair
    return (x.to(memory_format=torch.channels_last) if channels_last and x.dim() == 4 else x), y


def _shaped(part: Tensor, shape: torch.Size, channels_last: bool) -> Tensor:
    if not channels_last or len(shape) != 4:
        return part.view(shape)
    outputs, inputs, height, width = shape
    return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


if __name__ == "__main__":
    main("tuned", run, lambda p: p.add_argument("--channels-last", action="store_true"))
