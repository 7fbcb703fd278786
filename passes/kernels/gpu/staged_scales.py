"""Scales of a side on their way from memory through LDS to the lanes that need them.

They are taken for a *span* at once, 16 blocks of a row: 16 bytes. Each row's are loaded once for a
workgroup, to registers: what lies behind the end of a row is another row's and may be NaN, and is
made zero there. Then they go to LDS, sorted by the lane group that has the block: a lane reads the
eight of its row and group, which are those of the turns of a span. Four are a dword, and op_sel
chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import BEYOND
from mxc.passes.kernels.gpu.fragments import TURNS
from mxc.passes.kernels.gpu.lanes import LANES, Lane, below, divided, plus, times
from mxc.passes.kernels.gpu.staging import INSTRUCTION, Layout
from mxc.passes.kernels.vectors import bitcast, i8, index, of, splat

#: Blocks of a span, and turns.
SPAN = 16
SPAN_TURNS = SPAN // INSTRUCTION.groups


def scale_bytes(rows: int, waves: int) -> int:
    """Of LDS, for so many rows: whole waves load them."""
    return _loads(rows, waves) * waves * LANES * SPAN


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
        self._layout, self._kind = layout, layout.kind
        self._buffer, self._memory = buffer, memory
        rows, waves = layout.rows, layout.waves
        own = plus(times(lane.wave, _loads(rows, waves) * LANES), lane.lane)
        self._offsets = []
        for number in range(_loads(rows, waves)):
            row = plus(own, number * LANES)
            offset = times(row_of(row), self._kind.blocks // self._kind.shared)
            if rows % (waves * LANES):
                offset = arith.select(below(row, rows), offset, index(BEYOND))
            self._offsets.append(offset)
        self._into = plus(times(own, SPAN_TURNS), start)
        self._group_bytes = scale_bytes(rows, waves) // INSTRUCTION.groups
        group = times(lane.group, self._group_bytes)
        self._from = plus(times(plus(first, lane.row), SPAN_TURNS), plus(group, start))

    def load(self, span: ir.Value, *, left: int | None) -> list[ir.Value]:
        """This lane's rows' scales of a span. `left`: blocks that a row has of it, if not all."""
        # What the row has not would be the next row's: dwords that end with the row are read.
        size = SPAN if left is None else -(-left // TURNS) * TURNS
        at = times(span, SPAN) if left is None else index(self._kind.blocks - size)
        shared = self._kind.shared
        kind = of(i8(), max(1, size // shared))
        at = divided(at, shared)
        found = [vector.load(kind, self._buffer, [plus(offset, at)]) for offset in self._offsets]
        if shared == 1:
            return found
        each = [block // shared for block in range(size)]
        return [vector.shuffle(scales, scales, each) for scales in found]

    def writes(self, loaded: list[ir.Value], *, left: int | None) -> list[Callable[[], None]]:
        """Put what was loaded into LDS; blocks that are not there have the least scale."""

        def write(number: int, group: int) -> None:
            scales = loaded[number]
            size = ir.VectorType(scales.type).shape[0]
            skipped = 0 if left is None else size - left
            blocks = [self._layout.block(turn, group) + skipped for turn in range(SPAN_TURNS)]
            none = splat(0, i8(), size)
            own = vector.shuffle(scales, none, [min(block, size) for block in blocks])
            at = number * LANES * SPAN_TURNS + group * self._group_bytes
            vector.store(own, self._memory, [plus(self._into, at)], alignment=SPAN_TURNS)

        groups = range(INSTRUCTION.groups)
        return [partial(write, number, group) for number in range(len(loaded)) for group in groups]

    def read(self, tile: int) -> ir.Value:
        """Of a span the scales of this lane's row of a tile for this lane's group."""
        at = plus(self._from, tile * INSTRUCTION.rows * SPAN_TURNS)
        return vector.load(of(i8(), SPAN_TURNS), self._memory, [at], alignment=SPAN_TURNS)

    def word(self, scales: ir.Value, turn: int) -> ir.Value:
        """Of a span's scales the four that op_sel chooses from in a turn of the span."""
        scales = bitcast(scales, ir.Float8E8M0FNUType.get(), SPAN_TURNS)
        kind = of(ir.Float8E8M0FNUType.get(), TURNS)
        return vector.extract_strided_slice(kind, scales, [turn // TURNS * TURNS], [TURNS], [1])
