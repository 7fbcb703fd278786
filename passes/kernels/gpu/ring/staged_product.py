"""Products whose operands pass through LDS in a ring of stages: what their kernels share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.passes.kernels.gpu.contraction import Contraction
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, Layout, StagedSide
from mxc.passes.kernels.vectors import index
from mxc.targets.amd import GFX950

#: Accumulation registers of a wave that is alone on its SIMD.
ACCUMULATORS = 256


@dataclass(frozen=True)
class StagedProduct(Contraction):
    """A product by a schedule of the transport "ring"."""

    #: Makes the layout of a side.
    layout: ClassVar[Callable[..., Layout]] = Layout

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """Layouts of a stage of both sides."""
        schedule = self.schedule
        more = schedule.k_steps, schedule.waves[0] * schedule.waves[1]
        left = type(self).layout(self.lhs, schedule.rows, *more)
        return left, type(self).layout(self.rhs, schedule.columns, *more)

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS that a stage takes."""
        return sum(layout.bytes for layout in self.layouts)

    @property
    def lds_bytes(self) -> int:
        """Bytes of LDS that a workgroup takes."""
        return self.schedule.stages * self.slot_bytes

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes of the function, for LLVM: one wave a SIMD, which keeps its sums in AGPRs."""
        m, n = self.schedule.tiles
        return {
            "amdgpu-waves-per-eu": "1, 1",
            "amdgpu-agpr-alloc": str(m * n * INSTRUCTION.totals),
        }

    def require_fit(self, *, k_steps: int) -> None:
        """Raise ValueError where a ring has other stages than the kernel, or LDS too few bytes."""
        if self.schedule.stages < 2 or self.schedule.k_steps != k_steps:
            steps = "1 k-step" if k_steps == 1 else f"{k_steps} k-steps"
            raise ValueError(f"{self.schedule}: a ring has 2 stages or more, here of {steps}")
        if self.lds_bytes > GFX950.unit.lds_bytes:
            raise ValueError(
                f"{self.schedule}: {self.lds_bytes} bytes of LDS, where there are "
                f"{GFX950.unit.lds_bytes}"
            )

    def require_accumulators(self) -> None:
        """Raise ValueError where the sums of a wave have no registers."""
        m, n = self.schedule.tiles
        if m * n * INSTRUCTION.totals > ACCUMULATORS:
            raise ValueError(
                f"{self.schedule}: a wave has {ACCUMULATORS} accumulation registers for its tiles"
            )


def stage_loads(
    sides: Sequence[StagedSide], stage: ir.Value, slot: ir.Value, *, size: int, blocks: int
) -> list[Callable[[], None]]:
    """The direct loads of a stage of `size` blocks along K, of `blocks`; past the end, zeros."""
    first, end = stage * size, index(blocks)
    left = end - arith.minui(first, end)
    return [
        partial(side.load, at, stage, slot, left=left)
        for side in sides
        for at in range(side.layout.loads)
    ]
