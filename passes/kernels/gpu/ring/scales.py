"""Scales of a ring on their way from memory to the lanes that need them.

Those of a scaled side are taken for a *chunk* or half of one, 16 blocks of a row or 8: by way of
LDS where its elements go that way (StagedScales), else straight to registers (DirectScales). Those
of elements that are decoded go straight to the lanes that decode them (RowScales).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import BEYOND, pinned
from mxc.dialects.generic import constant
from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.lanes import LANES, Lane, at_most
from mxc.passes.kernels.gpu.parts import load_bytes
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

#: Blocks of a chunk, and k-steps.
CHUNK = 16
CHUNK_K_STEPS = CHUNK // INSTRUCTION.groups
#: Halves of a chunk, and its blocks: the k-steps of a dword.
HALVES = CHUNK_K_STEPS // K_STEPS
HALF = CHUNK // HALVES
#: Bytes between the groups of staged scales, which are read together: half of the banks.
_APART = 128
#: Blocks whose scales a RowScales loads at once.
AT_ONCE = K_STEPS * INSTRUCTION.groups
#: Bits of an f32 that are its exponent, of which the first is this.
_EXPONENT, _FIRST = 0x7F800000, 23


def scale_bytes(rows: int, waves: int) -> int:
    """Bytes of LDS for so many rows: whole waves load them."""
    return _loads(rows, waves) * waves * LANES * CHUNK + (INSTRUCTION.groups - 1) * _APART


def _loads(rows: int, waves: int) -> int:
    return -(-rows // (waves * LANES))


class StagedScales:
    """Scales of a StagedSide for one lane: `buffer` in memory, from `start` on of the LDS `memory`.

    A chunk of a row is 16 bytes. Each row's are loaded once for a workgroup, to registers: what
    lies past the end of a row is another row's and may be NaN, and is made zero there. Then they go
    to LDS, to dwords of four k-steps, row after row of each lane group:

        scale of k-step t, group g, row r:    byte t % 4 of the dword (2 g + t / 4) rows + r

    The blocks of a group in a stage follow each other: two bytes, one half of a register, which is
    stored as it is (ds_write_b16, ds_write_b16_d16_hi): no byte is moved. A lane reads the dwords
    of its row and group; op_sel chooses.

    `row_of`: the row in memory of a row of the workgroup's tile; `first`: the first row of this
    wave's tiles.
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
        """At the insertion point: what is the same in all chunks."""
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
        """Load this lane's rows' scales of a chunk. `left`: blocks that a row has, if not all."""
        size = self._size(left)
        at = chunk * CHUNK if left is None else index(self._kind.blocks - size)
        shared = self._kind.shared
        kind = of(i8(), max(1, size // shared))
        at = at // shared

        def load(offset: ir.Value) -> None:
            into.append(vector.load(kind, self._buffer, [offset + at]))

        return [partial(load, offset) for offset in self._offsets]

    def writes(self, loaded: list[ir.Value], *, left: int | None) -> list[Callable[[], None]]:
        """Put what was loaded into LDS; blocks that are not there have the least scale."""
        k_steps = self._layout.k_steps

        def write(number: int, group: int, k_step: int) -> None:
            scales, shared = loaded[number], self._kind.shared
            size = self._size(left)
            if shared > 1:
                words, rest = divmod(lanes_of(scales), 4)
                if words > 1 and not rest:
                    # Else LLVM would take bytes out of them where they are loaded, and wait there.
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

        # The halves of a dword are not stored one after the other: LLVM would join them.
        return [
            partial(write, number, group, k_step)
            for first in range(0, K_STEPS, k_steps)
            for number in range(len(loaded))
            for group in range(INSTRUCTION.groups)
            for k_step in range(first, CHUNK_K_STEPS, K_STEPS)
        ]

    def _size(self, left: int | None) -> int:
        """Blocks whose scales are loaded. What the row has not would be the next row's: dwords that
        end with the row are read, or all of a row that is shorter."""
        return CHUNK if left is None else min(-(-left // K_STEPS) * K_STEPS, self._kind.blocks)

    @staticmethod
    def _pair(scales: ir.Value, first: int) -> ir.Value:
        """Two bytes as one number, so that LLVM does not take them apart."""
        kind = ir.IntegerType.get_signless(16)
        pairs = bitcast(scales, kind, CHUNK // 2)
        return bitcast(part_of(pairs, first // 2, 1), i8(), 2)

    def read(self, tile: int, half: int) -> ir.Value:
        """The scales of this lane's row of a tile, for its group and a half of the chunk."""
        at = self._from + (tile * INSTRUCTION.rows * K_STEPS + half * self._word_bytes)
        return vector.load(of(i8(), K_STEPS), self._memory, [at], alignment=K_STEPS)

    def word(self, scales: ir.Value, k_step: int) -> tuple[ir.Value, int]:
        """Four scales, and which of them a k-step of the half takes."""
        return bitcast(scales, ir.Float8E8M0FNUType.get(), K_STEPS), k_step


class DirectScales:
    """Scales of a DirectSide for one lane: `rows` has its row of each tile.

    Group g wants those that lie g k-steps of a stage after those of group 0: for one k-step a stage
    every other byte, for two k-steps two bytes of four. Loads of group 1 begin as much later, so
    that all lanes find theirs at the same places, op_sel selects them, and no lane moves a byte:

        byte of the load = byte of group 0 in the half + k-steps
        load             = from half - k-steps + g k-steps on

    A load begins early rather than late, so as not to end past the last row. Where several blocks
    share a scale, the bytes of a half are as many times fewer, and so is what lies between groups.
    """

    def __init__(
        self, layout: StageLayout, lane: Lane, buffer: ir.Value, rows: list[ir.Value]
    ) -> None:
        """At the insertion point: what is the same in all halves."""
        self._layout, self._buffer = layout, buffer
        self._own, self._shared = lane.group * layout.k_steps, layout.scaled.shared
        #: Scales of a half, and those between the groups.
        self._count, self._apart = max(1, HALF // self._shared), layout.k_steps // self._shared
        self._later = lane.group * self._apart + -self._apart
        self._starts = [row * (layout.kind.blocks // self._shared) for row in rows]

    def loads(
        self, half: ir.Value, into: list[ir.Value], *, left: int | None
    ) -> list[Callable[[], None]]:
        """Load a half that is not the first one of all; or, with `left`, the first blocks of it."""
        if left is None:
            return [partial(self._load, start, half, into) for start in self._starts]
        return [partial(self._load_some, start, half, into, left) for start in self._starts]

    def _load(self, start: ir.Value, half: ir.Value, into: list[ir.Value]) -> None:
        at = start + self._later + half * HALF // self._shared
        into.append(vector.load(of(i8(), self._count), self._buffer, [at]))

    def _load_some(self, start: ir.Value, half: ir.Value, into: list[ir.Value], left: int) -> None:
        """One by one, the least scale for blocks that are not there. Blocks that share a scale are
        there together: a row ends with a whole one."""
        scales = [constant(0, i8())] * self._count
        for k_step in range(K_STEPS):
            own = self._own + self._layout.block(k_step, 0)
            block = half * HALF + own
            at = start + block // self._shared
            loaded = load_bytes(self._buffer, at, 1, below(own, left))
            scales[self._byte(k_step)] = vector.extract(loaded, [], [0])
        into.append(vector.from_elements(of(i8(), self._count), scales))

    def _byte(self, k_step: int) -> int:
        """The byte of a half where a k-step finds its scale."""
        return self._layout.block(k_step, 0) // self._shared + self._apart

    def word(self, scales: ir.Value, k_step: int) -> tuple[ir.Value, int]:
        """Four scales, and which of them a k-step of the half takes."""
        word, chosen = divmod(self._byte(k_step), K_STEPS)
        kind = ir.Float8E8M0FNUType.get()
        if self._count < K_STEPS:
            (scales,) = elements(bitcast(scales, ir.IntegerType.get_signless(8 * self._count), 1))
            scales = vector.from_elements(of(i32(), 1), [arith.extui(i32(), scales)])
            return bitcast(scales, kind, K_STEPS), chosen
        return bitcast(part_of(scales, K_STEPS * word, K_STEPS), kind, K_STEPS), chosen


class RowScales:
    """Scales of `tiles` tiles of a decoded side for one lane: see StagedSide.

    A lane needs those of a block for each of its tiles in a k-step. Those of eight blocks of a row,
    four k-steps, are loaded at once, some k-steps ahead: too few bytes for LDS to help. Lane group
    g has block 2 t + g in step t:

        one scale a block    8 bytes, shifted so that this is byte 0 or 2 of word t / 2
        two                  words of 4 bytes, shifted so that these are the lower half of word t

    Rows have AT_ONCE blocks or more; of two scales each, an even number of blocks.
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
        """At the insertion point: what is the same in all k-steps."""
        self._buffer, self._blocks, self._each = buffer, kind.blocks, kind.scales
        own = first + lane.row
        self._offsets = [
            row_of(own + tile * INSTRUCTION.rows) * (kind.blocks * kind.scales)
            for tile in range(tiles)
        ]
        self._group = arith.index_cast(i32(), lane.group * (8 * kind.scales))

    @property
    def loads(self) -> int:
        """Loads for a tile."""
        return 1 if self._each == 1 else AT_ONCE // INSTRUCTION.groups

    def load(self, tile: int, four: ir.Value) -> list[ir.Value]:
        """Scales of a tile for four k-steps, after `four` such groups, as they are in memory.

        The last ones end with the row: what is after it is the next row's, and may be NaN.
        """
        size = AT_ONCE // self.loads
        kind = of(i8(), size * self._each)
        starts = [
            at_most(four * AT_ONCE + first, self._blocks - size) * self._each
            for first in range(0, AT_ONCE, size)
        ]
        return [vector.load(kind, self._buffer, [self._offsets[tile] + at]) for at in starts]

    def words(self, loaded: list[ir.Value], four: ir.Value) -> list[ir.Value]:
        """The same for this lane's group, as words. One scale a block that a row has not is 0."""
        if self._each > 1:
            # The elements of a block that a row has not are zero, under a scale of this row.
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
        """The scale for a k-step of four, as the exponent of an f32: 0 is 2^-127, 255 is NaN; or
        the two scales, in the lower half of an i32."""
        if self._each > 1:
            return words[k_step]
        moved = words[k_step // 2] << _FIRST - k_step % 2 * 16
        return arith.bitcast(f32(), moved & _EXPONENT)


def _word(scales: ir.Value) -> ir.Value:
    """i8 [4] as an i32."""
    return vector.extract(bitcast(scales, i32(), 1), [], [0])
