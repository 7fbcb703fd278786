"""Scaled products whose operands go straight from memory to registers, not through shared memory.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

A wave has some tiles of the result. It goes along K in steps of some k-steps (fragments.py). Later
k-steps are loaded while one is multiplied (stream_registers.py). The waves of a workgroup may
divide the steps among them; they then add up their totals in shared memory at the end.

    loaded = load(the first k-steps)
    for step of this wave, k-step of it:
      loaded += load(a later k-step)                  # in the last step masked past the end of K
      for tile of rows, tile of columns: totals += product of both               # products.py
    totals = sum over the waves along K
    result = epilogue(totals)

The sides are swapped, so that a lane has four consecutive columns of a row of the result, which it
stores at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import scf, vector

from mxc.dialects.amdgpu import barrier, no_reordering, pinned, shared, zeros
from mxc.passes.kernels.carried import values_of, with_values
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.gpu.contraction import GpuContraction
from mxc.passes.kernels.gpu.contraction_buffers import ContractionBuffers, Quad
from mxc.passes.kernels.gpu.floats import FloatBlocks, FloatSide
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.lanes import Lane, lane_of
from mxc.passes.kernels.gpu.output import BlockOutput
from mxc.passes.kernels.gpu.products import DecodedProduct, ScaledProduct, SummedProduct
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.gpu.scaled_side import ScaledSide, clamped
from mxc.passes.kernels.gpu.stream_registers import k_steps_ahead
from mxc.passes.kernels.gpu.wave_side import Loaded, WaveSide
from mxc.passes.kernels.vectors import below, choose, f32, index, loop, of, when

#: Registers of a lane up to which values are pinned. Where a lane has 1024, LLVM gives values that
#: are pinned the first 256 only.
_PINNED = 512


@dataclass(frozen=True)
class StreamKernel(GpuContraction):
    """A product by a schedule of the transport "stream"."""

    @property
    def k_steps_ahead(self) -> tuple[int, int]:
        """How many k-steps before they are multiplied lhs, and rhs, are loaded."""
        return k_steps_ahead(
            self.schedule,
            (self.lhs.bits, self.rhs.bits),
            decodes=self.decoded is not None,
            is_float=isinstance(self.lhs, FloatBlocks),
            in_blocks=self.in_blocks,
        )

    def compute(self, *given: ir.Value) -> None:
        """Build what a workgroup does for its group."""
        Body(self, given).build()


@dataclass(frozen=True)
class _Held:
    """What the loop carries: totals, and the k-steps of each side that are loaded ahead."""

    totals: list[ir.Value]
    loaded: list[list[Loaded]]


class Body:
    """The values of the kernel's body while it is built."""

    def __init__(self, kernel: StreamKernel, given: Sequence[ir.Value]) -> None:
        """Build the sides of this wave at the insertion point. `given`: the kernel's buffers."""
        self.kernel, self.schedule = kernel, kernel.schedule
        self.instruction = self.schedule.instruction
        self.lane: Lane = lane_of(self.instruction)
        _, waves_n, self.waves_k = self.schedule.waves
        wave = self.lane.wave
        self.wave_k = wave % self.waves_k
        wave_n = wave // self.waves_k % waves_n
        wave_m = wave // (self.waves_k * waves_n)
        self.given = ContractionBuffers(kernel, given)
        self.first = workgroup(1) * self.schedule.rows
        self.blocks: BlockOutput | None = None
        self.stored_together = kernel.stored_together
        if kernel.out is not None:
            results = self.given.blocks(self.first)
            self.blocks = BlockOutput(
                kernel.out, kernel.width, self.instruction, self.lane, *results
            )
        size = self.instruction.rows
        self.tiles_m, self.tiles_n = self.schedule.tiles
        # The rows that this lane has, counted from the first row of the workgroup.
        self.rows = [
            (wave_m * self.tiles_m + tile) * size + self.lane.row for tile in range(self.tiles_m)
        ]
        sources = tuple(self.given.lhs_row(self.first, row) for row in self.rows)
        # The first half of the tiles along columns is of the first half of the result.
        self.halves = kernel.halves
        across = self.tiles_n // self.halves
        first = workgroup(0) * waves_n + wave_n
        self.columns = [(first * across + tile) * size for tile in range(across)]
        self.first_column = workgroup(0) * self.schedule.columns
        starts = [
            self._rhs_row(column + self.lane.column, half)
            for half in range(self.halves)
            for column in self.columns
        ]
        lhs, rhs = self.given.lhs(self.first), self.given.rhs(self.first_column)
        self.lhs, self.rhs = self._sides(lhs, rhs, sources, tuple(starts))
        self.product = self._product()

    def _sides(
        self,
        lhs: list[ir.Value],
        rhs: list[ir.Value],
        rows: tuple[ir.Value, ...],
        columns: tuple[ir.Value, ...],
    ) -> tuple[WaveSide, WaveSide]:
        """Return lhs and rhs, from their buffers.

        `rows`, `columns`: for each tile, the row of lhs, and of rhs, that this lane reads.
        """
        at, sums = (self.instruction, self.lane), self.kernel.sums
        kind, register = self.kernel.lhs, self.kernel.decoded
        own = self._scale_rows() if sums else ()
        assert isinstance(self.kernel.rhs, ScaledBlocks)
        right = ScaledSide(self.kernel.rhs, *at, (rhs[0], rhs[1]), columns, register, own, sums)
        if isinstance(kind, FloatBlocks):
            assert register is not None
            return FloatSide(kind, *at, lhs[0], rows, register, sums), right
        each = tuple((row,) for row in rows)
        return ScaledSide(kind, *at, (lhs[0], lhs[1]), rows, register, each, sums), right

    def _rhs_row(self, column: ir.Value, half: int) -> ir.Value:
        """Return the row in the buffers of rhs that a column of a half of the result has."""
        return self.given.rhs_row(self.first_column, self._rhs_column(column, half))

    def _rhs_column(self, column: ir.Value, half: int) -> ir.Value:
        """Return the column of rhs that a column of a half has; past the end, the last one."""
        return self.kernel.column_of(clamped(column, self.kernel.width), half)

    def _scale_rows(self) -> tuple[tuple[ir.Value, ...], ...]:
        """Return, for each tile, the rows of f32 scales of the columns that this lane has.

        They are in the order of the totals of the tile.
        """

        def row(column: ir.Value, half: int) -> ir.Value:
            return self.given.scale_row(self.first_column, self._rhs_column(column, half))

        def rows(column: ir.Value, half: int) -> tuple[ir.Value, ...]:
            if self.kernel.tile_has_one_scale:
                return (row(column, half),) * self.instruction.totals
            quads = range(self.instruction.totals // QUAD)
            firsts = [self._column(column, quad) for quad in quads]
            return tuple(row(first + at, half) for first in firsts for at in range(QUAD))

        return tuple(rows(column, half) for half in range(self.halves) for column in self.columns)

    def _product(self) -> ScaledProduct | DecodedProduct | SummedProduct:
        """Return the product that multiplies the sides."""
        found: ScaledProduct | DecodedProduct
        if self.kernel.decoded is None:
            assert isinstance(self.lhs, ScaledSide)
            assert isinstance(self.rhs, ScaledSide)
            found = ScaledProduct(self.instruction, self.lhs, self.rhs)
        else:
            found = DecodedProduct(self.instruction, self.lhs, self.rhs)
        sums = self.kernel.sums
        return SummedProduct(found, sums) if sums else found

    def build(self) -> None:
        """Build the whole body."""
        kind = of(f32(), self.instruction.totals)
        totals = self._steps([zeros(kind)] * (self.tiles_m * self.tiles_n))
        if self.kernel.out is not None:
            self.kernel.out.prepare()
        if self.waves_k > 1:
            self._add_up(totals)
        else:
            for m in range(self.tiles_m):
                for n in range(0, self.tiles_n // self.halves, self.stored_together):
                    tiles = [
                        self._pair(totals, m, n + tile) for tile in range(self.stored_together)
                    ]
                    self._store_all(self.rows[m], self.columns[n], tiles)

    def _pair(self, totals: list[ir.Value], m: int, n: int) -> list[ir.Value]:
        across = self.tiles_n // self.halves
        return [totals[m * self.tiles_n + half * across + n] for half in range(self.halves)]

    def _steps(self, totals: list[ir.Value]) -> list[ir.Value]:
        """Build the steps of this wave, and return `totals` with all of them added."""
        blocks, size = self.kernel.lhs.blocks, self.instruction.step
        iterations = -(-blocks // (size * self.waves_k))
        ragged = blocks != iterations * size * self.waves_k
        sides, count = (self.lhs, self.rhs), self.product.k_steps
        pins = self.instruction.unit.registers <= _PINNED

        def step(iteration: ir.Value) -> ir.Value:
            return iteration * self.waves_k + self.wave_k

        def load(
            number: int, iteration: ir.Value, k_step: int, masked: Sequence[bool]
        ) -> list[Loaded]:
            """Load k-step `k_step` of side `number`, counted from the first one of `iteration`.

            It may be in a later iteration; past the last one, nothing is loaded. `masked`: whether
            the loads of this iteration, and of each that follows, are masked.
            """
            more, own = divmod(k_step, count)
            if more >= len(masked):
                return []
            at = step(iteration + more)
            return [sides[number].load(at, own, masked=masked[more])]

        def multiply(held: _Held, iteration: ir.Value, *masked: bool) -> _Held:
            totals, loaded = held.totals, [list(side) for side in held.loaded]
            at = step(iteration)
            known = [side.load_late(at, masked=masked[0]) for side in sides]
            for k_step in range(count):
                for number, ahead in enumerate(self.kernel.k_steps_ahead):
                    loaded[number] += load(number, iteration, k_step + ahead, masked)
                # Otherwise LLVM would move all loads of an iteration to its beginning.
                no_reordering()
                for number, side in enumerate(sides):
                    known[number] |= loaded[number].pop(0)
                    if pins:
                        known[number] = side.pin_scales(known[number])
                left, right = known
                totals = self.product.add(totals, left, right, k_step)
                if pins:
                    # Otherwise LLVM would decode the next k-step while registers hold this one.
                    totals = pinned(totals)
                no_reordering()
            return _Held(totals, loaded)

        # Loads before the loop are in the order of those in the loop: at a wait, LLVM counts the
        # loads that follow the one that is waited for, on every path to the wait.
        first: list[list[Loaded]] = [[], []]
        start = (ragged and iterations == 1,)
        for before in range(-max(self.kernel.k_steps_ahead), 0):
            for number, ahead in enumerate(self.kernel.k_steps_ahead):
                if before + ahead >= 0:
                    first[number] += load(number, index(0), before + ahead, start)
            no_reordering()
        held = _Held(totals, first)
        if iterations > 2:
            steps = index(0), index(iterations - 2), index(1)
            with loop(*steps, values_of(held)) as (iteration, given, op):
                found = multiply(with_values(held, given), iteration, False, False)
                scf.YieldOp(values_of(found))
            held = with_values(held, op.results)
        if iterations > 1:
            held = multiply(held, index(iterations - 2), False, ragged)
        return multiply(held, index(iterations - 1), ragged).totals

    def _add_up(self, totals: list[ir.Value]) -> None:
        """Add up the totals of the waves along K in shared memory, and store the result.

        Each of these waves adds up and stores a part of the tiles.
        """
        across = self.tiles_n // self.halves
        units = across // self.stored_together
        pairs = self.tiles_m * units
        waves = self.schedule.waves[0] * self.schedule.waves[1]
        assert waves == 1, "waves along K have the workgroup for themselves"
        size = self.instruction.totals
        memory = shared([self.waves_k, len(totals), self.instruction.unit.lanes, size], f32())
        for at, total in enumerate(totals):
            vector.store(
                total, memory, [self.wave_k, index(at), self.lane.lane, index(0)], alignment=16
            )
        barrier()
        kind = of(f32(), size)
        for start in range(0, pairs, self.waves_k):
            own = self.wave_k + start

            def sums(own: ir.Value = own) -> None:
                m, n = own // units, own % units * self.stored_together
                tiles = []
                for number in range(self.stored_together):
                    pair = []
                    for half in range(self.halves):
                        tile = m * self.tiles_n + n + (half * across + number)
                        at = [tile, self.lane.lane, index(0)]
                        total = vector.load(kind, memory, [index(0), *at], alignment=16)
                        for k in range(1, self.waves_k):
                            part = vector.load(kind, memory, [index(k), *at], alignment=16)
                            total = total + part
                        pair.append(total)
                    tiles.append(pair)
                    if self.stored_together > 1:
                        # Otherwise the sums of all tiles of a block are in registers at once.
                        no_reordering()
                row = self.rows[0] + m * self.instruction.rows
                column = self.columns[0] + n * self.instruction.rows
                self._store_all(row, column, tiles)

            if start + self.waves_k <= pairs:
                sums()
                continue
            with when(below(own, pairs)):
                sums()

    def _store_all(self, row: ir.Value, column: ir.Value, tiles: list[list[ir.Value]]) -> None:
        """Finish and store tiles that lie side by side along columns.

        `row`: this lane's row, counted from the first row of the workgroup. `column`: the first
        column of the first tile. `tiles`: of each tile, the totals of each half.
        """
        own = self.first + row
        inside, whole = self.given.has_row(own), self.given.result_row(own)
        quads = range(self.instruction.totals // QUAD)
        if self.blocks is None and self.kernel.in_blocks:
            size = self.instruction.rows
            self.given.store_blocks(
                own,
                column,
                [
                    Quad(self._column(column + number * size, quad), pair, quad)
                    for number, pair in enumerate(tiles)
                    for quad in quads
                ],
                self.lane,
            )
            return
        if self.blocks is None:
            (pair,) = tiles
            for quad in quads:
                own_quad = Quad(self._column(column, quad), pair, quad)
                with when(inside & below(own_quad.column, self.kernel.width)):
                    self.given.store(whole, own_quad)
            return
        # The lanes of a block exchange columns: those without a row take part, but store nothing.
        inside = inside & below(column, self.kernel.width)

        def finished() -> Iterator[ir.Value]:
            for number, pair in enumerate(tiles):
                first = column + number * self.instruction.rows
                for quad in quads:
                    own_quad = Quad(self._column(first, quad), pair, quad)
                    yield self.given.finished(whole, own_quad)

        none = [zeros(of(f32(), QUAD))] * (len(tiles) * len(quads))
        self.blocks.store(choose(inside, finished, none), row, column, inside)

    def _column(self, column: ir.Value, quad: int) -> ir.Value:
        """Return this lane's first column of a quad of the tile that begins at `column`."""
        run = self.instruction.run
        return column + (self.lane.group * run + self.instruction.row(quad))
