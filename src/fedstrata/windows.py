"""The largest answer of a convolution in each window, and its gradient, compiled by numba: one place in four has any.

Imported only where a run is large enough to pay for it (see `pooled`). Pictures lie as [H, W, C], so that what a filter
sees of one row is one run of numbers. A gradient is then a sum of such runs, of which each window gives one a filter.
Threads take examples, or filters: results do not depend on how many there are.

Steps in whole cache lines are spelled out for the compiler, which would not find them in loops by itself. They stand in
this file because what numba keeps on disk is made anew when the file of a loop changes, and no other.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.np.arrayobj import make_array

from fedstrata.kernels import Array, compiled

LINE = 64
"""Bytes of a cache line; that of `pooled`."""

INDEX, NUMBER = ir.IntType(64), types.int64

intrinsic: Any = extending.intrinsic
"""Who calls such a function leaves out its first argument, which is numba's own."""


class Lines:
    """Numbers of one kind, a cache line's worth at a time, wherever they begin."""

    def __init__(self, builder: Any, kind: Any, lanes: int, size: int):
        self.builder, self.line, self.size = builder, ir.VectorType(kind, lanes), size
        self.nothing = ir.Constant(self.line, ir.Undefined)
        self.first = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)

    def load(self, base: Any, place: Any) -> Any:
        return self.builder.load(self._there(base, place), align=self.size)

    def store(self, line: Any, base: Any, place: Any) -> None:
        self.builder.store(line, self._there(base, place), align=self.size)

    def of(self, number: Any) -> Any:
        """The same number in every lane."""
        alone = self.builder.insert_element(self.nothing, number, ir.IntType(32)(0))
        return self.builder.shuffle_vector(alone, self.nothing, self.first)

    def _there(self, base: Any, place: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(base, [place]), self.line.as_pointer())


def _prepared(context: Any, builder: Any, signature: Any, args: Any) -> tuple[Lines, int, list[Any]]:
    """Lines of the first array's kind, how many numbers they are of, and the arguments, of arrays where they begin."""
    kinds, item = signature.args, signature.args[0].dtype
    given = [
        make_array(k)(context, builder, v).data if isinstance(k, types.Array) else v
        for k, v in zip(kinds, args, strict=True)
    ]
    lanes = 8 * LINE // item.bitwidth
    return Lines(builder, context.get_value_type(item), lanes, item.bitwidth // 8), lanes, given


@intrinsic
def keep_largest(
    _typing: Any, z: Any, at: Any, first: Any, best: Any, place: Any, to: Any, across: Any, step: Any, side: Any
) -> Any:
    """A line of best[to:] and place[to:]: the largest of a window's spots, and where in a picture it is.

    The window's corner begins at z[at] and is the picture's spot `first`; a row has so many spots, one each `step`. The
    window is as tall and wide as the tuple `side` is long.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lines, lanes, (z, at, first, best, place, to, across, step, _) = _prepared(context, builder, signature, args)
        spots = Lines(builder, ir.IntType(32), lanes, 4)

        def spot(q: int) -> tuple[Any, Any]:
            """What stands at one of the window's spots, and its number."""
            ahead = builder.add(builder.mul(across, INDEX(q // side.count)), INDEX(q % side.count))
            value = lines.load(z, builder.add(at, builder.mul(ahead, step)))
            return value, spots.of(builder.trunc(builder.add(first, ahead), ir.IntType(32)))

        most, where = spot(0)
        for q in range(1, side.count**2):
            value, number = spot(q)
            larger, unknown = builder.fcmp_ordered(">", value, most), builder.fcmp_unordered("uno", value, value)
            more = builder.or_(larger, unknown)  # NaN stays
            most, where = builder.select(more, value, most), builder.select(more, number, where)
        lines.store(most, best, to)
        spots.store(where, place, to)
        return context.get_dummy_value()

    return types.void(z, NUMBER, NUMBER, best, place, NUMBER, NUMBER, NUMBER, side), emit


@intrinsic
def add_runs(
    _typing: Any, out: Any, at: Any, x: Any, begin: Any, which: Any, values: Any, every: Any, count: Any, apart: Any,
    wide: Any,
) -> Any:  # fmt: skip
    """out[at:] += sum over i < count of values_n x[begin[which_n]:] with n = every * i.

    It is done in as many lines as the tuple `wide` is long; those of x are so far apart, those of `out` side by side.
    The sums stay in registers.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lines, lanes, given = _prepared(context, builder, signature, args)
        out, at, x, begin, which, values, every, count, apart, _ = given
        there = [builder.add(at, INDEX(j * lanes)) for j in range(wide.count)]
        old, before = [lines.load(out, place) for place in there], builder.block
        body, after = builder.append_basic_block("runs"), builder.append_basic_block("summed")
        builder.cbranch(builder.icmp_signed("<", INDEX(0), count), body, after)

        builder.position_at_end(body)
        i, so_far = builder.phi(INDEX), [builder.phi(lines.line) for _ in there]
        n = builder.mul(i, every)
        run = builder.load(builder.gep(begin, [builder.load(builder.gep(which, [n]))]))
        factor, new = lines.of(builder.load(builder.gep(values, [n]))), []
        for j, total in enumerate(so_far):
            part = lines.load(x, builder.add(run, builder.mul(apart, INDEX(j))))
            part = builder.fmul(factor, part, flags=["contract"])
            new.append(builder.fadd(total, part, flags=["contract"]))
        following = builder.add(i, INDEX(1))
        builder.cbranch(builder.icmp_signed("<", following, count), body, after)
        _joined([i, *so_far], before, [INDEX(0), *old], body, [following, *new])

        builder.position_at_end(after)
        ends = [builder.phi(lines.line) for _ in there]
        _joined(ends, before, old, body, new)
        for line, place in zip(ends, there, strict=True):
            lines.store(line, out, place)
        return context.get_dummy_value()

    return types.void(out, NUMBER, x, begin, which, values, NUMBER, NUMBER, NUMBER, wide), emit


def _joined(phis: list[Any], before: Any, old: list[Any], body: Any, new: list[Any]) -> None:
    """What each is, depending on where one comes from."""
    for phi, start, onward in zip(phis, old, new, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(onward, body)


@compiled
def largest(z: Array, side: tuple[int, ...], best: Array, place: Array, first: int, last: int) -> None:
    """The largest of each window of z [B, H, W, C], and where it is, [B, h, w, C] both, of some examples."""
    lanes, filters, across, size = LINE // z.itemsize, z.shape[3], z.shape[2], len(side)
    for b in range(first, last):
        answers, most, at = z[b].reshape(-1), best[b].reshape(-1), place[b].reshape(-1)
        for y in range(best.shape[1]):
            for x in range(best.shape[2]):
                corner, to = (y * across + x) * size, (y * best.shape[2] + x) * filters
                for c in range(0, filters // lanes * lanes, lanes):
                    keep_largest(answers, corner * filters + c, corner, most, at, to + c, across, filters, side)
                for c in range(filters // lanes * lanes, filters):
                    m, n = answers[corner * filters + c], corner
                    for q in range(1, size * size):
                        spot = corner + q // size * across + q % size
                        v = answers[spot * filters + c]
                        if v > m or v != v:
                            m, n = v, spot
                    most[to + c], at[to + c] = m, n


@compiled
def to_inputs(
    g: Array, place: Array, across: int, side: int, weight: Array, width: int, channels: int, wide: tuple[int, ...],
    dx: Array, first: int, last: int,
) -> None:  # fmt: skip
    """Some examples' gradient, dx [B, H * width * channels and a rest], zeros before.

    g and place [B, h, w, C] are the windows' gradients and where they go, among answers of which so many stand in a
    row; weight [C, k, L] has rows of whole lines.
    """
    windows, filters, rows, length = g.shape[1] * g.shape[2], g.shape[3], weight.shape[1], weight.shape[2]
    lanes, spots, flat = LINE // g.itemsize, _spots(side, across), weight.reshape(-1)
    room = (windows + 1) * filters  # the last of it for gradients that are zero
    which, value, ends = np.empty(room, np.int64), np.empty(room, g.dtype), np.empty((windows, side * side), np.int64)
    begin = np.arange(filters) * rows * length
    for b in range(first, last):
        _by_spot(g[b], place[b], spots, across, side, which, value, ends)
        for i in range(rows):
            for a in range(0, length, len(wide) * lanes):
                seen, start = flat[i * length + a :], 0
                for s in range(windows):
                    y, x = s // g.shape[2] * side + i, s % g.shape[2] * side
                    for q in range(side * side):
                        many = ends[s, q] - start
                        if many > 0:
                            at = ((y + q // side) * width + x + q % side) * channels + a
                            add_runs(dx[b], at, seen, begin, which[start:], value[start:], 1, many, lanes, wide)
                        start += many


@compiled
def _by_spot(
    g: Array, place: Array, spots: Array, across: int, side: int, which: Array, value: Array, ends: Array
) -> None:
    """The gradients [h, w, C] that are not zero, and of which filters, by windows and their spots.

    Those that are zero go where nobody looks: a branch that cannot be foreseen takes longer.
    """
    e, none = 0, ends.shape[1]
    then, spot = np.empty(none + 1, np.int64), np.empty(g.shape[2], np.int64)
    for s in range(len(ends)):
        y, x = s // g.shape[1], s % g.shape[1]
        some, at, corner = g[y, x], place[y, x], (y * across + x) * side
        for c in range(len(some)):
            q = spots[at[c] - corner]
            spot[c] = none if some[c] == 0 else q
        for q in range(none):
            count = 0
            for c in range(len(spot)):
                count += spot[c] == q
            then[q] = e
            e += count
            ends[s, q] = e
        then[none] = len(which) - len(some)
        for c in range(len(some)):
            n = then[spot[c]]
            which[n], value[n] = c, some[c]
            then[spot[c]] = n + 1


@compiled
def _spots(side: int, across: int) -> Array:
    """Which spot of a window is so far from its corner, where so many answers stand in a row."""
    spots = np.zeros((side - 1) * across + side, np.int64)
    for q in range(side * side):
        spots[q // side * across + q % side] = q
    return spots


@compiled
def to_filters(
    g: Array, place: Array, begin: Array, x: Array, down: int, apart: int, wide: tuple[int, ...], dw: Array,
    first: int, last: int,
) -> None:  # fmt: skip
    """Some filters' gradient, dw [C, k, L], zeros before, from the examples x [B, n].

    What an answer has seen begins at begin[place], and its next row so much further down. Lines are so far apart: side
    by side, or, where a line holds all of a row, one below the other, and dw is [C, 1, k L].
    """
    windows, filters, rows, length = g.shape[1] * g.shape[2], g.shape[3], dw.shape[1], dw.shape[2]
    run, flat = len(wide) * LINE // g.itemsize, dw.reshape(-1)
    often = rows * length > run  # a filter takes several passes: what is not zero is gathered first
    which, value = np.empty((last - first, windows + 1), np.int64), np.empty((last - first, windows + 1), g.dtype)
    for b in range(len(g)):
        some, at, ends = g[b].reshape(-1), place[b].reshape(-1), np.zeros(last - first, np.int64)
        for c in range(first, last if often else first):
            n = 0
            for s in range(c, windows * filters, filters):
                which[c - first, n], value[c - first, n] = at[s], some[s]
                n += some[s] != 0
            ends[c - first] = n
        for i in range(rows):
            for a in range(0, length, run):
                seen = x[b, i * down + a :]
                for c in range(first, last):
                    to = (c * rows + i) * length + a
                    if often:
                        names, values, many = which[c - first], value[c - first], ends[c - first]
                        add_runs(flat, to, seen, begin, names, values, 1, many, apart, wide)
                    else:
                        add_runs(flat, to, seen, begin, at[c:], some[c:], filters, windows, apart, wide)


def try_out() -> None:
    """Compile, or load what was compiled before, in float32."""
    g, place, line = (
        np.ones((1, 1, 1, 1), np.float32),
        np.zeros((1, 1, 1, 1), np.int32),
        np.zeros((1, 1, 16), np.float32),
    )
    largest(g, (0,), g.copy(), place, 0, 1)
    to_inputs(g, place, 1, 1, line, 1, 1, (0,), line[0].copy(), 0, 1)
    to_filters(g, place, np.zeros(1, np.int64), line[0], 1, 16, (0,), line.copy(), 0, 1)
