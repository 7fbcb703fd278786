"""What a workgroup has of the operands and results of a product, and how it stores sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import KEEPS_NAN, bounded
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Size, product, quotient, value_of
from mxc.passes.kernels.finish import Finish, ResultColumns
from mxc.passes.kernels.gpu.contraction import GpuContraction
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.heads import HeadQuads
from mxc.passes.kernels.gpu.lanes import Lane
from mxc.passes.kernels.gpu.output import BlockOutput
from mxc.passes.kernels.gpu.parts import rows_of
from mxc.passes.kernels.gpu.ring.split import TileSums, WavePart
from mxc.passes.kernels.vectors import below, f32, index, of, part_of, splat, when


@dataclass(frozen=True)
class Quad:
    """Four columns from `column` on: number `number` of those that a lane has of `tile`, of both
    halves if there are two. Sums of a tile are one vector, or already in fours."""

    column: ir.Value
    tile: Sequence[TileSums]
    number: int


class ContractionBuffers:
    """The buffers of a product by what they are, for the group of the workgroup that runs.

    `results`: as the product has them.
    """

    def __init__(self, contraction: GpuContraction, buffers: Sequence[ir.Value]) -> None:
        """At the insertion point."""
        self.contraction = contraction
        splits = contraction.splits > 1
        self.group, self._split = (index(0), workgroup(2)) if splits else (workgroup(2), index(0))
        *given, self._parts_of_splits = buffers if splits else [*buffers, None]
        operands, results = len(contraction.lhs.row_sizes), len(contraction.results)
        self._lhs, after = given[:operands], given[operands:-results]
        self.results = given[-results:]
        self._counters = after.pop() if splits else None
        expert = self.group
        if contraction.experts and contraction.chosen:
            expert, after = self._expert(after[0]), after[1:]
        sides = len(contraction.rhs.row_sizes)
        self._rhs, after = after[:sides], after[sides:]
        if contraction.experts:
            self._rhs = [self._part(buffer, expert) for buffer in self._rhs]
        reads = contraction.after.operands
        memrefs = dict(zip(reads, after, strict=False))
        self._beside = after[len(reads) :]
        self.finish = Finish(contraction.after, memrefs, QUAD, KEEPS_NAN, self.group)

    def lhs(self, first: ir.Value) -> list[ir.Value]:
        """Elements, and scales if any, for a workgroup that begins at the row `first`: bounded.

        They begin at its row, so that offsets are small however many rows there are. Rows after
        the last one are zero.
        """
        contraction, start = self.contraction, self._source(first)
        total = product(quotient(contraction.height, contraction.share), contraction.splits)
        sizes = contraction.lhs.row_sizes
        totals = [total] * len(sizes)
        return self._rows(self._lhs, sizes, start, contraction.schedule.rows, totals)

    def rhs(self, first: ir.Value) -> list[ir.Value]:
        """Elements, and scales if any, of the group's expert alone: bounded.

        Where they are cut they begin at the column `first` of the workgroup: see `rhs_row`.
        """
        contraction, shared = self.contraction, self.contraction.rhs.rows_of_scale > 1
        if not contraction.cut:
            return [bounded(buffer) for buffer in self._rhs]
        most, sizes = contraction.schedule.columns, contraction.rhs.row_sizes
        cut = self._rows(self._rhs, sizes, first, most, contraction.rhs_rows)
        # A buffer reaches all scales that rows share.
        return [cut[0], *map(bounded, self._rhs[1:])] if shared else cut

    def _rows(
        self,
        buffers: Sequence[ir.Value],
        sizes: Sequence[int],
        start: ir.Value,
        most: int,
        totals: Sequence[Size],
    ) -> list[ir.Value]:
        """Rows of buffers from `start` on, of all splits: see `rows_of`."""
        splits = self.contraction.splits
        return [
            rows_of(buffer, size, start * splits, most * splits, total)
            for buffer, size, total in zip(buffers, sizes, totals, strict=True)
        ]

    def _of_split(self, row: ir.Value) -> ir.Value:
        """The row that holds the workgroup's part of a row."""
        splits = self.contraction.splits
        return row * splits + self._split if splits > 1 else row

    def join(
        self,
        tile: ir.Value,
        lane: Lane,
        totals: Sequence[ir.Value],
        finish: Callable[[Sequence[TileSums]], None],
    ) -> None:
        """`finish` the sums of a wave: those of all splits, in the wave that is last."""
        parts, counters = self._parts_of_splits, self._counters
        if parts is None or counters is None:
            finish(totals)
            return
        own = self.contraction.split_tiles
        WavePart(own, lane, tile, self._split, parts, counters).join(totals, finish)

    def rhs_row(self, first: ir.Value, column: ir.Value) -> ir.Value:
        """The row in these of a column, for a workgroup that begins at the column `first`."""
        return self._of_split(column - first if self.contraction.cut else column)

    def scale_row(self, first: ir.Value, column: ir.Value) -> ir.Value:
        """The same of the scales of a column."""
        shared = self.contraction.rhs.rows_of_scale
        return self.rhs_row(first, column) if shared == 1 else self._of_split(column // shared)

    def lhs_row(self, first: ir.Value, local: ir.Value) -> ir.Value:
        """The row in these of the workgroup's row `local`."""
        if self.contraction.share > 1:
            local = self._source(first + local) - self._source(first)
        return self._of_split(local)

    def result_row(self, row: ir.Value) -> ir.Value:
        """A row of the group in the result of all groups."""
        return self.group * value_of(self.contraction.rows) + row

    def has_row(self, row: ir.Value) -> ir.Value:
        """Whether the group has a row."""
        return below(row, value_of(self.contraction.rows))

    def blocks(self, first: ir.Value) -> list[ir.Value]:
        """The results of a workgroup that begins at the row `first`, if blocks: see `lhs`."""
        contraction, start = self.contraction, self.result_row(first)
        assert contraction.out is not None
        sizes = BlockOutput.row_sizes(contraction.out, contraction.width)
        most, total = contraction.schedule.rows, contraction.height
        return [
            rows_of(buffer, size, start, most, total)
            for buffer, size in zip(self.results, sizes, strict=True)
        ]

    def _source(self, row: ir.Value) -> ir.Value:
        """The row of lhs of a row of the group."""
        return self.result_row(row) // self.contraction.share

    def _expert(self, ids: ir.Value) -> ir.Value:
        """An id outside of the experts would read outside of them."""
        chosen = memref.LoadOp(ids, [self.group]).result
        chosen = arith.index_cast(ir.IndexType.get(), chosen)
        return arith.minui(chosen, index(self.contraction.experts - 1))

    def _part(self, buffer: ir.Value, expert: ir.Value) -> ir.Value:
        """What a buffer has of an expert. All of them may be more than offsets of 32 bits reach."""
        kind = ir.MemRefType(buffer.type)
        size = kind.shape[0] // self.contraction.experts
        dynamic = ir.ShapedType.get_dynamic_size()
        part = ir.MemRefType.get([size], kind.element_type, kind.layout, kind.memory_space)
        start = expert * size
        return memref.SubViewOp(part, buffer, [start], [], [], [dynamic], [size], [1]).result

    def finished(self, row: ir.Value, quad: Quad) -> ir.Value:
        """A quad of a tile, of both halves if gated, with its epilogue: f32 [4].

        `row`: in the result of all groups.
        """
        return self.finish.apply(*self._parts(row, quad, self._mask(quad.column)))

    def store(self, row: ir.Value, quad: Quad) -> None:
        """Finish a quad and store it, as far as there are columns."""
        mask, after = self._mask(quad.column), self.contraction.after
        if self.contraction.rotary is not None:
            heads = self._heads(row, quad.column, [quad.column])
            heads.store([self.finish.each(*self._parts(row, quad, mask))])
            return
        found = self.finish.apply(*self._parts(row, quad, mask), last=after.kept)
        place = ResultColumns(row, quad.column, mask)
        if after.kept is not None:
            self._put(self.results[0], found, place)
            found = self.finish.apply([found], [place], first=after.kept)
        self._put(self.results[-1], found, place)

    def store_blocks(
        self, row: ir.Value, column: ir.Value, quads: Sequence[Quad], lane: Lane
    ) -> None:
        """Finish and store a block of heads: `quads` of this lane, for pages of blocks.

        `row`: of the group, which may not have it; `column`: the first of the block, one for the
        wave. All lanes of the wave run.
        """
        instruction = self.contraction.schedule.instruction
        with when(below(column, self.contraction.width)):
            inside = self.has_row(row)
            # A lane without a row computes the first one, and stores nothing.
            whole = arith.select(inside, self.result_row(row), index(0))
            heads = self._heads(whole, column, [quad.column for quad in quads])
            found = [self.finish.each(*self._parts(whole, each, None)) for each in quads]
            heads.store_blocks(found, instruction, lane.group, inside)

    def _heads(self, row: ir.Value, column: ir.Value, columns: Sequence[ir.Value]) -> HeadQuads:
        rotary = self.contraction.rotary
        assert rotary is not None
        buffers = [*self._beside, *self.results]
        return HeadQuads(rotary, buffers, row, column // rotary.rotation.distance, columns)

    @staticmethod
    def _put(memory: ir.Value, found: ir.Value, place: ResultColumns) -> None:
        """Store a quad, rounded to what the memory has."""
        stored = ir.MemRefType(memory.type).element_type
        if stored != found.type.element_type:
            found = arith.truncf(of(stored, QUAD), found)
        if place.mask is None:
            vector.store(found, memory, [place.row, place.column])
        else:
            vector.maskedstore(memory, [place.row, place.column], place.mask, found)

    def _parts(
        self, row: ir.Value, quad: Quad, mask: ir.Value | None
    ) -> tuple[list[ir.Value], list[ResultColumns]]:
        """The sums of a quad, of both halves if there are two, and their places."""
        number = quad.number
        parts = [
            sums[number] if isinstance(sums, list) else part_of(sums, QUAD * number, QUAD)
            for sums in quad.tile
        ]
        one = self.contraction.decoded_one
        if one != 1:
            parts = [part * splat(1 / one, f32(), QUAD) for part in parts]
        places = [
            ResultColumns(row, self.contraction.column_of(quad.column, half), mask)
            for half in range(len(parts))
        ]
        return parts, places

    def _mask(self, column: ir.Value) -> ir.Value | None:
        """Which of the columns from `column` on there are; None where all of a quad are."""
        width = self.contraction.width
        if width % QUAD == 0:
            return None
        kind = of(ir.IntegerType.get_signless(1), QUAD)
        return vector.create_mask(kind, [index(width) - column])
