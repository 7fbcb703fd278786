"""A ring for products of many rows whose sides are multiplied as floats. Both go through LDS.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

As in kernel.py, a workgroup computes a tile of the result and loads each byte once, some stages
ahead, straight to LDS. Here both sides are staged, and become bf16 or f16 in registers, which bf16
or f16 matrix instructions multiply. A stage is two blocks along K, in parts of 8 elements a lane
(float_mainloop.py):

    for each part of a stage:
      before the last part, or with few tiles before the last but one:
        wait for the loads of the next stage, and for all waves
      multiply the part; meanwhile                                      # interleave.py
        read the floats of a later part from LDS; split them where they are the sum of several bf16
        decode the packed elements of the next part
        load a part of a later stage into the slot that has been read

In FloatRing each lane group has one block of a stage, in four parts. Each wave decodes the packed
elements that it multiplies, and uses them for all its rows or columns. With 128 of these it decodes
one pair of elements of a packed side per matrix instruction, beside which it can issue 7 others (32
clocks). So it is affordable that several waves decode the same side. Decoded once to LDS instead
(decoded_kernel.py), 4-bit elements take four times the room and have to be written, and fewer
stages are in flight. That pays where decoding takes many instructions, as for nvfp4 or mxint8 on
both sides.

Plain weights: see dense_kernel.py. Where f32 scales multiply sums: see summed_kernel.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from iree.compiler import ir

from mxc.dialects.amdgpu import shared
from mxc.formats.formats import E4M3, E8M0
from mxc.passes.kernels.gpu.contraction_buffers import ContractionBuffers
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.lanes import lane_of
from mxc.passes.kernels.gpu.ring.float_mainloop import FloatMainloop
from mxc.passes.kernels.gpu.ring.float_registers import Rates
from mxc.passes.kernels.gpu.ring.kernel import StagedProduct
from mxc.passes.kernels.gpu.ring.pairs import PackedSide, PairDecoder, steps_of
from mxc.passes.kernels.gpu.ring.scales import AT_ONCE, RowScales
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, StagedSide, StageLayout
from mxc.passes.kernels.gpu.ring.tile import WorkgroupTile
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import i8

#: What a wave issues beside products, with three or more stages, and with two. With two, loads are
#: issued in one half of a stage, and memory has the other half to answer. With three or more, loads
#: are issued during a whole stage, and memory has at least one more stage.
FLOAT_RATES = Rates(budget=7, load=7, pace=1.0, read=0.5)
TWO_STAGES = Rates(budget=7, load=6, pace=0.5, read=0.5)


@dataclass(frozen=True)
class FloatRing(StagedProduct):
    """Floats or packed elements by packed weights, with a schedule of the transport "ring"."""

    rhs: ScaledBlocks

    layout = partial(StageLayout, decoded=True)

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
        super().__post_init__()
        self.require_waves(INSTRUCTION)
        self.require_accumulators()
        if self.decoded is None or not self.takes(self.lhs, self.rhs):
            raise ValueError("a ring of floats takes sides in blocks of 32 or in nvfp4")
        if self.lhs.blocks < AT_ONCE:
            raise ValueError(f"{self.lhs.blocks} blocks: a ring of floats wants {AT_ONCE}")
        self.require_fit(k_steps=1)

    @staticmethod
    def takes(lhs: FloatBlocks | ScaledBlocks, rhs: FloatBlocks | ScaledBlocks) -> bool:
        """Whether this ring computes products of such operands."""
        if isinstance(rhs, FloatBlocks):
            return False
        return all(_is_taken(side) for side in (lhs, rhs) if isinstance(side, ScaledBlocks))

    def compute(self, *given: ir.Value) -> None:
        """Build what a workgroup does for a group."""
        assert self.decoded is not None
        lane = lane_of(INSTRUCTION)
        buffers = ContractionBuffers(self, given)
        tile = WorkgroupTile(self, lane, buffers)
        memory = shared([self.lds_bytes], i8())
        places = (
            (buffers.lhs(tile.start), 0, tile.first_row, tile.lhs_row),
            (buffers.rhs(tile.first), self.layouts[0].bytes, tile.first_column, tile.rhs_row),
        )
        sides: list[StagedSide] = []
        packed: list[PackedSide | None] = []
        for layout, tiles, place in zip(self.layouts, self.schedule.tiles, places, strict=True):
            (elements, *scales), start, *rows = place
            side = StagedSide(layout, lane, elements, memory, start, *rows)
            sides.append(side)
            decoded: PackedSide | None = None
            if scales:
                own = RowScales(layout.scaled, lane, scales[0], tiles, *rows)
                decoder = PairDecoder(layout.scaled.format, self.decoded)
                decoded = PackedSide(side, own, decoder)
            packed.append(decoded)
        rates = TWO_STAGES if self.schedule.stages == 2 else FLOAT_RATES
        steps = steps_of(self.lhs, self.decoded)
        both = (sides[0], sides[1]), rates, (packed[0], packed[1]), steps
        tile.store(FloatMainloop(self.schedule, *both).sums())


def _is_taken(side: ScaledBlocks) -> bool:
    """Whether RowScales can load the scales of a side, and PairDecoder decode its elements."""
    if side.is_fnuz:
        return False
    if side.format.scale == E4M3:
        return side.blocks % INSTRUCTION.groups == 0
    return side.format.scale == E8M0 and side.format.block == BLOCK
