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

from dataclasses import dataclass
from functools import partial

from iree.compiler import ir

from mxc.dialects.amdgpu import shared
from mxc.formats.formats import E8M0
from mxc.passes.kernels.gpu.contraction import Given
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.floats import Floats
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.lanes import lane_of
from mxc.passes.kernels.gpu.ring.float_mainloop import sums
from mxc.passes.kernels.gpu.ring.float_pipeline import FloatPipeline
from mxc.passes.kernels.gpu.ring.pairs import Decoder
from mxc.passes.kernels.gpu.ring.row_scales import AT_ONCE, RowScales
from mxc.passes.kernels.gpu.ring.staged_product import StagedProduct
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, Layout, StagedSide
from mxc.passes.kernels.gpu.ring.tile import Tile
from mxc.passes.kernels.gpu.sides import Scaled
from mxc.passes.kernels.vectors import i8
from mxc.targets.amd import GFX950


@dataclass(frozen=True)
class FloatRing(StagedProduct):
    """A product of floats by a schedule of the transport "ring"."""

    lhs: Floats
    rhs: Scaled

    layout = partial(Layout, decoded=True)

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
        super().__post_init__()
        schedule = self.schedule
        down, right, along = schedule.waves
        if schedule.instruction != INSTRUCTION or along != 1 or down * right > GFX950.unit.simds:
            raise ValueError(f"{schedule}: a ring has tiles of 32, up to 4 waves, none along K")
        self.require_accumulators()
        if not self.takes(self.lhs, self.rhs, self.decoded):
            raise ValueError("a ring of floats takes weights in blocks of 32, as bf16")
        if self.lhs.blocks < AT_ONCE:
            raise ValueError(f"{self.lhs.blocks} blocks: a ring of floats wants {AT_ONCE}")
        self.require_fit(k_steps=1)

    @staticmethod
    def takes(lhs: Floats | Scaled, rhs: Floats | Scaled, register: Register | None) -> bool:
        """Whether it computes products of such operands."""
        if isinstance(rhs, Floats) or not isinstance(lhs, Floats):
            return False
        blocks = rhs.format.block == BLOCK and rhs.format.scale == E8M0
        return blocks and register == "bf16" and not rhs.is_fnuz

    def body(self, *given: ir.Value) -> None:
        """Build the body at the insertion point."""
        lane = lane_of(INSTRUCTION)
        buffers = Given(self, given)
        tile = Tile(self, lane, buffers)
        memory = shared([self.lds_bytes], i8())
        left, right = self.layouts
        (floats,) = buffers.lhs(tile.start)
        weights, scales = buffers.rhs(tile.first)
        lhs = StagedSide(left, lane, floats, memory, 0, tile.first_row, tile.lhs_row)
        places = tile.first_column, tile.rhs_row
        rhs = StagedSide(right, lane, weights, memory, left.bytes, *places)
        factors = RowScales(self.rhs, lane, scales, self.schedule.tiles[1], *places)
        decoder = Decoder(self.rhs.format.element.mlir)
        pipeline = FloatPipeline(
            self.lhs, (lhs, rhs), factors, decoder, self.schedule, self.slot_bytes
        )
        tile.store(sums(pipeline))
