"""A ring for dense products of many rows: floats by plain weights of 16 bits.

The waves of a workgroup lie side by side, so each has columns of its own. In LDS each byte of their
weights would be written once and read once, which gains nothing: a wave loads its weights straight
to registers, some stages ahead. LDS has the rows of lhs, which all waves read. A stage is two
blocks of 32 along K (dense_mainloop.py). Sums are added up in chunks of K, as dense/chunks.py says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from iree.compiler import ir

from mxc.dialects.amdgpu import shared
from mxc.passes.kernels.gpu.contraction_buffers import ContractionBuffers
from mxc.passes.kernels.gpu.dense.chunks import ROWS, STAGE, Chunks
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.lanes import lane_of
from mxc.passes.kernels.gpu.ring.dense_mainloop import DenseMainloop, most_tiles_dense
from mxc.passes.kernels.gpu.ring.kernel import StagedProduct
from mxc.passes.kernels.gpu.ring.staging import DirectSide, StagedSide, StageLayout
from mxc.passes.kernels.gpu.ring.tile import WorkgroupTile
from mxc.passes.kernels.vectors import i8


@dataclass(frozen=True)
class DenseRing(StagedProduct):
    """A dense product with a schedule of the transport "ring"."""

    lhs: FloatBlocks
    rhs: FloatBlocks

    layout = partial(StageLayout, instruction=TileInstruction(ROWS), shared=True)

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
        super().__post_init__()
        schedule, (m, n) = self.schedule, self.schedule.tiles
        self.require_waves(TileInstruction(ROWS))
        if schedule.waves[0] > 1:
            raise ValueError(f"{schedule}: waves of a dense ring have different columns")
        most = most_tiles_dense(self.lhs.bits)
        if m * n > most:
            raise ValueError(f"{schedule}: a wave has registers for {most} tiles")
        if self.splits > 1:
            raise ValueError(f"{schedule}: the bits of dense rows do not depend on a schedule")
        if self.out is not None:
            raise ValueError(f"{schedule}: a tile of {ROWS} columns has no whole block")
        if self.decoded is None or self.lhs.parts(self.decoded) > 1:
            raise ValueError(f"{self.lhs.memory} are more than one {self.decoded}")
        self.require_fit(k_steps=STAGE)

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes of the function, for LLVM: one wave per SIMD. Sums are in vector registers as
        far as these suffice, since the sums of a chunk are added to those of other chunks."""
        return {"amdgpu-waves-per-eu": "1, 1", "amdgpu-agpr-alloc": "0"}

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS of a stage: the rows of lhs."""
        return self.layouts[0].bytes

    def compute(self, *given: ir.Value) -> None:
        """Build what a workgroup does for a group."""
        lane = lane_of(self.schedule.instruction)
        buffers = ContractionBuffers(self, given)
        tile = WorkgroupTile(self, lane, buffers)
        memory = shared([self.lds_bytes], i8())
        (rows,), (columns,) = buffers.lhs(tile.start), buffers.rhs(tile.first)
        left, right = self.layouts
        lhs = StagedSide(left, lane, rows, memory, 0, tile.first_row, tile.lhs_row)
        first = tile.first_column + lane.row
        own = [tile.rhs_row(first + n * ROWS) for n in range(self.schedule.tiles[1])]
        rhs = DirectSide(right, lane, columns, own)
        chunks = Chunks.of(self.lhs.blocks)
        tile.store(DenseMainloop(self.schedule, lhs, rhs, chunks).sums())
