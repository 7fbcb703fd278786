"""The tile of the result that a workgroup of a ring has: where it lies, and how it is stored."""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects.amdgpu import zeros
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import product, quotient_up, value_of
from mxc.passes.kernels.gpu.contraction import Contraction, Given
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.lanes import Lane, at_most, below, divided, plus, rest, times
from mxc.passes.kernels.gpu.output import Blocks
from mxc.passes.kernels.vectors import f32, of, when

#: Dies of a device, each with a cache: one workgroup after the other goes to the next of them.
#: Source: AMD CDNA3 and CDNA4 white papers (eight XCDs).
_DIES = 8
#: Rows of workgroups that take the same columns one after the other.
_TOGETHER = 4


class Tile:
    """Rows and columns of the workgroup that runs; `start`: its first row, `first`: its first
    column, of both halves together.

    `first_row`, `first_column`: of the workgroup's those where this wave begins.
    """

    def __init__(self, contraction: Contraction, lane: Lane, given: Given) -> None:
        """At the insertion point."""
        self._contraction, self._lane, self._given = contraction, lane, given
        self._schedule = contraction.schedule
        self._size = self._schedule.instruction.rows
        self._tiles_m, self._tiles_n = self._schedule.tiles
        self._across = self._tiles_n // contraction.halves
        waves_n = self._schedule.waves[1]
        self.first_row = times(divided(lane.wave, waves_n), self._tiles_m * self._size)
        self._wave_n = rest(lane.wave, waves_n)
        self.first_column = times(self._wave_n, self._tiles_n * self._size)
        down, self._right = self._place()
        self.start = times(down, self._schedule.rows)
        self.first = times(self._right, self._schedule.columns)
        self._blocks: Blocks | None = None
        if contraction.out is not None:
            instruction, results = self._schedule.instruction, given.blocks(self.start)
            self._blocks = Blocks(contraction.out, contraction.width, instruction, lane, *results)

    def _place(self) -> tuple[ir.Value, ir.Value]:
        """Which rows and columns this workgroup has: those that run at once share operands.

        Numbers that a die gets become consecutive ones, and these go down some rows first.
        """
        right = self._contraction.right
        down = quotient_up(self._contraction.rows, self._schedule.rows)
        count = product(down, right)
        number = plus(times(workgroup(1), right), workgroup(0))
        if isinstance(count, int):
            each, more = divmod(count, _DIES)
        else:
            each, more = divided(count, _DIES), rest(count, _DIES)
        die = rest(number, _DIES)
        first = plus(times(die, each), at_most(die, more))
        number = plus(first, divided(number, _DIES))
        band = divided(number, _TOGETHER * right)
        inside = rest(number, _TOGETHER * right)
        first = times(band, _TOGETHER)
        if isinstance(down, int) and down % _TOGETHER == 0:
            return plus(first, rest(inside, _TOGETHER)), divided(inside, _TOGETHER)
        # The last band has fewer rows.
        high = at_most(arith.subi(value_of(down), first), _TOGETHER)
        return plus(first, arith.remui(inside, high)), arith.divui(inside, high)

    def lhs_row(self, local: ir.Value) -> ir.Value:
        """The row in memory of a row of the workgroup's tile."""
        return self._given.lhs_row(self.start, local)

    def rhs_row(self, local: ir.Value) -> ir.Value:
        """The same of rhs, the last one beyond the end.

        A gated result has its halves in the halves of each wave's tiles.
        """
        contraction, size = self._contraction, self._size
        if contraction.halves == 1:
            row = plus(self.first, local)
        else:
            tile = divided(local, size)
            wave, tile = divided(tile, self._tiles_n), rest(tile, self._tiles_n)
            column = plus(times(self._wave_column(wave), 1), rest(local, size))
            row = plus(column, times(rest(tile, self._across), size))
        row = at_most(row, contraction.width - 1)
        if contraction.halves > 1:
            row = plus(row, times(divided(tile, self._across), contraction.width))
        return self._given.rhs_row(self.first, row)

    def _wave_column(self, wave: ir.Value) -> ir.Value:
        """The first column of a wave."""
        first = plus(times(self._right, self._schedule.waves[1]), wave)
        return times(first, self._across * self._size)

    def store(self, totals: list[ir.Value]) -> None:
        """Finish and store all tiles of this wave; `totals` row after row of tiles."""
        local = plus(self.first_row, self._lane.row)
        row = plus(self.start, local)
        column = self._wave_column(self._wave_n)
        if self._contraction.out is not None:
            self._contraction.out.prepare()
        for m in range(self._tiles_m):
            for n in range(self._across):
                first = m * self._tiles_n + n
                pair = totals[first : (m + 1) * self._tiles_n : self._across][
                    : self._contraction.halves
                ]
                at = plus(column, n * self._size)
                if self._blocks is None:
                    self._store(plus(row, m * self._size), at, pair)
                else:
                    self._store_block(self._blocks, plus(local, m * self._size), at, pair)

    def _store_block(
        self, blocks: Blocks, local: ir.Value, column: ir.Value, pair: list[ir.Value]
    ) -> None:
        """Quantize and store a tile: a block of each row. `local`: a row of the workgroup's.

        The lanes of a block exchange columns: those of rows that there are not take part.
        """
        row, kind = plus(self.start, local), of(f32(), QUAD)
        inside = arith.andi(self._given.has_row(row), below(column, self._contraction.width))
        quads = range(self._schedule.instruction.totals // QUAD)
        branch = scf.IfOp(inside, [kind] * len(quads), has_else=True)
        with ir.InsertionPoint(branch.then_block):
            whole = self._given.result_row(row)
            scf.YieldOp(
                [
                    self._given.finished(whole, self._column(column, quad), pair, quad)
                    for quad in quads
                ]
            )
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp([zeros(kind)] * len(quads))
        blocks.store(list(branch.results), local, column, inside)

    def _column(self, column: ir.Value, quad: int) -> ir.Value:
        """The first column of a quad of the tile that begins at `column`."""
        return plus(
            column, plus(times(self._lane.group, QUAD), self._schedule.instruction.row(quad))
        )

    def _store(self, row: ir.Value, column: ir.Value, pair: list[ir.Value]) -> None:
        contraction, schedule = self._contraction, self._schedule
        for quad in range(schedule.instruction.totals // QUAD):
            at = self._column(column, quad)
            conditions = []
            if not isinstance(contraction.rows, int) or contraction.rows % schedule.rows:
                conditions.append(self._given.has_row(row))
            if contraction.width % (schedule.columns // contraction.halves):
                conditions.append(below(at, contraction.width))
            if not conditions:
                self._quad(row, at, pair, quad)
                continue
            condition = conditions[0]
            for other in conditions[1:]:
                condition = arith.andi(condition, other)
            with when(condition):
                self._quad(row, at, pair, quad)

    def _quad(self, row: ir.Value, at: ir.Value, pair: list[ir.Value], quad: int) -> None:
        """Four totals in a row."""
        self._given.store(self._given.result_row(row), at, pair, quad)
