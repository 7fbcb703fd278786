"""A scaled side of a product: how a lane loads its bytes and makes fragments of them.

Elements lie row after row, as the program has them, or in panels (panels.py). Scales lie in rows.
`ScaledSide.load` loads what a lane needs for a k-step. `ScaledSide.fragment` makes of it an operand
of a scaled matrix instruction, `ScaledSide.parts` decoded floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from iree.compiler import ir

from mxc.dialects.amdgpu import concat
from mxc.passes.kernels.gpu.bounded_views import load_bytes
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.decoded_block import ONE, decoded_block
from mxc.passes.kernels.gpu.fragments import (
    K_STEPS,
    FragmentPiece,
    TileInstruction,
    pieces,
    shared_pieces,
    whole,
)
from mxc.passes.kernels.gpu.lanes import Lane, at_most
from mxc.passes.kernels.gpu.panels import along, spread, start_of
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.gpu.side_scales import WORD, SideScales
from mxc.passes.kernels.gpu.wave_side import Loaded, WaveSide
from mxc.passes.kernels.vectors import below, bitcast, i8, i32, lanes_of, part_of, splat


@dataclass(frozen=True)
class ScaledSide(WaveSide):
    """The rows of a scaled operand for the tiles of one wave.

    `buffers`: bounded memrefs of the elements and of the scales. `rows`: for each tile, the row of
    these that this lane reads. `decoded`: the type of floats that elements are decoded to; a lane
    then takes whole blocks, or its parts of them if there are several `sums`. None: a lane takes
    the fragments of scaled matrix instructions.

    `factors`: for each tile, the rows of the f32 scales that this lane needs. `sums`: if not 0, a
    k-step covers consecutive blocks, one per lane group, and is this number of sums, each under one
    scale of either side. 0: no sum is multiplied by scales.
    """

    kind: ScaledBlocks
    instruction: TileInstruction
    lane: Lane
    buffers: tuple[ir.Value, ir.Value]
    rows: tuple[ir.Value, ...]
    decoded: Register | None = None
    factors: tuple[tuple[ir.Value, ...], ...] = ()
    sums: int = 0

    @property
    def _in_order(self) -> bool:
        """Whether one instruction takes consecutive blocks of the step, as scaled WMMA does."""
        return self.decoded is None and self.instruction.unit.family == "wmma"

    @property
    def k_steps(self) -> int:
        """Number of k-steps in a step."""
        return self.instruction.k_steps if self.decoded is None else K_STEPS

    @property
    def _pieces(self) -> tuple[FragmentPiece, ...]:
        bits = self.kind.bits
        if self.decoded is None:
            return pieces(bits, self.instruction)
        return whole(bits) if self.sums < 2 else shared_pieces(bits, self._stride, self.sums)

    @cached_property
    def _scales(self) -> SideScales:
        own = (self.kind, self.instruction, self.lane, self.buffers[1], self.rows)
        return SideScales(*own, self.factors, self.sums, self.k_steps, self._stride)

    def load(self, step: ir.Value, k_step: int, *, masked: bool) -> Loaded:
        """Load the elements of a k-step of a step.

        With the first k-step, the scales of the whole step are loaded too, unless `load_late` loads
        them. `masked`: the step may go past the end of a row; blocks past the end are zero.
        """
        kind, group, first = self.kind, self.lane.block, step * self.instruction.step
        blocks, found = k_step * self._stride, Loaded()
        for tile, row in enumerate(self.rows):
            start, place = start_of(kind, row, first), self._place(tile, k_step)
            for number, piece in enumerate(self._pieces):
                offset = self._block(piece) * kind.block_bytes
                offset = offset + (group % piece.share * piece.stride + piece.start)
                at = start + along(kind, offset) + blocks * kind.block_bytes * spread(kind)
                block = first + self._block(piece) + blocks
                inside = below(block, kind.blocks) if masked else None
                found.elements[place + number] = load_bytes(
                    self.buffers[0], at, piece.bytes, inside
                )
            if k_step == 0 and not self._scales.late:
                found.scales[tile] = self._scales.load(tile, first, masked=masked)
        return found

    def load_late(self, step: ir.Value, *, masked: bool) -> Loaded:
        """Load the f32 scales of a step, if they are too many to be loaded ahead.

        They would take too many registers while the step before is multiplied.
        """
        if not self._scales.late:
            return Loaded()
        first = step * self.instruction.step
        each = [self._scales.load(tile, first, masked=masked) for tile in range(len(self.rows))]
        return Loaded(scales=dict(enumerate(each)))

    def pin_scales(self, loaded: Loaded) -> Loaded:
        """Return `loaded`, with scales pinned that are loaded a step ahead.

        Only scales that vector instructions read are pinned: those of elements that are decoded,
        and f32 scales.
        """
        if self._scales.late or (self.decoded is None and not self.kind.has_f32_scales):
            return loaded
        return Loaded(loaded.elements, self._scales.pin(loaded.scales))

    @property
    def _stride(self) -> int:
        """Number of blocks from this lane's block of a k-step to that of the next k-step."""
        if self.sums:
            return self.instruction.groups
        return K_STEPS if self._in_order else 1

    def _block(self, piece: FragmentPiece) -> ir.Value:
        """Return the block of the step that `piece` of this lane is a part of, in k-step 0."""
        block = self.lane.block // piece.share + piece.first
        return block * (1 if self._in_order or self.sums else K_STEPS)

    def _place(self, tile: int, k_step: int) -> int:
        """Return the number, in `Loaded.elements`, of the first piece of a tile in a k-step."""
        return (tile * self.k_steps + k_step) * len(self._pieces)

    def _bytes(self, loaded: Loaded, tile: int, k_step: int) -> ir.Value:
        """Return all bytes that this lane has of a tile in a k-step: i8 [n]."""
        start = self._place(tile, k_step)
        pieces = [loaded.elements[start + number] for number in range(len(self._pieces))]
        if any(piece.bytes % WORD for piece in self._pieces):
            return concat(pieces)
        # Concatenated as words: LLVM would take a register for each byte that the loop carries.
        words = concat([bitcast(piece, i32(), lanes_of(piece) // WORD) for piece in pieces])
        return bitcast(words, i8(), lanes_of(words) * WORD)

    def fragment(self, loaded: Loaded, tile: int, k_step: int) -> ir.Value:
        """Return the elements of a tile in a k-step, as the operand of a scaled instruction."""
        element, whole = self.kind.format.element, self._bytes(loaded, tile, k_step)
        count = lanes_of(whole) * 8 // element.bits
        return bitcast(whole, ir.Type.parse(element.mlir), count)

    def scales(self, loaded: Loaded, tile: int) -> ir.Value:
        """Return the scales of a tile for the scaled instructions of the step: f8E8M0FNU [4].

        They are 1 if the scales are f32, which multiply sums.
        """
        if self.kind.has_f32_scales:
            return ones()
        found = self._scales.concatenated(loaded.scales[tile])
        return bitcast(found, ir.Float8E8M0FNUType.get(), K_STEPS)

    def parts(self, loaded: Loaded, tile: int, k_step: int) -> list[list[ir.Value]]:
        """Return the decoded elements of a tile in a k-step, as runs of 8 along K.

        Each run is a list of one vector: nothing is split.
        """
        assert self.decoded is not None
        count = self.kind.scales * max(1, self.sums)
        block = self._bytes(loaded, tile, k_step)
        scales = self._scales.concatenated(loaded.scales[tile])
        if not self.kind.has_f32_scales:
            scales = part_of(scales, k_step * count, count)
        runs = decoded_block(self.kind, self.instruction.unit, self.decoded, block, scales)
        return [[run] for run in runs]

    def factors_of(self, loaded: Loaded, k_step: int, number: int) -> list[ir.Value | None]:
        """Return the f32 scales that multiply sum `number` of a k-step, for each tile.

        They are f32 [rows that the lane needs], or None if the side has no such scales.
        """
        if not self.kind.has_f32_scales:
            return super().factors_of(loaded, k_step, number)
        return [
            self._scales.factor(loaded.scales[tile], tile, k_step, number)
            for tile in range(len(self.rows))
        ]


def clamped(row: ir.Value, rows: int) -> ir.Value:
    """Return `row`, or the last row if it is past the end.

    Results of rows past the end are computed, but not stored.
    """
    return at_most(row, rows - 1)


def ones() -> ir.Value:
    """Return scales of 1 for the scaled instructions of a step: f8E8M0FNU [4]."""
    return bitcast(splat(ONE, i8(), K_STEPS), ir.Float8E8M0FNUType.get(), K_STEPS)
