"""Kernel for scaled products of many rows: a ring of pipeline stages in LDS holds one side.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

A workgroup computes a tile of the result. Its waves lie along the rows or along the columns of the
tile, so they all use the same data of one side, the *staged* side. It is loaded straight to LDS,
each byte once for the workgroup, some stages ahead (staging.py). Of the other, *direct* side each
wave loads its own rows to registers, as early. A stage is two k-steps. A k-step is one instruction
along K for each tile of a wave:

    multiply the first part of a stage; meanwhile                  # pipeline.py: how much
      read the rest of its fragments from LDS
      issue the rest of the loads to the slot of the stage before
      load pieces of a later stage of the direct side to registers
    wait for the next stage to arrive in LDS, and for all waves    # this stage's slot is read now
    multiply the rest; meanwhile                                   # interleave.py
      read the first fragments of the next stage
      load the stage that comes `stages` later into the slot of this stage
      load more pieces of the direct side
    in some k-steps, also load, write and read scales              # scales.py

The matrix cores always have work if memory answers within `stages` - 1 stages. Sums are in
accumulation registers, of which a wave that is alone on its SIMD has 256.

Operand A of the instruction is rhs, so a lane has four adjacent columns and stores them at once.
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
from mxc.passes.kernels.gpu.ring.mainloop import OperandLoaders, sums
from mxc.passes.kernels.gpu.ring.pipeline import ACCUMULATORS, RingPipeline
from mxc.passes.kernels.gpu.ring.scales import DirectScales, StagedScales, scale_bytes
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, DirectSide, StagedSide, StageLayout
from mxc.passes.kernels.gpu.ring.tile import WorkgroupTile
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import i8
from mxc.targets.amd import GFX950


@dataclass(frozen=True)
class StagedProduct(GpuContraction):
    """Base class of products whose operands pass through pipeline stages in LDS: transports "ring"
    and "decoded"."""

    #: Makes the `StageLayout` of a side from the side, its rows, k-steps and waves.
    layout: ClassVar[Callable[..., StageLayout]] = StageLayout

    @property
    def layouts(self) -> tuple[StageLayout, StageLayout]:
        """The layouts of lhs and of rhs in a stage."""
        schedule = self.schedule
        more = schedule.k_steps, schedule.waves[0] * schedule.waves[1]
        left = type(self).layout(self.lhs, schedule.rows, *more)
        return left, type(self).layout(self.rhs, schedule.columns, *more)

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS for a stage."""
        return sum(layout.bytes for layout in self.layouts)

    @property
    def lds_bytes(self) -> int:
        """Bytes of LDS for a workgroup."""
        return self.schedule.stages * self.slot_bytes

    @property
    def attributes(self) -> Mapping[str, str]:
        """LLVM attributes of the kernel: one wave per SIMD, with its sums in AGPRs."""
        m, n = self.schedule.tiles
        return {
            "amdgpu-waves-per-eu": "1, 1",
            "amdgpu-agpr-alloc": str(m * n * INSTRUCTION.totals),
        }

    def require_waves(self, instruction: TileInstruction) -> None:
        """Raise ValueError if the schedule has tiles of another instruction, more waves than a
        compute unit has SIMDs, or several waves along K."""
        down, right, along = self.schedule.waves
        other = self.schedule.instruction != instruction
        if other or along != 1 or down * right > GFX950.unit.simds:
            raise ValueError(
                f"{self.schedule}: a ring has tiles of {instruction.rows}, up to 4 waves, none "
                "along K"
            )

    def require_fit(self, *, k_steps: int, lds: int = GFX950.unit.lds_bytes) -> None:
        """Raise ValueError if the schedule has fewer than two stages, stages of other than
        `k_steps` k-steps, or a workgroup that takes more than `lds` bytes of LDS."""
        if self.schedule.stages < 2 or self.schedule.k_steps != k_steps:
            steps = "1 k-step" if k_steps == 1 else f"{k_steps} k-steps"
            raise ValueError(f"{self.schedule}: a ring has 2 stages or more, here of {steps}")
        if self.lds_bytes > lds:
            raise ValueError(
                f"{self.schedule}: {self.lds_bytes} bytes of LDS, where there are {lds}"
            )

    def require_accumulators(self) -> None:
        """Raise ValueError if the sums of a wave do not fit in accumulation registers."""
        m, n = self.schedule.tiles
        if m * n * INSTRUCTION.totals > ACCUMULATORS:
            raise ValueError(
                f"{self.schedule}: a wave has {ACCUMULATORS} accumulation registers for its tiles"
            )


@dataclass(frozen=True)
class Ring(StagedProduct):
    """A product of two sides that the scaled matrix instruction takes, by transport "ring"."""

    lhs: ScaledBlocks

    def __post_init__(self) -> None:
        """Raise ValueError if the schedule cannot compute this product."""
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
        """Whether rhs is the direct side, and lhs the staged one; else the other way round."""
        return self.schedule.waves[1] > 1

    @property
    def pipeline(self) -> RingPipeline:
        """The pipeline of a wave along K."""
        swapped, (lhs, rhs) = self.swapped, self.layouts
        direct, staged = (rhs, lhs) if swapped else (lhs, rhs)
        return RingPipeline(self.schedule, direct, staged, swapped)

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS for a stage: elements of the staged side alone."""
        return self.pipeline.slot_bytes

    @property
    def lds_bytes(self) -> int:
        """Bytes of LDS for a workgroup: the stages, then the scales of the staged side."""
        staged = self.pipeline.staged
        return super().lds_bytes + scale_bytes(staged.rows, staged.waves)

    def compute(self, *buffers: ir.Value) -> None:
        """Build the body of a workgroup: one tile of the result of one group."""
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
        tile.store(sums(pipe, OperandLoaders(direct, direct_scales, staged, staged_scales)))
