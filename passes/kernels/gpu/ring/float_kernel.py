"""Floats by packed weights, of many rows: both pass through a ring of stages in shared memory.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

As in kernel.py a workgroup has a tile of the result and loads each byte once, some stages ahead,
but weights are decoded in registers and bf16 matrix instructions multiply. A stage is one k-step:
two blocks along K, one for each lane group, in four parts of 8 elements (float_mainloop.py):

    for each part of a stage:
      for the last: wait for the loads of the next stage, and for all waves
      multiply the part; meanwhile                                      # interleave.py
        read the floats of the next part from LDS, split them into bf16 if they are longer
        decode the next part of the weights
        load a part of the stage that comes into the slot that has been read

What is decoded is used by all rows of a wave, so that with 128 of them an instruction for a pair of
weights stands against each matrix instruction, of 8 clocks and more for which it works. So weights
are decoded by each wave that uses them, and not once to LDS, where they would take four times the
room and have to be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.amdgpu import bounded, shared
from mxc.formats.formats import E8M0
from mxc.passes.kernels.gpu.contraction import Contraction, Given
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.floats import Floats
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.lanes import lane_of
from mxc.passes.kernels.gpu.ring.float_mainloop import sums
from mxc.passes.kernels.gpu.ring.float_pipeline import FloatPipeline
from mxc.passes.kernels.gpu.ring.pairs import Decoder
from mxc.passes.kernels.gpu.ring.row_scales import AT_ONCE, RowScales
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, Layout, StagedSide
from mxc.passes.kernels.gpu.ring.tile import Tile
from mxc.passes.kernels.gpu.sides import Scaled
from mxc.passes.kernels.vectors import i8
from mxc.targets.amd import GFX950

#: Accumulation registers of a wave that is alone on its SIMD.
_SUMS = 256


@dataclass(frozen=True)
class FloatRing(Contraction):
    """A product of floats by a schedule of the transport "ring"."""

    lhs: Floats
    rhs: Scaled

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
        super().__post_init__()
        schedule = self.schedule
        (m, n), (down, right, along) = schedule.tiles, schedule.waves
        units = GFX950.unit
        if schedule.instruction != INSTRUCTION or along != 1 or down * right > units.simds:
            raise ValueError(f"{schedule}: a ring has tiles of 32, up to 4 waves, none along K")
        if m * n * INSTRUCTION.totals > _SUMS:
            raise ValueError(f"{schedule}: a wave has {_SUMS} accumulation registers for its tiles")
        if schedule.stages < 2 or schedule.k_steps != 1:
            raise ValueError(f"{schedule}: a ring of floats has 2 stages or more, of 1 k-step")
        if not self.takes(self.lhs, self.rhs, self.decoded):
            raise ValueError("a ring of floats takes weights in blocks of 32, as bf16")
        if self.lhs.blocks < AT_ONCE:
            raise ValueError(f"{self.lhs.blocks} blocks: a ring of floats wants {AT_ONCE}")
        if self.lds_bytes > units.lds_bytes:
            raise ValueError(
                f"{schedule}: {self.lds_bytes} bytes of LDS, where there are {units.lds_bytes}"
            )

    @staticmethod
    def takes(lhs: Floats | Scaled, rhs: Floats | Scaled, register: Register | None) -> bool:
        """Whether it computes products of such operands."""
        if isinstance(rhs, Floats) or not isinstance(lhs, Floats):
            return False
        blocks = rhs.format.block == BLOCK and rhs.format.scale == E8M0
        return blocks and register == "bf16"

    @property
    def attributes(self) -> Mapping[str, str]:
        """Of the function, for LLVM: one wave a SIMD, which keeps its sums in AGPRs."""
        m, n = self.schedule.tiles
        return {
            "amdgpu-waves-per-eu": "1, 1",
            "amdgpu-agpr-alloc": str(m * n * INSTRUCTION.totals),
        }

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """Of a stage of lhs and of rhs."""
        schedule = self.schedule
        waves = schedule.waves[0] * schedule.waves[1]
        return (
            Layout(self.lhs, schedule.rows, schedule.k_steps, waves, decoded=True),
            Layout(self.rhs, schedule.columns, schedule.k_steps, waves, decoded=True),
        )

    @property
    def slot_bytes(self) -> int:
        """Of LDS that a stage takes."""
        return sum(layout.bytes for layout in self.layouts)

    @property
    def lds_bytes(self) -> int:
        """Of LDS that a workgroup takes."""
        return self.schedule.stages * self.slot_bytes

    def body(self, *given: ir.Value) -> None:
        """Build the body at the insertion point."""
        lane = lane_of(INSTRUCTION)
        buffers = Given(self, given)
        tile = Tile(self, lane, buffers)
        memory = shared([self.lds_bytes], i8())
        left, right = self.layouts
        (floats,) = buffers.lhs(tile.start)
        weights, scales = (bounded(buffer) for buffer in buffers.rhs)
        lhs = StagedSide(left, lane, floats, memory, 0, tile.first_row, tile.lhs_row)
        column = tile.first_column
        rhs = StagedSide(right, lane, weights, memory, left.bytes, column, tile.rhs_row)
        factors = RowScales(self.rhs, lane, scales, self.schedule.tiles[1], column, tile.rhs_row)
        decoder = Decoder(self.rhs.format.element.mlir)
        tile.store(
            sums(
                FloatPipeline(
                    self.lhs, (lhs, rhs), factors, decoder, self.schedule, self.slot_bytes
                )
            )
        )
