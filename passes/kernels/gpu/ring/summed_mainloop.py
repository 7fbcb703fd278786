"""The stages of a ring of floats whose sums are multiplied by f32 scales.

    scaled = 0
    for each run of stages that have a scale in common:
      sums = products of these stages, from zero
      scaled += sums * (scale of the row * scale of the column)

Products are those of floats; or of 8-bit floats as they are (`SummedBytes`), by the scaled
instruction under scales of one, where a run is of whole such instructions.

The last line is computed tile by tile while the first stage of the next run is multiplied, each
tile before its first product there, so that matrix cores wait for none of it. The scales are read
from LDS in the last stage of a run (factors.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from iree.compiler import ir
from iree.compiler.dialects import scf

from mxc.dialects.amdgpu import scaled_mfma
from mxc.dialects.generic import constant
from mxc.passes.kernels.carried import values_of, with_values
from mxc.passes.kernels.gpu.lanes import long
from mxc.passes.kernels.gpu.ring.factors import StagedFactors, under_scales
from mxc.passes.kernels.gpu.ring.float_mainloop import FloatMainloop, Issue, drain
from mxc.passes.kernels.gpu.ring.float_registers import FloatRegisters, Rates
from mxc.passes.kernels.gpu.ring.interleave import InterleavedWork, evenly
from mxc.passes.kernels.gpu.ring.pairs import PackedSide
from mxc.passes.kernels.gpu.ring.staging import StagedSide
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.gpu.sides import ones
from mxc.passes.kernels.vectors import f32, index, loop

#: The f32 scales of lhs and of rhs, of which one or both have some.
BothFactors = tuple[StagedFactors | None, StagedFactors | None]


@dataclass
class SummedRegisters(FloatRegisters):
    """`totals` are the sums of a run of stages. `scaled`: what all of them add up to, by tile of
    the result; `factors`: by tile of a side, the scales that `totals` are yet to be multiplied by.
    """

    scaled: list[ir.Value] = field(default_factory=list)
    factors: dict[int, ir.Value] = field(default_factory=dict)


class SummedMainloop(FloatMainloop):
    """What a wave does along K, where each `run` stages have a scale in common."""

    def __init__(
        self,
        schedule: GpuSchedule,
        sides: tuple[StagedSide, StagedSide],
        rates: Rates,
        packed: tuple[PackedSide | None, PackedSide | None],
        steps: tuple[int, ...],
        factors: BothFactors,
        run: int,
    ) -> None:
        """What does not depend on the insertion point."""
        super().__init__(schedule, sides, rates, packed, steps)
        self._all = [each for each in factors if each is not None]
        self._slot_bytes += sum(each.bytes for each in self._all)
        self._run = run
        #: The scales that the sums of the run before are multiplied by.
        self._due: dict[int, ir.Value] = {}
        self._is_last = False
        rows, columns = factors
        #: Number of a tile of a side -> what reads its scales in a slot.
        self._reads_of: dict[int, Callable[[ir.Value], ir.Value]] = {}
        if rows is not None:
            self._reads_of |= {tile: partial(rows.of_row, tile) for tile in self._rows}
        if columns is not None:
            self._reads_of |= {
                len(self._rows) + tile: partial(columns.of_columns, tile) for tile in self._columns
            }

    def sums(self) -> list[ir.Value]:
        """Build all stages: the sums of the tiles, row after row."""
        begun, none = self._begin(), constant(0.0, f32())
        held = SummedRegisters(
            **vars(begun), scaled=list(begun.totals), factors=dict.fromkeys(self._reads_of, none)
        )
        self._before = index(0)
        runs = self._lhs.blocks // (self._blocks * self._run)
        with loop(index(0), index(runs), index(1), values_of(held)) as (number, given, op):
            now, first = with_values(held, given), number * self._run
            # Those of this run may be read before all sums of the one before are multiplied.
            self._stale, self._due = set(range(len(now.totals))), dict(now.factors)
            self._stage_of_run(now, first, last=self._run == 1)
            if self._run > 1:
                now = self._between(now, first)
                self._stage_of_run(now, first + (self._run - 1), last=True)
            scf.YieldOp(values_of(now))
        held = with_values(held, op.results)
        drain()
        return [self._under_scales(held, at, held.factors) for at in range(len(held.totals))]

    def _between(self, held: SummedRegisters, first: ir.Value) -> SummedRegisters:
        """The stages of a run but for the first and the last."""
        if self._run == 2:
            return held
        with loop(index(1), index(self._run - 1), index(1), values_of(held)) as (at, given, op):
            now = with_values(held, given)
            self._stage_of_run(now, first + at, last=False)
            scf.YieldOp(values_of(now))
        return with_values(held, op.results)

    def _stage_of_run(self, held: SummedRegisters, stage: ir.Value, *, last: bool) -> None:
        self._is_last = last
        self._stage(held, stage, 0)

    def _order(self, tiles: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Tiles of a column one after the other: they have the scales of the columns in common."""
        for column in self._columns:
            yield from ((tile, column) for tile in tiles)

    def _take_sums(self, held: FloatRegisters, at: int) -> None:
        """Multiply the sums of the run before by their scales, and add them."""
        assert isinstance(held, SummedRegisters)
        held.scaled[at] = self._under_scales(held, at, self._due)

    def _under_scales(
        self, held: SummedRegisters, at: int, factors: dict[int, ir.Value]
    ) -> ir.Value:
        """The sums of a tile of the result times their scales, and what came before."""
        tile, column = divmod(at, len(self._columns))
        row, columns = (factors.get(key) for key in (tile, len(self._rows) + column))
        return under_scales(held.totals[at], held.scaled[at], row, columns)

    def _loads(self, stage: ir.Value, slot: ir.Value) -> list[Issue]:
        """The direct loads of a stage, its scales last."""
        return super()._loads(stage, slot) + [
            partial(each.load, at, stage, slot) for each in self._all for at in range(each.loads)
        ]

    def _further(self, held: FloatRegisters, stage: ir.Value, soon: int) -> list[InterleavedWork]:
        """Reads of the scales of a run, before the barrier after which its slot is loaded again."""
        assert isinstance(held, SummedRegisters)
        if not self._is_last or soon + 1 != self._parts:
            return []
        slot, factors = long(held.slot), held.factors

        def read(key: int) -> None:
            factors[key] = self._reads_of[key](slot)

        issues = [partial(read, key) for key in self._reads_of]
        return evenly("ds_read", issues, 0.0, self._rates.read)


class SummedBytes(SummedMainloop):
    """The same where both sides are 8-bit floats that the scaled instruction multiplies."""

    def _read(self, side: StagedSide, tile: int, part: int, slot: ir.Value) -> list[ir.Value]:
        """A lane's elements of a tile for an instruction."""
        pieces = side.layout.new_pieces(part)
        return [
            side.fragment({(tile, p): side.read(tile, p, long(slot)) for p in pieces}, tile, part)
        ]

    def _product(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """c and the product of two fragments."""
        return scaled_mfma(self._instruction.shape, a, b, c, (ones(), ones()), (0, 0))
