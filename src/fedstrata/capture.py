"""A step that is taken many times over: a GPU captures it once as a graph, and replays it without the host."""

import gc
from collections.abc import Callable
from typing import Any

import torch


def captured(run: Callable[[], None], stream: torch.cuda.Stream, pool: Any = None) -> torch.cuda.CUDAGraph | None:
    """The graph of what `run` would do; nothing where it cannot be had, e.g. because somebody looks at a value.

    Nothing is collected before: looking through all that torch has in memory takes a quarter of a second.
    """
    graph = torch.cuda.CUDAGraph()
    gc.disable()  # graphs that are thrown away meanwhile would spoil this one
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            run()
    except RuntimeError:
        return None
    finally:
        gc.enable()
    return graph


class Replayed:
    """A step that changes its tensors in place, called again and again; on a CPU, just that.

    The first time it runs as it is: libraries choose their algorithms, and look at values that a graph could not.
    """

    def __init__(self, step: Callable[[], None], device: torch.device):
        self.step, self.graph, self.calls = step, None, 0
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self) -> None:
        """Take the step."""
        if self.stream is None:
            self.step()
            return
        here, self.calls = torch.cuda.current_stream(self.stream.device), self.calls + 1
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            if self.calls == 2:
                self.graph = captured(self.step, self.stream)
            if self.graph is None:
                self.step()
            else:
                self.graph.replay()
        here.wait_stream(self.stream)
