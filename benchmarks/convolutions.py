"""Ways to convolve the pictures of K clients, each with filters of its own, on a GPU: which is fastest for which layer.

    python -m benchmarks.convolutions [--precision tf32] [--tiles] [--rounds] [--out FILE]

The layers of SimpleCNN and ResNet20 on pictures of 3 x 32 x 32, for 20 clients and batches of 64, forward and back,
captured as a graph and replayed. Each way is first held against float64; without a GPU that is all, and Triton wants
TRITON_INTERPRET=1. `--tiles` tries other sizes of tiles; `--rounds` times whole rounds of `benchmarks.gpu` with tiles
and without.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import tiles
from benchmarks.gpu import ours
from fedstrata import fold
from fedstrata.patches import patch_conv
from fedstrata.precision import Precision, multiplying
from fedstrata.runtimes.choose import Compile

CLIENTS, BATCH = 20, 64


class Layer(NamedTuple):
    """A convolution, and how many pixels its pictures have across."""

    channels: int
    filters: int
    side: int
    across: int
    stride: int = 1
    padding: int = 0
    bias: bool = True

    @property
    def how(self) -> tuple[tiles.Pair, tiles.Pair, tiles.Pair]:
        """Stride, padding and dilation."""
        return (self.stride, self.stride), (self.padding, self.padding), (1, 1)


LAYERS = {
    "SimpleCNN 1": Layer(3, 32, 3, 32),
    "SimpleCNN 2": Layer(32, 64, 3, 15),
    "SimpleCNN 3": Layer(64, 64, 3, 6),
    "ResNet20 stem": Layer(3, 16, 3, 32, 1, 1, False),
    "ResNet20 16": Layer(16, 16, 3, 32, 1, 1, False),
    "ResNet20 16 to 32": Layer(16, 32, 3, 32, 2, 1, False),
    "ResNet20 32": Layer(32, 32, 3, 16, 1, 1, False),
    "ResNet20 64": Layer(64, 64, 3, 8, 1, 1, False),
    "ResNet20 shortcut": Layer(16, 32, 1, 32, 2, 0, False),
}

Given = tuple[Tensor, Tensor, Tensor | None]
"""Pictures [B K, C, H, W], filters [K, O, C, k, k], bias [K, O]."""

Way = Callable[[Layer, Given], Tensor]
"""What it answers, [B K, O, H', W']."""


def grouped(layer: Layer, given: Given, form: torch.memory_format = torch.contiguous_format) -> Tensor:
    """One convolution in groups, as `fold` has it."""
    x, weight, bias = given
    side = x.reshape(-1, len(weight) * layer.channels, *x.shape[2:]).contiguous(memory_format=form)
    flat = None if bias is None else bias.flatten()
    out = F.conv2d(side, weight.flatten(0, 1), flat, layer.stride, layer.padding, 1, len(weight))
    return out.reshape(-1, layer.filters, *out.shape[2:])


def patches(layer: Layer, given: Given) -> Tensor:
    """Products of matrices of patches."""
    return patch_conv(*given, *layer.how)


def tiled(layer: Layer, given: Given) -> Tensor:
    """Tiles by Triton."""
    return tiles.tiled_conv(*given, *layer.how)


WAYS: dict[str, Way] = {
    "grouped": grouped,
    "channels last": partial(grouped, form=torch.channels_last),
    "patches": patches,
    "tiles": tiled,
}


def inputs(layer: Layer, batch: int, device: str, dtype: torch.dtype) -> Given:
    """Drawn anew; all want a gradient."""

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype).requires_grad_()

    weight = drawn(CLIENTS, layer.filters, layer.channels, layer.side, layer.side)
    bias = drawn(CLIENTS, layer.filters) if layer.bias else None
    return drawn(batch * CLIENTS, layer.channels, layer.across, layer.across), weight, bias


def step(way: Way, layer: Layer, given: Given, g: Tensor | None = None) -> list[Tensor]:
    """What it answers, and all gradients; the first layer's pictures want none."""
    leaves = [v for v in (given if layer.channels > 3 else given[1:]) if v is not None]
    with torch.enable_grad():
        out = way(layer, given)
        g = torch.ones_like(out) if g is None else g.to(out.dtype)
        return [out.detach(), *torch.autograd.grad(out, leaves, g)]


def error(way: Way, layer: Layer, device: str) -> float:
    """The largest |v - v'| / |v'| of the answers and the gradients, v' in float64, for batches of 4."""
    exact: Any = inputs(layer, 4, device, torch.float64)
    g = torch.randn_like(grouped(layer, exact))
    short: Any = [None if v is None else v.detach().float().requires_grad_() for v in exact]
    pairs = zip(step(way, layer, short, g), step(grouped, layer, exact, g), strict=True)
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def milliseconds(way: Way, layer: Layer, repeat: int = 20) -> float:
    """The median of replays of a step."""
    given = inputs(layer, BATCH, "cuda", torch.float32)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(way, layer, given)
        with torch.cuda.graph(graph, stream=stream):
            step(way, layer, given)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeat + 1)]
        for mark in marks:
            graph.replay()
            mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def floor(layer: Layer) -> float:
    """Milliseconds that reading and writing everything once takes, at 4.3 TB/s: answers and gradients, in float32."""
    wide = (layer.across + 2 * layer.padding - layer.side) // layer.stride + 1
    seen, made = layer.channels * layer.across**2, layer.filters * wide**2
    back = 2 * seen + 2 * made if layer.channels > 3 else seen + made
    return 4 * CLIENTS * BATCH * (seen + made + back) / 4.3e9


def shapes() -> Iterator[dict[str, tiles.Tile]]:
    """Tiles of other sizes, of one loop at a time."""
    for pixels, warps, stages in product((128, 256), (4, 8), (2, 3)):
        yield {"answers": tiles.Tile(pixels, warps, stages)}
    for pixels, warps, stages in product((64, 128), (4, 8), (2, 3)):
        yield {"of_filters": tiles.Tile(pixels, warps, stages)}


@contextmanager
def tiled_everywhere() -> Iterator[None]:
    """Within this block a GPU has tiles for all convolutions of stacked clients."""
    usual = fold.patch_conv, fold.FEW
    fold.patch_conv, fold.FEW = tiles.tiled_conv, 1 << 30
    try:
        yield
    finally:
        fold.patch_conv, fold.FEW = usual


class Table:
    """Lines that are printed and written as they come."""

    def __init__(self, out: Path | None) -> None:
        self.out, self.lines = out, list[dict[str, Any]]()

    def add(self, **line: Any) -> None:
        """One more."""
        self.lines.append(line)
        sys.stdout.write("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in line.values()) + "\n")
        sys.stdout.flush()
        if self.out is not None:
            name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
            self.out.write_text(json.dumps({"device": name, "lines": self.lines}, indent=2))

    def tried(self, find: Callable[[], Any], **line: Any) -> None:
        """A line with what this gives, or with what went wrong: the others are still worth knowing."""
        try:
            found = find()
        except Exception as e:
            found = f"failed: {type(e).__name__}: {str(e)[:300]}"
        self.add(**line, found=found)


def rounds(table: Table, precision: Precision, models: str, compile: Compile) -> None:
    """Seconds of a round, the median of five, with tiles and without."""

    def seconds(name: str) -> float:
        return statistics.median(ours(name, 6, compile=compile, precision=precision)[1:])

    for name in models.split(";"):
        table.tried(partial(seconds, name), model=name, compile=compile, precision=precision, way="usual")
        with tiled_everywhere():
            table.tried(partial(seconds, name), model=name, compile=compile, precision=precision, way="tiles")


def main() -> None:
    """Print and write all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", default="tf32", choices=["float32", "tf32", "bf16"])
    parser.add_argument("--only", default="", help="layers whose name has this")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--rounds", default="", help="models whose rounds are timed, separated by semicolons")
    parser.add_argument("--compile", default="never", choices=["never", "always"], help="in rounds")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    table, chosen = Table(given.out), {n: layer for n, layer in LAYERS.items() if given.only in n}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with multiplying(given.precision), torch.autocast("cuda", torch.bfloat16, given.precision == "bf16"):
        for name, layer in chosen.items():
            table.add(layer=name, way="floor", found=floor(layer))
            for called, way in WAYS.items():
                table.tried(partial(error, way, layer, device), layer=name, way=called, what="error")
                if device == "cuda":
                    table.tried(partial(milliseconds, way, layer), layer=name, way=called, what="ms")
            for other in shapes() if given.tiles else ():
                usual = dict(tiles.TILES)
                tiles.TILES.update(other)
                table.tried(partial(milliseconds, tiled, layer), layer=name, way=str(other), what="ms")
                tiles.TILES.update(usual)
    if given.rounds:
        rounds(table, given.precision, given.rounds, given.compile)


if __name__ == "__main__":
    main()
