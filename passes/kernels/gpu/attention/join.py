"""Pieces added up: the second kernel, where the first one computed those of decoded tokens apart.

The first kernel leaves, for each piece and row, the sums of its weights and values, then their
maximum and their total (sums.py). A lane has four elements of a row, and adds the pieces that its
token sees, in their order, a few of them loaded at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.dialects.amdgpu import bounded, thread
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.gpu.attention.operands import extended, part
from mxc.passes.kernels.gpu.attention.shape import JOINED, TAIL, Attention, pieces_between
from mxc.passes.kernels.gpu.attention.softmax import FLOOR, number, rounded, zero
from mxc.passes.kernels.gpu.attention.sums import Sums
from mxc.passes.kernels.gpu.lanes import at_most, below, divided, plus, rest, times
from mxc.passes.kernels.paged_attention import Scalars
from mxc.passes.kernels.runs import first_seen, read_run
from mxc.passes.kernels.vectors import f32, index, loop, of, when

#: Pieces that are loaded at once.
_PIECES = 8


def join_pieces(shape: Attention, buffers: Sequence[ir.Value], call: Scalars) -> None:
    """Build the body at the insertion point, over the memrefs of `joined_buffers_of`."""
    parts, sinks, runs, result = buffers
    run = read_run(runs, workgroup(1))
    quads = shape.mixed // TAIL
    own = plus(times(workgroup(0), JOINED), thread())
    decoded = arith.cmpi(arith.CmpIPredicate.eq, run.tokens, index(1))
    with when(arith.andi(decoded, below(own, shape.heads * shape.group * quads))):
        at = times(rest(own, quads), TAIL)
        member = rest(divided(own, quads), shape.group)
        head = divided(own, quads * shape.group)
        first = first_seen(shape.reach, run.before)
        count = pieces_between(first, run.before)
        sizes = [1, shape.heads, shape.group, shape.mixed + TAIL]

        def load(piece: ir.Value) -> Sums:
            place = arith.addi(arith.muli(piece, value_of(call.runs)), run.number)
            begin = [place, index(0), index(0), index(0)]
            left = bounded(part(parts, begin, sizes, kept=(1, 2, 3)))
            kind = of(f32(), TAIL)
            values = vector.load(kind, left, [head, member, at])
            tail = vector.load(kind, left, [head, member, index(shape.mixed)])
            maximum, total = (vector.extract(tail, [], [n]) for n in range(2))
            return Sums(maximum, total, [values])

        with loop(index(0), count, index(_PIECES), Sums.none([zero(TAIL)]).all) as (
            start,
            carried,
            op,
        ):
            (sums,) = Sums.each(carried, 1)
            numbers = [plus(start, n) for n in range(_PIECES)]
            for number_of, some in [
                (each, load(at_most(each, plus(count, -1)))) for each in numbers
            ]:
                there = below(number_of, count)
                maximum = arith.select(there, some.maximum, number(FLOOR))
                total = arith.select(there, some.total, number(0.0))
                values = arith.select(there, some.values[0], zero(TAIL))
                sums = sums.plus(Sums(maximum, total, [values]), careful=True)
            scf.YieldOp(sums.all)
        (sums,) = Sums.each(list(op.results), 1)
        sink = extended(memref.LoadOp(sinks, [head, member]).result)
        (whole,) = sums.finished(sink)
        vector.store(rounded(whole, shape.result), result, [run.first, head, member, at])
