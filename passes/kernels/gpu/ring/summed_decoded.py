"""The loop along K of a ring that decodes both sides once, where f32 scales multiply sums.

A *run* is four or two stages, 128 or 64 elements along K, under one scale of each side. The sums of
a run are multiplied by their scales at the beginning of the next run: those of each tile right
before the first product of that tile. Meanwhile each lane loads the scales of the new run to
registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from iree.compiler import ir

from mxc.dialects.amdgpu import pinned, zeros
from mxc.dialects.generic import constant
from mxc.passes.kernels.carried import in_groups
from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.ring.decoded_mainloop import DecodedMainloop, DecodedRegisters
from mxc.passes.kernels.gpu.ring.decoded_side import DecodedSide
from mxc.passes.kernels.gpu.ring.factors import DirectFloatScales, columns_of, under_scales
from mxc.passes.kernels.gpu.ring.interleave import InterleavedWork, evenly
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.vectors import f32, lanes_of

#: A side (0: lhs, 1: rhs), and a tile of it.
Key = tuple[int, int]


@dataclass
class SummedDecodedRegisters(DecodedRegisters):
    """`totals` are the sums of one run. `scaled`: the scaled sums of all earlier runs, added up;
    `factors`: by side and tile, the scales that `totals` are yet to be multiplied by."""

    scaled: list[ir.Value] = field(default_factory=list)
    factors: dict[Key, ir.Value] = field(default_factory=dict)


class SummedDecodedMainloop(DecodedMainloop):
    """The loop of a wave along K. `factors`: the f32 scales of lhs and of rhs, None for a side
    without; `run`: stages under one scale."""

    def __init__(
        self,
        schedule: GpuSchedule,
        sides: tuple[DecodedSide, DecodedSide],
        blocks: int,
        kept: Sequence[ir.Value],
        factors: tuple[DirectFloatScales | None, DirectFloatScales | None],
        run: int,
    ) -> None:
        """Keep what the loop needs. No operation is built."""
        super().__init__(schedule, sides, blocks, kept)
        self._factors = {
            (number, tile): each
            for number, each in enumerate(factors)
            if each is not None
            for tile in range(schedule.tiles[number])
        }
        self._run = run
        self._one_scale = factors[1] is not None and factors[1].one_scale
        #: Tiles of the result that still have the sums of the run before; the scales of that run.
        self._tiles_to_flush: set[int] = set()
        self._previous_scales: dict[Key, ir.Value] = {}

    def sums(self) -> list[ir.Value]:
        """Build all stages; return the scaled sums of the tiles, row by row."""
        begun, none = self._begin(), constant(0.0, f32())
        held = SummedDecodedRegisters(
            **vars(begun), scaled=list(begun.totals), factors=dict.fromkeys(self._factors, none)
        )
        held = in_groups(held, self._blocks, K_STEPS, self._stages_of)
        self._previous_scales = held.factors
        return [self._under_scales(held, at) for at in range(len(held.totals))]

    def _stages_of(
        self, held: SummedDecodedRegisters, four: ir.Value, count: int
    ) -> SummedDecodedRegisters:
        """Build `count` stages after `four` groups of four. Returns what is held after them."""
        self._four(held, four, count)
        return held

    def _order(self) -> Iterator[tuple[int, int]]:
        """Yield the tiles of a tile of columns one after the other: they share its scales."""
        columns, rows = (range(count) for count in reversed(self._tiles))
        return ((tile, column) for column, tile in product(columns, rows))

    def _before_product(self, held: DecodedRegisters, at: int) -> None:
        """Multiply the tile's sums of the run before, if it still has them, by their scales."""
        if at in self._tiles_to_flush:
            assert isinstance(held, SummedDecodedRegisters)
            self._tiles_to_flush.remove(at)
            held.scaled[at] = self._under_scales(held, at)
            if self._run < K_STEPS:
                # Unless pinned, LLVM scales at the end of four stages, and keeps all sums so long.
                (held.scaled[at],) = pinned([held.scaled[at]])
            held.totals[at] = zeros(held.totals[at].type)

    def _under_scales(self, held: SummedDecodedRegisters, at: int) -> ir.Value:
        """Return `scaled` of a tile of the result plus its sums times their scales."""
        row, column = divmod(at, self._tiles[1])
        scale, columns = (self._previous_scales.get(key) for key in ((0, row), (1, column)))
        sums = held.totals[at]
        own = None
        if columns is not None:
            own = columns_of(columns, 0, lanes_of(sums), one_scale=self._one_scale)
        return under_scales(sums, held.scaled[at], scale, own)

    def _more(
        self, held: DecodedRegisters, four: ir.Value, stage: int, half: int
    ) -> list[InterleavedWork]:
        """At the beginning of a run, make all sums stale, and return the loads of its scales."""
        if stage % self._run or half:
            return []
        assert isinstance(held, SummedDecodedRegisters)
        self._tiles_to_flush, self._previous_scales = set(range(len(held.totals))), held.factors
        factors: dict[Key, ir.Value] = {}
        held.factors = factors

        def load(key: Key) -> None:
            factors[key] = self._factors[key].load(key[1], four * K_STEPS + stage)

        return evenly("vmem_read", [partial(load, key) for key in self._factors], 0.0, 0.5, 2)
