"""Scaled products of many rows: one side passes through a ring of stages in shared memory.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

A workgroup has a tile of the result, its waves rows of tiles, or columns. So they share one side:
it is loaded to LDS directly, each byte once for the workgroup, some stages (staging.py) ahead. Of
the other each wave has its own, which it loads to registers as early (direct.py). A stage is two
k-steps, a k-step one instruction along K for each tile of a wave:

    multiply the first part of a stage; meanwhile                  # pipeline.py: how much
      read the rest of its fragments from LDS
      load pieces of a later stage to registers
    wait for the loads of the next stage to LDS, and for all waves # so this slot has been read
    multiply the rest; meanwhile                                   # interleave.py
      read the first fragments of the next stage
      load the stage that comes `stages` later into the slot that has been read
      load more pieces
      now and then, fetch scales                                   # direct.py, staged_scales.py

The matrix cores have work all the time, as long as memory answers within `stages` - 1 stages. Sums
are in accumulation registers, of which a wave alone on its SIMD has 256.

Sides are swapped, so that a lane has four columns in a row of the result, which it stores at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.amdgpu import shared
from mxc.passes.kernels.gpu.contraction import Given
from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.lanes import lane_of
from mxc.passes.kernels.gpu.ring.direct import DirectScales, DirectSide
from mxc.passes.kernels.gpu.ring.mainloop import sums
from mxc.passes.kernels.gpu.ring.pipeline import Pipeline
from mxc.passes.kernels.gpu.ring.staged_product import ACCUMULATORS, StagedProduct
from mxc.passes.kernels.gpu.ring.staged_scales import (
    HALVES,
    SPAN_K_STEPS,
    StagedScales,
    scale_bytes,
)
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, Layout, StagedSide
from mxc.passes.kernels.gpu.ring.tile import Tile
from mxc.passes.kernels.gpu.sides import Scaled
from mxc.passes.kernels.vectors import i8
from mxc.targets.amd import GFX950

#: Share of the path to memory that loads may take: with more of it waves would wait for each other.
_PATH = 0.9
#: Latencies of memory that there should be time for.
_LATENCIES = 1.5
#: The same of what goes straight to registers; pieces that it may have there beside all sums, and
#: registers of one.
_DIRECT_LATENCIES = 2.5
_DIRECT_PIECES, _PIECE_REGISTERS = 12, 4


@dataclass(frozen=True)
class Ring(StagedProduct):
    """A product of scaled sides by a schedule of the transport "ring", with an f32 result."""

    lhs: Scaled

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
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
        """Whether rhs is the side that waves do not share."""
        return self.schedule.waves[1] > 1

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """Layouts of a stage of the direct side and of the staged one."""
        lhs, rhs = super().layouts
        return (rhs, lhs) if self.swapped else (lhs, rhs)

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS that a stage of the staged side takes."""
        return self.layouts[1].bytes

    @property
    def clocks(self) -> int:
        """Clocks of a matrix core for an instruction."""
        return int(INSTRUCTION.clocks) * (2 if 8 in (self.lhs.bits, self.rhs.bits) else 1)

    @property
    def stage_clocks(self) -> int:
        """Clocks of the matrix cores for a stage."""
        m, n = self.schedule.tiles
        return m * n * self.schedule.k_steps * self.clocks

    @property
    def _pieces(self) -> int:
        """Pieces of a stage of the direct side."""
        direct = self.layouts[0]
        each = sum(len(direct.new_pieces(k_step)) for k_step in range(direct.k_steps))
        return self.schedule.tiles[self.swapped] * each

    @property
    def _pieces_ahead(self) -> int:
        """How many pieces of the direct side are asked for before they are used.

        As many as cover some latencies, if there are registers for them; of a whole stage at least.
        """
        m, n = self.schedule.tiles
        # Until the first of a stage is used, all of them may have to be there.
        stages = _DIRECT_LATENCIES * GFX950.rates.memory_latency / self.stage_clocks + 1
        stages = min(stages, self.schedule.stages - 1)
        free = ACCUMULATORS - m * n * INSTRUCTION.totals
        most = _DIRECT_PIECES + free // _PIECE_REGISTERS
        return max(self._pieces, min(math.ceil(stages * self._pieces), most))

    @property
    def _together(self) -> int:
        """Spans of a round of the loop.

        What is still there when the same of the next round comes would be moved, and waited for.
        """
        stages = -(-self._pieces_ahead // self._pieces) + 1
        return -(-stages * self.schedule.k_steps // SPAN_K_STEPS)

    @property
    def _halves_ahead(self) -> int:
        """How many halves of a span direct scales are asked for before they are used."""
        half = K_STEPS * self.stage_clocks / self.schedule.k_steps
        wanted = math.ceil(_LATENCIES * GFX950.rates.memory_latency / half)
        return min(wanted, self._together * HALVES - 1)

    @property
    def lds_bytes(self) -> int:
        """Bytes of LDS that a workgroup takes."""
        staged = self.layouts[1]
        return super().lds_bytes + scale_bytes(staged.rows, staged.waves)

    @property
    def pace(self) -> float:
        """The part of a stage in which the loads of another are issued.

        All of it, if memory has time to answer then; else as little as the path to memory needs.
        """
        rates, stage = GFX950.rates, self.stage_clocks
        direct = self.layouts[0].rows * self.layouts[0].row_bytes
        path = max(_PATH * rates.memory_bytes_per_clock * stage - direct, self.slot_bytes)
        most = self.schedule.stages - 1 - _LATENCIES * rates.memory_latency / stage
        return min(1.0, max(self.slot_bytes / path, most))

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        lane = lane_of(INSTRUCTION)
        given = Given(self, buffers)
        tile = Tile(self, lane, given)
        sides = [
            (given.lhs(tile.start), tile.first_row, tile.lhs_row),
            (given.rhs(tile.first), tile.first_column, tile.rhs_row),
        ]
        (own, factors), first, row_of = sides[self.swapped]
        first = first + lane.row
        rows = [
            row_of(first + number * INSTRUCTION.rows)
            for number in range(self.schedule.tiles[self.swapped])
        ]
        direct, staged = self.layouts
        loaded = (
            DirectSide(direct, lane, own, rows, self._pieces_ahead),
            DirectScales(direct, lane, factors, rows, self._halves_ahead),
        )
        (other, factors), first, row_of = sides[not self.swapped]
        memory = shared([self.lds_bytes], i8())
        end = self.schedule.stages * self.slot_bytes
        passed = (
            StagedSide(staged, lane, other, memory, 0, first, row_of),
            StagedScales(staged, lane, factors, memory, end, first, row_of),
        )
        pipeline = Pipeline(
            loaded,
            passed,
            self.swapped,
            self.schedule.tiles,
            self.lhs.blocks,
            self.schedule.stages,
            self.slot_bytes,
            self.pace,
            self.clocks,
            self._together,
        )
        tile.store(sums(pipeline))
