"""A ring for products by packed weights whose f32 scales multiply sums.

Activations are bf16 or f16 floats, for which weights are decoded; or fp8, mxfp8 or mxfp4, which the
scaled instruction multiplies by fp8 weights without decoding. Elements are multiplied without their
f32 scales, and the sum of the elements that share a scale is multiplied by it (summed_mainloop.py).

As in dense_kernel.py, the waves of a workgroup lie side by side, each with columns of its own. Each
wave loads its weights straight to registers. LDS has the rows of lhs, which all waves read, and the
scales of both sides.
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
from mxc.passes.kernels.gpu.ring.factors import StagedFloatScales, factor_bytes, runs_of
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

#: Most tiles of a wave whose totals fit in vector registers. Fewer fit where weights are 8-bit
#: integers, or where a scale is for fewer than four blocks.
_TILES, _FEWER = 8, 6
#: Blocks of a stage, at most: 128 elements of a row.
STAGE = 4


@dataclass(frozen=True)
class SummedRing(StagedProduct):
    """Floats, fp8, mxfp8 or mxfp4 by packed weights under f32 scales, with a schedule of the
    transport "ring"."""

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
        most = most_tiles_summed(integer_bits, run_under(*_shared(self.lhs, self.rhs)))
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
            # A k-step of the layout is one block, of which every lane group has a part.
            k_steps *= INSTRUCTION.groups
        more: dict[str, Any] = {"decoded": decoded, "shared": one_block}
        left = StageLayout(self.lhs, schedule.rows, k_steps, waves, **more)
        return left, StageLayout(self.rhs, schedule.columns, k_steps, waves, **more)

    @staticmethod
    def takes(lhs: FloatBlocks | ScaledBlocks, rhs: FloatBlocks | ScaledBlocks) -> bool:
        """Whether this ring computes products of such operands: floats by weights that it decodes,
        or packed elements by packed elements, neither decoded."""
        if isinstance(rhs, FloatBlocks) or not rhs.has_f32_scales or rhs.is_fnuz:
            return False
        of_scale = _shared(lhs, rhs)
        k_steps = k_steps_under(*of_scale)
        if not k_steps or rhs.blocks % (k_steps * INSTRUCTION.groups):
            return False
        if isinstance(lhs, FloatBlocks):
            return lhs.memory in get_args(Register)
        # Else both sides are decoded, by other kernels: other weights, or a scale for fewer blocks.
        if rhs.format.element not in (E4M3, E5M2) or run_under(*of_scale) < STAGE:
            return False
        if lhs.has_f32_scales:
            return lhs.format.element in (E4M3, E5M2)
        # The E8M0 scales of lhs go to the instruction: one for each block of 32.
        return lhs.fits_scaled_instruction and lhs.shared == 1 and lhs.block_bytes % PIECE == 0

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes of the function, for LLVM: a wave per SIMD, and sums in vector registers."""
        return {"amdgpu-waves-per-eu": "1, 1", "amdgpu-agpr-alloc": "0"}

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS of a stage: rows of lhs, and the scales of both sides."""
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
        place = partial(StagedFloatScales, right, lane, column_scales, memory, left.bytes)
        of_columns = place(tile.first_column, tile.scale_row, one_scale=self.tile_has_one_scale)
        of_rows = None
        if row_scales:
            behind = left.bytes + of_columns.bytes
            of_rows = StagedFloatScales(
                left, lane, row_scales[0], memory, behind, tile.first_row, tile.lhs_row
            )
        decoder = None if self.decoded is None else PairDecoder(self.rhs.format, self.decoded)
        own = self.schedule.tiles, self.slot_bytes
        operands = SummedOperands(lhs, rhs, of_rows, of_columns, *own)
        tile.store(SummedMainloop(self.schedule, operands, decoder).sums())


def _shared(*sides: FloatBlocks | ScaledBlocks) -> list[int]:
    """Return the number of blocks under one f32 scale, for each side that has f32 scales."""
    scaled = [side for side in sides if isinstance(side, ScaledBlocks)]
    return [side.shared for side in scaled if side.has_f32_scales]


def most_tiles_summed(integer_bits: int, run: int) -> int:
    """Return the most tiles of a wave. `integer_bits`: bits of the integers of rhs, 0 if it has
    floats; `run`: blocks of a stage under one scale (`run_under`)."""
    return _FEWER if integer_bits == 8 or run < STAGE else _TILES


def run_under(*shared: int) -> int:
    """Return the blocks of a run: consecutive blocks of a stage under one scale of each side.
    `shared`: blocks under one f32 scale, for each side that has f32 scales."""
    return gcd(STAGE, *shared)


def k_steps_under(*shared: int) -> int:
    """Return the k-steps of a stage, each two blocks. `shared`: as in `run_under`.

    Two where a stage is one run of four blocks, or four runs of one block; one where it is one run
    of two blocks. 0, no stage, where runs are one block but a scale of some side is for several.
    """
    run = run_under(*shared)
    if run == 1 < max(shared):
        return 0
    return 1 if run == INSTRUCTION.groups else STAGE // INSTRUCTION.groups
