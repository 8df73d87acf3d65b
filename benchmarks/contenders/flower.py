"""Flower's simulation engine: one client process a core, its own FedAvg, the naive or the tuned client in it.

Its strategy is told which clients take part; all else is stock. The processes map the examples from files, so that
those which they share are in memory once.
"""

import logging
import os
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.contenders.tuned import laid_out
from benchmarks.script import Job, main
from benchmarks.torch_parts import evaluate, evaluated_sets, model_of, tensors_of, use_threads

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's turn, in one of the processes that Flower keeps."""
    from benchmarks.contenders.flower_client import reply

    return reply(message)


class Chosen(FedAvg):
    """FedAvg for the clients of the workload."""

    def __init__(self, job: Job, folder: str):
        super().__init__(fraction_evaluate=0.0)
        self.job, self.folder, self.began = job, folder, []

    def configure_train(self, server_round, arrays, _, grid):
        self.began.append(perf_counter())
        nodes = sorted(grid.get_node_ids())
        work, messages = self.job.work, []
        for k in work.cohort(server_round - 1).tolist():
            told = {"workload": work.name, "fraction": work.fraction, "dtype": self.job.dtype, "folder": self.folder}
            told |= {"round": server_round - 1, "client": k, "tuned": self.job.options.client == "tuned"}
            told |= {"last": self.job.options.channels_last}
            content = RecordDict({"arrays": arrays, "config": ConfigRecord(told)})
            messages.append(Message(content=content, message_type="train", dst_node_id=nodes[k]))
        return messages


def run(job: Job):
    """A simulation with as many processes as there are cores; the server evaluates with all threads."""
    use_threads(job, evaluating=True)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    cores = os.cpu_count() or 1
    init = {"num_cpus": cores, "include_dashboard": False, "log_to_driver": False}
    with tempfile.TemporaryDirectory() as folder:
        server = server_app(job, folder)
        run_simulation(
            server_app=server,
            client_app=client_app,
            num_supernodes=job.work.clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": init},
        )
    return server.final


def server_app(job: Job, folder: str) -> ServerApp:
    """The server: FedAvg, and an evaluation after every round."""
    model = model_of(job.work, job.dtype)
    if job.options.channels_last:
        model = model.to(memory_format=torch.channels_last)
    train = job.work.train()
    for name, array in zip("xy", train, strict=True):
        np.save(Path(folder) / f"{name}.npy", array)
    last = job.options.channels_last
    sets = {n: laid_out(s, last) for n, s in evaluated_sets(job, tensors_of(train, job.dtype)).items()}
    strategy, app = Chosen(job, folder), ServerApp()

    def score(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        trained = perf_counter()
        model.load_state_dict(arrays.to_torch_state_dict())
        metrics = evaluate(model, sets)
        if server_round:  # Flower evaluates the first model too, before any round
            job.lap(trained - strategy.began[-1], perf_counter() - trained, metrics)
        return MetricRecord({n: loss for n, (loss, _) in metrics.items()})

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        first = ArrayRecord(model.state_dict())
        result = strategy.start(grid=grid, initial_arrays=first, num_rounds=job.rounds, evaluate_fn=score)
        app.final = [a.numpy() for a in result.arrays.values()]

    return app


def _options(parser) -> None:
    parser.add_argument("--client", choices=["naive", "tuned"], default="tuned")
    parser.add_argument("--channels-last", action="store_true", help="of the tuned client and the evaluation")


if __name__ == "__main__":
    main("flower", run, _options)
