"""Convert the result of a product to MX blocks along the columns, and store them.

A lane has quads of consecutive columns of one row. So a block of 32 lies in a few lanes: with tiles
of 16 rows in four lanes, one of each group, and two tiles; with tiles of 32 rows in two lanes, one
of each group, and one tile.

    16 rows   quad of tile t in group g: columns 16 t + 4 g          two quads a block, four lanes
    32 rows   quad q in group g:         columns 8 q + 4 g           four quads a block, two lanes

v_permlane{16,32}_swap exchanges quads between groups, after which a lane has 8 (16) consecutive
columns:

    16 rows   group g: 16 (g % 2) + 8 (g / 2) ..
    32 rows   group g: 16 g ..

The lanes of a block find its largest magnitude by the same exchanges. Blocks are converted as in
blocks/quantize.py, and a lane stores its elements with one store. Eight elements of 6 bits are no
whole registers: there, one of two lanes with consecutive columns stores for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import BEYOND, no_reordering
from mxc.dialects.amdgpu_narrow import swapped
from mxc.passes.kernels.extents import Buffer, Size, product
from mxc.passes.kernels.gpu.conversions import BlockConversion
from mxc.passes.kernels.gpu.fragments import BLOCK, QUAD, TileInstruction
from mxc.passes.kernels.gpu.lanes import Lane
from mxc.passes.kernels.vectors import bitcast, equal, f32, i8, i32, index, of


def tiles_of(instruction: TileInstruction) -> int:
    """Tiles along the columns that hold a block."""
    return BLOCK // instruction.rows


@dataclass(frozen=True)
class BlockOutput:
    """Results [rows, width] that are stored as blocks, to bounded buffers: `elements`, i32, and
    `scales`, i8."""

    conversion: BlockConversion
    width: int
    instruction: TileInstruction
    lane: Lane
    elements: ir.Value
    scales: ir.Value

    @staticmethod
    def row_sizes(conversion: BlockConversion, width: int) -> tuple[int, int]:
        """Words (i32) of the elements of a row, and bytes of its scales."""
        blocks = width // BLOCK
        return blocks * conversion.format.block_bytes // 4, blocks

    @staticmethod
    def buffers(conversion: BlockConversion, rows: Size, width: int) -> list[Buffer]:
        """The buffers of the elements and of the scales of so many rows."""
        sizes = BlockOutput.row_sizes(conversion, width)
        return [
            Buffer([product(rows, size)], element)
            for size, element in zip(sizes, (i32(), i8()), strict=True)
        ]

    def store(
        self, quads: Sequence[ir.Value], row: ir.Value, column: ir.Value, inside: ir.Value
    ) -> None:
        """Convert and store a block of each row of a tile. `quads`: those that this lane has of the
        block, f32 [4], by column.

        `row`: the row of this lane. `column`: the first column of the block, the same in all lanes
        of the wave. `inside`: whether the result has this block. All lanes of the wave have to run.
        """
        values = self._run(quads)
        byte = self.conversion.scale(values, self._across)
        packed, at, holds = self._words(self.conversion.elements(values, byte))
        block = row * (self.width // BLOCK) + column // BLOCK
        at = block * (self.conversion.format.block_bytes // 4) + at
        stores = inside if holds is None else inside & holds
        at = arith.select(stores, at, index(BEYOND // 4))
        vector.store(packed, self.elements, [at])
        stores = inside & self._is(self.lane.group)
        at = arith.select(stores, block, index(BEYOND))
        memref.StoreOp(arith.trunci(i8(), byte), self.scales, [at])
        # Blocks are not interleaved: that would take the registers of another wave.
        no_reordering()

    def _run(self, quads: Sequence[ir.Value]) -> ir.Value:
        """Exchange quads with other lanes: the consecutive columns of this lane, f32 [8] or
        [16]."""
        size, runs = self.instruction.rows, []
        bits = [bitcast(quad, i32(), QUAD) for quad in quads]
        half = len(quads) // 2
        for first, second in zip(bits[:half], bits[half:], strict=True):
            pairs = [
                swapped(vector.extract(first, [], [at]), vector.extract(second, [], [at]), size)
                for at in range(QUAD)
            ]
            runs += [low for low, _ in pairs] + [high for _, high in pairs]
        whole = vector.from_elements(of(i32(), len(runs)), runs)
        return bitcast(whole, f32(), len(runs))

    def _across(self, largest: ir.Value) -> ir.Value:
        """The largest i32 of all lanes that have columns of the block."""
        for size in (16, 32):
            if size >= self.instruction.rows:
                largest = arith.maxsi(*swapped(largest, largest, size))
        return largest

    def _words(self, packed: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """Return the words that this lane stores, the word of the block at which they begin, and
        whether the lane stores (None: every lane does)."""
        words = BLOCK // 2 * self.conversion.format.element.bits // 32
        group = self.lane.group
        if self.instruction.rows == BLOCK:
            return packed, group * words, None
        start, late = group % 2 * words, group // 2
        if words % 2 == 0:
            return packed, start + late * (words // 2), None
        # The 48 bits of this lane, then the 48 of the lane that has the next columns.
        words_of = [vector.extract(packed, [], [at]) for at in range(2)]
        (low, next_low), (high, next_high) = (swapped(word, word, 32) for word in words_of)
        middle = high | next_low << 16
        last = next_low >> 16 | next_high << 16
        both = vector.from_elements(of(i32(), words), [low, middle, last])
        return both, start, self._is(late)

    def _is(self, number: ir.Value) -> ir.Value:
        return equal(number, 0)
