"""The tile of the result that a workgroup of a ring computes: its place, and how it is stored."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import nullcontext
from functools import reduce

from iree.compiler import ir

from mxc.dialects.amdgpu import zeros
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import product, quotient_up, value_of
from mxc.passes.kernels.gpu.contraction import GpuContraction
from mxc.passes.kernels.gpu.contraction_buffers import ContractionBuffers, Quad
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.lanes import Lane, at_most
from mxc.passes.kernels.gpu.output import BlockOutput
from mxc.passes.kernels.gpu.ring.split import TileSums
from mxc.passes.kernels.vectors import below, choose, f32, index, of, when

#: Dies of a device (XCDs), each with an L2 of its own. Workgroups go to them round-robin.
#: Source: AMD CDNA3 and CDNA4 white papers (eight XCDs).
_DIES = 8
#: Rows of tiles in a band. In a band, workgroups are numbered column by column.
_TOGETHER = 4


class WorkgroupTile:
    """The tile of the workgroup that runs.

    `start`, `first`: its first row and column in the result; `first_row`, `first_column`: the first
    row and column of this wave in the tile. Columns of both halves of a result are counted
    (`GpuContraction.halves`).
    """

    def __init__(self, contraction: GpuContraction, lane: Lane, given: ContractionBuffers) -> None:
        """Compute the place of the tile, at the insertion point."""
        self._contraction, self._lane, self._given = contraction, lane, given
        self._schedule = contraction.schedule
        self._size = self._schedule.instruction.rows
        self._tiles_m, self._tiles_n = self._schedule.tiles
        self._across = self._tiles_n // contraction.halves
        waves_n = self._schedule.waves[1]
        self.first_row = lane.wave // waves_n * (self._tiles_m * self._size)
        self._wave_n = lane.wave % waves_n
        self.first_column = self._wave_n * (self._tiles_n * self._size)
        down, self._right = self._place()
        self.start = down * self._schedule.rows
        self.first = self._right * self._schedule.columns
        self._blocks: BlockOutput | None = None
        if contraction.out is not None:
            instruction, results = self._schedule.instruction, given.blocks(self.start)
            self._blocks = BlockOutput(
                contraction.out, contraction.width, instruction, lane, *results
            )

    def _place(self) -> tuple[ir.Value, ir.Value]:
        """Return the row and the column of the workgroup's tile, counted in tiles.

        Workgroups that run on a die at the same time are to share operands in its L2. So those of a
        die, every eighth one, are renumbered to be consecutive. Numbers go down a band of
        `_TOGETHER` rows of tiles, then to its next column, and after the last to the next band.
        """
        right = self._contraction.right
        down = quotient_up(self._contraction.rows, self._schedule.rows)
        count = product(down, right)
        number = workgroup(1) * right + workgroup(0)
        assert count is not None
        each, more = count // _DIES, count % _DIES
        die = number % _DIES
        first = die * each + at_most(die, more)
        number = first + number // _DIES
        band = number // (_TOGETHER * right)
        inside = number % (_TOGETHER * right)
        first = band * _TOGETHER
        if isinstance(down, int) and down % _TOGETHER == 0:
            return first + inside % _TOGETHER, inside // _TOGETHER
        # The last band may have fewer rows.
        high = at_most(value_of(down) - first, _TOGETHER)
        return first + inside % high, inside // high

    def lhs_row(self, local: ir.Value) -> ir.Value:
        """Return the row of lhs, as the workgroup sees its buffer, of row `local` of the tile."""
        return self._given.lhs_row(self.start, local)

    def rhs_row(self, local: ir.Value) -> ir.Value:
        """Return the row of rhs, as the workgroup sees its buffer, of column `local` of the tile.

        Columns past the end are clamped to the last one.
        """
        return self._given.rhs_row(self.first, self._column_of(local))

    def scale_row(self, local: ir.Value) -> ir.Value:
        """Return the row of the scales of rhs for column `local` of the tile, clamped likewise."""
        return self._given.scale_row(self.first, self._column_of(local))

    def _column_of(self, local: ir.Value) -> ir.Value:
        """Return the column of rhs (all columns) of column `local` of the tile, clamped.

        If the result has two halves (a gate, or rotary pairs), each wave has columns of the first
        one in the first half of its tiles along columns, and of the second one in the others.
        """
        contraction, size = self._contraction, self._size
        row, half = self.first + local, index(0)
        if contraction.halves > 1:
            tile = local // size
            wave, tile = tile // self._tiles_n, tile % self._tiles_n
            row = self._wave_column(wave) + local % size + tile % self._across * size
            half = tile // self._across
        return contraction.column_of(at_most(row, contraction.width - 1), half)

    def _wave_column(self, wave: ir.Value) -> ir.Value:
        """Return the first column of a wave in the result, of each half. `wave`: along columns."""
        first = self._right * self._schedule.waves[1] + wave
        return first * (self._across * self._size)

    def store(self, totals: list[ir.Value]) -> None:
        """Compute the epilogue of this wave's tiles, and store them.

        `totals`: sums of the tiles, row-major. If several workgroups share K, the last of their
        waves does this, with the sums of all (split.py).
        """
        tile = workgroup(1) * self._contraction.right + workgroup(0)
        self._given.join(tile, self._lane, totals, self._store_all)

    def _store_all(self, totals: Sequence[TileSums]) -> None:
        local = self.first_row + self._lane.row
        row = self.start + local
        column = self._wave_column(self._wave_n)
        if self._contraction.out is not None:
            self._contraction.out.prepare()
        for m in range(self._tiles_m):
            for n in range(0, self._across, self._contraction.stored_together):
                pairs = [
                    totals[first : (m + 1) * self._tiles_n : self._across][
                        : self._contraction.halves
                    ]
                    for number in range(self._contraction.stored_together)
                    for first in (m * self._tiles_n + n + number,)
                ]
                at = column + n * self._size
                if self._blocks is not None:
                    self._store_block(self._blocks, local + m * self._size, at, pairs[0])
                elif self._contraction.in_blocks:
                    self._store_heads(row + m * self._size, at, pairs)
                else:
                    self._store(row + m * self._size, at, pairs[0])

    def _store_block(
        self, blocks: BlockOutput, local: ir.Value, column: ir.Value, pair: Sequence[TileSums]
    ) -> None:
        """Quantize a tile and store it: one block of each row.

        `local`: this lane's row of the workgroup's tile; `pair`: sums of the tile, of each half.
        The lanes of a block exchange columns, so lanes whose row does not exist take part.
        """
        row = self.start + local
        inside = self._given.has_row(row) & below(column, self._contraction.width)
        quads = range(self._schedule.instruction.totals // QUAD)

        def finished() -> list[ir.Value]:
            whole = self._given.result_row(row)
            found = [Quad(self._column(column, n), pair, n) for n in quads]
            return [self._given.finished(whole, each) for each in found]

        none = [zeros(of(f32(), QUAD))] * len(quads)
        blocks.store(choose(inside, finished, none), local, column, inside)

    def _store_heads(
        self, row: ir.Value, column: ir.Value, pairs: Sequence[Sequence[TileSums]]
    ) -> None:
        """Store the tiles that hold a block of a head, to pages of a KV cache that has blocks.

        `pairs`: sums of each tile, of both elements of the rotary pairs.
        """
        quads = [
            Quad(self._column(column + number * self._size, quad), pair, quad)
            for number, pair in enumerate(pairs)
            for quad in range(self._schedule.instruction.totals // QUAD)
        ]
        self._given.store_blocks(row, column, quads, self._lane)

    def _column(self, column: ir.Value, quad: int) -> ir.Value:
        """Return the first column of a quad of this lane in the tile that begins at `column`."""
        return column + (self._lane.group * QUAD + self._schedule.instruction.row(quad))

    def _store(self, row: ir.Value, column: ir.Value, pair: Sequence[TileSums]) -> None:
        """Compute the epilogue of a tile and store it, as far as its rows and columns exist."""
        contraction, schedule = self._contraction, self._schedule
        for quad in range(schedule.instruction.totals // QUAD):
            own = Quad(self._column(column, quad), pair, quad)
            conditions = []
            if not isinstance(contraction.rows, int) or contraction.rows % schedule.rows:
                conditions.append(self._given.has_row(row))
            if contraction.width % (schedule.columns // contraction.halves):
                conditions.append(below(own.column, contraction.width))
            inside = when(reduce(operator.and_, conditions)) if conditions else nullcontext()
            with inside:
                self._given.store(self._given.result_row(row), own)
