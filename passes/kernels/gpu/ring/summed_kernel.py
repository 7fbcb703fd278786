"""A ring of products under f32 scales, which multiply sums: of floats, or of floats of 8 or 4 bits
as they are, by packed weights.

Elements are multiplied without their scales, and the sums of the elements that share a scale are
multiplied by it (summed_mainloop.py). As in dense_kernel.py the waves of a workgroup lie side by
side, each with columns of its own. Their weights go straight to registers, and LDS has the rows,
which all waves read, and the scales of both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any, get_args

from iree.compiler import ir

from mxc.dialects.amdgpu import shared
from mxc.formats.formats import E4M3, E5M2
from mxc.passes.kernels.gpu.contraction_buffers import ContractionBuffers
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.lanes import lane_of
from mxc.passes.kernels.gpu.ring.factors import StagedFactors, factor_bytes, runs_of
from mxc.passes.kernels.gpu.ring.kernel import StagedProduct
from mxc.passes.kernels.gpu.ring.pairs import PairDecoder
from mxc.passes.kernels.gpu.ring.staging import (
    INSTRUCTION,
    PIECE,
    DirectSide,
    StagedSide,
    StageLayout,
)
from mxc.passes.kernels.gpu.ring.summed_mainloop import SummedMainloop
from mxc.passes.kernels.gpu.ring.summed_operands import SummedOperands
from mxc.passes.kernels.gpu.ring.tile import WorkgroupTile
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import i8

#: Tiles of a wave whose totals have vector registers; and beside integers of 8 bits, or where sums
#: are multiplied by scales twice as often.
_TILES, _FEWER = 8, 6
#: Blocks of a stage, at most.
STAGE = 4


@dataclass(frozen=True)
class SummedRing(StagedProduct):
    """Floats or fp8 by packed weights under f32 scales, by a schedule of the transport "ring"."""

    rhs: ScaledBlocks

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
        super().__post_init__()
        self.require_waves(INSTRUCTION)
        m, n = self.schedule.tiles
        if self.schedule.waves[0] > 1:
            raise ValueError(f"{self.schedule}: waves of this ring have different columns")
        element = self.rhs.format.element
        integer_bits = 0 if element.exponent else element.bits
        most = most_summed(integer_bits, run_under(*_shared(self.lhs, self.rhs)))
        if m * n > most:
            raise ValueError(f"{self.schedule}: a wave has registers for {most} tiles")
        if not self.takes(self.lhs, self.rhs):
            raise ValueError(
                "a ring takes bf16 or f16 by weights with f32 scales of 32 elements or a multiple, "
                "or fp8, mxfp8 or mxfp4 by those of 128 or a multiple, and whole stages"
            )
        self.require_fit(k_steps=k_steps_under(*_shared(self.lhs, self.rhs)))

    @property
    def layouts(self) -> tuple[StageLayout, StageLayout]:
        """Layouts of a stage of both sides."""
        schedule, waves = self.schedule, self.schedule.waves[0] * self.schedule.waves[1]
        decoded, k_steps = self.decoded is not None, schedule.k_steps
        one_block = run_under(*_shared(self.lhs, self.rhs)) == 1
        if one_block:
            # All lane groups have a part of the same block.
            k_steps *= INSTRUCTION.groups
        more: dict[str, Any] = {"decoded": decoded, "shared": one_block}
        left = StageLayout(self.lhs, schedule.rows, k_steps, waves, **more)
        return left, StageLayout(self.rhs, schedule.columns, k_steps, waves, **more)

    @staticmethod
    def takes(lhs: FloatBlocks | ScaledBlocks, rhs: FloatBlocks | ScaledBlocks) -> bool:
        """Whether it computes products of such operands, which stay what they are, or where lhs is
        floats, are decoded beside it."""
        if isinstance(rhs, FloatBlocks) or not rhs.multiplies_sums or rhs.is_fnuz:
            return False
        of_scale = _shared(lhs, rhs)
        k_steps = k_steps_under(*of_scale)
        if not k_steps or rhs.blocks % (k_steps * INSTRUCTION.groups):
            return False
        if isinstance(lhs, FloatBlocks):
            return lhs.memory in get_args(Register)
        # Under scales for fewer elements than a stage has they are decoded.
        if rhs.format.element not in (E4M3, E5M2) or run_under(*of_scale) < STAGE:
            return False
        if lhs.multiplies_sums:
            return lhs.format.element in (E4M3, E5M2)
        # The instruction takes powers of two for blocks of 32.
        return lhs.is_whole and lhs.shared == 1 and lhs.block_bytes % PIECE == 0

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes of the function, for LLVM: one wave per SIMD. Sums are in vector registers."""
        return {"amdgpu-waves-per-eu": "1, 1", "amdgpu-agpr-alloc": "0"}

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS that a stage takes."""
        scaled = [each for each in self.layouts if isinstance(each.kind, ScaledBlocks)]
        scales = sum(factor_bytes(each.rows, each.waves, runs_of(each)) for each in scaled)
        return self.layouts[0].bytes + scales

    def compute(self, *given: ir.Value) -> None:
        """Build what a workgroup does for a group."""
        lane = lane_of(INSTRUCTION)
        buffers = ContractionBuffers(self, given)
        tile = WorkgroupTile(self, lane, buffers)
        memory = shared([self.lds_bytes], i8())
        (rows, *row_scales), (columns, column_scales) = (
            buffers.lhs(tile.start),
            buffers.rhs(tile.first),
        )
        left, right = self.layouts
        lhs = StagedSide(left, lane, rows, memory, 0, tile.first_row, tile.lhs_row)
        first = tile.first_column + lane.row
        tiles = range(self.schedule.tiles[1])
        own_rows = [tile.rhs_row(first + n * INSTRUCTION.rows) for n in tiles]
        rhs = DirectSide(right, lane, columns, own_rows)
        place = partial(StagedFactors, right, lane, column_scales, memory, left.bytes)
        of_columns = place(tile.first_column, tile.scale_row, one_scale=self.tile_has_one_scale)
        of_rows = None
        if row_scales:
            behind = left.bytes + of_columns.bytes
            of_rows = StagedFactors(
                left, lane, row_scales[0], memory, behind, tile.first_row, tile.lhs_row
            )
        decoder = None if self.decoded is None else PairDecoder(self.rhs.format, self.decoded)
        own = self.schedule.tiles, self.slot_bytes
        operands = SummedOperands(lhs, rhs, of_rows, of_columns, *own)
        tile.store(SummedMainloop(self.schedule, operands, decoder).sums())


def _shared(*sides: FloatBlocks | ScaledBlocks) -> list[int]:
    """Blocks of an f32 scale, of the sides that have some."""
    scaled = [side for side in sides if isinstance(side, ScaledBlocks)]
    return [side.shared for side in scaled if side.multiplies_sums]


def most_summed(integer_bits: int, run: int) -> int:
    """Tiles of a wave, at most. `integer_bits`: of the integers of rhs, 0 where it has floats;
    `run`: blocks of a stage under one scale."""
    return _FEWER if integer_bits == 8 or run < STAGE else _TILES


def run_under(*shared: int) -> int:
    """Blocks of a stage that have one scale of each side. `shared`: blocks of a scale."""
    return gcd(STAGE, *shared)


def k_steps_under(*shared: int) -> int:
    """K-steps of a stage: two of one run, or of a run for each block; one where a scale is for two
    blocks. 0 where blocks of a run have different scales."""
    run = run_under(*shared)
    if run == 1 < max(shared):
        return 0
    return 1 if run == INSTRUCTION.groups else STAGE // INSTRUCTION.groups
