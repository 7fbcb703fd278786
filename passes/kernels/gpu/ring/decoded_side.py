"""A side that a workgroup decodes once: lanes load it to registers, decode it, and write it to LDS.

In LDS a stage has a block of 32 floats of every row, in four pieces of 8 elements, 16 bytes each.
Piece p of row r lies at place p ^ f(r) of its row. So there are no bank conflicts: neither between
the 16 lanes (16 rows, the same piece) that access an LDS of 64 banks together, nor between the 8
lanes that access one of 32 banks together:

    16 bytes:   place = 4 r + (p ^ f(r)),   f(r) = r / 2 mod 4 ^ r / 8 mod 2

In every stage a lane decodes a block of its row, of each side. If a workgroup has at least twice as
many lanes as rows, several lanes share a block and decode a part of it each. 16 adjacent lanes have
the same part of 16 rows, so that they write as above; a wave still loads whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.dialects.amdgpu import thread
from mxc.passes.kernels.gpu.bounded_views import load_bytes
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.decoded_block import decoded_block
from mxc.passes.kernels.gpu.floats import FloatBlocks, split_floats
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT, K_STEPS, TileInstruction
from mxc.passes.kernels.gpu.lanes import LANES, Lane, short
from mxc.passes.kernels.gpu.panels import along, start_of, within
from mxc.passes.kernels.gpu.ring.staging import PIECE
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

#: Adjacent lanes that decode the same part of the blocks of their rows.
_TOGETHER = 16
#: Waves of a workgroup: one a SIMD.
WAVES = 4
#: Pieces of a decoded block, and its bytes in LDS.
PIECES = BLOCK // FRAGMENT
BLOCK_BYTES = PIECES * PIECE


class DecodedSide:
    """One side, for one lane.

    `buffers`: elements, and scales if it has some, in memory; `rows`: number of rows of the
    workgroup's tile; `memory`: LDS; `start`: where the side begins in a slot, in bytes; `first`:
    the first row of this wave's tiles; `row_of`: gives the row in memory of a row of the
    workgroup's tile.
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
        """Build, at the insertion point, what is the same in all stages."""
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
        """Number of pieces of a block that a lane decodes."""
        return PIECES // self._share

    @property
    def is_stored_as_it_is(self) -> bool:
        """Whether the side is floats that are stored to LDS as they were loaded."""
        return isinstance(self.kind, FloatBlocks) and self.kind.memory == self._register

    @property
    def _size(self) -> int:
        """Bytes in memory of the part of a block that a lane decodes."""
        return self.kind.block_bytes // self._share

    def load(self, block: ir.Value) -> list[ir.Value]:
        """Load this lane's part of a block of its row, vectors of i32; zero past the end of K."""
        inside = below(block, self.kind.blocks)
        start = self._start + along(self.kind, block * self.kind.block_bytes)
        # Blocks of 24 bytes (6-bit elements) are aligned to 8.
        size = next(size for size in (PIECE, 8, 12, 4) if self._size % size == 0)
        found = [
            load_bytes(self._elements, start + at, size, inside)
            for at in range(0, self._size, size)
        ]
        return [bitcast(each, i32(), size // 4) for each in found]

    def scales(self, four: ir.Value) -> list[ir.Value]:
        """Load the scales of four blocks of this lane's row, after `four` such groups, as i32."""
        if self._scales is None or self._scales.kind.has_f32_scales:
            return []
        # Scales past the end of K are not used. But a load that reaches beyond the end of the
        # buffer would return none of its scales.
        masked = self.kind.blocks % K_STEPS > 0
        found = self._scales.load_four(self._row, four * K_STEPS, masked=masked)
        words = elements(bitcast(found, i32(), lanes_of(found) // 4))
        if self._own_scales == self._scales.kind.scales:
            return words
        # A block has two scales, the lane's part one of them: move it to the first of each pair.
        second = short(self._own // (self._share // 2)) << 3
        return [word >> second for word in words]

    @property
    def _own_scales(self) -> int:
        """Number of scales of the part of a block that a lane decodes."""
        assert isinstance(self.kind, ScaledBlocks)
        return self.kind.scales if self._share == 1 else 1

    def decode(
        self, loaded: Sequence[ir.Value], scales: Sequence[ir.Value], number: int
    ) -> list[list[ir.Value]]:
        """Return this lane's part of block `number` of four as floats, [piece][part]."""
        kind = self.kind
        if isinstance(kind, FloatBlocks):
            each = FRAGMENT * kind.bits // 8 // PIECE
            runs = [concat(loaded[at : at + each]) for at in range(0, len(loaded), each)]
            floats = [bitcast(run, kind.element, FRAGMENT) for run in runs]
            return [split_floats(kind, run, self._register) for run in floats]
        # In i32, not in bytes: LLVM would give each byte a register.
        block = [word for each in loaded for word in elements(each)]
        own = part_of(_bytes(scales), number * kind.scales, self._own_scales) if scales else None
        floats = decoded_block(kind, self._unit, self._register, _bytes(block), own)
        return [[piece] for piece in floats]

    def write(self, piece: int, part: int, floats: ir.Value, slot: int) -> None:
        """Store a piece of this lane's part of a block to a slot. `part`: as in `read`."""
        at = self._into[piece] + (slot + part * self._part_bytes)
        vector.store(bitcast(floats, i8(), PIECE), self._memory, [at], alignment=PIECE)

    def read(self, tile: int, part: int, number: int, slot: int) -> ir.Value:
        """Read 8 floats of this lane's row of a tile: those of its lane group in half `number` of a
        stage. `part`: which of the floats that add up to an element."""
        at = self._from[number]
        at = at + (slot + part * self._part_bytes + tile * self._rows * BLOCK_BYTES)
        found = vector.load(of(i8(), PIECE), self._memory, [at], alignment=PIECE)
        return bitcast(found, ir.Type.parse(self._register), FRAGMENT)


def _bytes(words: Sequence[ir.Value]) -> ir.Value:
    """Return the bytes of some i32 as one vector."""
    whole = vector.from_elements(of(i32(), len(words)), list(words))
    return bitcast(whole, i8(), 4 * len(words))


def lanes_of_block(kind: ScaledBlocks | FloatBlocks, rows: int) -> int:
    """Return how many lanes decode a block of a side of which a workgroup has so many rows. Each
    of them has whole pieces, and whole registers of packed elements."""
    most = PIECES if kind.block_bytes % (PIECES * 4) == 0 else PIECES // 2
    return min(most, 1 << max(0, (WAVES * LANES // rows).bit_length() - 1))


def parts_of_side(kind: ScaledBlocks | FloatBlocks, register: Register) -> int:
    """Return how many floats of type `register` add up to an element: several if f16 or f32 is
    split into bf16."""
    return kind.parts(register) if isinstance(kind, FloatBlocks) else 1


def _place(row: ir.Value, piece: ir.Value | int) -> ir.Value:
    """Return where a piece of a row begins in LDS, in bytes."""
    swizzle = row // 2 % PIECES ^ row // 8 % 2
    return row * BLOCK_BYTES + (swizzle ^ piece) * PIECE
