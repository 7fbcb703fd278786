"""The pipeline of a ring of scaled sides: what a stage multiplies, and how early it is loaded.

All of it follows from the schedule and the layouts of both sides; mainloop.py builds it.
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
#: Share of the path to memory that loads may take: with more of it waves would wait for each other.
_PATH = 0.9
#: Latencies of memory that what goes straight to registers has time for; pieces that it may have
#: there beside all sums, and registers of one.
_DIRECT_LATENCIES = 2.5
_DIRECT_PIECES, _PIECE_REGISTERS = 12, 4
#: Products that are issued later than even reading wants, right before waiting for other waves: the
#: matrix cores have them to do then.
_BEFORE = 3
#: Clocks from reading a piece to its use, or more.
_READ_CLOCKS = 384


@dataclass(frozen=True)
class RingPipeline:
    """The pipeline of a wave: one side goes straight to registers, the other through LDS.

    `direct`, `staged`: their layouts, of as many k-steps and blocks a stage; `swapped`: the direct
    side is rhs.
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
        """Blocks of a row."""
        return self.staged.kind.blocks

    @property
    def slot_bytes(self) -> int:
        """Bytes of LDS that a stage takes."""
        return self.staged.bytes

    @property
    def clocks(self) -> int:
        """Clocks of a matrix core for an instruction."""
        eight = 8 in (self.direct.kind.bits, self.staged.kind.bits)
        return int(INSTRUCTION.clocks) * (2 if eight else 1)

    @property
    def stage_clocks(self) -> int:
        """Clocks of the matrix cores for a stage."""
        return len(self.order) * self.clocks

    @property
    def chunk_stages(self) -> int:
        """Stages of a whole chunk."""
        return CHUNK_K_STEPS // self.schedule.k_steps

    @property
    def chunks(self) -> int:
        """In all."""
        return -(-self.blocks // CHUNK)

    @property
    def pieces_ahead(self) -> int:
        """How many pieces of the direct side are asked for before they are used.

        As many as cover some latencies, if there are registers for them; of a whole stage at least.
        """
        # Until the first of a stage is used, all of them may have to be there.
        stages = _DIRECT_LATENCIES * GFX950.rates.memory_latency / self.stage_clocks + 1
        stages = min(stages, self.schedule.stages - 1)
        free = ACCUMULATORS - math.prod(self.tiles) * INSTRUCTION.totals
        most, count = _DIRECT_PIECES + free // _PIECE_REGISTERS, len(self.pieces)
        return max(count, min(math.ceil(stages * count), most))

    @property
    def together(self) -> int:
        """Chunks of a round of the loop, and those by which staged scales are asked for early.

        What is still there when the same of the next round comes would be moved, and waited for.
        """
        stages = -(-self.pieces_ahead // len(self.pieces)) + 1
        return -(-stages * self.schedule.k_steps // CHUNK_K_STEPS)

    @property
    def halves_ahead(self) -> int:
        """How many halves of a chunk direct scales are asked for before they are used."""
        half = K_STEPS * self.stage_clocks / self.schedule.k_steps
        wanted = math.ceil(LATENCIES * GFX950.rates.memory_latency / half)
        return min(wanted, self.together * HALVES - 1)

    @property
    def pace(self) -> float:
        """The part of a stage in which the loads of another are issued.

        All of it, if memory has time to answer then; else as little as the path to memory needs.
        """
        rates, stage = GFX950.rates, self.stage_clocks
        direct = self.direct.rows * self.direct.row_bytes
        path = max(_PATH * rates.memory_bytes_per_clock * stage - direct, self.slot_bytes)
        most = self.schedule.stages - 1 - LATENCIES * rates.memory_latency / stage
        return min(1.0, max(self.slot_bytes / path, most))

    @property
    def plain(self) -> int:
        """Chunks in which all that is loaded ahead is there, and whole."""
        ahead = max(self.schedule.stages, -(-self.pieces_ahead // len(self.pieces)))
        stages = self.blocks // self.staged.blocks - ahead
        halves = self.blocks // HALF - self.halves_ahead
        chunks = self.blocks // CHUNK - self.together
        return max(0, min(stages // self.chunk_stages, chunks, halves // HALVES))

    @cached_property
    def order(self) -> list[tuple[int, int, int]]:
        """K-step, tile of the direct side and of the staged side, in the order of a stage.

        A staged tile meets all direct ones, in a k-step or, if these share pieces, in all k-steps:
        then it is done with.
        """
        direct, staged = (range(tiles) for tiles in self.tiles)
        parts = range(self.schedule.k_steps)
        if self.staged.shares:
            return [(part, own, tile) for tile in staged for part in parts for own in direct]
        return [(part, own, tile) for part in parts for tile in staged for own in direct]

    @cached_property
    def pieces(self) -> list[Key]:
        """What a stage has of the direct side, in the order in which it is used."""
        slices = self.direct.slices
        used = [(own, one.piece) for part, own, _ in self.order for one in slices[part]]
        return list(dict.fromkeys(used))

    @cached_property
    def reads(self) -> list[Key]:
        """What a stage reads from LDS, in the order in which it is used."""
        return self._reads(len(self.order))

    def _reads(self, products: int) -> list[Key]:
        slices, first = self.staged.slices, self.order[:products]
        used = [(tile, one.piece) for part, _, tile in first for one in slices[part]]
        return list(dict.fromkeys(used))

    @cached_property
    def early(self) -> int:
        """How many of them are read while the stage before is multiplied."""
        return len(self._reads(math.ceil(_READ_CLOCKS / self.clocks)))

    @cached_property
    def cut(self) -> int:
        """Products of a stage before the barrier after which the next stage is read.

        So that LDS works evenly: before it what is read late of this stage, after it what is read
        early of the next, and loads arrive.
        """
        reads, early, loads = len(self.reads), self.early, self.staged.loads
        count, pace = len(self.order), self.pace
        behind = 1
        while behind < count and (
            (reads + loads) * behind / count < early + loads * min(1.0, behind / count / pace)
        ):
            behind += 1
        return min(count, count - behind + _BEFORE)
