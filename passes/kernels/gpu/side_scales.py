"""The scales of a scaled operand: how a lane loads those of a step and prepares them for use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import BEYOND, concat, pinned
from mxc.dialects.sizes import constant
from mxc.passes.kernels.gpu.bounded_views import load_bytes
from mxc.passes.kernels.gpu.float_scales import StepFactors, factors_of_step
from mxc.passes.kernels.gpu.fragments import K_STEPS, TileInstruction
from mxc.passes.kernels.gpu.lanes import Lane
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import (
    below,
    bitcast,
    elements,
    f32,
    i8,
    i32,
    index,
    lanes_of,
    of,
    parts_of,
    signed_below,
)

#: Bytes of an i32.
WORD = 4


@dataclass(frozen=True)
class SideScales:
    """The scales of a ScaledSide, for the tiles of one wave.

    `memory`: a bounded memref of the scales. `rows`, `factors`, `sums`: as in ScaledSide.
    `k_steps`: number of k-steps in a step. `stride`: number of blocks from a lane's block of a
    k-step to that of the next one.
    """

    kind: ScaledBlocks
    instruction: TileInstruction
    lane: Lane
    memory: ir.Value
    rows: tuple[ir.Value, ...]
    factors: tuple[tuple[ir.Value, ...], ...] = ()
    sums: int = 0
    k_steps: int = K_STEPS
    stride: int = 1

    @property
    def _of_step(self) -> StepFactors:
        """Number and distance of the f32 scales that a row has in a step."""
        return factors_of_step(self.kind.shared, self.instruction, self.sums)

    @property
    def late(self) -> bool:
        """Whether a step has too many scales to hold while the step before is multiplied."""
        return self.kind.has_f32_scales and self._of_step.late

    def load(self, tile: int, first: ir.Value, *, masked: bool) -> list[ir.Value]:
        """Load the scales of a tile for the step that begins at block `first`.

        Returns a list of vectors, for `concatenated`.
        """
        if self.kind.has_f32_scales:
            return [self._factors_of(tile, first, masked=masked)]
        row = self.rows[tile]
        if self.sums:
            first = first + self.lane.block // self.sums
            parts = [part * self.stride // self.sums for part in range(self.k_steps * self.sums)]
            return self._each_scale(row, first, parts, masked=masked)
        return self._parts(row, first + self.lane.block * K_STEPS, masked=masked)

    def pin(self, given: dict[int, list[ir.Value]]) -> dict[int, list[ir.Value]]:
        """Return the scales of each tile, pinned as words.

        Otherwise LLVM extracts bytes of them, or multiplies them, in the iteration that loads them,
        and so waits for loads that were just issued.
        """
        kind = f32() if self.kind.has_f32_scales else i32()
        tiles = [self.concatenated(given[tile]) for tile in range(len(self.rows))]
        own, size = ir.VectorType(tiles[0].type).element_type, lanes_of(tiles[0])
        count = size if self.kind.has_f32_scales else size // WORD
        words = [word for each in tiles for word in elements(bitcast(each, kind, count))]
        found = vector.from_elements(of(kind, len(words)), pinned(words))
        whole = [bitcast(each, own, size) for each in parts_of(found, count)]
        return {tile: [each] for tile, each in enumerate(whole)}

    def factor(self, parts: list[ir.Value], tile: int, k_step: int, number: int) -> ir.Value:
        """Return the f32 scales that multiply sum `number` of a k-step of a tile.

        `parts`: what `load` has returned. The result is f32 [rows that the lane needs].
        """
        found, rows = self.concatenated(parts), range(len(self.factors[tile]))
        block = k_step * self.stride + number * self.stride // self.sums
        own = block // self._of_step.stride
        return vector.shuffle(found, found, [row * self._of_step.count + own for row in rows])

    def load_four(self, row: ir.Value, own: ir.Value, *, masked: bool) -> ir.Value:
        """Load the scales of four blocks of a row, from block `own` on.

        `masked`: the blocks may go past the end of the row; scales of blocks past the end are zero.
        The elements of those blocks are zero too, but the bytes in memory are scales of the next
        row, and may be NaN.
        """
        return self.concatenated(self._parts(row, own, masked=masked))

    def concatenated(self, parts: list[ir.Value]) -> ir.Value:
        """Return a lane's scales of a step as one vector.

        A scale that several blocks share is repeated for each of them; f32 scales are not.
        """
        whole = concat(parts)
        size = (self.k_steps * self.sums or K_STEPS) * self.kind.scales
        if self.kind.has_f32_scales or lanes_of(whole) == size:
            return whole
        shared = size // lanes_of(whole)
        return vector.shuffle(whole, whole, [k_step // shared for k_step in range(size)])

    def _factors_of(self, tile: int, first: ir.Value, *, masked: bool) -> ir.Value:
        """Load the f32 scales of a step for all rows that the lane needs: f32 [rows * scales]."""
        kind, scales = self.kind, self._of_step
        size, count = kind.format.scale.bits // 8, 1 if masked else scales.together
        found = []
        for row in self.factors[tile]:
            start = row * (kind.blocks // kind.shared)
            for number in range(0, scales.count, count):
                block = first + number * scales.stride
                at = (start + block // kind.shared) * size
                inside = below(block, kind.blocks) if masked else None
                loaded = load_bytes(self.memory, at, size * count, inside)
                found.append(bitcast(loaded, f32(), count))
        return concat(found)

    def _each_scale(
        self, row: ir.Value, first: ir.Value, blocks: Iterable[int], *, masked: bool
    ) -> list[ir.Value]:
        """Load the scales of `blocks` of a row, counted from block `first`, with a load each."""
        kind, count = self.kind, self.kind.scales
        start, found = row * (kind.blocks // kind.shared), []
        for number in blocks:
            block = first + number
            at = (start + block // kind.shared) * count
            inside = below(block, kind.blocks) if masked else None
            found.append(load_bytes(self.memory, at, count, inside))
        return found

    def _parts(self, row: ir.Value, own: ir.Value, *, masked: bool) -> list[ir.Value]:
        """Load what `load_four` returns, as a list of vectors."""
        memory, blocks, count = self.memory, self.kind.blocks, self.kind.scales
        if (shared := self.kind.shared) > 1 or (masked and blocks < K_STEPS):
            # Two blocks, or all four, may share a scale; or the row has fewer than four blocks.
            return self._each_scale(row, own, range(0, K_STEPS, shared), masked=masked)
        at, size = (row * blocks + own) * count, K_STEPS * count
        left = blocks % K_STEPS
        if not masked:
            return [load_bytes(memory, at, size)]
        if not left:
            return [load_bytes(memory, at, size, below(own, blocks))]
        at = arith.select(below(own, blocks), at, index(BEYOND))
        # If the row ends within these four blocks, load the last four scales of the row, and shift
        # out those of blocks before `own`: a load that reaches past the end of the buffer returns
        # zero for all of its bytes.
        whole, more = signed_below(own + (K_STEPS - 1), blocks), (K_STEPS - left) * count
        at = arith.select(whole, at, at - more)
        kind = ir.IntegerType.get_signless(8 * size)
        word = vector.extract(bitcast(load_bytes(memory, at, size), kind, 1), [], [0])
        shift = arith.select(whole, constant(0, kind), constant(8 * more, kind))
        return [bitcast(vector.broadcast(of(kind, 1), word >> shift), i8(), size)]
