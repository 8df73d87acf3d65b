"""The client of the Flower contender; what a process needs again and again is made once in it."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch.utils.data import TensorDataset

from benchmarks.contenders.naive import train_client
from benchmarks.contenders.tuned import Learner, laid_out
from benchmarks.torch_parts import model_of, tensors_of
from benchmarks.workloads import WORKLOADS


def reply(message: Message) -> Message:
    """Train on one client's examples and send the model back."""
    told = message.content["config"]
    work, data, learner = made(told["workload"], told["fraction"], told["dtype"], told["folder"], told["last"])
    round, client = told["round"], told["client"]
    state = message.content["arrays"].to_torch_state_dict()
    if told["tuned"]:
        learner.module.load_state_dict(state)
        learner.train(learner.vector.clone(), data, round, client)
        model = learner.module
    else:
        model = model_of(work, told["dtype"])
        model.load_state_dict(state)
        rows = work.rows(client)
        mine = TensorDataset(data[0][rows], data[1][rows])
        model = train_client(work, model, mine, [o - rows[0] for o in work.orders(round, client)])
    arrays = ArrayRecord(model.state_dict())
    weight = MetricRecord({"num-examples": int(work.sizes[client])})
    return Message(content=RecordDict({"arrays": arrays, "metrics": weight}), reply_to=message)


@cache
def made(workload: str, fraction: float, dtype: str, folder: str, last: bool):
    """The workload, all examples as they lie in the files, and a model to train."""
    torch.set_num_threads(1)
    work = WORKLOADS[workload].part(fraction)
    x, y = (np.load(Path(folder) / f"{name}.npy", mmap_mode="c") for name in "xy")
    return work, laid_out(tensors_of((x, y), dtype), last), Learner(work, dtype, last)
