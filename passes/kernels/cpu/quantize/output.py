"""Results of a kernel that become MX blocks along the columns before they leave it.

Columns of a block come in several registers, at different times: they wait as f32 in memory that
stays in the nearest cache, [rows of a tile, 32]. Then every row is a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.passes.kernels.cpu.quantize.blocks import largest_of
from mxc.passes.kernels.cpu.quantize.halves import of_floats, packed
from mxc.passes.kernels.cpu.quantize.rounding import Rounding
from mxc.passes.kernels.extents import Buffer, Size
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import f32, i8, i32, index, load, loop, scratch


def buffers(rounding: Rounding, rows: Size, columns: int) -> list[Buffer]:
    """The packed elements and the scales of results [rows, columns]."""
    blocks = columns // BLOCK
    size = rounding.format.block_bytes
    return [Buffer([rows, blocks, size], i8()), Buffer([rows, blocks], i8())]


@dataclass(frozen=True)
class BlockTile:
    """A block of each row of a tile; `elements` and `scales` are where they go."""

    rounding: Rounding
    elements: ir.Value
    scales: ir.Value
    waiting: ir.Value
    places: ir.Value

    @staticmethod
    def of(rounding: Rounding, elements: ir.Value, scales: ir.Value, rows: int) -> BlockTile:
        """With memory for tiles of so many rows."""
        waiting = scratch([rows, BLOCK], f32())
        return BlockTile(rounding, elements, scales, waiting, scratch([rows], i32()))

    def put(self, value: ir.Value, row: int, column: ir.Value) -> None:
        """Results f32 from a column of the block on, in row `row` of the tile."""
        vector.store(value, self.waiting, [index(row), column])

    def store(self, rows: Sequence[ir.Value], block: ir.Value) -> None:
        """Quantize the block of each row. `rows`: where they are in the result."""
        for number, row in enumerate(rows):
            memref.StoreOp(arith.index_cast(i32(), row), self.places, [index(number)])
        with loop(index(0), index(len(rows)), index(1)) as (number, _, _):
            halves = of_floats(load(self.waiting, [number, index(0)], f32(), BLOCK))
            amax = largest_of(halves)
            byte = self.rounding.scale(amax)
            first, second = self.rounding.codes(halves, amax, byte)
            raw = packed((first, second), None, self.rounding.format.element)
            place = memref.LoadOp(self.places, [number]).result
            row = arith.index_cast(ir.IndexType.get(), place)
            vector.store(raw, self.elements, [row, block, index(0)])
            memref.StoreOp(arith.trunci(i8(), byte), self.scales, [row, block])
