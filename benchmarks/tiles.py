"""Convolutions of K clients' pictures, each client with filters of its own, by Triton: a candidate of `convolutions`.

cuDNN's grouped convolutions move several times the bytes that they need. Here a program makes a tile of answers, some
filters of one client at some pixels of its pictures, and takes what these look at straight from the pictures: nothing
is written but the answers. Pictures are folded as everywhere, example after example and in each client after client.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    raise SystemExit(
        "tiles want Triton; torch for a GPU brings it, and without a GPU also set TRITON_INTERPRET=1"
    ) from None

Pair = tuple[int, int]

FAR = tl.constexpr(1 << 20)
"""Rows that no picture has."""


@triton.jit(do_not_specialize=["count", "K"])
def answers(
    x, filters, bias, out, count, K,
    height: tl.constexpr, width: tl.constexpr, tall: tl.constexpr, broad: tl.constexpr,
    R: tl.constexpr, Q: tl.constexpr, T: tl.constexpr, U: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, BACK: tl.constexpr, BIAS: tl.constexpr,
    DIGITS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """out [B K, Q, tall, broad] from x [B K, R, height, width] and filters [K, T, U, Q, R]; count = B tall broad.

    Going BACK, x has the answers' gradients, and out gets those of what they looked at.
    """
    tiles_q, tiles_m = tl.cdiv(Q, BLOCK_Q), tl.cdiv(count, BLOCK_M)
    place = tl.program_id(0)
    q = place % tiles_q * BLOCK_Q + tl.arange(0, BLOCK_Q)
    begin = place // tiles_q % tiles_m * BLOCK_M
    k = place // tiles_q // tiles_m
    r, m = tl.arange(0, BLOCK_R), begin + tl.arange(0, BLOCK_M)
    pixels: tl.constexpr = tall * broad
    plane: tl.constexpr = height * width
    first = begin // pixels  # the tile's first picture: all else is counted from there
    beyond, pixel = (m // pixels - first) * K, m % pixels
    here = (first.to(tl.int64) * K + k) * R * plane
    if BACK:
        down, right = pixel // broad + PH, pixel % broad + PW
    else:
        down, right = pixel // broad * SH - PH, pixel % broad * SW - PW
    x += here
    filters += k.to(tl.int64) * (T * U * Q * R)
    total = tl.zeros((BLOCK_Q, BLOCK_M), tl.float32)
    for step in range(T * U * tl.cdiv(R, BLOCK_R)):
        tap, some = step // tl.cdiv(R, BLOCK_R), step % tl.cdiv(R, BLOCK_R) * BLOCK_R + r
        if BACK:
            h, w = down - tap // U * DH, right - tap % U * DW
            met = (m < count) & (h >= 0) & (w >= 0) & (h % SH == 0) & (w % SW == 0)
            h, w = h // SH, w // SW
            met = met & (h < height) & (w < width)
        else:
            h, w = down + tap // U * DH, right + tap % U * DW
            met = (m < count) & (h.to(tl.uint32) < height) & (w.to(tl.uint32) < width)
        a = tl.load(filters + tap * Q * R + q[:, None] * R + some[None, :], (q[:, None] < Q) & (some[None, :] < R), 0.0)
        at = (beyond * R * plane + h * width + w)[None, :] + some[:, None] * plane
        b = tl.load(x + at, met[None, :] & (some[:, None] < R), 0.0)
        total = tl.dot(a, b, total, input_precision=DIGITS)
    if BIAS:
        total += tl.load(bias + k * Q + q, q < Q, 0.0).to(tl.float32)[:, None]
    out += (first.to(tl.int64) * K + k) * Q * pixels
    to = (beyond * Q * pixels + pixel)[None, :] + q[:, None] * pixels
    tl.store(out + to, total.to(out.dtype.element_ty), (q[:, None] < Q) & (m[None, :] < count))


@triton.jit(do_not_specialize=["count", "piece", "K"])
def of_filters(
    x, g, parts, count, piece, K,
    height: tl.constexpr, width: tl.constexpr, tall: tl.constexpr, broad: tl.constexpr,
    C: tl.constexpr, Q: tl.constexpr, T: tl.constexpr, U: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, BIAS: tl.constexpr, DIGITS: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """parts [S, K, Q, C T U + BIAS]: the gradient of each client's filters, and of its bias, from so many pixels each.

    x [B K, C, height, width] is what was looked at, g [B K, Q, tall, broad] the gradient of the answers.
    """
    length: tl.constexpr = C * T * U + BIAS
    tiles_r, tiles_q = tl.cdiv(length, BLOCK_R), tl.cdiv(Q, BLOCK_Q)
    place = tl.program_id(0)
    r = place % tiles_r * BLOCK_R + tl.arange(0, BLOCK_R)
    q = place // tiles_r % tiles_q * BLOCK_Q + tl.arange(0, BLOCK_Q)
    k, s = place // tiles_r // tiles_q % K, place // tiles_r // tiles_q // K
    pixels: tl.constexpr = tall * broad
    plane: tl.constexpr = height * width
    i, j = tl.where(r < C * T * U, r // U % T * DH, FAR), r % U * DW
    shift = r // (T * U) * plane + r // U % T * DH * width + j
    first = s * piece // pixels  # the piece's first picture: all else is counted from there
    x += (first.to(tl.int64) * K + k) * C * plane
    g += (first.to(tl.int64) * K + k) * Q * pixels
    total = tl.zeros((BLOCK_Q, BLOCK_R), tl.float32)
    for begin in range(s * piece, min((s + 1) * piece, count), BLOCK_M):
        m = begin + tl.arange(0, BLOCK_M)
        known, beyond, pixel = m < min((s + 1) * piece, count), (m // pixels - first) * K, m % pixels
        down, right = pixel // broad * SH - PH, pixel % broad * SW - PW
        h = tl.where(known, down, FAR)[None, :] + i[:, None]
        met = h.to(tl.uint32) < height
        if PW > 0:
            met = met & ((right[None, :] + j[:, None]).to(tl.uint32) < width)
        at = (beyond * C * plane + down * width + right)[None, :] + shift[:, None]
        b = tl.load(x + at, met, 0.0)
        if BIAS:
            b = tl.where((r == length - 1)[:, None], 1.0, b).to(b.dtype)
        at = (beyond * Q * pixels + pixel)[None, :] + q[:, None] * pixels
        a = tl.load(g + at, (q[:, None] < Q) & known[None, :], 0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision=DIGITS)
    to = parts + ((s * K + k).to(tl.int64) * Q + q[:, None]) * length + r[None, :]
    tl.store(to, total, (q[:, None] < Q) & (r[None, :] < length))


class Tile(NamedTuple):
    """How many pixels a tile has, and how many warps and stages make one."""

    pixels: int = 128
    warps: int = 4
    stages: int = 3


TILES = {"answers": Tile(), "of_filters": Tile(64, 8)}
"""Of the two loops; tried out by `convolutions`."""

FAR_OFF = 1 << 30
"""Numbers between the first and the last picture that a program looks at: places are counted in 32 bits."""

PROGRAMS = 132 * 8
"""About as many as an H200 has going at once."""


class TiledConv(torch.autograd.Function):
    """x [B K, C, H, W], each client's own filters [K, O, C, k, l] and bias [K, O] -> [B K, O, H', W']."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair
    ) -> Tensor:
        x, ctx.how, ctx.has_bias = x.contiguous(), (stride, padding, dilation), bias is not None
        ctx.save_for_backward(x, weight)
        how = zip(x.shape[2:], weight.shape[3:], *ctx.how, strict=True)
        size = [(n + 2 * p - d * (f - 1) - 1) // s + 1 for n, f, s, p, d in how]
        return _answers(x, weight.permute(0, 3, 4, 1, 2).contiguous(), bias, size, *ctx.how, False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        (x, weight), g, of_x, of_weight, of_bias = ctx.saved_tensors, grads[0].contiguous(), None, None, None
        if ctx.needs_input_grad[0]:
            turned = weight.permute(0, 3, 4, 2, 1).contiguous()
            of_x = _answers(g, turned, None, x.shape[2:], *ctx.how, True)
        if any(ctx.needs_input_grad[1:3]):
            both = _of_filters(
                x, g, weight.shape[3:], len(weight), *ctx.how, ctx.has_bias
            )  # [K, O, C k l], and the bias
            of_weight = both[:, :, : weight[0, 0].numel()].reshape(weight.shape)
            of_bias = both[:, :, -1] if ctx.has_bias else None
        return of_x, of_weight, of_bias, None, None, None


def tiled_conv(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    """`TiledConv`, in fewer digits where torch was told to multiply so: it casts what it knows, and not this."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    cast = (None if v is None else v.to(dtype) for v in (x, weight, bias))
    return TiledConv.apply(*cast, stride, padding, dilation)


@torch.library.custom_op("fedstrata::answers", mutates_args=())
def _answers(
    x: Tensor, filters: Tensor, bias: Tensor | None, size: list[int],
    stride: list[int], padding: list[int], dilation: list[int], back: bool,
) -> Tensor:  # fmt: skip
    (k, t, u, q, r), n, tile = filters.shape, len(x), TILES["answers"]
    out = x.new_empty(n, q, *size)
    count, block_q, block_r = n // k * size[0] * size[1], _block(q, 64), _block(r, 32)
    grid = (triton.cdiv(q, block_q) * triton.cdiv(count, tile.pixels) * k,)
    answers[grid](
        x, filters, out if bias is None else bias.contiguous(), out, count, k, *x.shape[2:], *size,
        r, q, t, u, *stride, *padding, *dilation, back, bias is not None, _digits(), block_q, block_r,
        tile.pixels, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


_answers.register_fake(lambda x, filters, _bias, size, *_: x.new_empty(len(x), filters.shape[3], *size))


@torch.library.custom_op("fedstrata::of_filters", mutates_args=())
def _of_filters(
    x: Tensor, g: Tensor, sides: list[int], clients: int, stride: list[int], padding: list[int], dilation: list[int],
    has_bias: bool,
) -> Tensor:  # fmt: skip
    (n, c), (o, *size), (t, u), tile = x.shape[:2], g.shape[1:], sides, TILES["of_filters"]
    length, count = c * t * u + has_bias, n // clients * size[0] * size[1]
    block_o, block_r = _block(o, 64), _block(length, 128)
    tiles = triton.cdiv(length, block_r) * triton.cdiv(o, block_o) * clients
    fewest = max(x.numel(), g.numel()) // FAR_OFF + 1
    pieces = max(fewest, min(PROGRAMS // tiles, count // (4 * tile.pixels)))
    piece = triton.cdiv(triton.cdiv(count, pieces), tile.pixels) * tile.pixels
    parts = x.new_empty(triton.cdiv(count, piece), clients, o, length, dtype=torch.float32)
    of_filters[(tiles * len(parts),)](
        x, g, parts, count, piece, clients, *x.shape[2:], *size, c, o, t, u, *stride, *padding, *dilation,
        int(has_bias), _digits(), block_o, block_r, tile.pixels, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return parts.sum(0).to(x.dtype)


_of_filters.register_fake(
    lambda x, g, sides, clients, _stride, _padding, _dilation, has_bias: x.new_empty(
        clients, g.shape[1], x.shape[1] * sides[0] * sides[1] + has_bias
    )
)


def _block(size: int, most: int) -> int:
    return min(most, max(16, triton.next_power_of_2(size)))


def _digits() -> str:
    """TF32 where torch was told so; else three such products, which have nearly all digits."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
