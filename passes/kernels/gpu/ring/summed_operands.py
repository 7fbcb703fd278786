"""The operands of a ring whose sums are multiplied by f32 scales: how a stage is loaded and read.

Rows of lhs and the scales of both sides go through LDS. Weights go straight to registers, because
each wave has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import FRAGMENT
from mxc.passes.kernels.gpu.ring.factors import StagedFloatScales
from mxc.passes.kernels.gpu.ring.interleave import Issue
from mxc.passes.kernels.gpu.ring.staging import DirectSide, StagedSide
from mxc.passes.kernels.gpu.ring.summed_registers import SummedRegisters
from mxc.passes.kernels.vectors import bitcast, concat, i32, index, lanes_of


@dataclass(frozen=True)
class SummedOperands:
    """Both sides for one lane, and their scales.

    `row_scales`: of lhs, None if it has none; f32, which multiply sums, or E8M0, which the
    instruction takes. `column_scales`: of rhs. `tiles`: of a wave along rows and columns.
    `slot_bytes`: bytes of LDS of a stage.
    """

    lhs: StagedSide
    rhs: DirectSide
    row_scales: StagedFloatScales | None
    column_scales: StagedFloatScales
    tiles: tuple[int, int]
    slot_bytes: int

    @property
    def parts(self) -> int:
        """Number of instructions along K in a stage, for each tile of the result."""
        return len(self.lhs.layout.runs)

    @property
    def runs(self) -> int:
        """Number of runs of a stage, each under one scale."""
        return self.column_scales.runs

    @property
    def rows_scale_sums(self) -> bool:
        """Whether lhs has f32 scales, which multiply sums."""
        return self.row_scales is not None and self.lhs.layout.scaled.has_f32_scales

    @property
    def rows_scale_blocks(self) -> bool:
        """Whether lhs has E8M0 scales, which the instruction takes."""
        return self.row_scales is not None and not self.rows_scale_sums

    @property
    def row_pieces(self) -> int:
        """Number of LDS reads for a fragment of lhs."""
        return len(self.lhs.layout.runs[0])

    @property
    def column_pieces(self) -> int:
        """Number of loads for the weights that a lane has of a column in a k-step."""
        return len(self.rhs.layout.new_pieces(0))

    @property
    def blocks(self) -> int:
        """Blocks of a row in a stage."""
        return self.lhs.layout.blocks

    @property
    def all_stages(self) -> int:
        """Number of stages along K."""
        return self.lhs.layout.kind.blocks // self.blocks

    def read_rows(self, into: SummedRegisters, slot: int) -> list[Issue]:
        """Return LDS reads of the rows of the stage in a slot, in the order of multiplication."""
        start = self._start(slot)

        def read(tile: int, part: int) -> None:
            kind, pieces = self.lhs.layout.kind, self.lhs.layout.runs[part]
            found = [self.lhs.read(tile, each.piece, start) for each in pieces]
            whole = concat([_words(each) for each in found])
            if isinstance(kind, FloatBlocks):
                whole = bitcast(whole, kind.element, FRAGMENT)
            into.rows[tile].append(whole)

        tiles, each = range(self.tiles[0]), self.parts // self.runs
        order = product(range(0, self.parts, each), tiles, range(each))
        return [partial(read, tile, run + part) for run, tile, part in order]

    def read_scales(self, into: SummedRegisters, slot: int) -> list[Issue]:
        """Return LDS reads of the scales of the stage in a slot."""
        start = self._start(slot)

        def read(found: list[ir.Value], of_tile: Callable[..., ir.Value], tile: int) -> None:
            found.append(of_tile(tile, start))

        rows, columns = self.row_scales, self.column_scales
        reads: list[Issue] = [
            partial(read, into.column_scales, columns.of_columns, tile)
            for tile in range(self.tiles[1])
        ]
        if rows is not None:
            own = range(self.tiles[0])
            of_tile = rows.of_row if self.rows_scale_sums else rows.of_blocks
            reads += [partial(read, into.row_scales, of_tile, tile) for tile in own]
        return reads

    def load_rows(self, stage: ir.Value, slot: int) -> list[Issue]:
        """Return the direct loads of a stage to a slot of LDS, its scales last; past the end of K
        elements are zero."""
        left, start = self._left(stage), self._start(slot)
        rows = range(self.lhs.layout.loads)
        loads: list[Issue] = [partial(self.lhs.load, at, stage, start, left=left) for at in rows]
        return loads + [
            partial(each.load, at, stage, start)
            for each in self._scales
            for at in range(each.loads)
        ]

    def load_columns(self, stage: ir.Value, tile: int, into: list[ir.Value]) -> list[Issue]:
        """Return loads of the weights of a tile of columns in a stage: i32 [n] for each k-step,
        zero past the end of K."""
        left, layout = self._left(stage), self.rhs.layout

        def load(pieces: Sequence[tuple[int, int]]) -> None:
            found = [self.rhs.load(tile, piece, stage, left=left) for piece in pieces]
            into.append(concat([_words(each) for each in found]))

        return [partial(load, layout.new_pieces(k_step)) for k_step in range(layout.k_steps)]

    @property
    def _scales(self) -> list[StagedFloatScales]:
        return [each for each in (self.row_scales, self.column_scales) if each is not None]

    def _start(self, slot: int) -> ir.Value:
        """Offset of a slot in LDS, in bytes."""
        return index(slot * self.slot_bytes)

    def _left(self, stage: ir.Value) -> ir.Value:
        """Blocks that a row has from a stage on."""
        end = index(self.lhs.layout.kind.blocks)
        return end - arith.minui(stage * self.blocks, end)


def _words(piece: ir.Value) -> ir.Value:
    """Return the bytes of a piece as i32 [n]."""
    return bitcast(piece, i32(), lanes_of(piece) // 4)
