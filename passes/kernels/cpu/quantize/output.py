"""Quantize results of a kernel to MX blocks along the columns before they are stored.

The columns of a block are computed in several registers, at different times. They wait as f32 in
scratch in the nearest cache, [rows of a tile, 32], until every row is a complete block.
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
    """The buffers of results [rows, columns] as MX blocks: the packed elements, and the scales."""
    blocks = columns // BLOCK
    size = rounding.format.block_bytes
    return [Buffer([rows, blocks, size], i8()), Buffer([rows, blocks], i8())]


@dataclass(frozen=True)
class BlockTile:
    """Scratch for a block of each row of a tile. `elements`, `scales`: the memrefs of the result.
    `waiting`: the f32 results of incomplete blocks. `places`: scratch for the row numbers of the
    tile."""

    rounding: Rounding
    elements: ir.Value
    scales: ir.Value
    waiting: ir.Value
    places: ir.Value

    @staticmethod
    def of(rounding: Rounding, elements: ir.Value, scales: ir.Value, rows: int) -> BlockTile:
        """Allocate scratch for tiles of `rows` rows."""
        waiting = scratch([rows, BLOCK], f32())
        return BlockTile(rounding, elements, scales, waiting, scratch([rows], i32()))

    def put(self, value: ir.Value, row: int, column: ir.Value) -> None:
        """Keep f32 results of row `row` of the tile, from column `column` of the block on."""
        vector.store(value, self.waiting, [index(row), column])

    def store(self, rows: Sequence[ir.Value], block: ir.Value) -> None:
        """Quantize and store the block of each row of the tile. `rows`: their rows in the result.
        `block`: the index of the block along the columns."""
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
