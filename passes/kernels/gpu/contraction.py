"""What a product computes, whatever brings the operands: shapes, buffers, experts, the epilogue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import BEYOND, KEEPS_NAN, bounded, uniform
from mxc.passes.kernels.epilogues import NOTHING, Epilogue
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, product, quotient, quotient_up, value_of
from mxc.passes.kernels.finish import Finish, ResultColumns
from mxc.passes.kernels.gpu.conversions import BlockConversion
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.float_scales import sums_of
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.heads import HeadQuads
from mxc.passes.kernels.gpu.lanes import Lane, long
from mxc.passes.kernels.gpu.output import BlockOutput, tiles_of
from mxc.passes.kernels.gpu.parts import rows_of
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.gpu.sides import ScaledBlocks
from mxc.passes.kernels.rotary_writes import RotaryKernel
from mxc.passes.kernels.vectors import below, i32, index, of, part_of, when

#: Index values of a call that a rotary embedding needs: the entry of keys, and pages.
_OF_ROTARY = 2


@dataclass(frozen=True)
class GpuContraction(Sized, ABC):
    """`groups` products of [rows, K] and [columns, K]; `experts`: 0 where there is one rhs for all.

    `groups` and `rows` are None where they come with each call, as index scalars in this order,
    until they are given.

    `chosen`: ids say which expert a group has; else there are as many as groups, each has its own.
    `unused`: a group whose id is no expert has no result.

    `share`: so many consecutive rows of the result have the same row of lhs.

    `decoded`: both sides are floats of this type in registers; None where elements are multiplied
    under their scales, as they are.

    `rotary`: what becomes of the result, if its columns are heads of queries, keys and values; the
    entry of keys and the pages of the pool come with each call, before groups and rows.

    Buffers, in order: elements and scales of lhs, the ids of the groups' experts if any, elements
    and scales of rhs, what the epilogue reads, what `rotary` reads, the results: what the epilogue
    keeps, if anything, and what it leaves; or elements and scales of `out`; or what `rotary` makes.
    Floats have no scales.
    """

    lhs: ScaledBlocks | FloatBlocks
    rhs: ScaledBlocks | FloatBlocks
    groups: Size
    rows: Size
    columns: int
    experts: int
    schedule: GpuSchedule
    share: int = 1
    after: Epilogue = NOTHING
    out: BlockConversion | None = None
    rotary: RotaryKernel | None = None
    chosen: bool = True
    unused: bool = False
    decoded: Register | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where a wave has not as many tiles of both halves, or a part of a block,
        or the halves are apart."""
        if self.schedule.tiles[1] % self.halves:
            raise ValueError(f"{self.schedule}: an odd number of tiles for two halves of a result")
        if self.schedule.tiles[1] % (self.halves * self.span):
            raise ValueError(f"{self.schedule}: a wave has a part of a block of the result")
        if self.cut and self.halves > 1:
            raise ValueError(f"a buffer does not reach both halves of {self.columns} columns")

    @property
    def scalars(self) -> int:
        """Number of index values that a call supplies."""
        return super().scalars + (0 if self.rotary is None else _OF_ROTARY)

    def given(self, scalars: Sequence[ir.Value]) -> Self:
        """A copy with these values."""
        if self.rotary is None:
            return super().given(scalars)
        entry, pages, *own = scalars
        made = super().given(own)
        return replace(made, rotary=replace(self.rotary, entry=entry, pages=pages, rows=made.rows))

    @property
    def halves(self) -> int:
        """Parts of the columns of rhs, which a gated epilogue combines, or of which a rotary pair
        has one element each."""
        return 2 if self.after.gated or self.rotary is not None else 1

    def column_of(self, column: ir.Value, half: ir.Value | int) -> ir.Value:
        """The column of rhs that a column of the result has in a half."""
        if self.rotary is None:
            return column + half * self.width if self.halves > 1 else column
        apart = self.rotary.rotation.distance
        return column + (column // apart + half) * apart

    @property
    def span(self) -> int:
        """Tiles along columns that are stored together: those that hold a block, or one."""
        whole = self.in_blocks or self.out is not None
        return tiles_of(self.schedule.instruction) if whole else 1

    @property
    def in_blocks(self) -> bool:
        """Whether keys and values become blocks with scales of their own."""
        return self.rotary is not None and self.rotary.in_blocks

    @property
    def sums(self) -> int:
        """Sums of a k-step that are multiplied by f32 scales; 0 where there are none."""
        sides = [side for side in (self.lhs, self.rhs) if isinstance(side, ScaledBlocks)]
        shared = [side.shared for side in sides if side.multiplies_sums]
        return sums_of(self.schedule.instruction.groups, *shared) if shared else 0

    @property
    def width(self) -> int:
        """Columns of the result, of each half."""
        return self.columns // self.halves

    @property
    def cut(self) -> bool:
        """Whether a workgroup sees its own columns of rhs alone: a buffer does not reach all."""
        return self.columns * max(self.rhs.row_sizes) >= BEYOND

    @property
    def height(self) -> Size:
        """Rows of the result of all groups."""
        return product(self.groups, self.rows)

    @property
    def right(self) -> int:
        """Workgroups along columns."""
        return -(-self.width // (self.schedule.columns // self.halves))

    @property
    def workgroups(self) -> list[Size]:
        """Along columns, rows and groups."""
        return [self.right, quotient_up(self.rows, self.schedule.rows), self.groups]

    @property
    def results(self) -> list[Buffer]:
        """What is written, which are the last buffers."""
        rows = self.height
        if self.out is not None:
            return BlockOutput.buffers(self.out, rows, self.width)
        if self.rotary is not None:
            return self.rotary.made
        final = Buffer([rows, self.width], self.after.result)
        kept = self.after.kept_result
        return [final] if kept is None else [Buffer([rows, self.width], kept), final]

    @property
    def buffers(self) -> list[Buffer]:
        """What is read and written."""
        rows = self.height
        found = self.lhs.buffers(quotient(rows, self.share))
        if self.experts and self.chosen:
            found.append(Buffer([self.groups], i32()))
        found += self.rhs.buffers(max(self.experts, 1) * self.columns)
        beside = [] if self.rotary is None else self.rotary.beside
        return [*found, *self.after.buffers(rows, self.groups), *beside, *self.results]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        if not self.unused:
            self.compute(*buffers)
            return
        ids = buffers[len(self.lhs.row_sizes)]
        expert = uniform(long(memref.LoadOp(ids, [workgroup(2)]).result))
        with when(below(expert, self.experts)):
            self.compute(*buffers)

    @abstractmethod
    def compute(self, *buffers: ir.Value) -> None:
        """Build what a workgroup does for a group."""

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes of the function, for LLVM."""
        return {}


@dataclass(frozen=True)
class Quad:
    """Four columns from `column` on: number `number` of those that a lane has of `tile`, of both
    halves if there are two."""

    column: ir.Value
    tile: list[ir.Value]
    number: int


class ContractionBuffers:
    """The buffers of a product by what they are, for the group of the workgroup that runs.

    `results`: as the product has them.
    """

    def __init__(self, contraction: GpuContraction, buffers: Sequence[ir.Value]) -> None:
        """At the insertion point."""
        self.contraction = contraction
        self.group = workgroup(2)
        operands, results = len(contraction.lhs.row_sizes), len(contraction.results)
        self._lhs, after = list(buffers[:operands]), list(buffers[operands:-results])
        self.results = list(buffers[-results:])
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
        sizes, most = contraction.lhs.row_sizes, contraction.schedule.rows
        total = quotient(contraction.height, contraction.share)
        return [
            rows_of(buffer, size, start, most, total)
            for buffer, size in zip(self._lhs, sizes, strict=True)
        ]

    def rhs(self, first: ir.Value) -> list[ir.Value]:
        """Elements, and scales if any, of the group's expert alone: bounded.

        Where they are cut they begin at the column `first` of the workgroup: see `rhs_row`.
        """
        contraction = self.contraction
        if not contraction.cut:
            return [bounded(buffer) for buffer in self._rhs]
        most, total = contraction.schedule.columns, contraction.columns
        return [
            rows_of(buffer, size, first, most, total)
            for buffer, size in zip(self._rhs, contraction.rhs.row_sizes, strict=True)
        ]

    def rhs_row(self, first: ir.Value, column: ir.Value) -> ir.Value:
        """The row in these of a column, for a workgroup that begins at the column `first`."""
        return column - first if self.contraction.cut else column

    def lhs_row(self, first: ir.Value, local: ir.Value) -> ir.Value:
        """The row in these of the workgroup's row `local`."""
        if self.contraction.share == 1:
            return local
        return self._source(first + local) - self._source(first)

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
        parts = [part_of(total, QUAD * quad.number, QUAD) for total in quad.tile]
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
