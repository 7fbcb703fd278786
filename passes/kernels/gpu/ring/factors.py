"""The f32 scales of a side on their way through a ring: they multiply sums, not elements.

A stage has those of its rows, one after the other, behind the elements of both sides. So they come
with the elements, and what waits for these waits for them. They are loaded to LDS directly, 4 bytes
a lane; a scale that several stages share comes with each of them. The four E8M0 scales that blocks
of 32 have in such a stage take the same way.

A lane has one row of lhs in a tile of the result, and 16 columns, as 15 others have: it reads the
scale of one, and has the others from these lanes (DPP). For all 16 it would read 16 bytes of LDS
four times, the same as half of the wave. Where all columns of a tile have one scale, it is read by
all lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math, vector

from mxc.dialects.amdgpu import BEYOND, load_to_shared
from mxc.dialects.amdgpu_narrow import of_sixteen
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.lanes import LANES, Lane
from mxc.passes.kernels.gpu.parts import load_bytes
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, StageLayout
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import below, bitcast, elements, f32, i8, i32, index, lanes_of, of

#: Bytes of an f32, and bits of a byte.
_SIZE, _BYTE = 4, 8


def factor_bytes(rows: int, waves: int, runs: int) -> int:
    """Bytes of LDS of a stage for the scales of so many rows: all lanes load as many. `runs`: of a
    row in a stage, each with a scale of its own."""
    return factor_loads(rows, waves) * waves * LANES * runs * _SIZE


def runs_of(layout: StageLayout) -> int:
    """Runs of blocks of a stage that have an f32 scale each; one where scales are E8M0."""
    kind = layout.scaled
    return max(1, layout.blocks // kind.shared) if kind.multiplies_sums else 1


def factor_loads(rows: int, waves: int) -> int:
    """Direct loads of each wave for the scales of a stage."""
    return -(-rows // (waves * LANES))


class StagedFactors:
    """The scales of a side for one lane: of each row an f32 for each of `runs` of a stage, or four
    E8M0. `buffer` in memory, `start` of their bytes in a slot of the LDS `slots`.

    `row_of`: the row in memory of the scales of a row of the workgroup's tile; `first`: the first
    row of this wave's tiles; `one_scale`: whether all columns of a tile have the same.

    Several scales are 16 bytes, of which 16 lanes would meet banks twice if columns lay as they
    follow each other. So those of the 16 columns that the lanes read lie side by side.
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
        *,
        one_scale: bool = False,
    ) -> None:
        """At the insertion point: what is the same in all stages."""
        self._layout, kind, self.one_scale = layout, layout.scaled, one_scale
        self._buffer, self._slots, self._first, self._lane = buffer, slots, first, lane
        self._start, self._blocks, self._shared = start, layout.blocks, kind.shared
        self._bytes = kind.format.scale.bits // 8
        self.runs = runs_of(layout)
        self._size = self.runs * _SIZE
        count = factor_loads(layout.rows, layout.waves)
        own = lane.wave * (count * LANES) + lane.lane
        self._into = lane.wave * (count * LANES * self._size) + start
        self._offsets = []
        for number in range(count):
            row = own + number * LANES
            if self.runs > 1:
                tile, at = row // INSTRUCTION.rows, row % INSTRUCTION.rows
                group, of_group = at // INSTRUCTION.totals, at % INSTRUCTION.totals
                row = tile * INSTRUCTION.rows + _column(of_group, group)
            offset = row_of(row) * (kind.blocks // kind.shared * self._bytes)
            self._offsets.append(arith.select(below(row, layout.rows), offset, index(BEYOND)))

    @property
    def loads(self) -> int:
        """Direct loads of a stage."""
        return len(self._offsets)

    @property
    def bytes(self) -> int:
        """Bytes of LDS of a stage."""
        return factor_bytes(self._layout.rows, self._layout.waves, self.runs)

    def load(self, number: int, stage: ir.Value, slot: ir.Value) -> None:
        """Issue one direct load of a stage. Those of a stage past the end are used by nothing."""
        at = self._offsets[number] + stage * self._blocks // self._shared * self._bytes
        into = slot + self._into + number * LANES * self._size
        load_to_shared(self._buffer, at, self._slots, into, self._size)

    def of_row(self, tile: int, slot: ir.Value) -> ir.Value:
        """The f32 scales of this lane's row of a tile, f32 [runs]."""
        return self._read(self._lane.row + tile * INSTRUCTION.rows, slot)

    def of_blocks(self, tile: int, slot: ir.Value) -> ir.Value:
        """The E8M0 of this lane's blocks of its row of a tile: i32, that of k-step n in byte n."""
        size, row = self._layout.k_steps * self._bytes, self._lane.row + tile * INSTRUCTION.rows
        at = self._at(row, slot) + self._lane.group * size
        found = vector.load(of(i8(), size), self._slots, [at], alignment=size)
        narrow = ir.IntegerType.get_signless(size * _BYTE)
        return arith.extui(i32(), vector.extract(bitcast(found, narrow, 1), [], [0]))

    def of_columns(self, tile: int, slot: ir.Value) -> ir.Value:
        """The f32 scales of the columns of a tile, f32 [runs]; or of one of those that this lane
        and the 15 beside it have: lane n of these 16 has those of their sums number n."""
        own = _column_of(self._lane, one_scale=self.one_scale)
        if self.runs > 1 and not self.one_scale:
            own = self._lane.group * INSTRUCTION.totals + self._lane.row % INSTRUCTION.totals
        return self._read(own + tile * INSTRUCTION.rows, slot)

    def _read(self, row: ir.Value, slot: ir.Value) -> ir.Value:
        size, at = self._size, self._at(row, slot)
        found = vector.load(of(i8(), size), self._slots, [at], alignment=size)
        return bitcast(found, f32(), self.runs)

    def _at(self, row: ir.Value, slot: ir.Value) -> ir.Value:
        """Where the scales of a row of the wave's tiles are."""
        return (self._first + row) * self._size + self._start + slot


class LoadedFactors:
    """The f32 scales of `tiles` tiles of a side for one lane, from memory to registers: those of
    its rows, or of a column as StagedFactors has it. See there."""

    def __init__(
        self,
        kind: ScaledBlocks,
        lane: Lane,
        buffer: ir.Value,
        tiles: int,
        first: ir.Value,
        row_of: Callable[[ir.Value], ir.Value],
        *,
        columns: bool,
        one_scale: bool,
    ) -> None:
        """At the insertion point: what is the same in all stages."""
        self._buffer, self._shared, self.one_scale = buffer, kind.shared, one_scale
        own = first + (_column_of(lane, one_scale=one_scale) if columns else lane.row)
        self._offsets = [
            row_of(own + tile * INSTRUCTION.rows) * (kind.blocks // kind.shared * _SIZE)
            for tile in range(tiles)
        ]

    def load(self, tile: int, block: ir.Value) -> ir.Value:
        """The f32 scale of a block of a tile."""
        at = self._offsets[tile] + block // self._shared * _SIZE
        return vector.extract(bitcast(load_bytes(self._buffer, at, _SIZE), f32(), 1), [], [0])


def columns_of(scale: ir.Value, first: int, count: int, *, one_scale: bool) -> list[ir.Value]:
    """The scales of the columns of a lane's sums `first` and so many, or the one of all of them:
    `scale` is what `of_columns` gives to this lane and to the 15 beside it."""
    return [scale] if one_scale else [of_sixteen(scale, first + at) for at in range(count)]


def under_scales(
    sums: ir.Value, before: ir.Value, row: ir.Value | None, columns: Sequence[ir.Value] | None
) -> ir.Value:
    """Sums of a tile of the result, f32 [n], times their scales, and what came before. `row`,
    `columns`: the scales, of the sides that have some; one of all columns, or of each."""
    factors = [row] if columns is None else list(columns)
    if columns is not None and row is not None:
        factors = [column * row for column in columns]
    if len(factors) == 1:
        factors *= lanes_of(sums)
    each = zip(elements(sums), factors, elements(before), strict=True)
    return vector.from_elements(sums.type, [math.fma(*own) for own in each])


def _column_of(lane: Lane, *, one_scale: bool) -> ir.Value:
    """The column of a tile whose scale a lane reads: that of one of the sums which it and the 15
    lanes beside it have, lane n of these that of sum n. `one_scale`: any, and so the first."""
    if one_scale:
        return index(0)
    return _column(lane.row % INSTRUCTION.totals, lane.group)


def _column(number: ir.Value, group: ir.Value) -> ir.Value:
    """The column of a tile that sum `number` of a lane group is of."""
    return number // QUAD * INSTRUCTION.row(1) + group * QUAD + number % QUAD
