"""Weights in rows, as a caller passes them, without packing.

    elements [experts * columns, row] as dwords, scales [experts * columns, row] as stored

Unit i of a block is dword i of as many rows as a register has lanes: one gather, which costs as
much as about a dozen instructions. With many rows of activations, all tiles therefore share the
decoded weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.passes.kernels.cpu.isa import Isa
from mxc.passes.kernels.cpu.weights import Column, RegisterWeights
from mxc.passes.kernels.extents import Buffer
from mxc.passes.kernels.vectors import bitcast, i1, i8, i32, index, of, splat, table


@dataclass(frozen=True)
class RowNumbers(Column):
    """The columns of a register, for weights in rows. `numbers`: i32, the row of each lane; lanes
    past the last row read the last row."""

    numbers: ir.Value


@dataclass(frozen=True)
class RowWeights(RegisterWeights):
    """Weights in rows: `rows` rows per expert, of `blocks` blocks each."""

    rows: int = 0
    blocks: int = 0

    @property
    def packed(self) -> bool:
        """Whether the weights lie in panels."""
        return False

    def buffers(self, experts: int, panels: int, blocks: int) -> list[Buffer]:
        """The elements as dwords, and the scales if any."""
        size = max(experts, 1) * self.rows * blocks
        units = Buffer([size * self.elements.units], i32())
        if self.scales is None:
            return [units]
        return [units, Buffer([size // self.scales.steps], self.scales.memory)]

    def column(self, isa: Isa, expert: Sequence[ir.Value], register: ir.Value) -> Column:
        """Describe the columns of a register by the rows of its lanes."""
        first = arith.index_cast(i32(), register * isa.lanes)
        lanes = table(np.arange(isa.lanes, dtype=np.int32), i32())
        numbers = vector.broadcast(lanes.type, first) + lanes
        numbers = arith.minui(numbers, splat(self.rows - 1, i32(), isa.lanes))
        for number in expert:
            base = arith.index_cast(i32(), number * self.rows)
            numbers = numbers + vector.broadcast(lanes.type, base)
        return RowNumbers((), index(0), numbers)

    def _unit(
        self, isa: Isa, elements: ir.Value, column: Column, block: ir.Value, unit: int
    ) -> ir.Value:
        """Gather a unit of a block: i8 [4 * lanes]."""
        units = self.elements.units
        at = block * units + unit
        found = _gathered(elements, column, at, self.blocks * units, isa.lanes)
        return bitcast(found, i8(), 4 * isa.lanes)

    def raw_scales(self, isa: Isa, scales: ir.Value, column: Column, block: ir.Value) -> ir.Value:
        """The scales of a block as stored."""
        assert self.scales is not None
        row = self.blocks // self.scales.steps
        return _gathered(scales, column, self._scale_of(block), row, isa.lanes)


def _gathered(source: ir.Value, column: Column, place: ir.Value, row: int, lanes: int) -> ir.Value:
    """Gather the element at `place` in the row of each lane. `row`: number of elements of a row."""
    assert isinstance(column, RowNumbers)
    element = ir.MemRefType(source.type).element_type
    starts = column.numbers * row
    every = splat(1, i1(), lanes)
    nothing = splat(0, element, lanes)
    return vector.gather(of(element, lanes), source, [place], starts, every, nothing)
