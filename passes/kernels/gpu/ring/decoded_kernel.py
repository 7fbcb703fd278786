"""A ring for products of many rows whose sides a workgroup decodes to floats once, into LDS.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

Without conversion instructions (gfx942), decoding a block takes 70 to 160 instructions. With them
(gfx950), nvfp4 or integers on both sides still take too many for each wave that uses the block to
decode it. So one lane decodes a block of a row, and all waves that use the row read its floats from
LDS (decoded_mainloop.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from iree.compiler import ir

from mxc.dialects.amdgpu import pinned, shared, uniform
from mxc.passes.kernels.gpu.contraction_buffers import ContractionBuffers
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.lanes import LANES, lane_of, long, short
from mxc.passes.kernels.gpu.ring.decoded_mainloop import SLOTS, DecodedMainloop
from mxc.passes.kernels.gpu.ring.decoded_side import BLOCK_BYTES, WAVES, DecodedSide, parts_of_side
from mxc.passes.kernels.gpu.ring.factors import DirectFloatScales
from mxc.passes.kernels.gpu.ring.kernel import StagedProduct
from mxc.passes.kernels.gpu.ring.summed_decoded import SummedDecodedMainloop
from mxc.passes.kernels.gpu.ring.tile import WorkgroupTile
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import i8
from mxc.targets.amd import gpu_of

#: Most tiles of a wave where f32 scales multiply sums. It has two sets of sums then (those of a
#: run, and totals), and is to leave registers for another wave on its SIMD.
_SUMMED_TILES = 4


@dataclass(frozen=True)
class DecodedRing(StagedProduct):
    """A product whose sides are decoded once, with a schedule of the transport "decoded"."""

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
        if self.sums and self.run_of(self.lhs, self.rhs) is None:
            raise ValueError("a ring that decodes takes f32 scales of 64 elements or a multiple")
        if self.sums and schedule.tiles[0] * schedule.tiles[1] > _SUMMED_TILES:
            raise ValueError(f"{schedule}: a wave has registers for {_SUMMED_TILES} tiles")

    @staticmethod
    def run_of(lhs: FloatBlocks | ScaledBlocks, rhs: FloatBlocks | ScaledBlocks) -> int | None:
        """Return the stages under one f32 scale of each side: four or two; None if it is fewer."""
        sides = [side for side in (lhs, rhs) if isinstance(side, ScaledBlocks)]
        run = gcd(K_STEPS, *(side.shared for side in sides if side.has_f32_scales))
        return run if run > 1 else None

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
        # Needed only behind the loop, these would be spilled by LLVM, though registers are free: so
        # the loop pins them.
        kept = pinned([short(lane.row), short(lane.group)])
        row, group = map(long, kept)
        tile = _ScalarTile(self, replace(lane, row=row, group=group), buffers)
        memory = shared([self.lds_bytes], i8())
        end = schedule.rows * parts_of_side(self.lhs, self.decoded) * BLOCK_BYTES
        places = (
            (buffers.lhs(tile.start), schedule.rows, 0, tile.first_row, tile.lhs_row),
            (buffers.rhs(tile.first), schedule.columns, end, tile.first_column, tile.rhs_row),
        )
        rows_of_scales = tile.lhs_row, tile.scale_row
        sides, factors = [], []
        for number, (kind, place) in enumerate(zip((self.lhs, self.rhs), places, strict=True)):
            operand, rows, start, first, row_of = place
            sides.append(
                DecodedSide(
                    kind,
                    self.decoded,
                    instruction,
                    lane,
                    operand,
                    rows,
                    memory,
                    start,
                    first,
                    row_of,
                )
            )
            own: DirectFloatScales | None = None
            if isinstance(kind, ScaledBlocks) and kind.has_f32_scales:
                tiles = schedule.tiles[number]
                own = DirectFloatScales(
                    kind,
                    lane,
                    operand[1],
                    tiles,
                    first,
                    rows_of_scales[number],
                    columns=number == 1,
                    one_scale=number == 1 and self.tile_has_one_scale,
                )
            factors.append(own)
        both, blocks = (sides[0], sides[1]), self.lhs.blocks
        if self.sums:
            run = self.run_of(self.lhs, self.rhs)
            assert run is not None
            scales = factors[0], factors[1]
            loop = SummedDecodedMainloop(schedule, both, blocks, kept, scales, run)
            tile.store(loop.sums())
        else:
            tile.store(DecodedMainloop(schedule, both, blocks, kept).sums())

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes of the function, for LLVM. Where f32 scales multiply sums, a SIMD has one wave
        or two, as LDS and the registers of lhs allow."""
        if not self.sums:
            return super().attributes
        most = gpu_of(self.schedule.instruction.unit).unit.lds_bytes
        # An f32 lhs takes too many registers for two, whether it is split or rounded.
        waves = 2 if self.lhs.bits < 32 and 2 * self.lds_bytes <= most else 1
        return {"amdgpu-waves-per-eu": f"{waves}, {waves}"}


class _ScalarTile(WorkgroupTile):
    """The tile of a workgroup. Its place is in scalar registers, as it is kept across the loop."""

    def _place(self) -> tuple[ir.Value, ir.Value]:
        down, right = super()._place()
        return uniform(down), uniform(right)
