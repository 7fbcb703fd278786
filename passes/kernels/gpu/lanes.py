"""The place of a lane in its wave, and of its wave in the workgroup; operations on indices."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.amdgpu import pinned, thread, uniform
from mxc.dialects.generic import constant
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.vectors import i32, index

#: Lanes of a wave on gfx950 and gfx942, for kernels that other GPUs do not have, such as rings.
LANES = 64


def short(value: ir.Value) -> ir.Value:
    """Return an index below 2 ** 31 as i32: 64-bit operations take several instructions each."""
    return arith.index_cast(ir.IntegerType.get_signless(32), value)


def long(value: ir.Value) -> ir.Value:
    """Return an i32 that is not negative as an index."""
    return arith.index_castui(ir.IndexType.get(), value)


def unknown_zero() -> ir.Value:
    """Return an index that is zero, which LLVM does not know.

    What depends on it is computed after this point. So LLVM neither computes addresses earlier and
    keeps them in registers, nor values that are loaded from shared memory at such addresses.
    """
    return long(pinned([constant(0, i32())])[0])


def at_most(a: ir.Value, b: ir.Value | int) -> ir.Value:
    """Return the minimum of two values that are not negative."""
    return arith.minui(a, constant(b, a.type) if isinstance(b, int) else b)


@dataclass(frozen=True)
class Lane:
    """The place of a lane, as index values.

    `lane`: its number in the wave. `row`: its row in a tile of lhs. `column`: its row in a tile of
    rhs, which is a column of the result. `block`: its block along K among those of a k-step.
    `group`: its lane group, which decides what sums of a tile it holds. `wave`: the number of its
    wave in the workgroup, in a scalar register.
    """

    lane: ir.Value
    row: ir.Value
    column: ir.Value
    block: ir.Value
    group: ir.Value
    wave: ir.Value


def lane_of(instruction: TileInstruction, start: ir.Value | None = None) -> Lane:
    """Build the place of the lane that runs, at the insertion point.

    `start`: an index that is added to the number of the lane in its workgroup, if not None.
    """
    own = thread() if start is None else thread() + start
    lanes = instruction.unit.lanes
    lane = own % lanes
    row, group = lane % instruction.rows, lane // instruction.rows
    column = row
    if instruction.interleaved:
        # Sum e of group g is row 2 e + g of the result: column 8 g + e of the tile is passed there.
        count = instruction.lane_groups
        column = row % count * instruction.run + row // count
    block = index(0) if instruction.unit.replicated else group
    return Lane(lane, row, column, block, group, uniform(own // lanes))
