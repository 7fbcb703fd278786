"""E8M0 and E4M3 scales of a ring: how they come from memory to the lanes that need them.

    StagedScales    of a side that goes through LDS: through LDS, a chunk at once
    DirectScales    of a side that goes straight to registers: likewise, half a chunk at once
    RowScales       of a side that each wave decodes: straight to registers, four k-steps at once

A *chunk* is 16 blocks of each row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import BEYOND, pinned
from mxc.dialects.generic import constant
from mxc.passes.kernels.gpu.bounded_views import load_bytes
from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.lanes import LANES, Lane, at_most
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, StageLayout
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import (
    below,
    bitcast,
    elements,
    f32,
    i8,
    i32,
    index,
    lanes_of,
    of,
    part_of,
    splat,
)

#: Blocks of a row in a chunk, whose scales are 16 bytes, and k-steps of a chunk.
CHUNK = 16
CHUNK_K_STEPS = CHUNK // INSTRUCTION.groups
#: Halves of a chunk, and blocks of a row in a half. A half has the k-steps of a dword of scales.
HALVES = CHUNK_K_STEPS // K_STEPS
HALF = CHUNK // HALVES
#: Padding in bytes between the staged scales of the two lane groups: half of the LDS banks, because
#: both are read together.
_APART = 128
#: Blocks of a row whose scales RowScales loads at once: those of four k-steps.
AT_ONCE = K_STEPS * INSTRUCTION.groups
#: Mask of the exponent of an f32, and its lowest bit.
_EXPONENT, _FIRST = 0x7F800000, 23


def scale_bytes(rows: int, waves: int) -> int:
    """Return the bytes of LDS for the staged scales of a chunk of `rows` rows.

    `waves`: waves that load them; all of their lanes load as many rows.
    """
    return _loads(rows, waves) * waves * LANES * CHUNK + (INSTRUCTION.groups - 1) * _APART


def _loads(rows: int, waves: int) -> int:
    """Return how many rows each lane loads the scales of."""
    return -(-rows // (waves * LANES))


class StagedScales:
    """Scales of a StagedSide, for one lane.

    The scales of a chunk are 16 bytes of each row. They are loaded once for a workgroup, to
    registers. What lies past the end of a row belongs to another row and may be NaN; it is set to
    zero there. Then they are written to LDS, as dwords of four k-steps, row after row for each lane
    group (here without the padding, `_APART`):

        scale of k-step t, group g, row r:    byte t % 4 of the dword (2 g + t / 4) rows + r

    The blocks of a group in a stage are consecutive. Their two scales are half a register, which is
    stored as it is (ds_write_b16, ds_write_b16_d16_hi), so no byte is moved. A lane reads the
    dwords of its row and group; op_sel selects a byte.

    `buffer`: the scales in memory; `memory`: LDS; `start`: the first of its bytes for the scales;
    `first`: the first row of this wave's tiles; `row_of`: returns the row in memory of a row of the
    workgroup's tile.
    """

    def __init__(
        self,
        layout: StageLayout,
        lane: Lane,
        buffer: ir.Value,
        memory: ir.Value,
        start: int,
        first: ir.Value,
        row_of: Callable[[ir.Value], ir.Value],
    ) -> None:
        """Compute what is the same in all chunks, at the insertion point."""
        self._layout, self._kind = layout, layout.scaled
        self._buffer, self._memory = buffer, memory
        rows, waves = layout.rows, layout.waves
        own = lane.wave * (_loads(rows, waves) * LANES) + lane.lane
        self._offsets = []
        for number in range(_loads(rows, waves)):
            row = own + number * LANES
            offset = row_of(row) * (self._kind.blocks // self._kind.shared)
            if rows % (waves * LANES):
                offset = arith.select(below(row, rows), offset, index(BEYOND))
            self._offsets.append(offset)
        self._word_bytes = _loads(rows, waves) * waves * LANES * K_STEPS
        self._group_bytes = HALVES * self._word_bytes + _APART
        self._into = own * K_STEPS + start
        group = lane.group * self._group_bytes
        self._from = (first + lane.row) * K_STEPS + (group + start)

    def loads(
        self, chunk: ir.Value, into: list[ir.Value], *, left: int | None
    ) -> list[Callable[[], None]]:
        """Return the loads of a chunk's scales, of the rows that this lane loads, `into` a list.

        `left`: blocks of the chunk that rows have, None if all.
        """
        size = self._size(left)
        at = chunk * CHUNK if left is None else index(self._kind.blocks - size)
        shared = self._kind.shared
        kind = of(i8(), max(1, size // shared))
        at = at // shared

        def load(offset: ir.Value) -> None:
            into.append(vector.load(kind, self._buffer, [offset + at]))

        return [partial(load, offset) for offset in self._offsets]

    def writes(self, loaded: list[ir.Value], *, left: int | None) -> list[Callable[[], None]]:
        """Return the writes to LDS of what `loads` loaded. Blocks past the end of a row get the
        least scale, 2^-127."""
        k_steps = self._layout.k_steps

        def write(number: int, group: int, k_step: int) -> None:
            scales, shared = loaded[number], self._kind.shared
            size = self._size(left)
            if shared > 1:
                words, rest = divmod(lanes_of(scales), 4)
                if words > 1 and not rest:
                    # Else LLVM would extract bytes right behind the load, and wait there.
                    (scales,) = pinned([bitcast(scales, i32(), words)])
                    scales = bitcast(scales, i8(), 4 * words)
                scales = vector.shuffle(scales, scales, [at // shared for at in range(size)])
            skipped = 0 if left is None else size - left
            blocks = [self._layout.block(k_step + part, group) + skipped for part in range(k_steps)]
            if left is None:
                own = self._pair(scales, blocks[0])
            else:
                none = splat(0, i8(), size)
                own = vector.shuffle(scales, none, [min(block, size) for block in blocks])
            word, byte = divmod(k_step, K_STEPS)
            at = number * LANES * K_STEPS + byte
            at += group * self._group_bytes + word * self._word_bytes
            vector.store(own, self._memory, [self._into + at], alignment=k_steps)

        # In this order no two halves of a dword are adjacent stores, which LLVM would merge.
        return [
            partial(write, number, group, k_step)
            for first in range(0, K_STEPS, k_steps)
            for number in range(len(loaded))
            for group in range(INSTRUCTION.groups)
            for k_step in range(first, CHUNK_K_STEPS, K_STEPS)
        ]

    def _size(self, left: int | None) -> int:
        """Return the number of blocks of a row whose scales are loaded.

        If K ends within the chunk, these are the last blocks of the row, in whole dwords, or all
        blocks of a shorter row: what follows belongs to the next row.
        """
        return CHUNK if left is None else min(-(-left // K_STEPS) * K_STEPS, self._kind.blocks)

    @staticmethod
    def _pair(scales: ir.Value, first: int) -> ir.Value:
        """Return scales `first` and `first` + 1, i8 [2], so that LLVM does not separate them."""
        kind = ir.IntegerType.get_signless(16)
        pairs = bitcast(scales, kind, CHUNK // 2)
        return bitcast(part_of(pairs, first // 2, 1), i8(), 2)

    def read(self, tile: int, half: int) -> ir.Value:
        """Read the scales of this lane's row of a tile, for its group and a half of the chunk: i8
        [4]."""
        at = self._from + (tile * INSTRUCTION.rows * K_STEPS + half * self._word_bytes)
        return vector.load(of(i8(), K_STEPS), self._memory, [at], alignment=K_STEPS)

    def word(self, scales: ir.Value, k_step: int) -> tuple[ir.Value, int]:
        """Return four scales, f8E8M0FNU [4], and which of them op_sel selects for a k-step."""
        return bitcast(scales, ir.Float8E8M0FNUType.get(), K_STEPS), k_step


class DirectScales:
    """Scales of a DirectSide, for one lane. `rows`: this lane's row of each tile, in memory.

    With s k-steps in a stage, the scales of group g lie g * s bytes after those of group 0. Each
    group wants every other byte of a row if s is 1, and two bytes of four if it is 2. The loads of
    group 1 begin s bytes later than those of group 0. So all lanes have their scales at the same
    places of what they loaded, op_sel selects them, and no lane moves a byte:

        first byte of a load     first byte of the half - s + g * s
        place of a scale in it   place of group 0's scale in the half + s

    Loads of group 0 begin s bytes before the half. If those of group 1 began s bytes within it
    instead, they could end past the last row. If several blocks share a scale, the bytes of a half
    are as many times fewer, and so are the s bytes between groups.
    """

    def __init__(
        self, layout: StageLayout, lane: Lane, buffer: ir.Value, rows: list[ir.Value]
    ) -> None:
        """Compute what is the same in all halves, at the insertion point."""
        self._layout, self._buffer = layout, buffer
        self._own, self._shared = lane.group * layout.k_steps, layout.scaled.shared
        #: Scales of a row in a half, and scales between those of the two groups.
        self._count, self._apart = max(1, HALF // self._shared), layout.k_steps // self._shared
        self._later = lane.group * self._apart + -self._apart
        self._starts = [row * (layout.kind.blocks // self._shared) for row in rows]

    def loads(
        self, half: ir.Value, into: list[ir.Value], *, left: int | None
    ) -> list[Callable[[], None]]:
        """Return the loads of a half's scales, for each tile, `into` a list.

        `left`: if not None, only the scales of the first `left` blocks of the half are loaded. The
        first half of a row needs it, because other loads begin before the half.
        """
        if left is None:
            return [partial(self._load, start, half, into) for start in self._starts]
        return [partial(self._load_some, start, half, into, left) for start in self._starts]

    def _load(self, start: ir.Value, half: ir.Value, into: list[ir.Value]) -> None:
        at = start + self._later + half * HALF // self._shared
        into.append(vector.load(of(i8(), self._count), self._buffer, [at]))

    def _load_some(self, start: ir.Value, half: ir.Value, into: list[ir.Value], left: int) -> None:
        """Load scales one by one; blocks past the end of the row get the least scale, 2^-127.

        Blocks that share a scale all lie within the row, or none.
        """
        scales = [constant(0, i8())] * self._count
        for k_step in range(K_STEPS):
            own = self._own + self._layout.block(k_step, 0)
            block = half * HALF + own
            at = start + block // self._shared
            loaded = load_bytes(self._buffer, at, 1, below(own, left))
            scales[self._byte(k_step)] = vector.extract(loaded, [], [0])
        into.append(vector.from_elements(of(i8(), self._count), scales))

    def _byte(self, k_step: int) -> int:
        """Return the byte of a loaded half that is the scale of a k-step of it."""
        return self._layout.block(k_step, 0) // self._shared + self._apart

    def word(self, scales: ir.Value, k_step: int) -> tuple[ir.Value, int]:
        """Return four scales, f8E8M0FNU [4], and which of them op_sel selects for a k-step."""
        word, chosen = divmod(self._byte(k_step), K_STEPS)
        kind = ir.Float8E8M0FNUType.get()
        if self._count < K_STEPS:
            (scales,) = elements(bitcast(scales, ir.IntegerType.get_signless(8 * self._count), 1))
            scales = vector.from_elements(of(i32(), 1), [arith.extui(i32(), scales)])
            return bitcast(scales, kind, K_STEPS), chosen
        return bitcast(part_of(scales, K_STEPS * word, K_STEPS), kind, K_STEPS), chosen


class RowScales:
    """Scales of a side that each wave decodes, for one lane.

    In a k-step a lane needs the scales of one block for each of its tiles. The scales of eight
    blocks of a row, which are four k-steps, are loaded at once, some k-steps ahead. They are too
    few bytes for LDS to help. Lane group g has block 2 t + g in k-step t, and `words` shifts what
    was loaded so that its scales have these places:

        one scale per block    of 8 bytes, two words: byte 0 or 2 of word t / 2
        two                    of four words, one for each k-step: the lower half of word t

    A row must have at least AT_ONCE blocks, and an even number of them if blocks have two scales.

    `buffer`, `first`, `row_of`: as of StagedScales; `tiles`: tiles of the wave.
    """

    def __init__(
        self,
        kind: ScaledBlocks,
        lane: Lane,
        buffer: ir.Value,
        tiles: int,
        first: ir.Value,
        row_of: Callable[[ir.Value], ir.Value],
    ) -> None:
        """Compute what is the same in all k-steps, at the insertion point."""
        self._buffer, self._blocks, self._each = buffer, kind.blocks, kind.scales
        own = first + lane.row
        self._offsets = [
            row_of(own + tile * INSTRUCTION.rows) * (kind.blocks * kind.scales)
            for tile in range(tiles)
        ]
        self._group = arith.index_cast(i32(), lane.group * (8 * kind.scales))

    @property
    def loads(self) -> int:
        """Loads of a tile's scales for four k-steps."""
        return 1 if self._each == 1 else AT_ONCE // INSTRUCTION.groups

    def load(self, tile: int, four: ir.Value) -> list[ir.Value]:
        """Load the scales of a tile for k-steps 4 * `four` to 4 * `four` + 3, i8 [n] of each load.

        Loads that would go past the end of the row end with it instead: what follows belongs to the
        next row and may be NaN.
        """
        size = AT_ONCE // self.loads
        kind = of(i8(), size * self._each)
        starts = [
            at_most(four * AT_ONCE + first, self._blocks - size) * self._each
            for first in range(0, AT_ONCE, size)
        ]
        return [vector.load(kind, self._buffer, [self._offsets[tile] + at]) for at in starts]

    def words(self, loaded: list[ir.Value], four: ir.Value) -> list[ir.Value]:
        """Return what `load` returned as i32 words in which this group's scales have their places.

        With one scale per block, that of a block past the end of the row is 0.
        """
        if self._each > 1:
            # Blocks past the end get a scale of this row; their elements are zero.
            return [_word(each) >> self._group for each in loaded]
        i64 = ir.IntegerType.get_signless(64)
        start = four * AT_ONCE
        beyond = start - at_most(start, self._blocks - AT_ONCE)
        shift = arith.index_cast(i64, at_most(beyond, AT_ONCE - 1) * 8)
        (scales,) = loaded
        whole = vector.extract(bitcast(scales, i64, 1), [], [0])
        moved = whole >> shift
        halves = bitcast(vector.broadcast(of(i64, 1), moved), i32(), 2)
        return [vector.extract(halves, [], [at]) >> self._group for at in range(2)]

    def factor(self, words: list[ir.Value], k_step: int) -> ir.Value:
        """Return the scale of one of the four k-steps, from the `words` of a tile.

        One scale: an f32 with its exponent (0 is 2^-127, 255 is NaN); two: an i32 with both in its
        lower half.
        """
        if self._each > 1:
            return words[k_step]
        moved = words[k_step // 2] << _FIRST - k_step % 2 * 16
        return arith.bitcast(f32(), moved & _EXPONENT)


def _word(scales: ir.Value) -> ir.Value:
    """Return i8 [4] as an i32."""
    return vector.extract(bitcast(scales, i32(), 1), [], [0])
