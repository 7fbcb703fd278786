"""Where a lane stands: in its wave, its wave in the workgroup, and small operations on indices."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.amdgpu import pinned, thread, uniform
from mxc.dialects.generic import constant
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.vectors import i32, index

#: Lanes of a wave, where matrix instructions take scales.
LANES = 64


def short(value: ir.Value) -> ir.Value:
    """An index that is below 2 ** 31 as i32: instructions of 64 bits are several each."""
    return arith.index_cast(ir.IntegerType.get_signless(32), value)


def long(value: ir.Value) -> ir.Value:
    """An i32 that is not negative as an index."""
    return arith.index_castui(ir.IndexType.get(), value)


def unknown_zero() -> ir.Value:
    """An index that is zero, which LLVM does not know: what follows from it is computed where the
    program says so. Neither does it wait in registers, nor what is in shared memory there."""
    return long(pinned([constant(0, i32())])[0])


def at_most(a: ir.Value, b: ir.Value | int) -> ir.Value:
    """The lesser of both, of what is not negative."""
    return arith.minui(a, constant(b, a.type) if isinstance(b, int) else b)


@dataclass(frozen=True)
class Lane:
    """`row` of its tile of lhs, `column` of that of rhs, `block` along K of those of a k-step.

    `group`: which rows of the result it has; `wave` of the workgroup, a scalar.
    """

    lane: ir.Value
    row: ir.Value
    column: ir.Value
    block: ir.Value
    group: ir.Value
    wave: ir.Value


def lane_of(instruction: TileInstruction, start: ir.Value | None = None) -> Lane:
    """The lane that runs, at the insertion point. `start`: added to its number, if not None."""
    own = thread() if start is None else thread() + start
    lanes = instruction.unit.lanes
    lane = own % lanes
    row, group = lane % instruction.rows, lane // instruction.rows
    column = row
    if instruction.interleaved:
        # Row 2 e + g of the result is sum e of group g: it is given column 8 g + e.
        count = instruction.lane_groups
        column = row % count * instruction.run + row // count
    block = index(0) if instruction.unit.replicated else group
    return Lane(lane, row, column, block, group, uniform(own // lanes))
