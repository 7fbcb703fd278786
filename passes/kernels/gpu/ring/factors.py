"""The f32 scales of a side in a ring, which multiply sums, not elements: their loads and reads.

In LDS a stage has the scales of its rows, one after the other, behind the elements. So they are
loaded with the elements, and the same wait covers both. They are loaded straight to LDS, 4 or 16
bytes per lane. A scale that several stages share is loaded with each of them. If lhs has E8M0
scales, for blocks of 32, the four of a row in a stage go the same way.

In a tile of the result a lane has one row of lhs and 16 columns, the same columns as the 15 lanes
beside it. It reads the scale of one of these columns, and gets the others from these lanes (DPP).
For all 16 it would read 16 bytes of LDS four times, the same ones as half of the wave. If all
columns of a tile have the same scale, every lane reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math, vector

from mxc.dialects.amdgpu import BEYOND, load_to_shared
from mxc.dialects.amdgpu_narrow import of_sixteen
from mxc.passes.kernels.gpu.bounded_views import load_bytes
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.lanes import LANES, Lane
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, StageLayout
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import below, bitcast, elements, f32, i8, i32, index, lanes_of, of

#: Bytes of an f32, and bits of a byte.
_SIZE, _BYTE = 4, 8


def factor_bytes(rows: int, waves: int, runs: int) -> int:
    """Return the bytes of LDS in a stage for the scales of `rows` rows, rounded up to whole loads.

    `runs`: runs of a row in a stage that have a scale each.
    """
    return factor_loads(rows, waves) * waves * LANES * runs * _SIZE


def runs_of(layout: StageLayout) -> int:
    """Return how many runs of blocks in a stage have an f32 scale each; 1 if scales are E8M0."""
    kind = layout.scaled
    return max(1, layout.blocks // kind.shared) if kind.has_f32_scales else 1


def factor_loads(rows: int, waves: int) -> int:
    """Return how many loads to LDS each wave issues for the scales of a stage."""
    return -(-rows // (waves * LANES))


class StagedFloatScales:
    """The scales of a side that go through LDS, for one lane: their loads to LDS and their reads.

    In a stage each row has an f32 for each of `runs` runs, or four E8M0.

    `buffer`: the scales in memory; `slots`: LDS; `start`: byte offset of the scales in a slot;
    `first`: the first row of this wave's tiles; `row_of`: returns the row in memory of the scales
    of a row of the workgroup's tile; `one_scale`: whether all columns of a tile have the same
    scale.

    If a stage has several runs, the scales of a column are 16 bytes. In the order of columns, 16
    lanes that read them would have bank conflicts. So the 16 columns that a lane group has in a
    tile come first, then those of the other group.
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
        """Compute what is the same in all stages, at the insertion point."""
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
        """Loads to LDS that each wave issues for a stage."""
        return len(self._offsets)

    @property
    def bytes(self) -> int:
        """Bytes of LDS in a stage."""
        return factor_bytes(self._layout.rows, self._layout.waves, self.runs)

    def load(self, number: int, stage: ir.Value, slot: ir.Value) -> None:
        """Issue load `number` of a stage to a slot of LDS, an offset.

        Past the end of K it loads something that nothing uses.
        """
        at = self._offsets[number] + stage * self._blocks // self._shared * self._bytes
        into = slot + self._into + number * LANES * self._size
        load_to_shared(self._buffer, at, self._slots, into, self._size)

    def of_row(self, tile: int, slot: ir.Value) -> ir.Value:
        """Read the f32 scales of this lane's row of a tile: f32 [runs]."""
        return self._read(self._lane.row + tile * INSTRUCTION.rows, slot)

    def of_blocks(self, tile: int, slot: ir.Value) -> ir.Value:
        """Read the E8M0 scales of this lane's blocks in its row of a tile: k-step n in byte n of an
        i32."""
        size, row = self._layout.k_steps * self._bytes, self._lane.row + tile * INSTRUCTION.rows
        at = self._at(row, slot) + self._lane.group * size
        found = vector.load(of(i8(), size), self._slots, [at], alignment=size)
        narrow = ir.IntegerType.get_signless(size * _BYTE)
        return arith.extui(i32(), vector.extract(bitcast(found, narrow, 1), [], [0]))

    def of_columns(self, tile: int, slot: ir.Value) -> ir.Value:
        """Read the f32 scales of one column of a tile: f32 [runs].

        Lane n of 16 adjacent lanes reads those of the column that sum n of each of them belongs to.
        If all columns of a tile have the same scale, every lane reads it.
        """
        own = _column_of(self._lane, one_scale=self.one_scale)
        if self.runs > 1 and not self.one_scale:
            own = self._lane.group * INSTRUCTION.totals + self._lane.row % INSTRUCTION.totals
        return self._read(own + tile * INSTRUCTION.rows, slot)

    def _read(self, row: ir.Value, slot: ir.Value) -> ir.Value:
        """Read the f32 scales at place `row` of this wave's rows: f32 [runs]."""
        size, at = self._size, self._at(row, slot)
        found = vector.load(of(i8(), size), self._slots, [at], alignment=size)
        return bitcast(found, f32(), self.runs)

    def _at(self, row: ir.Value, slot: ir.Value) -> ir.Value:
        """Return the LDS offset of the scales at place `row` of this wave's rows."""
        return (self._first + row) * self._size + self._start + slot


class DirectFloatScales:
    """The f32 scales of a side that are loaded from memory to registers, for one lane.

    `columns`: whether the side is rhs, so that the lane loads the scale of one column of each tile,
    the one that `StagedFloatScales.of_columns` would read; else it loads that of its row of each
    tile. `tiles`: tiles of the wave; the others: as of StagedFloatScales.
    """

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
        """Compute what is the same in all stages, at the insertion point."""
        self._buffer, self._shared, self.one_scale = buffer, kind.shared, one_scale
        own = first + (_column_of(lane, one_scale=one_scale) if columns else lane.row)
        self._offsets = [
            row_of(own + tile * INSTRUCTION.rows) * (kind.blocks // kind.shared * _SIZE)
            for tile in range(tiles)
        ]

    def load(self, tile: int, block: ir.Value) -> ir.Value:
        """Load the f32 scale of a block of this lane's row, or column, of a tile."""
        at = self._offsets[tile] + block // self._shared * _SIZE
        return vector.extract(bitcast(load_bytes(self._buffer, at, _SIZE), f32(), 1), [], [0])


def columns_of(scale: ir.Value, first: int, count: int, *, one_scale: bool) -> list[ir.Value]:
    """Return the scales of the columns of `count` sums of this lane, from sum `first` on.

    `scale`: what this lane and the 15 beside it have each read or loaded; `one_scale`: whether it
    is the scale of all columns, which is then returned alone.
    """
    return [scale] if one_scale else [of_sixteen(scale, first + at) for at in range(count)]


def under_scales(
    sums: ir.Value, before: ir.Value, row: ir.Value | None, columns: Sequence[ir.Value] | None
) -> ir.Value:
    """Return `before` + `sums` * scales, for sums of a tile of the result: f32 [n].

    `row`: the scale of the row, None if lhs has no f32 scales; `columns`: the scales of the
    columns of the sums, or one for all, None if rhs has no f32 scales. One side has some.
    """
    factors = [row] if columns is None else list(columns)
    if columns is not None and row is not None:
        factors = [column * row for column in columns]
    if len(factors) == 1:
        factors *= lanes_of(sums)
    each = zip(elements(sums), factors, elements(before), strict=True)
    return vector.from_elements(sums.type, [math.fma(*own) for own in each])


def _column_of(lane: Lane, *, one_scale: bool) -> ir.Value:
    """Return the column of a tile whose scale a lane reads.

    For lane n of 16 adjacent lanes it is the column of sum n; if all columns have one scale, the
    first column.
    """
    if one_scale:
        return index(0)
    return _column(lane.row % INSTRUCTION.totals, lane.group)


def _column(number: ir.Value, group: ir.Value) -> ir.Value:
    """Return the column of a tile that sum `number` of the lanes of a group belongs to."""
    return number // QUAD * INSTRUCTION.row(1) + group * QUAD + number % QUAD
