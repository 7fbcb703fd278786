"""How a side of a product lies in shared memory while it is multiplied: stages of some k-steps.

A k-step is one instruction along K, two blocks; a stage is one k-step or two. A stage has the bytes
of every row in pieces of 16, the unit of a direct load to LDS, which puts the pieces of 64 lanes
one after the other. Adjacent lanes take adjacent pieces of a row, so that memory is read in whole
segments; but piece p of row r lies at place p ^ f(r) of the row, so that the 16 lanes that read
together (16 rows, the same piece) meet no bank twice:

    16 bytes:   place = pieces * r + (p ^ f(r)),   f(r) = r / (16 / d) mod d,   d = gcd(pieces, 16)

Where memory has panels (panels.py), so has a stage: adjacent lanes take the same piece of adjacent
rows, and the 16 lanes that read together read 256 bytes that lie together.

Lane group g has these blocks of a stage, in its k-step x:

    two k-steps   block 2 g + x: what a group reads of a row in both k-steps lies together
    one k-step    block g

24 bytes of a block of f6 are one piece and half of another, which the other k-step shares. Hence f6
wants two k-steps a stage.
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
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT, TileInstruction, pieces, whole
from mxc.passes.kernels.gpu.lanes import LANES, Lane
from mxc.passes.kernels.gpu.panels import along, start_of, within
from mxc.passes.kernels.gpu.parts import load_bytes
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import below, bitcast, equal, i8, i32, index, of, part_of

#: Bytes that a lane moves at once.
PIECE = 16
#: Latencies of memory that a ring has time for, from when a stage is asked for until it is needed.
LATENCIES = 1.5
#: Lanes that read LDS together, 16 bytes each.
_TOGETHER = 16
#: The instruction of the kernels that stage; its lane groups have a block each.
INSTRUCTION = TileInstruction(32)


def layout_bytes(rows: int, bits: int, blocks: int, waves: int) -> int:
    """Bytes of LDS for a stage of so many rows of some blocks: whole waves load it."""
    whole = waves * LANES * PIECE
    size = rows * blocks * BLOCK * bits // 8
    return -(-size // whole) * whole


@dataclass(frozen=True)
class Slice:
    """Bytes start .. stop of the piece `first + across * group` of a row."""

    first: int
    across: int
    start: int
    stop: int

    @property
    def piece(self) -> tuple[int, int]:
        """The piece alone."""
        return self.first, self.across


@dataclass(frozen=True)
class StageLayout:
    """A stage of `k_steps` k-steps of `rows` rows, loaded by `waves` waves.

    `decoded`: lanes take whole blocks, which become floats. `shared`: a k-step is one block, of
    which each lane group has consecutive elements, not a block for each. Pieces are smaller then
    where a group has less of a block than PIECE; such a side goes straight to registers.
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
        """What has scales."""
        assert isinstance(self.kind, ScaledBlocks)
        return self.kind

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.k_steps if self.shared else self.k_steps * self.instruction.groups

    def block(self, k_step: int, group: int) -> int:
        """The block that a lane group has in a k-step, of those from some stage's first one on."""
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
        """Pieces of a row."""
        return self.row_bytes // self.piece_bytes

    @property
    def loads(self) -> int:
        """Direct loads of each wave for a stage."""
        return self.bytes // (self.waves * LANES * PIECE)

    @property
    def bytes(self) -> int:
        """In LDS; after the rows may be what no one reads, so that all waves load as much."""
        return layout_bytes(self.rows, self.kind.bits, self.blocks, self.waves)

    @property
    def halved(self) -> bool:
        """Whether a whole block is a piece and a half, of which the second group has other halves.

        A lane then reads both pieces in which its block lies: two of 16 bytes meet no bank twice,
        as three of 8 would.
        """
        return self.decoded and self.k_steps == 1 and self.kind.block_bytes % PIECE > 0

    @property
    def _swizzle(self) -> int:
        """Places of a row that its pieces are swizzled over: d above."""
        return math.gcd(self.pieces, _TOGETHER)

    def place(self, row: ir.Value, piece: ir.Value) -> ir.Value:
        """Where a piece of a row lies in it, and the other way round."""
        if self._swizzle == 1:
            return piece
        return piece ^ row // (_TOGETHER // self._swizzle) % self._swizzle

    def row_and_piece(self, place: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The row, and the piece of it, at a place of 16 bytes of a stage."""
        if self.kind.panels:
            panel, rest = place // (PANEL * self.pieces), place % (PANEL * self.pieces)
            return panel * PANEL + rest % PANEL, rest // PANEL
        row = place // self.pieces
        return row, self.place(row, place % self.pieces)

    def at(self, first: ir.Value, row: ir.Value, piece: ir.Value) -> ir.Value:
        """The byte of a stage where a piece of row `first + row` is; `first`: of a tile."""
        if self.kind.panels:
            panel = (first + row) // PANEL
            return ((panel * self.pieces + piece) * PANEL + row % PANEL) * PIECE
        return (first + row) * self.row_bytes + self.place(row, piece) * PIECE

    @cached_property
    def slices(self) -> tuple[tuple[Slice, ...], ...]:
        """For each k-step what a lane's fragment is made of, in order."""
        return tuple(self._slices(k_step) for k_step in range(self.k_steps))

    @property
    def runs(self) -> tuple[tuple[Slice, ...], ...]:
        """The same for each run of 8 floats of a stage; of what has scales, for each k-step."""
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
        """The pieces that a k-step reads; others it has from the k-step before."""
        known = {s.piece for earlier in self.slices[:k_step] for s in earlier}
        return tuple(s.piece for s in self.slices[k_step] if s.piece not in known)

    @property
    def shares(self) -> bool:
        """Whether k-steps share pieces."""
        return any(len(self.new_pieces(t)) < len(self.slices[t]) for t in range(self.k_steps))


#: A tile, and a piece of it.
Key = tuple[int, tuple[int, int]]
#: Pieces in registers.
Pieces = dict[Key, ir.Value]


class StagedSide:
    """A side in LDS for one lane: `buffer` in memory, `start` of its bytes in a slot.

    `row_of`: the row in memory of a row of the workgroup's tile; `first`: the first row of this
    wave's tiles.
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
        """At the insertion point: what is the same in all stages."""
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
        """The row of the workgroup's tile, and the piece of it, that this lane's load is of."""
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
        """Issue one direct load of a stage. `left`: blocks that its rows have, if not all."""
        layout = self.layout
        _, piece = self._rows[number]
        start = self._offsets[number]
        further = along(layout.kind, stage * layout.row_bytes)
        offset = _offset(layout, start, further, piece * PIECE, left)
        into = slot + self._into + number * LANES * PIECE
        load_to_shared(self._buffer, offset, self._slots, into, PIECE)

    def read(self, tile: int, piece: tuple[int, int], slot: ir.Value) -> ir.Value:
        """A piece of this lane's row of a tile."""
        at = self._reads[piece] + slot
        at = at + tile * self.layout.instruction.rows * self.layout.row_bytes
        return vector.load(of(i8(), PIECE), self._slots, [at], alignment=PIECE)

    def block(self, packed: ir.Value) -> ir.Value:
        """The lane's whole block, from the bytes that were read."""
        if not self.layout.halved:
            return packed
        size = self.layout.kind.block_bytes
        words = bitcast(packed, i32(), 2 * PIECE // 4)
        low, high = (part_of(words, at // 4, size // 4) for at in (0, 2 * PIECE - size))
        first = equal(self.lane.group, 0)
        return bitcast(arith.select(first, low, high), i8(), size)

    def fragment(self, known: Pieces, tile: int, k_step: int) -> ir.Value:
        """The elements of a tile for a k-step."""
        return fragment(self.layout, known, tile, k_step)


class DirectSide:
    """A side that waves do not share, for one lane: `rows` has its row of each tile.

    In LDS every byte of it would be written once and read once, for nothing. So a lane loads the
    pieces that it would read there straight to registers, some stages before their use.
    """

    def __init__(
        self, layout: StageLayout, lane: Lane, buffer: ir.Value, rows: list[ir.Value]
    ) -> None:
        """At the insertion point: what is the same in all stages."""
        self.layout, self._lane, self._buffer = layout, lane, buffer
        self._starts = [start_of(layout.kind, row) for row in rows]

    def load(
        self, tile: int, piece: tuple[int, int], stage: ir.Value, *, left: int | ir.Value | None
    ) -> ir.Value:
        """A piece of this lane's row of a tile. `left`: blocks that rows have, if not all."""
        first, across = piece
        layout = self.layout
        at = (self._lane.group * across + first) * layout.piece_bytes
        start = self._starts[tile] + within(layout.kind, at)
        further = along(layout.kind, stage * layout.row_bytes)
        offset = _offset(layout, start, further, at, left)
        return load_bytes(self._buffer, offset, layout.piece_bytes)

    def fragment(self, known: Pieces, tile: int, k_step: int) -> ir.Value:
        """The elements of a tile for a k-step."""
        return fragment(self.layout, known, tile, k_step)


def _offset(
    layout: StageLayout,
    start: ir.Value,
    further: ir.Value,
    at: ir.Value,
    left: int | ir.Value | None,
) -> ir.Value:
    """Where in memory byte `at` of a stage is, `further` than its start; beyond the buffer, where
    loads give zeros, if the row ends before it. `left`: blocks that it has from the stage on, if
    not all."""
    if left is None:
        return start + further
    if isinstance(left, ir.Value) and layout.kind.blocks % layout.blocks == 0:
        # Rows end with a stage, the same for all lanes.
        return start + arith.select(below(index(0), left), further, index(BEYOND))
    there = below(at, left * layout.kind.block_bytes)
    return arith.select(there, start + further, index(BEYOND))


def fragment(layout: StageLayout, known: Pieces, tile: int, k_step: int) -> ir.Value:
    """The elements of a tile for a k-step, which are scaled, from its pieces."""
    found = packed(layout, known, tile, k_step)
    return bitcast(found, ir.Type.parse(layout.scaled.format.element.mlir), BLOCK)


def packed(layout: StageLayout, known: Pieces, tile: int, k_step: int) -> ir.Value:
    """The bytes of a tile that were read for a k-step."""
    return concat(
        [
            part_of(known[tile, one.piece], one.start, one.stop - one.start)
            for one in layout.slices[k_step]
        ]
    )
