"""Sides that become floats, of many rows, each decoded once for a workgroup.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

Where there is no conversion, a block takes a hundred instructions and more; with conversions, those
of nvfp4 and of integers on both sides are still too many for each wave that uses the block. So a
lane decodes a block of a row, and all waves that use the row read floats from LDS
(decoded_mainloop.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iree.compiler import ir

from mxc.dialects.amdgpu import pinned, shared, uniform
from mxc.passes.kernels.gpu.contraction_buffers import ContractionBuffers
from mxc.passes.kernels.gpu.lanes import LANES, lane_of, long, short
from mxc.passes.kernels.gpu.ring.decoded_mainloop import SLOTS, DecodedMainloop
from mxc.passes.kernels.gpu.ring.decoded_side import BLOCK_BYTES, WAVES, DecodedSide, parts_of_side
from mxc.passes.kernels.gpu.ring.kernel import StagedProduct
from mxc.passes.kernels.gpu.ring.tile import WorkgroupTile
from mxc.passes.kernels.gpu.sides import ScaledBlocks
from mxc.passes.kernels.vectors import i8
from mxc.targets.amd import gpu_of


@dataclass(frozen=True)
class DecodedRing(StagedProduct):
    """A product whose sides are decoded, by a schedule of the transport "decoded"."""

    rhs: ScaledBlocks

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
        super().__post_init__()
        schedule = self.schedule
        self.require_accumulators()
        lds = gpu_of(schedule.instruction.unit).workgroup_lds_bytes
        self.require_fit(k_steps=1, lds=lds)
        along, lanes = schedule.waves[2], WAVES * LANES
        if along != 1 or schedule.threads != lanes or schedule.stages != SLOTS:
            raise ValueError(f"{schedule}: a ring has {lanes} lanes and {SLOTS} stages here")
        if max(schedule.rows, schedule.columns) > lanes:
            raise ValueError(f"{schedule}: there is a lane for {lanes} rows")

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS that a stage takes."""
        assert self.decoded is not None
        rows = self.schedule.rows * parts_of_side(self.lhs, self.decoded)
        return (rows + self.schedule.columns) * BLOCK_BYTES

    @property
    def lds_bytes(self) -> int:
        """Bytes of LDS that a workgroup takes."""
        return SLOTS * self.slot_bytes

    def compute(self, *given: ir.Value) -> None:
        """Build what a workgroup does for a group."""
        assert self.decoded is not None
        instruction, schedule = self.schedule.instruction, self.schedule
        lane = lane_of(instruction)
        buffers = ContractionBuffers(self, given)
        # What is needed behind the loop alone LLVM would spill, though there are registers.
        kept = pinned([short(lane.row), short(lane.group)])
        row, group = map(long, kept)
        tile = _ScalarTile(self, replace(lane, row=row, group=group), buffers)
        memory = shared([self.lds_bytes], i8())
        end = schedule.rows * parts_of_side(self.lhs, self.decoded) * BLOCK_BYTES
        left = DecodedSide(
            self.lhs,
            self.decoded,
            instruction,
            lane,
            buffers.lhs(tile.start),
            schedule.rows,
            memory,
            0,
            tile.first_row,
            tile.lhs_row,
        )
        right = DecodedSide(
            self.rhs,
            self.decoded,
            instruction,
            lane,
            buffers.rhs(tile.first),
            schedule.columns,
            memory,
            end,
            tile.first_column,
            tile.rhs_row,
        )
        tile.store(DecodedMainloop(schedule, (left, right), self.lhs.blocks, kept).sums())


class _ScalarTile(WorkgroupTile):
    """The tile of a workgroup, its place in scalar registers: it is kept across the loop."""

    def _place(self) -> tuple[ir.Value, ir.Value]:
        down, right = super()._place()
        return uniform(down), uniform(right)
