"""Steps of `windows` in whole cache lines, spelled out for the compiler: it would not find them in loops by itself.

Imported only where that is.
"""

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.np.arrayobj import make_array

from fedstrata.kernels import LINE

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
