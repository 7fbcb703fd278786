"""Scaled products of many rows: both sides pass through a ring of stages in shared memory.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

A workgroup has a tile of the result, its waves parts of it. What they multiply is loaded to LDS
directly, each byte once for the workgroup, some stages (staging.py) ahead. A stage is one turn or
two, a turn one instruction along K for each tile of a wave:

    multiply the first part of a stage; meanwhile                  # pipeline.py: how much
      read the fragments of its later turns from LDS
    wait for the loads of the next stage, and for all waves        # so this slot has been read
    multiply the rest; meanwhile                                   # interleave.py
      read the fragments of the first turn of the next stage
      load the stage that comes `stages` later into the slot that has been read
      now and then, fetch the scales of the next span              # staged_scales.py

The matrix cores have work all the time, as long as memory answers within `stages` - 1 stages. Sums
are in accumulation registers, of which a wave alone on its SIMD has 256.

Sides are swapped, so that a lane has four columns in a row of the result, which it stores at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.amdgpu import bounded, shared
from mxc.dialects.devices import MI355X
from mxc.passes.kernels.gpu.contraction import Contraction, Given
from mxc.passes.kernels.gpu.lanes import lane_of
from mxc.passes.kernels.gpu.pipeline import Pipeline
from mxc.passes.kernels.gpu.ring_tile import Tile
from mxc.passes.kernels.gpu.sides import Scaled
from mxc.passes.kernels.gpu.staged_scales import SPAN, StagedScales, scale_bytes
from mxc.passes.kernels.gpu.staging import INSTRUCTION, Layout, StagedSide
from mxc.passes.kernels.gpu.turns import sums
from mxc.passes.kernels.vectors import i8

#: Of the path to memory, what loads may take: with more of it waves would wait for each other.
_PATH = 0.9
#: Accumulation registers of a wave that is alone on its SIMD.
_SUMS = 256
#: Latencies of memory that there should be time for.
_PATIENCE = 1.5


@dataclass(frozen=True)
class Ring(Contraction):
    """A product of scaled sides by a schedule of the transport "ring", with an f32 result."""

    lhs: Scaled

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
        super().__post_init__()
        schedule = self.schedule
        (m, n), (down, right, along) = schedule.tiles, schedule.waves
        units = MI355X.unit
        if schedule.instruction != INSTRUCTION or along != 1 or down * right > units.simds:
            raise ValueError(f"{schedule}: a ring has tiles of 32, up to 4 waves, none along K")
        if m * n * INSTRUCTION.totals > _SUMS:
            raise ValueError(f"{schedule}: a wave has {_SUMS} accumulation registers for its tiles")
        if schedule.stages < 2 or schedule.turns not in (1, 2):
            raise ValueError(f"{schedule}: a ring has 2 stages or more, of 1 or 2 turns")
        if self.decoded is not None or self.out is not None:
            raise ValueError("a ring takes scaled sides, and stores f32")
        if self.lhs.blocks < SPAN:
            raise ValueError(f"{self.lhs.blocks} blocks: a ring wants {SPAN}, a span of scales")
        if self.lds_bytes > units.lds_bytes:
            raise ValueError(
                f"{schedule}: {self.lds_bytes} bytes of LDS, where there are {units.lds_bytes}"
            )
        for layout in self.layouts:
            _ = layout.slices  # raises where lanes cannot read their parts

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
            Layout(self.lhs, schedule.rows, schedule.turns, waves),
            Layout(self.rhs, schedule.columns, schedule.turns, waves),
        )

    @property
    def slot_bytes(self) -> int:
        """Of LDS that a stage takes."""
        return sum(layout.bytes for layout in self.layouts)

    @property
    def lds_bytes(self) -> int:
        """Of LDS that a workgroup takes."""
        scales = sum(scale_bytes(layout.rows, layout.waves) for layout in self.layouts)
        return self.schedule.stages * self.slot_bytes + scales

    @property
    def pace(self) -> float:
        """The part of a stage in which the loads of another are issued.

        All of it, if memory has time to answer then; else as little as the path to memory needs.
        """
        schedule, rates = self.schedule, MI355X.unit.rates
        assert rates is not None
        m, n = schedule.tiles
        clocks = INSTRUCTION.clocks * (2 if 8 in (self.lhs.bits, self.rhs.bits) else 1)
        stage = m * n * schedule.turns * clocks
        least = self.slot_bytes / (_PATH * rates.memory_bytes) / stage
        most = schedule.stages - 1 - _PATIENCE * rates.memory_latency / stage
        return min(1.0, max(least, most))

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point, of the buffers and the scalars."""
        lane = lane_of(INSTRUCTION)
        given = Given(self, buffers)
        tile = Tile(self, lane, given)
        memory = shared([self.lds_bytes], i8())
        sides, scales = [], []
        start, end = 0, self.schedule.stages * self.slot_bytes
        for layout, (elements, factors), first, row_of in zip(
            self.layouts,
            (given.lhs(tile.start), [bounded(each) for each in given.rhs]),
            (tile.first_row, tile.first_column),
            (tile.lhs_row, tile.rhs_row),
            strict=True,
        ):
            side = StagedSide(layout, lane, elements, memory, start, first, row_of)
            sides.append(side)
            scale = StagedScales(layout, lane, factors, memory, end, first, row_of)
            scales.append(scale)
            start += layout.bytes
            end += scale_bytes(layout.rows, layout.waves)
        pipeline = Pipeline(
            (sides[0], sides[1]),
            (scales[0], scales[1]),
            self.schedule.tiles,
            self.lhs.blocks,
            self.schedule.stages,
            self.slot_bytes,
            self.pace,
        )
        tile.store(sums(pipeline))
