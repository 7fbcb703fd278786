"""A ring of floats of which one side or both are packed, under f32 scales that multiply sums.

Elements become floats without their scales (float_kernel.py), or 8-bit floats of both sides stay
what they are; and the sums of the elements that share a scale are multiplied by it
(summed_mainloop.py). So a wave has two sets of sums, in vector
registers: with four tiles it takes half of the registers of a SIMD, and another workgroup works
while this one waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from iree.compiler import ir

from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.ring.factors import NoScales, StagedFactors
from mxc.passes.kernels.gpu.ring.float_kernel import (
    FLOAT_RATES,
    TWO_STAGES,
    RingOfFloats,
    SideScales,
)
from mxc.passes.kernels.gpu.ring.kernel import SUMMED_TILES
from mxc.passes.kernels.gpu.ring.pairs import PackedSide, PairDecoder, steps_of
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, StagedSide, StageLayout
from mxc.passes.kernels.gpu.ring.summed_mainloop import SummedBytes, SummedMainloop
from mxc.passes.kernels.gpu.sides import ScaledBlocks
from mxc.targets.amd import GFX950


@dataclass(frozen=True)
class SummedRing(RingOfFloats):
    """Floats or a packed side, by packed weights under f32 scales, by a schedule of the transport
    "ring"."""

    rhs: ScaledBlocks

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
        super().__post_init__()
        m, n = self.schedule.tiles
        if m * n > SUMMED_TILES:
            raise ValueError(f"{self.schedule}: a wave has registers for {SUMMED_TILES} tiles")
        if not self.takes(self.lhs, self.rhs):
            raise ValueError("a ring takes f32 scales of 64 elements or a multiple, of all sides")
        self.require_fit(k_steps=1 if self.decoded else 2)

    @property
    def layouts(self) -> tuple[StageLayout, StageLayout]:
        """Layouts of a stage of both sides."""
        schedule, decoded = self.schedule, self.decoded is not None
        more = schedule.k_steps, schedule.waves[0] * schedule.waves[1]
        left = StageLayout(self.lhs, schedule.rows, *more, decoded=decoded)
        return left, StageLayout(self.rhs, schedule.columns, *more, decoded=decoded)

    @staticmethod
    def takes(lhs: FloatBlocks | ScaledBlocks, rhs: FloatBlocks | ScaledBlocks) -> bool:
        """Whether it computes products of such operands."""
        sides = [side for side in (lhs, rhs) if isinstance(side, ScaledBlocks)]
        return isinstance(rhs, ScaledBlocks) and all(
            side.multiplies_sums and side.shared % INSTRUCTION.groups == 0 and not side.is_fnuz
            for side in sides
        )

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes of the function, for LLVM: as many waves a SIMD as LDS allows, one or two."""
        waves = 2 if 2 * self.lds_bytes <= GFX950.unit.lds_bytes else 1
        return {"amdgpu-waves-per-eu": f"{waves}, {waves}"}

    def _sums(
        self,
        sides: tuple[StagedSide, StagedSide],
        scales: tuple[SideScales, SideScales],
    ) -> list[ir.Value]:
        """The sums of the tiles."""
        lhs, rhs = (each if isinstance(each, StagedFactors) else None for each in scales)
        rates = TWO_STAGES if self.schedule.stages == 2 else FLOAT_RATES
        run = gcd(*(each.stages for each in (lhs, rhs) if each is not None))
        register = self.decoded
        if register is None:
            none, factors = (None, None), (lhs, rhs)
            return SummedBytes(self.schedule, sides, rates, none, (), factors, run).sums()
        left, right = (
            PackedSide(side, NoScales(), PairDecoder(side.layout.scaled.format, register))
            if own is not None
            else None
            for side, own in zip(sides, (lhs, rhs), strict=True)
        )
        steps = steps_of(self.lhs, register)
        both = (left, right)
        loop = SummedMainloop(self.schedule, sides, rates, both, steps, (lhs, rhs), run)
        return loop.sums()
