"""Store the rows of a wave: their results, or the sums of one piece, which merge.py adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import memref, scf, vector

from mxc.dialects.amdgpu import bounded
from mxc.passes.kernels.gpu.attention.operands import WaveOperands, extended, part
from mxc.passes.kernels.gpu.attention.shape import TAIL
from mxc.passes.kernels.gpu.attention.softmax import number, rounded
from mxc.passes.kernels.gpu.attention.sums import Sums
from mxc.passes.kernels.gpu.attention.wave import LaneRow, Wave
from mxc.passes.kernels.gpu.lanes import long
from mxc.passes.kernels.vectors import elements, equal, f32, index, of, when


@dataclass(frozen=True)
class AttentionResult:
    """Stores rows of key/value head `head` to the memref `parts` or `result`. `tokens`: most tokens
    to which the rows of a wave belong. `sinks`: the memref of the call."""

    wave: Wave
    operands: WaveOperands
    head: ir.Value
    tokens: int
    sinks: ir.Value
    parts: ir.Value
    result: ir.Value

    def write(self, row: LaneRow, sums: Sums) -> None:
        """Store the result of a row, or, if the wave has one piece of several, its sums."""
        shape, own = self.operands.shape, self.wave
        branch = scf.IfOp(own.apart, has_else=True)
        with ir.InsertionPoint(branch.then_block):
            place = [own.part, self.head, index(0), index(0)]
            numbers = shape.mixed + TAIL
            left = bounded(part(self.parts, place, [1, 1, shape.group, numbers], kept=(2, 3)))
            # One lane of each row, of the wave with the first slice.
            lane = self.operands.first | self.operands.lane.group
            with when(equal(lane, 0)):
                tail = [sums.maximum, sums.total, number(0.0), number(0.0)]
                both = vector.from_elements(of(f32(), TAIL), tail)
                vector.store(both, left, [row.member, index(shape.mixed)])
            self._store(sums.values, left, [row.member])
            scf.YieldOp([])
        with ir.InsertionPoint(branch.else_block):
            place = [long(own.token), self.head, index(0), index(0)]
            sizes = [self.tokens, 1, shape.group, shape.mixed]
            result = bounded(part(self.result, place, sizes, kept=(0, 2, 3)))
            sink = extended(memref.LoadOp(self.sinks, [self.head, row.member]).result)
            self._store(sums.finished(sink), result, [long(row.token), row.member])
            scf.YieldOp([])

    def _store(self, values: Sequence[ir.Value], into: ir.Value, at: list[ir.Value]) -> None:
        """Store the lane's elements of a row. `values`: a vector of sums for each of `slots` matrix
        products. The sums at the same place of all products are adjacent elements of D."""
        shape, kind = self.operands.shape, str(ir.MemRefType(into.type).element_type)
        first = self.operands.lane.group * shape.sums
        for place, lanes in enumerate(zip(*map(elements, values), strict=True)):
            column = self.operands.first + (first + place) * shape.slots
            whole = vector.from_elements(of(f32(), shape.slots), list(lanes))
            vector.store(rounded(whole, kind), into, [*at, column])
