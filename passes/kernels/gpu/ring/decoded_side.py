"""A side that a workgroup decodes once: from memory to the lanes that decode it, to LDS as floats.

In LDS a stage has a block of 32 floats of every row, in four pieces of 8 elements. Piece p of row r
lies at place p ^ f(r), so that neither the 16 lanes that access 64 banks together (16 rows, the
same piece) nor the 8 lanes of 32 banks meet one twice:

    16 bytes:   place = 4 r + (p ^ f(r)),   f(r) = r / 2 mod 4 ^ r / 8 mod 2

A lane decodes a block of its row, of each side, in every stage. Where there are half as many rows
as lanes or fewer, it decodes a part of a block, the same as the other lanes of its 16, so that
they write as above, and a wave loads whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.dialects.amdgpu import thread
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.decoded_block import decoded_block
from mxc.passes.kernels.gpu.floats import FloatBlocks, split_floats
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT, K_STEPS, TileInstruction
from mxc.passes.kernels.gpu.lanes import LANES, Lane, short
from mxc.passes.kernels.gpu.panels import along, start_of, within
from mxc.passes.kernels.gpu.parts import load_bytes
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.gpu.side_scales import SideScales
from mxc.passes.kernels.vectors import (
    below,
    bitcast,
    concat,
    elements,
    i8,
    i32,
    lanes_of,
    of,
    part_of,
)

#: Lanes that have the same part of a block.
_TOGETHER = 16
#: Waves of a workgroup: one a SIMD.
WAVES = 4
#: Bytes of a piece: a read or a write of a lane.
PIECE = 16
#: Pieces of a block, and its bytes.
PIECES = BLOCK // FRAGMENT
BLOCK_BYTES = PIECES * PIECE


class DecodedSide:
    """One side, for one lane: `buffers` in memory, `start` of its bytes in a slot of `memory`.

    `rows`: of the workgroup's tile; `row_of`: the row in memory of one of them; `first`: the first
    row of this wave's tiles.
    """

    def __init__(
        self,
        kind: ScaledBlocks | FloatBlocks,
        register: Register,
        instruction: TileInstruction,
        lane: Lane,
        buffers: Sequence[ir.Value],
        rows: int,
        memory: ir.Value,
        start: int,
        first: ir.Value,
        row_of: Callable[[ir.Value], ir.Value],
    ) -> None:
        """At the insertion point: what is the same in all stages."""
        self.kind, self._register, self._rows = kind, register, instruction.rows
        self._unit = instruction.unit
        self.parts = parts_of_side(kind, register)
        self._elements, self._memory = buffers[0], memory
        self._share = lanes_of_block(kind, rows)
        sixteen = thread() // _TOGETHER
        self._own = sixteen % self._share
        own = (sixteen // self._share * _TOGETHER + thread() % _TOGETHER) % rows
        self._row = row_of(own)
        self._start = start_of(kind, self._row) + within(kind, self._own * self._size)
        self._part_bytes = rows * BLOCK_BYTES
        first_piece = self._own * self.pieces
        self._into = [_place(own, first_piece + piece) + start for piece in range(self.pieces)]
        row = lane.row
        self._from = [
            _place(row, lane.group + part * instruction.groups) + (first * BLOCK_BYTES + start)
            for part in range(PIECES // instruction.groups)
        ]
        self._scales: SideScales | None = None
        if isinstance(kind, ScaledBlocks):
            self._scales = SideScales(kind, instruction, lane, buffers[1], (self._row,))

    @property
    def pieces(self) -> int:
        """Pieces of a block that a lane decodes."""
        return PIECES // self._share

    @property
    def is_stored_as_it_is(self) -> bool:
        """Whether a lane stores floats as it has loaded them."""
        return isinstance(self.kind, FloatBlocks) and self.kind.memory == self._register

    @property
    def _size(self) -> int:
        """Bytes of a block that a lane decodes."""
        return self.kind.block_bytes // self._share

    def load(self, block: ir.Value) -> list[ir.Value]:
        """The bytes of this lane's part of a block of its row, as i32; zero past the end."""
        inside = below(block, self.kind.blocks)
        start = self._start + along(self.kind, block * self.kind.block_bytes)
        # Blocks of 24 bytes lie on multiples of 8.
        size = next(size for size in (PIECE, 8, 12, 4) if self._size % size == 0)
        found = [
            load_bytes(self._elements, start + at, size, inside)
            for at in range(0, self._size, size)
        ]
        return [bitcast(each, i32(), size // 4) for each in found]

    def scales(self, four: ir.Value) -> list[ir.Value]:
        """The scales of four blocks of this lane's row, i32, after `four` such groups."""
        if self._scales is None or self._scales.kind.multiplies_sums:
            return []
        # Those of blocks past the end are used by nothing; but a load that goes beyond the end of
        # the buffer gives nothing at all.
        masked = self.kind.blocks % K_STEPS > 0
        found = self._scales.of_four(self._row, four * K_STEPS, masked=masked)
        words = elements(bitcast(found, i32(), lanes_of(found) // 4))
        if self._own_scales == self._scales.kind.scales:
            return words
        # Of two scales the lane's is the first of each pair then.
        second = short(self._own // (self._share // 2)) << 3
        return [word >> second for word in words]

    @property
    def _own_scales(self) -> int:
        """Scales of what a lane decodes of a block."""
        assert isinstance(self.kind, ScaledBlocks)
        return self.kind.scales if self._share == 1 else 1

    def decode(
        self, loaded: Sequence[ir.Value], scales: Sequence[ir.Value], number: int
    ) -> list[list[ir.Value]]:
        """This lane's part of block `number` of four as pieces of floats, [piece][part]."""
        kind = self.kind
        if isinstance(kind, FloatBlocks):
            each = FRAGMENT * kind.bits // 8 // PIECE
            runs = [concat(loaded[at : at + each]) for at in range(0, len(loaded), each)]
            floats = [bitcast(run, kind.element, FRAGMENT) for run in runs]
            return [split_floats(kind, run, self._register) for run in floats]
        # Not as bytes, of which LLVM would make registers.
        block = [word for each in loaded for word in elements(each)]
        own = part_of(_bytes(scales), number * kind.scales, self._own_scales) if scales else None
        floats = decoded_block(kind, self._unit, self._register, _bytes(block), own)
        return [[piece] for piece in floats]

    def write(self, piece: int, part: int, floats: ir.Value, slot: int) -> None:
        """Store a piece of this lane's part of a block to a slot."""
        at = self._into[piece] + (slot + part * self._part_bytes)
        vector.store(bitcast(floats, i8(), PIECE), self._memory, [at], alignment=PIECE)

    def read(self, tile: int, part: int, number: int, slot: int) -> ir.Value:
        """The floats of this lane's row of a tile: what its group has in part `number` of a
        stage, of one `part` of those that add up."""
        at = self._from[number]
        at = at + (slot + part * self._part_bytes + tile * self._rows * BLOCK_BYTES)
        found = vector.load(of(i8(), PIECE), self._memory, [at], alignment=PIECE)
        return bitcast(found, ir.Type.parse(self._register), FRAGMENT)


def _bytes(words: Sequence[ir.Value]) -> ir.Value:
    """The bytes of some i32."""
    whole = vector.from_elements(of(i32(), len(words)), list(words))
    return bitcast(whole, i8(), 4 * len(words))


def lanes_of_block(kind: ScaledBlocks | FloatBlocks, rows: int) -> int:
    """Lanes that decode a block, where a workgroup has so many rows: each has pieces, and whole
    registers."""
    most = PIECES if kind.block_bytes % (PIECES * 4) == 0 else PIECES // 2
    return min(most, 1 << max(0, (WAVES * LANES // rows).bit_length() - 1))


def parts_of_side(kind: ScaledBlocks | FloatBlocks, register: Register) -> int:
    """The floats in registers whose sum is an element."""
    return kind.parts(register) if isinstance(kind, FloatBlocks) else 1


def _place(row: ir.Value, piece: ir.Value | int) -> ir.Value:
    """The byte of a piece of a row."""
    swizzle = row // 2 % PIECES ^ row // 8 % 2
    return row * BLOCK_BYTES + (swizzle ^ piece) * PIECE
