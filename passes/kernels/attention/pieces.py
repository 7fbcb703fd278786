"""Pieces of keys put together: the second kernel where the first one shares the keys out.

The first kernel leaves, for each piece and row, what its weights and values come to, then in one
register more their maximum (lane 0) and their total (the other lanes), the sink not among them:

    result[row] = sum of exp(m[p] - m) values[p] / (exp(sink - m) + sum of exp(m[p] - m) total[p])

with m the greatest of the m[p] and the sink. Pieces are added in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math, scf, vector

from mxc.passes.kernels.attention.shape import Attention
from mxc.passes.kernels.attention.staging import extended
from mxc.passes.kernels.attention.tile import FLOOR
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.exponential import exponential, greater
from mxc.passes.kernels.vectors import broadcast, index, load, loop, splat

#: Registers of a row that are summed at once.
SUMS = 8


def pieces_buffers(shape: Attention) -> list[ir.Type]:
    """Memrefs of what the first kernel left, the sinks, and the result."""
    f32 = ir.F32Type.get()
    whole = [shape.tokens, shape.heads, shape.group, shape.mixed]
    return [
        ir.MemRefType.get(shape.result_shape(), f32),
        shape.sinks_buffer(),
        ir.MemRefType.get(whole, f32),
    ]


def join_pieces(shape: Attention, buffers: Sequence[ir.Value], pieces: ir.Value) -> None:
    """Build the body at the insertion point; a workgroup has the query heads of a token."""
    parts, sinks, result = buffers
    lanes, depth, f32 = shape.lanes, shape.mixed, ir.F32Type.get()
    head, token = workgroup(0), workgroup(1)
    with loop(index(0), index(shape.group), index(1)) as (member, _, _):
        row = arith.addi(arith.muli(token, index(shape.group)), member)

        def number(piece: ir.Value, at: int, row: ir.Value = row) -> ir.Value:
            return broadcast(parts, [piece, head, row, index(depth + at)], lanes)

        sink = extended(broadcast(sinks, [head, member], lanes))
        initial = greater(splat(FLOOR, f32, lanes), sink)
        with loop(index(0), pieces, index(1), [initial]) as (piece, (highest,), op):
            scf.YieldOp([greater(number(piece, 0), highest)])
        maximum = op.results[0]
        zero, whole = splat(0.0, f32, lanes), depth // lanes
        registers = max(n for n in range(1, SUMS + 1) if whole % n == 0)
        start = [exponential(arith.subf(sink, maximum)), *[zero] * registers]
        with loop(index(0), index(depth), index(registers * lanes)) as (first, _, _):
            columns = [arith.addi(first, index(i * lanes)) for i in range(registers)]
            with loop(index(0), pieces, index(1), start) as (piece, (total, *sums), op):
                factor = exponential(arith.subf(number(piece, 0), maximum))
                total = math.fma(number(piece, 1), factor, total)
                for i, at in enumerate(columns):
                    part = load(parts, [piece, head, row, at], f32, lanes)
                    sums[i] = math.fma(part, factor, sums[i])
                scf.YieldOp([total, *sums])
            total, *sums = op.results
            for at, mixed in zip(columns, sums, strict=True):
                vector.store(arith.divf(mixed, total), result, [token, head, member, at])
            scf.YieldOp([])
        scf.YieldOp([])
