"""The software pipeline of a ring of scaled sides: the order of products, and how early operands
are loaded and read.

All of it follows from the schedule and the layouts of both sides; mainloop.py builds the code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.ring.scales import CHUNK, CHUNK_K_STEPS, HALF, HALVES
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, LATENCIES, Key, StageLayout
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.targets.amd import GFX950

#: Accumulation registers of a wave that is alone on its SIMD.
ACCUMULATORS = 256
#: Share of a unit's bandwidth to memory that loads may take. With more, waves would wait for each
#: other.
_PATH = 0.9
#: Time from a load of the direct side until its use, in memory latencies.
_DIRECT_LATENCIES = 2.5
#: Pieces of the direct side that a lane may hold beside sums in all accumulation registers, and
#: registers of a piece.
_DIRECT_PIECES, _PIECE_REGISTERS = 12, 4
#: Products by which the barrier of a stage comes later than an even use of LDS wants: the matrix
#: core works on them while the wave waits.
_BEFORE = 3
#: Clocks from a read of a piece from LDS until its use, at least.
_READ_CLOCKS = 384


@dataclass(frozen=True)
class RingPipeline:
    """The pipeline of a wave: one side goes straight to registers, the other one through LDS.

    `direct`, `staged`: their layouts, with the same k-steps and blocks per stage; `swapped`:
    whether the direct side is rhs.
    """

    schedule: GpuSchedule
    direct: StageLayout
    staged: StageLayout
    swapped: bool

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of the direct side and of the staged side."""
        m, n = self.schedule.tiles
        return (n, m) if self.swapped else (m, n)

    @property
    def blocks(self) -> int:
        """Blocks of a row along all of K."""
        return self.staged.kind.blocks

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS for the elements of a stage."""
        return self.staged.bytes

    @property
    def clocks(self) -> int:
        """Clocks for which an instruction occupies the matrix core: twice as many if a side has
        8-bit elements."""
        eight = 8 in (self.direct.kind.bits, self.staged.kind.bits)
        return int(INSTRUCTION.clocks) * (2 if eight else 1)

    @property
    def stage_clocks(self) -> int:
        """Clocks of a matrix core for all products of a wave in a stage."""
        return len(self.order) * self.clocks

    @property
    def chunk_stages(self) -> int:
        """Stages of a chunk."""
        return CHUNK_K_STEPS // self.schedule.k_steps

    @property
    def chunks(self) -> int:
        """Chunks of K, of which the last may be partial."""
        return -(-self.blocks // CHUNK)

    @property
    def pieces_ahead(self) -> int:
        """How many pieces of the direct side are loaded ahead of the one that is used.

        As many as cover `_DIRECT_LATENCIES`, if there are registers for them, and no more stages
        ahead than the staged side; at least the pieces of a stage.
        """
        # One stage more: when its first piece is used, all of its pieces may be needed.
        stages = _DIRECT_LATENCIES * GFX950.rates.memory_latency / self.stage_clocks + 1
        stages = min(stages, self.schedule.stages - 1)
        free = ACCUMULATORS - math.prod(self.tiles) * INSTRUCTION.totals
        most, count = _DIRECT_PIECES + free // _PIECE_REGISTERS, len(self.pieces)
        return max(count, min(math.ceil(stages * count), most))

    @property
    def together(self) -> int:
        """Chunks of an iteration of the loop; also how many chunks ahead staged scales are loaded.

        An iteration takes longer than a piece of the direct side is held. Else a lane would have to
        hold the same piece for two iterations, and copy one, which waits for its load.
        """
        stages = -(-self.pieces_ahead // len(self.pieces)) + 1
        return -(-stages * self.schedule.k_steps // CHUNK_K_STEPS)

    @property
    def halves_ahead(self) -> int:
        """How many halves of a chunk ahead the scales of the direct side are loaded."""
        half = K_STEPS * self.stage_clocks / self.schedule.k_steps
        wanted = math.ceil(LATENCIES * GFX950.rates.memory_latency / half)
        return min(wanted, self.together * HALVES - 1)

    @property
    def pace(self) -> float:
        """Share of a stage's time over which the loads to LDS of a later stage are spread.

        All of it, if that leaves `LATENCIES` for memory to answer. Else less, but at least what the
        bandwidth to memory needs for these bytes.
        """
        rates, stage = GFX950.rates, self.stage_clocks
        direct = self.direct.rows * self.direct.row_bytes
        path = max(_PATH * rates.memory_bytes_per_clock * stage - direct, self.slot_bytes)
        most = self.schedule.stages - 1 - LATENCIES * rates.memory_latency / stage
        return min(1.0, max(self.slot_bytes / path, most))

    @property
    def plain(self) -> int:
        """How many of the first chunks load ahead only whole stages, halves and chunks of K."""
        ahead = max(self.schedule.stages, -(-self.pieces_ahead // len(self.pieces)))
        stages = self.blocks // self.staged.blocks - ahead
        halves = self.blocks // HALF - self.halves_ahead
        chunks = self.blocks // CHUNK - self.together
        return max(0, min(stages // self.chunk_stages, chunks, halves // HALVES))

    @cached_property
    def order(self) -> list[tuple[int, int, int]]:
        """The products of a stage in their order: k-step, direct tile, staged tile.

        A staged tile is multiplied by all direct ones before the next staged tile: in one k-step,
        or, if k-steps share pieces of it, in all k-steps of the stage.
        """
        direct, staged = (range(tiles) for tiles in self.tiles)
        parts = range(self.schedule.k_steps)
        if self.staged.shares:
            return [(part, own, tile) for tile in staged for part in parts for own in direct]
        return [(part, own, tile) for part in parts for tile in staged for own in direct]

    @cached_property
    def pieces(self) -> list[Key]:
        """Pieces of the direct side in a stage, in the order of their first use."""
        slices = self.direct.slices
        used = [(own, one.piece) for part, own, _ in self.order for one in slices[part]]
        return list(dict.fromkeys(used))

    @cached_property
    def reads(self) -> list[Key]:
        """Pieces that a stage reads from LDS, in the order of their first use."""
        return self._reads(len(self.order))

    def _reads(self, products: int) -> list[Key]:
        """Return the pieces that the first `products` products of a stage read from LDS."""
        slices, first = self.staged.slices, self.order[:products]
        used = [(tile, one.piece) for part, _, tile in first for one in slices[part]]
        return list(dict.fromkeys(used))

    @cached_property
    def early(self) -> int:
        """How many of `reads` are issued in the stage before: those used within _READ_CLOCKS."""
        return len(self._reads(math.ceil(_READ_CLOCKS / self.clocks)))

    @cached_property
    def cut(self) -> int:
        """How many products of a stage come before its barrier; the next stage is read after it.

        LDS is to be as busy before the barrier, with the other reads of this stage, as after it,
        with the early reads of the next one; the loads to LDS that are issued meanwhile count too.
        """
        reads, early, loads = len(self.reads), self.early, self.staged.loads
        count, pace = len(self.order), self.pace
        behind = 1
        while behind < count and (
            (reads + loads) * behind / count < early + loads * min(1.0, behind / count / pace)
        ):
            behind += 1
        return min(count, count - behind + _BEFORE)
