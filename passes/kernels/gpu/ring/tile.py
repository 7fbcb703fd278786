"""The tile of the result that a workgroup of a ring has: where it lies, and how it is stored."""

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

#: Dies of a device, each with a cache: one workgroup after the other goes to the next of them.
#: Source: AMD CDNA3 and CDNA4 white papers (eight XCDs).
_DIES = 8
#: Rows of workgroups that take the same columns one after the other.
_TOGETHER = 4


class WorkgroupTile:
    """Rows and columns of the workgroup that runs; `start`: its first row, `first`: its first
    column, of both halves together.

    `first_row`, `first_column`: of the workgroup's those where this wave begins.
    """

    def __init__(self, contraction: GpuContraction, lane: Lane, given: ContractionBuffers) -> None:
        """At the insertion point."""
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
        """Which rows and columns this workgroup has: those that run at once share operands.

        Numbers that a die gets become consecutive ones, and these go down some rows first.
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
        # The last band has fewer rows.
        high = at_most(value_of(down) - first, _TOGETHER)
        return first + inside % high, inside // high

    def lhs_row(self, local: ir.Value) -> ir.Value:
        """The row in memory of a row of the workgroup's tile."""
        return self._given.lhs_row(self.start, local)

    def rhs_row(self, local: ir.Value) -> ir.Value:
        """The same of rhs, the last one beyond the end."""
        return self._given.rhs_row(self.first, self._column_of(local))

    def scale_row(self, local: ir.Value) -> ir.Value:
        """The same of the scales of rhs."""
        return self._given.scale_row(self.first, self._column_of(local))

    def _column_of(self, local: ir.Value) -> ir.Value:
        """The column of rhs of one of the workgroup's tile, the last one beyond the end.

        The halves of a result are in the halves of each wave's tiles.
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
        """The first column of a wave."""
        first = self._right * self._schedule.waves[1] + wave
        return first * (self._across * self._size)

    def store(self, totals: list[ir.Value]) -> None:
        """Finish and store all tiles of this wave, if it has all splits of K; `totals` row after
        row of tiles."""
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
        """Quantize and store a tile: a block of each row. `local`: a row of the workgroup's.

        The lanes of a block exchange columns: those of rows that there are not take part.
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
        """Finish and store tiles of heads that hold a block, for pages of blocks."""
        quads = [
            Quad(self._column(column + number * self._size, quad), pair, quad)
            for number, pair in enumerate(pairs)
            for quad in range(self._schedule.instruction.totals // QUAD)
        ]
        self._given.store_blocks(row, column, quads, self._lane)

    def _column(self, column: ir.Value, quad: int) -> ir.Value:
        """The first column of a quad of the tile that begins at `column`."""
        return column + (self._lane.group * QUAD + self._schedule.instruction.row(quad))

    def _store(self, row: ir.Value, column: ir.Value, pair: Sequence[TileSums]) -> None:
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
