"""The layout of a pipeline stage in LDS, and the loads and reads of the sides of a product.

A k-step is one instruction along K, two blocks; a stage is one k-step or two. A stage has the bytes
of every row in *pieces* of 16. A direct load to LDS moves a piece per lane, and stores the pieces
of the 64 lanes one after the other. Adjacent lanes load adjacent pieces of a row, so that memory is
read in whole segments. The pieces of a row are swizzled: piece p of row r lies at place p ^ f(r) of
the row. So the 16 lanes that read together (16 rows, the same piece) have no bank conflicts:

    16 bytes:   place = pieces * r + (p ^ f(r)),   f(r) = r / (16 / d) mod d,   d = gcd(pieces, 16)

A side that lies in panels in memory (panels.py) does so in LDS: adjacent lanes load the same piece
of adjacent rows, and the 16 lanes that read together read 256 consecutive bytes.

In k-step x of a stage, lane group g has this block:

    two k-steps   block 2 g + x: what a group reads of a row in both k-steps is consecutive
    one k-step    block g

A block of 6-bit elements is 24 bytes: a piece and half of another one, whose other half is of the
other k-step. So 6-bit elements need two k-steps per stage, unless they are decoded
(`StageLayout.halved`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import BEYOND, concat, load_to_shared
from mxc.formats.panels import PANEL
from mxc.passes.kernels.gpu.bounded_views import load_bytes
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT, TileInstruction, pieces, whole
from mxc.passes.kernels.gpu.lanes import LANES, Lane
from mxc.passes.kernels.gpu.panels import along, start_of, within
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import below, bitcast, equal, i8, i32, index, of, part_of

#: Bytes that a lane moves with one load to LDS or one read from it.
PIECE = 16
#: Time from the loads of a stage until it is needed, in memory latencies.
LATENCIES = 1.5
#: Lanes that read LDS together, 16 bytes each: one word from each of the 64 banks.
_TOGETHER = 16
#: The instruction of all rings but those of dense weights: tiles of 32 x 32, and two lane groups,
#: which have different blocks along K.
INSTRUCTION = TileInstruction(32)


def layout_bytes(rows: int, bits: int, blocks: int, waves: int) -> int:
    """Return the bytes of LDS for a side in a stage: a multiple of what all waves load at once.

    `rows`: of the side; `bits`: of an element; `blocks`: of a row in a stage; `waves`: that load.
    """
    whole = waves * LANES * PIECE
    size = rows * blocks * BLOCK * bits // 8
    return -(-size // whole) * whole


@dataclass(frozen=True)
class Slice:
    """Bytes `start` to `stop` of a piece of a row: lane group g has piece `first + across * g`."""

    first: int
    across: int
    start: int
    stop: int

    @property
    def piece(self) -> tuple[int, int]:
        """What identifies the piece: `first` and `across`."""
        return self.first, self.across


@dataclass(frozen=True)
class StageLayout:
    """The layout of one side in a stage: `rows` rows of `k_steps` k-steps, loaded by `waves` waves.

    `decoded`: each lane reads whole blocks, which it decodes to floats; `shared`: a k-step is one
    block, of which each lane group has a run of consecutive elements, instead of a block per group.
    If a group then has fewer than PIECE bytes of a block, pieces are that small; such a side is
    loaded straight to registers.
    """

    kind: ScaledBlocks | FloatBlocks
    rows: int
    k_steps: int
    waves: int
    instruction: TileInstruction = INSTRUCTION
    decoded: bool = False
    shared: bool = False

    @property
    def scaled(self) -> ScaledBlocks:
        """The side, which must have scales."""
        assert isinstance(self.kind, ScaledBlocks)
        return self.kind

    @property
    def blocks(self) -> int:
        """Blocks of a row in a stage."""
        return self.k_steps if self.shared else self.k_steps * self.instruction.groups

    def block(self, k_step: int, group: int) -> int:
        """Return the block of a row that a lane group has in a k-step.

        Both are counted from the start of a stage; `k_step` may lie in a later stage.
        """
        stage, part = divmod(k_step, self.k_steps)
        return stage * self.blocks + self.k_steps * group + part

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in a stage, both in memory and in LDS."""
        return self.blocks * self.kind.block_bytes

    @property
    def piece_bytes(self) -> int:
        """Bytes of a piece."""
        own = self.kind.block_bytes // self.instruction.groups
        return min(PIECE, own) if self.shared else PIECE

    @property
    def pieces(self) -> int:
        """Pieces of a row in a stage."""
        return self.row_bytes // self.piece_bytes

    @property
    def loads(self) -> int:
        """Direct loads to LDS that each wave issues for a stage."""
        return self.bytes // (self.waves * LANES * PIECE)

    @property
    def bytes(self) -> int:
        """Bytes of LDS for the side in a stage. Unused bytes may follow the rows, so that all waves
        issue as many loads."""
        return layout_bytes(self.rows, self.kind.bits, self.blocks, self.waves)

    @property
    def halved(self) -> bool:
        """Whether blocks are decoded from one and a half pieces: 6-bit elements, one k-step.

        The block of group 0 is bytes 0 to 23 of a row, that of group 1 bytes 24 to 47. A lane reads
        both pieces in which its block lies: two reads of 16 bytes have no bank conflicts, which
        three of 8 would have.
        """
        return self.decoded and self.k_steps == 1 and self.kind.block_bytes % PIECE > 0

    @property
    def _swizzle(self) -> int:
        """Number of places of a row over which pieces are swizzled: d of the module docstring."""
        return math.gcd(self.pieces, _TOGETHER)

    def place(self, row: ir.Value, piece: ir.Value) -> ir.Value:
        """Return the place in its row of a piece; given a place, the piece there."""
        if self._swizzle == 1:
            return piece
        return piece ^ row // (_TOGETHER // self._swizzle) % self._swizzle

    def row_and_piece(self, place: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return the row, and the piece of it, that lies in a place of 16 bytes of a stage."""
        if self.kind.panels:
            panel, rest = place // (PANEL * self.pieces), place % (PANEL * self.pieces)
            return panel * PANEL + rest % PANEL, rest // PANEL
        row = place // self.pieces
        return row, self.place(row, place % self.pieces)

    def at(self, first: ir.Value, row: ir.Value, piece: ir.Value) -> ir.Value:
        """Return the byte offset in a stage of a piece of row `first + row`.

        `first`: the first row of a tile, a multiple of 16.
        """
        if self.kind.panels:
            panel = (first + row) // PANEL
            return ((panel * self.pieces + piece) * PANEL + row % PANEL) * PIECE
        return (first + row) * self.row_bytes + self.place(row, piece) * PIECE

    @cached_property
    def slices(self) -> tuple[tuple[Slice, ...], ...]:
        """The slices that make up a lane's fragment, in their order, for each k-step."""
        return tuple(self._slices(k_step) for k_step in range(self.k_steps))

    @property
    def runs(self) -> tuple[tuple[Slice, ...], ...]:
        """The slices of a lane for each run of 8 floats of a stage; of a scaled side, `slices`."""
        if isinstance(self.kind, ScaledBlocks):
            return self.slices
        every = [one for own in self.slices for one in own]
        size = FRAGMENT * self.kind.bits // 8 // PIECE
        return tuple(tuple(every[at : at + size]) for at in range(0, len(every), size))

    def _slices(self, k_step: int) -> tuple[Slice, ...]:
        if self.shared:
            size, groups = self.piece_bytes, self.instruction.groups
            each = self.kind.block_bytes // size // groups
            first = groups * each * k_step
            return tuple(Slice(first + at, each, 0, size) for at in range(each))
        if self.halved:
            return Slice(0, 1, 0, PIECE), Slice(1, 1, 0, PIECE)
        found: list[Slice] = []
        bits = self.kind.bits
        for piece in whole(bits) if self.decoded else pieces(bits, INSTRUCTION):
            one, other = (
                self.kind.block_bytes * self.block(k_step, piece.first + group // piece.share)
                + piece.start
                + piece.stride * (group % piece.share)
                for group in range(INSTRUCTION.groups)
            )
            if (other - one) % PIECE:
                raise ValueError(f"{self}: lane groups read different halves of their pieces")
            first, start = divmod(one, PIECE)
            across = (other - one) // PIECE
            last = found[-1] if found else None
            if last is not None and (last.piece, last.stop) == ((first, across), start):
                found[-1] = Slice(first, across, last.start, start + piece.bytes)
            else:
                found.append(Slice(first, across, start, start + piece.bytes))
        return tuple(found)

    def new_pieces(self, k_step: int) -> tuple[tuple[int, int], ...]:
        """Return the pieces that a k-step reads; others were read for an earlier k-step."""
        known = {s.piece for earlier in self.slices[:k_step] for s in earlier}
        return tuple(s.piece for s in self.slices[k_step] if s.piece not in known)

    @property
    def shares(self) -> bool:
        """Whether k-steps of a stage share pieces."""
        return any(len(self.new_pieces(t)) < len(self.slices[t]) for t in range(self.k_steps))


#: Number of a tile, and a piece of its rows (`Slice.piece`).
Key = tuple[int, tuple[int, int]]
#: Pieces in registers.
Pieces = dict[Key, ir.Value]


class StagedSide:
    """A side that goes through LDS, for one lane: its loads to LDS, and its reads from there.

    `buffer`: the side in memory; `slots`: LDS; `start`: byte offset of the side in a slot; `first`:
    the first row of this wave's tiles; `row_of`: returns the row in memory of a row of the
    workgroup's tile.
    """

    def __init__(
        self,
        layout: StageLayout,
        lane: Lane,
        buffer: ir.Value,
        slots: ir.Value,
        start: int,
        first: ir.Value,
        row_of: Callable[[ir.Value], ir.Value],
    ) -> None:
        """Compute what is the same in all stages, at the insertion point."""
        self.layout, self.lane = layout, lane
        self._buffer, self._slots = buffer, slots
        self._rows = [self._split(number) for number in range(layout.loads)]
        self._offsets = [self._offset(row, piece, row_of) for row, piece in self._rows]
        loaded = lane.wave * (layout.loads * LANES * PIECE)
        self._into = loaded + start
        self._reads = {
            piece: layout.at(first, lane.row, self._piece(piece)) + start
            for k_step in range(layout.k_steps)
            for piece in layout.new_pieces(k_step)
        }

    def _piece(self, piece: tuple[int, int]) -> ir.Value:
        first, across = piece
        return self.lane.group * across + first

    def _split(self, number: int) -> tuple[ir.Value, ir.Value]:
        """Return the row of the workgroup's tile, and the piece of it, that this lane moves with
        load `number` of a stage."""
        layout = self.layout
        own = (self.lane.wave * layout.loads + number) * LANES + self.lane.lane
        return layout.row_and_piece(own)

    def _offset(
        self, row: ir.Value, piece: ir.Value, row_of: Callable[[ir.Value], ir.Value]
    ) -> ir.Value:
        layout = self.layout
        offset = start_of(layout.kind, row_of(row)) + along(layout.kind, piece * PIECE)
        if layout.bytes > layout.rows * layout.row_bytes:
            offset = arith.select(below(row, layout.rows), offset, index(BEYOND))
        return offset

    def load(
        self, number: int, stage: ir.Value, slot: ir.Value, *, left: int | ir.Value | None
    ) -> None:
        """Issue load `number` of a stage to a slot of LDS.

        `slot`: its offset; `left`: blocks that rows have from the stage on, None if the stage is
        whole. Pieces that begin past them become zero.
        """
        layout = self.layout
        _, piece = self._rows[number]
        start = self._offsets[number]
        further = along(layout.kind, stage * layout.row_bytes)
        offset = _offset(layout, start, further, piece * PIECE, left)
        into = slot + self._into + number * LANES * PIECE
        load_to_shared(self._buffer, offset, self._slots, into, PIECE)

    def read(self, tile: int, piece: tuple[int, int], slot: ir.Value) -> ir.Value:
        """Read a piece of this lane's row of a tile from a slot: i8 [16]."""
        at = self._reads[piece] + slot
        at = at + tile * self.layout.instruction.rows * self.layout.row_bytes
        return vector.load(of(i8(), PIECE), self._slots, [at], alignment=PIECE)

    def block(self, packed: ir.Value) -> ir.Value:
        """Return the lane's whole block from the bytes read: its 24 of 32 if `halved`, else all."""
        if not self.layout.halved:
            return packed
        size = self.layout.kind.block_bytes
        words = bitcast(packed, i32(), 2 * PIECE // 4)
        low, high = (part_of(words, at // 4, size // 4) for at in (0, 2 * PIECE - size))
        first = equal(self.lane.group, 0)
        return bitcast(arith.select(first, low, high), i8(), size)


class DirectSide:
    """A side of which each wave has its own rows, for one lane: its loads straight to registers.

    In LDS each byte would be written once and read once, for nothing. So a lane loads the pieces
    that it would read there to registers, some stages before their use. `rows`: this lane's row of
    each tile, in memory.
    """

    def __init__(
        self, layout: StageLayout, lane: Lane, buffer: ir.Value, rows: list[ir.Value]
    ) -> None:
        """Compute what is the same in all stages, at the insertion point."""
        self.layout, self._lane, self._buffer = layout, lane, buffer
        self._starts = [start_of(layout.kind, row) for row in rows]

    def load(
        self, tile: int, piece: tuple[int, int], stage: ir.Value, *, left: int | ir.Value | None
    ) -> ir.Value:
        """Load a piece of this lane's row of a tile: i8 [piece_bytes]. `left`: as in StagedSide."""
        first, across = piece
        layout = self.layout
        at = (self._lane.group * across + first) * layout.piece_bytes
        start = self._starts[tile] + within(layout.kind, at)
        further = along(layout.kind, stage * layout.row_bytes)
        offset = _offset(layout, start, further, at, left)
        return load_bytes(self._buffer, offset, layout.piece_bytes)


def _offset(
    layout: StageLayout,
    start: ir.Value,
    further: ir.Value,
    at: ir.Value,
    left: int | ir.Value | None,
) -> ir.Value:
    """Return the offset in memory `start + further`; if the row ends before it, an offset past the
    end of the buffer, where loads return zero.

    `start`: offset of the piece in the first stage; `further`: from there to the stage; `at`: byte
    of the row's part in the stage where the piece begins; `left`: blocks that the row has from the
    stage on, None if the stage is whole.
    """
    if left is None:
        return start + further
    if isinstance(left, ir.Value) and layout.kind.blocks % layout.blocks == 0:
        # K is a whole number of stages: one lies within it or not, for all lanes alike.
        return start + arith.select(below(index(0), left), further, index(BEYOND))
    there = below(at, left * layout.kind.block_bytes)
    return arith.select(there, start + further, index(BEYOND))


def fragment(layout: StageLayout, known: Pieces, tile: int, k_step: int) -> ir.Value:
    """Return the lane's elements of a tile for a scaled instruction, from the `known` pieces."""
    found = packed(layout, known, tile, k_step)
    return bitcast(found, ir.Type.parse(layout.scaled.format.element.mlir), BLOCK)


def packed(layout: StageLayout, known: Pieces, tile: int, k_step: int) -> ir.Value:
    """Return the bytes of the lane's fragment of a tile, i8 [n], from the `known` pieces."""
    return concat(
        [
            part_of(known[tile, one.piece], one.start, one.stop - one.start)
            for one in layout.slices[k_step]
        ]
    )
