"""The buffers of a product for the workgroup that runs, and how it finishes and stores sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import KEEPS_NAN, bounded
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Size, product, quotient, value_of
from mxc.passes.kernels.finish import Finish, ResultColumns
from mxc.passes.kernels.gpu.bounded_views import rows_of
from mxc.passes.kernels.gpu.contraction import GpuContraction
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.heads import HeadQuads
from mxc.passes.kernels.gpu.lanes import Lane
from mxc.passes.kernels.gpu.output import BlockOutput
from mxc.passes.kernels.gpu.ring.split import TileSums, WavePart
from mxc.passes.kernels.vectors import below, f32, index, of, part_of, splat, when


@dataclass(frozen=True)
class Quad:
    """Four consecutive columns of the result in a lane, from `column` on.

    `tile`: the lane's sums of a tile, or of the tiles of both halves if there are two; the sums of
    a tile are one vector, or a list of vectors of four. `number`: which quad of the tile it is.
    """

    column: ir.Value
    tile: Sequence[TileSums]
    number: int


class ContractionBuffers:
    """The buffers of a product by their purpose, for the group of the workgroup that runs.

    `results`: the buffers of `GpuContraction.results`.
    """

    def __init__(self, contraction: GpuContraction, buffers: Sequence[ir.Value]) -> None:
        """Tell the buffers apart, and load the expert of the group, at the insertion point."""
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
        """Return bounded buffers of the elements, and scales if any, of lhs, for a workgroup whose
        first row is `first`.

        They begin at that row, so that offsets are small however many rows there are. Rows after
        the last one are read as zero.
        """
        contraction, start = self.contraction, self._source(first)
        total = product(quotient(contraction.height, contraction.share), contraction.splits)
        sizes = contraction.lhs.row_sizes
        totals = [total] * len(sizes)
        return self._rows(self._lhs, sizes, start, contraction.schedule.rows, totals)

    def rhs(self, first: ir.Value) -> list[ir.Value]:
        """Return bounded buffers of the elements, and scales if any, of the rhs of the group.

        If `GpuContraction.cut`, they begin at `first`, the first column of the workgroup: see
        `rhs_row`.
        """
        contraction, shared = self.contraction, self.contraction.rhs.rows_of_scale > 1
        if not contraction.cut:
            return [bounded(buffer) for buffer in self._rhs]
        most, sizes = contraction.schedule.columns, contraction.rhs.row_sizes
        cut = self._rows(self._rhs, sizes, first, most, contraction.rhs_rows)
        # One buffer reaches all scales if several rows share each.
        return [cut[0], *map(bounded, self._rhs[1:])] if shared else cut

    def _rows(
        self,
        buffers: Sequence[ir.Value],
        sizes: Sequence[int],
        start: ir.Value,
        most: int,
        totals: Sequence[Size],
    ) -> list[ir.Value]:
        """Return the part of each buffer from row `start` on, with the rows of all splits. `most`:
        rows at most; `totals`: rows of each buffer. See `rows_of`."""
        splits = self.contraction.splits
        return [
            rows_of(buffer, size, start * splits, most * splits, total)
            for buffer, size, total in zip(buffers, sizes, totals, strict=True)
        ]

    def _of_split(self, row: ir.Value) -> ir.Value:
        """The row in memory that has the part of `row` of the workgroup's split."""
        splits = self.contraction.splits
        return row * splits + self._split if splits > 1 else row

    def join(
        self,
        tile: ir.Value,
        lane: Lane,
        totals: Sequence[ir.Value],
        finish: Callable[[Sequence[TileSums]], None],
    ) -> None:
        """Build `finish` of the sums of a wave, or, if there are splits, of the sums over all
        splits, in the wave that stores its partial sums last. `tile`: number of the workgroup's
        tile; `totals`: the sums of the wave.
        """
        parts, counters = self._parts_of_splits, self._counters
        if parts is None or counters is None:
            finish(totals)
            return
        own = self.contraction.split_tiles
        WavePart(own, lane, tile, self._split, parts, counters).join(totals, finish)

    def rhs_row(self, first: ir.Value, column: ir.Value) -> ir.Value:
        """The row of `column` in the buffers of `rhs(first)`."""
        return self._of_split(column - first if self.contraction.cut else column)

    def scale_row(self, first: ir.Value, column: ir.Value) -> ir.Value:
        """The row of the scales of `column` in the buffers of `rhs(first)`."""
        shared = self.contraction.rhs.rows_of_scale
        return self.rhs_row(first, column) if shared == 1 else self._of_split(column // shared)

    def lhs_row(self, first: ir.Value, local: ir.Value) -> ir.Value:
        """The row in the buffers of `lhs(first)` for row `local` of the workgroup."""
        if self.contraction.share > 1:
            local = self._source(first + local) - self._source(first)
        return self._of_split(local)

    def result_row(self, row: ir.Value) -> ir.Value:
        """The row in the result of all groups of a row of the group."""
        return self.group * value_of(self.contraction.rows) + row

    def has_row(self, row: ir.Value) -> ir.Value:
        """Whether `row` is a row of the group, not past its end."""
        return below(row, value_of(self.contraction.rows))

    def blocks(self, first: ir.Value) -> list[ir.Value]:
        """Return bounded buffers of the elements and scales of a result of MX blocks, for a
        workgroup whose first row is `first`: see `lhs`."""
        contraction, start = self.contraction, self.result_row(first)
        assert contraction.out is not None
        sizes = BlockOutput.row_sizes(contraction.out, contraction.width)
        most, total = contraction.schedule.rows, contraction.height
        return [
            rows_of(buffer, size, start, most, total)
            for buffer, size in zip(self.results, sizes, strict=True)
        ]

    def _source(self, row: ir.Value) -> ir.Value:
        """The row of lhs, over all groups, for a row of the group."""
        return self.result_row(row) // self.contraction.share

    def _expert(self, ids: ir.Value) -> ir.Value:
        """The expert of the group, clamped: an id that is no expert would read past the end."""
        chosen = memref.LoadOp(ids, [self.group]).result
        chosen = arith.index_cast(ir.IndexType.get(), chosen)
        return arith.minui(chosen, index(self.contraction.experts - 1))

    def _part(self, buffer: ir.Value, expert: ir.Value) -> ir.Value:
        """Return the part of a buffer that an expert has: offsets of 32 bits may not reach the
        parts of all experts."""
        kind = ir.MemRefType(buffer.type)
        size = kind.shape[0] // self.contraction.experts
        dynamic = ir.ShapedType.get_dynamic_size()
        part = ir.MemRefType.get([size], kind.element_type, kind.layout, kind.memory_space)
        start = expert * size
        return memref.SubViewOp(part, buffer, [start], [], [], [dynamic], [size], [1]).result

    def finished(self, row: ir.Value, quad: Quad) -> ir.Value:
        """Return the results of the epilogue for a quad: f32 [4].

        `row`: in the result of all groups.
        """
        return self.finish.apply(*self._parts(row, quad, self._mask(quad.column)))

    def store(self, row: ir.Value, quad: Quad) -> None:
        """Compute the epilogue of a quad and store its columns, except those past the end. `row`:
        in the result of all groups."""
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
        """Compute the epilogue of a block of columns, rotate it, and store it where pages are MX
        blocks. `quads`: those of the block that this lane has.

        `row`: in the group, possibly past its end. `column`: the first of the block, the same in
        all lanes of the wave. All lanes have to run.
        """
        instruction = self.contraction.schedule.instruction
        with when(below(column, self.contraction.width)):
            inside = self.has_row(row)
            # A lane whose row is past the end computes the first row instead, and stores nothing.
            whole = arith.select(inside, self.result_row(row), index(0))
            heads = self._heads(whole, column, [quad.column for quad in quads])
            found = [self.finish.each(*self._parts(whole, each, None)) for each in quads]
            heads.store_blocks(found, instruction, lane.group, inside)

    def _heads(self, row: ir.Value, column: ir.Value, columns: Sequence[ir.Value]) -> HeadQuads:
        """Quads of a row, from each of `columns` on, all in the head of `column`."""
        rotary = self.contraction.rotary
        assert rotary is not None
        buffers = [*self._beside, *self.results]
        return HeadQuads(rotary, buffers, row, column // rotary.rotation.distance, columns)

    @staticmethod
    def _put(memory: ir.Value, found: ir.Value, place: ResultColumns) -> None:
        """Store a quad, rounded to the element type of the memory."""
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
        """Return the sums of a quad, or of both halves if there are two, and the rhs columns of
        each."""
        number = quad.number
        parts = [
            sums[number] if isinstance(sums, list) else part_of(sums, QUAD * number, QUAD)
            for sums in quad.tile
        ]
        one = self.contraction.value_of_one
        if one != 1:
            parts = [part * splat(1 / one, f32(), QUAD) for part in parts]
        places = [
            ResultColumns(row, self.contraction.column_of(quad.column, half), mask)
            for half in range(len(parts))
        ]
        return parts, places

    def _mask(self, column: ir.Value) -> ir.Value | None:
        """Build the mask of the columns of a quad that the result has; None if it always has
        all."""
        width = self.contraction.width
        if width % QUAD == 0:
            return None
        kind = of(ir.IntegerType.get_signless(1), QUAD)
        return vector.create_mask(kind, [index(width) - column])
