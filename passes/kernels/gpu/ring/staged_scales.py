"""Scales of a side on their way from memory through LDS to the lanes that need them.

They are taken for a *span* at once, 16 blocks of a row: 16 bytes. Each row's are loaded once for a
workgroup, to registers: what lies past the end of a row is another row's and may be NaN, and is
made zero there. Then they go to LDS, to dwords of four k-steps, row after row of each lane group:

    scale of k-step t, group g, row r:    byte t % 4 of the dword (2 g + t / 4) rows + r

The blocks of a group in a stage follow each other: two bytes, one half of a register, which is
stored as it is (ds_write_b16, ds_write_b16_d16_hi): no byte is moved. A lane reads the dwords of
its row and group; op_sel chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import BEYOND
from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.lanes import LANES, Lane
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, Layout
from mxc.passes.kernels.vectors import below, bitcast, i8, index, of, part_of, splat

#: Blocks of a span, and k-steps.
SPAN = 16
SPAN_K_STEPS = SPAN // INSTRUCTION.groups
#: Halves of a span, and its blocks: the k-steps of a dword.
HALVES = SPAN_K_STEPS // K_STEPS
HALF = SPAN // HALVES
#: Bytes between the groups, which are read together: half of the banks.
_APART = 128


def scale_bytes(rows: int, waves: int) -> int:
    """Bytes of LDS for so many rows: whole waves load them."""
    return _loads(rows, waves) * waves * LANES * SPAN + (INSTRUCTION.groups - 1) * _APART


def _loads(rows: int, waves: int) -> int:
    return -(-rows // (waves * LANES))


class StagedScales:
    """Scales of a side for one lane: `buffer` in memory, from `start` on of the LDS `memory`.

    `row_of`: the row in memory of a row of the workgroup's tile; `first`: the first row of this
    wave's tiles.
    """

    def __init__(
        self,
        layout: Layout,
        lane: Lane,
        buffer: ir.Value,
        memory: ir.Value,
        start: int,
        first: ir.Value,
        row_of: Callable[[ir.Value], ir.Value],
    ) -> None:
        """At the insertion point: what is the same in all spans."""
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
        self, span: ir.Value, into: list[ir.Value], *, left: int | None
    ) -> list[Callable[[], None]]:
        """Load this lane's rows' scales of a span. `left`: blocks that a row has, if not all."""
        size = self._size(left)
        at = span * SPAN if left is None else index(self._kind.blocks - size)
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
                # Not where they are loaded, which would wait for them there.
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
            for k_step in range(first, SPAN_K_STEPS, K_STEPS)
        ]

    def _size(self, left: int | None) -> int:
        """Blocks whose scales are loaded. What the row has not would be the next row's: dwords that
        end with the row are read, or all of a row that is shorter."""
        return SPAN if left is None else min(-(-left // K_STEPS) * K_STEPS, self._kind.blocks)

    @staticmethod
    def _pair(scales: ir.Value, first: int) -> ir.Value:
        """Two bytes as one number, so that LLVM does not take them apart."""
        kind = ir.IntegerType.get_signless(16)
        pairs = bitcast(scales, kind, SPAN // 2)
        return bitcast(part_of(pairs, first // 2, 1), i8(), 2)

    def read(self, tile: int, half: int) -> ir.Value:
        """The scales of this lane's row of a tile, for this lane's group and a half of the span."""
        at = self._from + (tile * INSTRUCTION.rows * K_STEPS + half * self._word_bytes)
        return vector.load(of(i8(), K_STEPS), self._memory, [at], alignment=K_STEPS)

    def word(self, scales: ir.Value, k_step: int) -> tuple[ir.Value, int]:
        """Four scales, and which of them a k-step of the half takes."""
        return bitcast(scales, ir.Float8E8M0FNUType.get(), K_STEPS), k_step
