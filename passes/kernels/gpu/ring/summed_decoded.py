"""The stages of a ring whose sides a workgroup decodes once, where f32 scales multiply sums.

Four stages are 128 elements along K, under one scale of each side. As in summed_mainloop.py their
sums are multiplied by it while the first products of the next four are computed. Each lane loads
the scales that it needs to registers, in the third stage of four.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

from iree.compiler import ir

from mxc.dialects.amdgpu import zeros
from mxc.dialects.generic import constant
from mxc.passes.kernels.carried import in_groups
from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.ring.decoded_mainloop import DecodedMainloop, DecodedRegisters
from mxc.passes.kernels.gpu.ring.decoded_side import DecodedSide
from mxc.passes.kernels.gpu.ring.factors import LoadedFactors, under_scales
from mxc.passes.kernels.gpu.ring.interleave import InterleavedWork, evenly
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.vectors import f32

#: Stage of four in which the scales are loaded, half of it.
_ASKED = (2, 0)
#: A side, a tile of it.
Key = tuple[int, int]


@dataclass
class SummedDecodedRegisters(DecodedRegisters):
    """`totals` are the sums of four stages. `scaled`: what all of them add up to; `factors`: by
    side and tile, the scales that `totals` are yet to be multiplied by."""

    scaled: list[ir.Value] = field(default_factory=list)
    factors: dict[Key, ir.Value] = field(default_factory=dict)


class SummedDecodedMainloop(DecodedMainloop):
    """What a wave does along K. `factors`: of lhs and of rhs, None where a side has no scales."""

    def __init__(
        self,
        schedule: GpuSchedule,
        sides: tuple[DecodedSide, DecodedSide],
        blocks: int,
        kept: Sequence[ir.Value],
        factors: tuple[LoadedFactors | None, LoadedFactors | None],
    ) -> None:
        """What does not depend on the insertion point."""
        super().__init__(schedule, sides, blocks, kept)
        self._factors = {
            (number, tile): each
            for number, each in enumerate(factors)
            if each is not None
            for tile in range(schedule.tiles[number])
        }
        #: Tiles of the result whose sums are yet to be multiplied by their scales.
        self._stale: set[int] = set()

    def sums(self) -> list[ir.Value]:
        """Build all stages: the sums of the tiles, row after row."""
        begun, none = self._begin(), constant(0.0, f32())
        held = SummedDecodedRegisters(
            **vars(begun), scaled=list(begun.totals), factors=dict.fromkeys(self._factors, none)
        )
        held = in_groups(held, self._blocks, K_STEPS, self._run)
        return [self._under_scales(held, at) for at in range(len(held.totals))]

    def _run(
        self, held: SummedDecodedRegisters, four: ir.Value, count: int
    ) -> SummedDecodedRegisters:
        """Four stages."""
        self._stale = set(range(len(held.totals)))
        self._four(held, four, count)
        return held

    def _order(self) -> Iterator[tuple[int, int]]:
        """Tiles of a column one after the other: they have the scales of the columns in common."""
        columns, rows = (range(count) for count in reversed(self._tiles))
        return ((tile, column) for column, tile in product(columns, rows))

    def _before_product(self, held: DecodedRegisters, at: int) -> None:
        """Multiply the sums of the four stages before by their scales."""
        if at in self._stale:
            assert isinstance(held, SummedDecodedRegisters)
            self._stale.remove(at)
            held.scaled[at] = self._under_scales(held, at)
            held.totals[at] = zeros(held.totals[at].type)

    def _under_scales(self, held: SummedDecodedRegisters, at: int) -> ir.Value:
        """The sums of a tile of the result times their scales, and what came before."""
        row, column = divmod(at, self._tiles[1])
        own = (held.factors.get(key) for key in ((0, row), (1, column)))
        return under_scales(held.totals[at], held.scaled[at], *own)

    def _more(
        self, held: DecodedRegisters, four: ir.Value, stage: int, half: int
    ) -> list[InterleavedWork]:
        """Loads of the scales of these four stages."""
        if (stage, half) != _ASKED:
            return []
        assert isinstance(held, SummedDecodedRegisters)
        factors = held.factors

        def load(key: Key) -> None:
            factors[key] = self._factors[key].load(key[1], four * K_STEPS)

        return evenly("vmem_read", [partial(load, key) for key in self._factors], 0.0, 0.5, 2)
