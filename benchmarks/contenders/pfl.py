"""Apple's pfl: its FedProx or FederatedAveraging, its simulated backend and its central evaluation, all as they come.

Only the order of users and examples is the workload's. With --processes, torch.distributed joins that many of them.
"""

import os
import socket
import subprocess
import sys
from itertools import count
from time import perf_counter

import torch
from torch.nn import functional as F

from benchmarks.script import Job, main
from benchmarks.torch_parts import arrays_of, evaluated_sets, model_of, optimizer_of, tensors_of, use_threads


def run(job: Job):
    """pfl in one process, or in several of one thread each."""
    others = join(job.options.processes) if "RANK" not in os.environ else []
    use_threads(job)
    if job.options.processes > 1:
        torch.set_num_threads(1)
    try:
        return learn(job)
    finally:
        for other in others:
            other.wait(60)


def learn(job: Job):
    """pfl's own loop; it is imported here because it looks for its peers as soon as it is."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.algorithm.fedprox import FedProx, FedProxParams
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    work, net = job.work, network(job)
    data = tensors_of(work.train(), job.dtype)
    model = PyTorchModel(
        net, lambda parameters, lr: optimizer_of(work, parameters), torch.optim.SGD(net.parameters(), lr=1.0)
    )
    users = users_of(job, data)
    # pfl measures its users in the first round whatever the frequency; that one warms up and does not count
    often = {"central_num_iterations": job.rounds, "evaluation_frequency": 10**9}
    often |= {"train_cohort_size": work.cohort_size, "val_cohort_size": 0}
    algorithm = FedProx() if work.mu else FederatedAveraging()
    algorithm.run(
        FedProxParams(mu=work.mu, **often) if work.mu else NNAlgorithmParams(**often),
        SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=work.epochs, local_learning_rate=work.lr),
        NNEvalHyperParams(local_batch_size=2048),
        callbacks=callbacks(job, data),
        send_metrics_to_platform=False,
    )
    return arrays_of(net)


def network(job: Job):
    """The model with the two functions that pfl asks for."""
    from pfl.metrics import Weighted

    net = model_of(job.work, job.dtype)

    @torch.inference_mode()
    def metrics(x, y):
        outputs = net(x)
        loss = F.cross_entropy(outputs, y, reduction="sum").item()
        right = (outputs.argmax(1) == y).sum().item()
        return {"loss": Weighted(loss, len(y)), "accuracy": Weighted(right, len(y))}

    net.loss, net.metrics = lambda x, y: F.cross_entropy(net(x), y), metrics
    return net


def users_of(job: Job, data):
    """The clients of each round in the workload's order, each with its examples in the order of its epochs."""
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset

    work, turn = job.work, count()

    class Ordered(PyTorchTensorDataset):
        """A user whose every epoch has its own order."""

        def __init__(self, round: int, client: int):
            mine = slice(work.starts[client], work.starts[client] + work.sizes[client])
            super().__init__((data[0][mine], data[1][mine]), user_id=str(client))
            self.orders = iter([o - work.starts[client] for o in work.orders(round, client)])

        def iter(self, batch_size):
            if batch_size != work.batch:  # an evaluation
                yield from super().iter(batch_size)
                return
            order = torch.from_numpy(next(self.orders))
            x, y = (t.index_select(0, order) for t in self.raw_data)
            yield from zip(x.split(batch_size), y.split(batch_size), strict=True)

    def sample() -> tuple[int, int]:
        round, place = divmod(next(turn), work.cohort_size)
        return round, int(work.cohort(round)[place])

    return FederatedDataset(lambda user: Ordered(*user), sample)


def callbacks(job: Job, data) -> list:
    """A stamp when training ends, pfl's evaluation of every set, and a lap."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNEvalHyperParams
    from pfl.metrics import Metrics, StringMetricName, get_overall_value

    stamps = {}
    sets = evaluated_sets(job, data)

    class Stamp(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            stamps["trained"] = perf_counter()
            return False, Metrics()

    class Lap(TrainingProcessCallback):
        def on_train_begin(self, *, model):
            stamps["began"] = perf_counter()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            found = {}
            if central_iteration:  # pfl evaluates before the first iteration instead of after it
                for s in sets:
                    pair = (aggregate_metrics[StringMetricName(f"{s} {m}")] for m in ("loss", "accuracy"))
                    found[s] = tuple(get_overall_value(v) for v in pair)
            job.lap(stamps["trained"] - stamps["began"], perf_counter() - stamps["trained"], found)
            stamps["began"] = perf_counter()
            return False, Metrics()

    size = NNEvalHyperParams(local_batch_size=2048)
    evaluations = [
        CentralEvaluationCallback(PyTorchTensorDataset(s), size, format_fn=lambda m, n=n: StringMetricName(f"{n} {m}"))
        for n, s in sets.items()
    ]
    return [Stamp(), *evaluations, Lap()]


def join(processes: int) -> list[subprocess.Popen]:
    """Start the other processes as torchrun would, and make this one the first of them."""
    if processes == 1:
        return []
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ |= {"TORCHELASTIC_RUN_ID": "bench", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}
    command = [sys.executable, "-m", "benchmarks.contenders.pfl", *sys.argv[1:]]
    return [
        subprocess.Popen(command, env=os.environ | {"RANK": str(i), "LOCAL_RANK": str(i)}, stdout=subprocess.DEVNULL)
        for i in range(1, processes)
    ]


if __name__ == "__main__":
    main("pfl", run, lambda p: p.add_argument("--processes", type=int, default=1))
