"""The loop along K of a ring whose sums are multiplied by f32 scales, tile by tile of the result.

A stage has one *run* of elements along K or several. A run has one scale for each row of a side:

    for each tile of columns, each run, each tile of rows
      sums = products of the run, from zero
      totals += sums * (scale of the row * scale of the column)

The last line is computed for some of the sums at a time, behind the products of the next tiles: the
matrix core has finished the sums by then. So a lane holds the sums of two or three tiles, and the
totals of all.

All rows of a stage are in registers. Rows of the next stage are read from LDS as soon as the last
product of their tile is issued. Weights are loaded straight to accumulation registers, to those
which the weights before them have left; so that none has to be moved, an iteration of the loop has
as many stages as weights are loaded ahead. Weights that are decoded are so while the tile of
columns before them is multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.dialects.amdgpu import (
    mark_loads,
    mfma,
    pinned,
    scaled_mfma,
    wait_for_all_loads,
    wait_for_loads,
    zeros,
)
from mxc.dialects.generic import constant
from mxc.passes.kernels.carried import in_groups
from mxc.passes.kernels.gpu.fragments import BLOCK, K_STEPS
from mxc.passes.kernels.gpu.ring.factors import columns_of, under_scales
from mxc.passes.kernels.gpu.ring.interleave import (
    InterleavedWork,
    Issue,
    IssueBudget,
    Kind,
    evenly,
    interleaved_within,
)
from mxc.passes.kernels.gpu.ring.pairs import PAIRS, PairDecoder
from mxc.passes.kernels.gpu.ring.summed_operands import SummedOperands
from mxc.passes.kernels.gpu.ring.summed_registers import (
    DecodedColumns,
    SummedRegisters,
    UnscaledSums,
)
from mxc.passes.kernels.gpu.scaled_side import ones
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.vectors import bitcast, concat, f32, i32, index, of, part_of
from mxc.targets.amd import GFX950

#: Instructions of a load, with those of its addresses.
_LOAD = 3
#: Products of the next tile that are issued before the sums of a tile are scaled, where a run has
#: more than _PORTIONS products: the matrix core has not finished the sums earlier.
_BRIEF = 2
#: Most portions in which a lane scales its sums of a tile, one after the other.
_PORTIONS = 4
#: Instructions that may be issued beside a product where a stage has several runs: all that are
#: due. They are twice as many as fit beside a product, but sums that wait take registers.
_ALL = 1 << 10

#: A tile of rows, a tile of columns, and a number: of an instruction along K in the stage; or, for
#: scaling, of a portion of the tile's sums, counted over all runs of the stage.
Place = tuple[int, int, int]


@dataclass(frozen=True)
class _StagePlan:
    """When a stage does what, as shares of it, and how many instructions go beside a product.

    `waits`: when waves wait for each other; `read`: when reads of the next stage from LDS begin;
    `asked`: when all loads of a later stage to LDS have been issued; `beside`, `over`: see
    IssueBudget; `decoded`: instructions that decode, for each product.

    Of the values that were tried, these keep the matrix cores busiest (docs/gpu.md). With earlier
    reads products wait less for LDS, but the data takes registers longer.
    """

    waits: float
    read: float
    asked: float
    beside: int = 0
    over: int = 0
    decoded: float = 2.5

    @staticmethod
    def of(decoder: PairDecoder | None, k_steps: int, runs: int) -> _StagePlan:
        """Return the plan of a stage. `decoder`: decodes rhs, None if nothing is decoded."""
        if decoder is None:
            return _StagePlan(0.15, 0.3, 0.5, over=2)
        if runs > 1:
            return _StagePlan(0.25, 0.56, 0.55, decoded=4.5)
        # With one k-step (sums are scaled twice as often), or integers, a stage has more vector
        # instructions than fit beside its products: a wave issues as many as it can.
        if k_steps == 1:
            return _StagePlan(0.3, 0.53, 0.5, beside=1, over=2)
        if decoder.element.exponent:
            return _StagePlan(0.2, 0.52, 0.6, beside=1, decoded=3.5)
        return _StagePlan(0.25, 0.56, 0.55, beside=1, over=3, decoded=4.5)


class SummedMainloop:
    """The loop of a wave along K; no other wave of the workgroup has its columns. `decoder` makes
    floats of rhs; None where the scaled instruction takes both sides as they are, under scales of
    one, or of lhs under its E8M0 scales."""

    def __init__(
        self, schedule: GpuSchedule, operands: SummedOperands, decoder: PairDecoder | None
    ) -> None:
        """Keep what the loop needs. No operation is built."""
        self._operands, self._decoder = operands, decoder
        self._instruction, self._stages = schedule.instruction, schedule.stages
        self._rows, self._columns = (range(tiles) for tiles in schedule.tiles)
        #: Parts of a run: instructions along K.
        self._parts = operands.parts // operands.runs
        self._places = list(self._in_order(self._parts))
        #: Portions in which the sums of a tile are scaled, and sums of a portion; the portions of
        #: a stage in order; and how many are not yet scaled when a tile begins.
        self._portions = min(self._parts, _PORTIONS)
        self._portion_size = self._instruction.totals // self._portions
        self._sum_places = list(self._in_order(self._portions))
        self._portions_late = self._portions + (self._portions == self._parts)
        self._one_scale = operands.column_scales.one_scale
        self._plan = _StagePlan.of(decoder, schedule.k_steps, operands.runs)
        clocks = self._instruction.form.clocks if decoder else self._instruction.byte_clocks
        # Issue slots beside a product: none in its first clocks, where no vector instruction runs.
        free = (clocks - GFX950.rates.matrix_start) // GFX950.rates.issue
        if operands.runs > 1:
            free = _ALL
        self._budget = IssueBudget(free, self._plan.beside, self._plan.over)
        #: Fragments of the tile of columns that is multiplied; the tile that is being decoded; the
        #: sums of the current run; scales of columns, by tile of columns and number as in Place.
        self._own: list[ir.Value] = []
        self._coming: DecodedColumns | None = None
        self._sums: ir.Value | None = None
        self._known_scales: dict[tuple[int, int], list[ir.Value]] = {}

    def _in_order(self, count: int) -> Iterator[Place]:
        """Yield `count` places for each run of each tile, in the order of multiplication."""
        runs = range(self._operands.runs)
        for column, run, row, part in product(self._columns, runs, self._rows, range(count)):
            yield row, column, run * count + part

    def sums(self) -> list[ir.Value]:
        """Build all stages; return the sums of the tiles, row by row."""
        held = in_groups(self._begin(), self._operands.all_stages, self._stages, self._round)
        wait_for_all_loads()
        for at in range(self._portions_late):
            self._scale(held, self._place_to_scale(at))
        return [concat(parts) for parts in held.totals]

    def _place_to_scale(self, at: int) -> Place:
        """Return which portion is scaled as number `at` of a stage: `_portions_late` after its
        sums are complete."""
        return self._sum_places[(at - self._portions_late) % len(self._sum_places)]

    def _round(self, held: SummedRegisters, before: ir.Value, count: int) -> SummedRegisters:
        """Build `count` stages after `before` whole iterations. Returns what is held after them."""
        for at in range(count):
            self._stage(held, before * self._stages + at, at)
        return held

    def _begin(self) -> SummedRegisters:
        """Fill the ring; read, and decode, what is multiplied first."""
        none, operands = zeros(of(f32(), self._portion_size)), self._operands
        held = self._empty()
        held.totals = [[none] * self._portions for _ in range(len(self._rows) * len(self._columns))]
        # In the order of the loop: else its first waits would be for more loads than necessary.
        for stage in range(self._stages):
            for column in self._columns:
                if column == len(self._columns) // 2:
                    for issue in operands.load_rows(index(stage), stage):
                        issue()
                    mark_loads()
                for issue in self._weights(stage - self._stages, column, held.ahead):
                    issue()
        wait_for_loads(self._stages - 1)
        for issue in (*operands.read_rows(held, 0), *operands.read_scales(held, 0)):
            issue()
        if self._decoder is not None:
            self._step(held)
            held.decoded = self._decoded()
        zero = constant(0.0, f32())
        row = zero if operands.rows_scale_sums else None
        held.unscaled = [
            UnscaledSums(none, row, [zero] * (1 if self._one_scale else self._portion_size))
            for _ in range(self._portions_late)
        ]
        return held

    def _empty(self) -> SummedRegisters:
        """Return registers of a stage of which nothing is read yet."""
        return SummedRegisters([[] for _ in self._rows])

    def _stage(self, held: SummedRegisters, stage: ir.Value, slot: int) -> None:
        """Multiply the stage in a slot; read the next one, and decode its first tile of columns."""
        after, operands = self._empty(), self._operands
        self._own = held.decoded
        self._known_scales.clear()
        works = [*self._scalings(held), *self._decodings(held)]
        for column in self._columns:
            loads = self._weights(stage, column, held.ahead)
            first, last = ((column + more) / len(self._columns) for more in (0.04, 1))
            works += evenly("vmem_read", loads, first, last, _LOAD * operands.column_pieces)
        plan = self._plan
        cut = max(1, round(len(self._places) * plan.waits))
        wait = cut / len(self._places)
        # They follow the barrier: all waves have read this slot, and the next stage is in LDS.
        loads = operands.load_rows(stage + self._stages, slot)
        works += evenly("vmem_read", loads, wait, max(plan.asked, wait), _LOAD)
        rows = operands.read_rows(after, (slot + 1) % self._stages)
        works += evenly("ds_read", rows, max(plan.read, wait), 1.0, operands.row_pieces)
        scales = operands.read_scales(after, (slot + 1) % self._stages)
        works += evenly("ds_read", scales, max(plan.read, wait), 1.0)
        left = self._multiply_all(held, works, 0, cut)
        wait_for_loads(self._stages - 2)
        self._multiply_all(held, [*left, *works], cut, len(self._places))
        mark_loads()
        for at, each in enumerate(held.unscaled):
            self._ask_scales(held, each, self._place_to_scale(at))
        held.rows, held.decoded = after.rows, self._decoded()
        held.row_scales, held.column_scales = after.row_scales, after.column_scales

    def _multiply_all(
        self, held: SummedRegisters, works: Sequence[InterleavedWork], first: int, last: int
    ) -> list[InterleavedWork]:
        """Build some products of a stage, with the work that is due among them. Returns arithmetic
        that did not fit, for the products that follow."""
        count = len(self._places)
        start, stop = first / count, last / count
        own = [
            replace(each, at=(each.at - start) / (stop - start))
            for each in works
            if start <= each.at < stop or each.at >= stop == 1
        ]
        products = [partial(self._multiply, held, *place) for place in self._places[first:last]]
        waits = last < count
        leaves: list[Kind] = ["valu"] if waits else []
        left = interleaved_within(
            products, own, self._budget, waits=waits, product_first=True, leaves=leaves
        )
        return [replace(each, at=stop) for each in left]

    def _scalings(self, held: SummedRegisters) -> Iterator[InterleavedWork]:
        """Yield the work that multiplies sums by their scales, those of a tile behind products of
        the next tiles; and, at the first tile of rows of each run, the work that brings the scales
        of the columns from other lanes."""
        count, rows = len(self._places), len(self._rows)
        # Scales of row and column are multiplied first: once, if all columns share one scale.
        both, columns = self._operands.rows_scale_sums, 1 if self._one_scale else self._portion_size
        instructions = self._portion_size + both * columns
        moves = 0 if self._one_scale else self._portion_size
        for at in range(len(self._sum_places)):
            tile, part = divmod(at, self._portions)
            # The middle of a product: rounding cannot move the work to another one.
            place = tile * self._parts + part + 0.5
            if self._portions < self._parts:
                apart = (self._parts - _BRIEF) / self._portions
                place = tile * self._parts + _BRIEF + part * apart + 0.5
            scale = partial(self._scale, held, self._place_to_scale(at))
            yield InterleavedWork(place / count, "valu", scale, instructions, "scale")
            if tile % rows == 0:
                column, run = divmod(tile // rows, self._operands.runs)
                ask = partial(self._columns_of, held, column, run * self._portions + part)
                yield InterleavedWork((place + 0.5) / count, "valu", ask, moves, "scale")

    def _decodings(self, held: SummedRegisters) -> Iterator[InterleavedWork]:
        """Yield the work that decodes a tile of columns while the one before it is multiplied: as
        late as there is room for it, because fragments of both tiles are in registers then."""
        if self._decoder is None:
            return
        count, most = len(self._places), len(self._rows) * self._operands.parts
        pairs = self._operands.parts * PAIRS
        # Before the first of its pairs a word is moved out of an accumulation register.
        of_word, each = 16 // self._decoder.element.bits, self._decoder.instructions
        first = each + 1 + self._decoder.instructions_of_word
        counts = [each if at % of_word else first for at in range(pairs)]
        interval = min(most, max(self._operands.parts, sum(counts) / self._plan.decoded))
        for column in self._columns:
            begin = (column + 1) * most - interval
            for at, instructions in enumerate(counts):
                place = (begin + interval * (at + 0.5) / pairs) / count
                yield InterleavedWork(
                    place, "valu", partial(self._step, held), instructions, "decode"
                )

    def _step(self, held: SummedRegisters) -> None:
        """Decode a pair of the next tile of columns."""
        if self._coming is None:
            assert self._decoder is not None
            self._coming = DecodedColumns(self._decoder, self._take(held))
        self._coming.step()

    def _decoded(self) -> list[ir.Value]:
        """Return the fragments of the next tile of columns; none if nothing is decoded."""
        coming, self._coming = self._coming, None
        return [] if coming is None else coming.fragments()

    def _take(self, held: SummedRegisters) -> list[ir.Value]:
        """Take the loaded weights of the next tile of columns, one vector for each k-step."""
        k_steps = self._operands.rhs.layout.k_steps
        own, held.ahead[:k_steps] = held.ahead[:k_steps], []
        # In accumulation registers: vector registers have the sums.
        return pinned(own, "a")

    def _weights(self, stage: ir.Value | int, column: int, into: list[ir.Value]) -> list[Issue]:
        """Return the loads of weights that are issued while a tile of columns of a stage is
        multiplied: to the registers that this tile has left if it was decoded, else to those of the
        tile before it. None for a stage before the first one."""
        tile, later = column, self._stages
        if self._decoder is None:
            tile, later = (column - 1, later) if column else (self._columns[-1], later - 1)
        coming = stage + later
        if isinstance(coming, int):
            return self._operands.load_columns(index(coming), tile, into) if coming >= 0 else []
        return self._operands.load_columns(coming, tile, into)

    def _multiply(self, held: SummedRegisters, row: int, column: int, part: int) -> None:
        if (row, part) == (0, 0):
            if self._decoder is None:
                self._own = self._take(held)
            elif column:
                self._own = self._decoded()
        run, of_run = divmod(part, self._parts)
        if of_run == 0:
            self._sums = zeros(of(f32(), self._instruction.totals))
        assert self._sums is not None
        self._sums = self._product(held, row, part, self._sums)
        if of_run + 1 == self._parts:
            scale = None
            if self._operands.rows_scale_sums:
                scale = vector.extract(held.row_scales[row], [], [run])
            held.unscaled += [
                UnscaledSums(
                    part_of(self._sums, at * self._portion_size, self._portion_size), scale
                )
                for at in range(self._portions)
            ]

    def _product(self, held: SummedRegisters, row: int, part: int, c: ir.Value) -> ir.Value:
        """Return c plus the product of a fragment of each side."""
        a, b = self._own[part], held.rows[row][part]
        if self._decoder is not None:
            return mfma(self._instruction.form.shape, a, b, c)
        left, right = (
            bitcast(each, ir.Type.parse(side.layout.scaled.format.element.mlir), BLOCK)
            for each, side in ((a, self._operands.rhs), (b, self._operands.lhs))
        )
        scales, chosen = ones(), 0
        if self._operands.rows_scale_blocks:
            words = vector.from_elements(of(i32(), 1), [held.row_scales[row]])
            scales, chosen = bitcast(words, ir.Float8E8M0FNUType.get(), K_STEPS), part
        return scaled_mfma(self._instruction.shape, left, right, c, (ones(), scales), (0, chosen))

    def _scale(self, held: SummedRegisters, place: Place) -> None:
        """Add the oldest unscaled sums, times their scales, to their totals. `place`: theirs."""
        (row, column, part), own = place, held.unscaled.pop(0)
        self._ask_scales(held, own, place)
        totals, at = held.totals[row * len(self._columns) + column], part % self._portions
        scaled = under_scales(own.sums, totals[at], own.row, own.columns)
        # Unless pinned, LLVM scales at the end of the loop, and keeps all sums until then.
        (totals[at],) = pinned([scaled])

    def _ask_scales(self, held: SummedRegisters, own: UnscaledSums, place: Place) -> None:
        """Bring the scales of the columns of some sums, if they are not there."""
        _, column, part = place
        own.columns = own.columns or self._columns_of(held, column, part)

    def _columns_of(self, held: SummedRegisters, column: int, part: int) -> list[ir.Value]:
        """Return the scales of the columns of a portion of sums; `part`: its number as in Place."""
        if (column, part) not in self._known_scales:
            run, at = divmod(part, self._portions)
            own = vector.extract(held.column_scales[column], [], [run])
            first, count = at * self._portion_size, self._portion_size
            self._known_scales[column, part] = columns_of(
                own, first, count, one_scale=self._one_scale
            )
        return self._known_scales[column, part]
