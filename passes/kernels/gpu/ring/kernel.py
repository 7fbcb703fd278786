"""Scaled products of many rows: one side passes through a ring of stages in shared memory.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

A workgroup has a tile of the result, its waves rows of tiles, or columns. So they share one side:
it is loaded to LDS directly, each byte once for the workgroup, some stages (staging.py) ahead. Of
the other each wave has its own, which it loads to registers as early. A stage is two
k-steps, a k-step one instruction along K for each tile of a wave:

    multiply the first part of a stage; meanwhile                  # pipeline.py: how much
      read the rest of its fragments from LDS
      load pieces of a later stage to registers
    wait for the loads of the next stage to LDS, and for all waves # so this slot has been read
    multiply the rest; meanwhile                                   # interleave.py
      read the first fragments of the next stage
      load the stage that comes `stages` later into the slot that has been read
      load more pieces
      now and then, fetch scales                                   # scales.py

The matrix cores have work all the time, as long as memory answers within `stages` - 1 stages. Sums
are in accumulation registers, of which a wave alone on its SIMD has 256.

Sides are swapped, so that a lane has four columns in a row of the result, which it stores at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from iree.compiler import ir

from mxc.dialects.amdgpu import shared
from mxc.passes.kernels.gpu.contraction import GpuContraction
from mxc.passes.kernels.gpu.contraction_buffers import ContractionBuffers
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.lanes import lane_of
from mxc.passes.kernels.gpu.ring.mainloop import Copies, sums
from mxc.passes.kernels.gpu.ring.pipeline import ACCUMULATORS, RingPipeline
from mxc.passes.kernels.gpu.ring.scales import DirectScales, StagedScales, scale_bytes
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, DirectSide, StagedSide, StageLayout
from mxc.passes.kernels.gpu.ring.tile import WorkgroupTile
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import i8
from mxc.targets.amd import GFX950


@dataclass(frozen=True)
class StagedProduct(GpuContraction):
    """A product by a schedule of the transport "ring"."""

    #: Makes the layout of a side.
    layout: ClassVar[Callable[..., StageLayout]] = StageLayout

    @property
    def layouts(self) -> tuple[StageLayout, StageLayout]:
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

    def require_waves(self, instruction: TileInstruction) -> None:
        """Raise ValueError where a schedule has tiles of another instruction, or waves that are
        more than the SIMDs or along K."""
        down, right, along = self.schedule.waves
        other = self.schedule.instruction != instruction
        if other or along != 1 or down * right > GFX950.unit.simds:
            raise ValueError(
                f"{self.schedule}: a ring has tiles of {instruction.rows}, up to 4 waves, none "
                "along K"
            )

    def require_fit(self, *, k_steps: int, lds: int = GFX950.unit.lds_bytes) -> None:
        """Raise ValueError where a ring has other stages than the kernel, or more than `lds` bytes
        of LDS."""
        if self.schedule.stages < 2 or self.schedule.k_steps != k_steps:
            steps = "1 k-step" if k_steps == 1 else f"{k_steps} k-steps"
            raise ValueError(f"{self.schedule}: a ring has 2 stages or more, here of {steps}")
        if self.lds_bytes > lds:
            raise ValueError(
                f"{self.schedule}: {self.lds_bytes} bytes of LDS, where there are {lds}"
            )

    def require_accumulators(self) -> None:
        """Raise ValueError where the sums of a wave have no registers."""
        m, n = self.schedule.tiles
        if m * n * INSTRUCTION.totals > ACCUMULATORS:
            raise ValueError(
                f"{self.schedule}: a wave has {ACCUMULATORS} accumulation registers for its tiles"
            )


@dataclass(frozen=True)
class Ring(StagedProduct):
    """A product of scaled sides by a schedule of the transport "ring", with an f32 result."""

    lhs: ScaledBlocks

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
        super().__post_init__()
        schedule = self.schedule
        waves = schedule.waves
        units = GFX950.unit
        if schedule.instruction != INSTRUCTION or sorted(waves)[:2] != [1, 1] or waves[2] != 1:
            raise ValueError(f"{schedule}: a ring has tiles of 32, and waves in a row or a column")
        if not 2 <= schedule.threads // units.wave <= units.simds:
            raise ValueError(f"{schedule}: a ring has 2 to {units.simds} waves")
        self.require_accumulators()
        if self.decoded is not None:
            raise ValueError("a ring takes scaled sides as they are")
        self.require_fit(k_steps=2)

    @property
    def swapped(self) -> bool:
        """Whether rhs is the side that waves do not share."""
        return self.schedule.waves[1] > 1

    @property
    def pipeline(self) -> RingPipeline:
        """What a wave does along K."""
        swapped, (lhs, rhs) = self.swapped, self.layouts
        direct, staged = (rhs, lhs) if swapped else (lhs, rhs)
        return RingPipeline(self.schedule, direct, staged, swapped)

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS that a stage of the staged side takes."""
        return self.pipeline.slot_bytes

    @property
    def lds_bytes(self) -> int:
        """Bytes of LDS that a workgroup takes."""
        staged = self.pipeline.staged
        return super().lds_bytes + scale_bytes(staged.rows, staged.waves)

    def compute(self, *buffers: ir.Value) -> None:
        """Build what a workgroup does for a group."""
        lane = lane_of(INSTRUCTION)
        given = ContractionBuffers(self, buffers)
        tile = WorkgroupTile(self, lane, given)
        sides = [
            (given.lhs(tile.start), tile.first_row, tile.lhs_row),
            (given.rhs(tile.first), tile.first_column, tile.rhs_row),
        ]
        pipe = self.pipeline
        (elements, scales), first, row_of = sides[self.swapped]
        first = first + lane.row
        rows = [row_of(first + number * INSTRUCTION.rows) for number in range(pipe.tiles[0])]
        direct = DirectSide(pipe.direct, lane, elements, rows)
        direct_scales = DirectScales(pipe.direct, lane, scales, rows)
        (elements, scales), *place = sides[not self.swapped]
        memory = shared([self.lds_bytes], i8())
        end = self.schedule.stages * self.slot_bytes
        staged = StagedSide(pipe.staged, lane, elements, memory, 0, *place)
        staged_scales = StagedScales(pipe.staged, lane, scales, memory, end, *place)
        tile.store(sums(pipe, Copies(direct, direct_scales, staged, staged_scales)))
