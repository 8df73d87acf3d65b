"""A step that is replayed: how often it runs as it is, and that a graph takes over from the second time on."""

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedstrata import capture
from fedstrata.capture import Replayed, captured


def test_on_a_cpu_it_is_the_step_itself():
    ran: list[int] = []
    again = Replayed(lambda: ran.append(1), torch.device("cpu"))
    for _ in range(3):
        again()
    assert len(ran) == 3


@pytest.mark.parametrize("can", [True, False])
def test_on_a_gpu_a_graph_takes_over_where_one_can_be_had(can, monkeypatch):
    stream, did = SimpleNamespace(wait_stream=lambda _: None, device=None), list[str]()
    for name, fake in {"Stream": lambda _: stream, "current_stream": lambda _: stream}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())

    def captured(*_: Any) -> Any:
        did.append("captured")
        return SimpleNamespace(replay=lambda: did.append("replayed")) if can else None

    monkeypatch.setattr(capture, "captured", captured)
    again = Replayed(lambda: did.append("ran"), torch.device("cuda"))
    for _ in range(4):
        again()
    rest = "replayed" if can else "ran"
    assert did == ["ran", "captured", rest, rest, rest]


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_keeps_rubbish_where_it_is_and_does_not_look_through_all_memory_for_it(fails, monkeypatch):
    collected, enabled = list[int](), list[bool]()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph", lambda *_, **__: nullcontext())
    monkeypatch.setattr(gc, "callbacks", [lambda _, info: collected.append(info["generation"])])

    def run() -> None:
        enabled.append(gc.isenabled())
        if fails:
            raise RuntimeError("operation not permitted when stream is capturing")

    stream: Any = None
    assert (captured(run, stream) is None) == fails
    assert enabled == [False]
    assert gc.isenabled()
    assert not {2} & set(collected)
