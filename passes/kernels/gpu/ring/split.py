"""Split-K between workgroups: each sums a part of K, and the last wave to finish adds the parts up.

If the result has few tiles, compute units have no work, or tiles are so small that each unit reads
all rows of lhs for few columns. So a tile may have several workgroups, each for an equal part of K,
a *split*. With S splits, row r of [rows, K] is rows S r to S r + S - 1 of [S rows, K / S], in the
same memory, and split s multiplies rows S r + s. At the end each wave stores its sums to memory:

    parts[tile, wave, split] = sums
    release; count = counter[tile, wave], which becomes one more
    if all others have counted: acquire; counter = 0; sums = part 0 + part 1 + ..; epilogue

The last wave (gpu/last_wave.py) adds the parts in the order of splits, so the result has the same
bits whichever wave is last. Each lane adds what the same lanes of the other workgroups stored, so a
wave waits for no other wave of its workgroup. Counters are zero before and after each call.
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
from mxc.passes.kernels.gpu.bounded_views import rows_of
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.lanes import LANES, Lane
from mxc.passes.kernels.gpu.last_wave import last_wave
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.vectors import equal, f32, i32, of, part_of, when

#: The sums of a tile that a lane has: one vector, or a list of vectors of four.
TileSums: TypeAlias = ir.Value | list[ir.Value]
#: Counters of a program; its products use the same ones, one after the other.
COUNTERS = 1 << 12
#: Floats that a lane loads before it adds the first ones.
_AHEAD = 96
#: Blocks of a split, at least: those whose scales a ring of floats loads at once (scales.AT_ONCE).
_LEAST = 8
#: Bytes of a load; a split begins at a multiple of them.
_ALIGNED = 16


def split_side(side: ScaledBlocks | FloatBlocks, splits: int) -> ScaledBlocks | FloatBlocks:
    """Return a side with the blocks of one split. Raises ValueError if it cannot be cut so."""
    if splits > 1 and not is_split(side, splits):
        raise ValueError(f"{side.blocks} blocks have no {splits} splits")
    return replace(side, blocks=side.blocks // splits, panels=side.panels * splits)


def is_split(side: ScaledBlocks | FloatBlocks, splits: int) -> bool:
    """Whether K can be cut into `splits` equal parts.

    Each must have at least `_LEAST` blocks, whole scales, and a start that is aligned for loads.
    """
    blocks, rest = divmod(side.blocks, splits)
    shared = side.shared if isinstance(side, ScaledBlocks) else 1
    aligned = blocks * side.block_bytes % _ALIGNED == 0
    return rest == 0 and blocks >= _LEAST and blocks % shared == 0 and aligned


def split_buffers(
    operands: Sequence[Buffer], results: Sequence[Buffer], elements: Size
) -> list[Buffer]:
    """Return all buffers of a product with splits. `elements`: of the buffer of partial sums."""
    counters, parts = Buffer([COUNTERS], i32()), Buffer([elements], f32())
    return [*operands, counters, *results, parts]


@dataclass(frozen=True)
class SplitTiles:
    """Sizes of the partial sums and counters of a product with splits. `tiles`: of the result, each
    with `schedule.splits` workgroups."""

    schedule: GpuSchedule
    tiles: Size

    @property
    def waves(self) -> int:
        """Waves of a workgroup."""
        return self.schedule.threads // LANES

    @property
    def floats(self) -> int:
        """Sums of a lane, f32."""
        m, n = self.schedule.tiles
        return m * n * self.schedule.instruction.totals

    @property
    def counters(self) -> int | None:
        """Counters of the product, one per wave of a tile; None if tiles come with the call."""
        return self.tiles * self.waves if isinstance(self.tiles, int) else None

    @property
    def elements(self) -> Size:
        """Elements of the buffer of partial sums, f32."""
        return product(self.tiles, self.schedule.splits * self.waves * self.wave_floats)

    @property
    def wave_floats(self) -> int:
        """Sums of a wave."""
        return self.floats * LANES


@dataclass(frozen=True)
class WavePart:
    """A wave of one split of a tile: where it stores its sums, and how all are added.

    `tile`, `split`: numbers of the tile and of the split; `parts`, `counters`: memrefs of the
    partial sums and of the counters of the product.
    """

    of: SplitTiles
    lane: Lane
    tile: ir.Value
    split: ir.Value
    parts: ir.Value
    counters: ir.Value

    def join(
        self, totals: Sequence[ir.Value], finish: Callable[[Sequence[TileSums]], None]
    ) -> None:
        """Store `totals` as partial sums; in the last wave, `finish` the sums of all splits."""
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
        """Load the partial sums of all splits and add them, for each tile of the wave.

        Sums are vectors of four: LLVM would need consecutive registers for a vector of sixteen.
        """
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
            # Else LLVM would add right before the stores, and keep all loaded parts until then.
            found += pinned([reduce(operator.add, quads) for quads in zip(*loaded, strict=True)])
        quads = totals // QUAD
        return [found[at : at + quads] for at in range(0, len(found), quads)]

    @property
    def _places(self) -> list[ir.Value]:
        """Offsets of this lane's vectors of four in the sums of a wave.

        A vector of each lane, then the next vector of each lane, so that lanes store side by side.
        """
        own = self.lane.lane * QUAD
        return [own + number * (LANES * QUAD) for number in range(self.of.floats // QUAD)]


def _quads(totals: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the vectors `totals` as vectors of four."""
    return [
        part_of(each, at, QUAD)
        for each in totals
        for at in range(0, ir.VectorType(each.type).shape[0], QUAD)
    ]
