"""Pieces of keys put together: the second kernel where the first one shares the keys out.

The first kernel leaves, for each piece and row, what its weights and values come to, then their
maximum and their total, both in powers of two, the sink not among them:

    result[row] = sum of 2**(m[p] - m) values[p] / (2**(sink - m) + sum of 2**(m[p] - m) total[p])

with m the greatest of the m[p] and the sink. Pieces are added in their order. A lane has four
elements of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, scf, vector

from mxc.dialects.amdgpu import bounded, thread
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.gpu.attention.operands import extended
from mxc.passes.kernels.gpu.attention.shape import TAIL, Attention
from mxc.passes.kernels.gpu.attention.softmax import (
    FLOOR,
    LOG2_E,
    greatest,
    in_all,
    number,
    power,
    rounded,
    zero,
)
from mxc.passes.kernels.gpu.lanes import LANES, below, divided, plus, rest, times
from mxc.passes.kernels.vectors import f32, index, loop, of


def join_pieces(shape: Attention, buffers: Sequence[ir.Value], pieces: ir.Value) -> None:
    """Build the body at the insertion point."""
    parts, sinks, result = bounded(buffers[0]), buffers[1], bounded(buffers[2])
    quads = shape.mixed // TAIL
    own = plus(times(workgroup(0), LANES), thread())
    inside = scf.IfOp(below(own, shape.heads * shape.rows * quads))
    with ir.InsertionPoint(inside.then_block):
        at = times(rest(own, quads), TAIL)
        row = rest(divided(own, quads), shape.rows)
        head = divided(own, quads * shape.rows)
        token, member = divided(row, shape.group), rest(row, shape.group)
        sink = arith.mulf(extended(memref.LoadOp(sinks, [head, member]).result), number(LOG2_E))

        def load(piece: ir.Value, at: ir.Value) -> ir.Value:
            return vector.load(of(f32(), TAIL), parts, [piece, head, row, at])

        behind = index(shape.mixed)
        highest = greatest(number(FLOOR), sink)
        with loop(index(0), pieces, index(1), [highest]) as (piece, (greater,), op):
            maximum = vector.extract(load(piece, behind), [], [0])
            scf.YieldOp([greatest(greater, maximum)])
        top = op.results[0]
        start = [power(arith.subf(sink, top)), zero(TAIL)]
        with loop(index(0), pieces, index(1), start) as (piece, (total, sums), op):
            tail = load(piece, behind)
            factor = power(arith.subf(vector.extract(tail, [], [0]), top))
            total = math.fma(vector.extract(tail, [], [1]), factor, total)
            scf.YieldOp([total, math.fma(load(piece, at), in_all(factor, TAIL), sums)])
        total, sums = op.results
        whole = rounded(arith.divf(sums, in_all(total, TAIL)), shape.result)
        vector.store(whole, result, [token, head, member, at])
        scf.YieldOp([])
