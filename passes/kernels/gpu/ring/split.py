"""Workgroups that share K: each has the sums of a part of it, and the last one adds these up.

Few tiles of the result leave units without work, or are small, so that each unit reads all rows of
lhs for few columns. So a tile may have several workgroups, each for an equal part of K, a *split*.
Row r of [rows, K] is then rows S r .. S r + S - 1 of [S rows, K / S], in the same memory, and split
s multiplies every row S r + s. At its end each wave leaves its sums in memory:

    parts[tile, wave, split] = sums
    release; count = counter[tile, wave], which becomes one more
    if all others have counted: acquire; counter = 0; sums = part 0 + part 1 + ..; epilogue

The last wave (gpu/last_wave.py) adds the parts in their order, so that bits do not depend on who
is last. It adds what the same lane of the other workgroups left, and no other wave has to be there.
Counters are zero before and after each call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

from iree.compiler import ir
from iree.compiler.dialects import memref, vector

from mxc.dialects.amdgpu import pinned
from mxc.dialects.generic import constant
from mxc.passes.kernels.extents import Buffer, Size, product
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.lanes import LANES, Lane
from mxc.passes.kernels.gpu.last_wave import last_wave
from mxc.passes.kernels.gpu.parts import rows_of
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.vectors import equal, f32, i32, of, part_of, when

#: The sums of a tile that a lane has: a vector, or vectors of four.
TileSums: TypeAlias = ir.Value | list[ir.Value]
#: Counters that a program has; its products count one after the other.
COUNTERS = 1 << 12
#: Floats of a lane that are loaded before the first is added.
_AHEAD = 96
#: Blocks of a split, at least: all that a ring of floats loads scales of at once.
_LEAST = 8
#: Bytes of a load, at a multiple of which a split begins.
_ALIGNED = 16


def split_side(side: ScaledBlocks | FloatBlocks, splits: int) -> ScaledBlocks | FloatBlocks:
    """A side with the blocks of one split. ValueError where it is not cut so."""
    if splits > 1 and not is_split(side, splits):
        raise ValueError(f"{side.blocks} blocks have no {splits} splits")
    return replace(side, blocks=side.blocks // splits, panels=side.panels * splits)


def is_split(side: ScaledBlocks | FloatBlocks, splits: int) -> bool:
    """Whether K may be cut into so many parts: of as many stages as a ring wants, under whole
    scales, each from where a load may begin."""
    blocks, rest = divmod(side.blocks, splits)
    shared = side.shared if isinstance(side, ScaledBlocks) else 1
    aligned = blocks * side.block_bytes % _ALIGNED == 0
    return rest == 0 and blocks >= _LEAST and blocks % shared == 0 and aligned


def split_buffers(
    operands: Sequence[Buffer], results: Sequence[Buffer], elements: Size
) -> list[Buffer]:
    """All buffers of a product with splits, whose parts have so many elements."""
    counters, parts = Buffer([COUNTERS], i32()), Buffer([elements], f32())
    return [*operands, counters, *results, parts]


@dataclass(frozen=True)
class SplitTiles:
    """The `tiles` of a result whose sums `schedule.splits` workgroups each have parts of."""

    schedule: GpuSchedule
    tiles: Size

    @property
    def waves(self) -> int:
        """Waves of a workgroup."""
        return self.schedule.threads // LANES

    @property
    def floats(self) -> int:
        """Sums of a lane."""
        m, n = self.schedule.tiles
        return m * n * self.schedule.instruction.totals

    @property
    def counters(self) -> int | None:
        """Counters of all waves of a split; None where the tiles come with the call."""
        return self.tiles * self.waves if isinstance(self.tiles, int) else None

    @property
    def elements(self) -> Size:
        """Elements of all parts."""
        return product(self.tiles, self.schedule.splits * self.waves * self.wave_floats)

    @property
    def wave_floats(self) -> int:
        """Sums of a wave."""
        return self.floats * LANES


@dataclass(frozen=True)
class WavePart:
    """What a wave of a split has of it: of tile number `tile`; memrefs `parts` and `counters`."""

    of: SplitTiles
    lane: Lane
    tile: ir.Value
    split: ir.Value
    parts: ir.Value
    counters: ir.Value

    def join(
        self, totals: Sequence[ir.Value], finish: Callable[[Sequence[TileSums]], None]
    ) -> None:
        """Leave `totals`, and `finish` the sums of all splits in the wave that is last."""
        of, lane = self.of, self.lane
        splits, counter = of.schedule.splits, self.tile * of.waves + lane.wave
        size = splits * of.wave_floats
        parts = rows_of(self.parts, size, counter, 1, product(of.tiles, of.waves))
        own = self.split * of.wave_floats
        for place, quad in zip(self._places, _quads(totals), strict=True):
            vector.store(quad, parts, [own + place])
        with last_wave(self.counters, counter, lane.lane, constant(splits - 1, i32())):
            with when(equal(lane.lane, 0)):
                memref.StoreOp(constant(0, i32()), self.counters, [counter])
            finish(self._added(parts))

    def _added(self, parts: ir.Value) -> list[TileSums]:
        """The sums of all splits, of each tile of a wave in fours: LLVM would look for registers
        side by side for a vector of sixteen."""
        splits, totals = self.of.schedule.splits, self.of.schedule.instruction.totals
        each = [number * self.of.wave_floats for number in range(splits)]
        step = max(1, _AHEAD // splits // totals) * (totals // QUAD)
        found: list[ir.Value] = []
        for first in range(0, len(self._places), step):
            places = self._places[first : first + step]
            loaded = [
                [vector.load(of(f32(), QUAD), parts, [at + start]) for at in places]
                for start in each
            ]
            # LLVM would add where sums are stored, and until then keep all that was loaded.
            found += pinned([reduce(operator.add, quads) for quads in zip(*loaded, strict=True)])
        quads = totals // QUAD
        return [found[at : at + quads] for at in range(0, len(found), quads)]

    @property
    def _places(self) -> list[ir.Value]:
        """Where a lane has its quads: those of a wave lie side by side."""
        own = self.lane.lane * QUAD
        return [own + number * (LANES * QUAD) for number in range(self.of.floats // QUAD)]


def _quads(totals: Sequence[ir.Value]) -> list[ir.Value]:
    """Some sums in vectors of four."""
    return [
        part_of(each, at, QUAD)
        for each in totals
        for at in range(0, ir.VectorType(each.type).shape[0], QUAD)
    ]
