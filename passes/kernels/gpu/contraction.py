"""What a product computes, whatever brings the operands: shapes, buffers, experts, the epilogue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.passes.kernels.epilogues import NOTHING, Epilogue, flat_shape
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.finish import Finish, Place
from mxc.passes.kernels.gpu.conversions import Conversion
from mxc.passes.kernels.gpu.floats import Floats
from mxc.passes.kernels.gpu.lanes import plus, times
from mxc.passes.kernels.gpu.output import Blocks
from mxc.passes.kernels.gpu.schedule import Schedule
from mxc.passes.kernels.gpu.sides import Scaled
from mxc.passes.kernels.vectors import f32, i32, index, of

#: Totals of a tile that lie together in the result.
QUAD = 4


@dataclass(frozen=True)
class Contraction(ABC):
    """`groups` products of [rows, K] and [columns, K]; `experts`: 0 where there is one rhs for all.

    `chosen`: ids say which expert a group has; else there are as many as groups, each has its own.

    `share`: so many consecutive rows of the result have the same row of lhs.

    Buffers, in order: elements and scales of lhs, the ids of the groups' experts if any, elements
    and scales of rhs, what the epilogue reads, the result: f32, or elements and scales of `out`.
    """

    lhs: Scaled | Floats
    rhs: Scaled
    groups: int
    rows: int
    columns: int
    experts: int
    schedule: Schedule
    share: int = 1
    after: Epilogue = NOTHING
    out: Conversion | None = None
    chosen: bool = True

    def __post_init__(self) -> None:
        """Raise ValueError where a wave has not as many tiles of both halves."""
        if self.after.gated and self.schedule.tiles[1] % 2:
            raise ValueError(f"{self.schedule}: an odd number of tiles for a gated result")

    @property
    def halves(self) -> int:
        """Of the columns of rhs, which a gated epilogue joins."""
        return 2 if self.after.gated else 1

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.columns // self.halves

    @property
    def workgroups(self) -> list[int]:
        """Along columns, rows and groups."""
        across = self.schedule.columns // self.halves
        return [-(-self.width // across), -(-self.rows // self.schedule.rows), self.groups]

    @property
    def results(self) -> list[ir.Type]:
        """Memref types of the results, which are the last buffers."""
        rows = self.groups * self.rows
        if self.out is not None:
            return Blocks.memrefs(self.out, rows, self.width)
        return [ir.MemRefType.get([rows, self.width], f32())]

    @property
    def buffers(self) -> list[ir.Type]:
        """Memref types of the operands and of the result."""
        results = self.groups * self.rows
        found = self.lhs.memrefs(results // self.share)
        if self.experts and self.chosen:
            found.append(ir.MemRefType.get([self.groups], i32()))
        found += self.rhs.memrefs(max(self.experts, 1) * self.columns)
        for reach, value in self.after.operands:
            shape = flat_shape(reach, value, self.columns)
            found.append(ir.MemRefType.get(shape, ir.RankedTensorType(value.type).element_type))
        return [*found, *self.results]

    @abstractmethod
    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""

    @property
    def attributes(self) -> Mapping[str, str]:
        """Of the function, for LLVM."""
        return {}


class Given:
    """The buffers of a product by what they are, for the group of the workgroup that runs.

    `lhs`, `rhs`: elements, and scales if any, rhs of the group's expert alone; `results`: as the
    product has them.
    """

    def __init__(self, contraction: Contraction, buffers: list[ir.Value]) -> None:
        """At the insertion point."""
        self.contraction = contraction
        self.group = workgroup(2)
        operands, results = len(contraction.lhs.memrefs(1)), len(contraction.results)
        self.lhs, after = buffers[:operands], buffers[operands:-results]
        self.results = buffers[-results:]
        expert = self.group
        if contraction.experts and contraction.chosen:
            expert, after = self._expert(after[0]), after[1:]
        self.rhs, after = after[:2], after[2:]
        if contraction.experts:
            self.rhs = [self._part(buffer, expert) for buffer in self.rhs]
        memrefs = dict(zip(contraction.after.operands, after, strict=True))
        self.finish = Finish(contraction.after, memrefs, QUAD)

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
        start = times(expert, size)
        return memref.SubViewOp(part, buffer, [start], [], [], [dynamic], [size], [1]).result

    def finished(
        self, row: ir.Value, column: ir.Value, tile: list[ir.Value], quad: int
    ) -> ir.Value:
        """A quad of a tile, of both halves if gated, with its epilogue: f32 [4].

        `row`: in the result of all groups; `column`: the first of the quad.
        """
        return self._finished(row, column, tile, quad, self._mask(column))

    def store(self, row: ir.Value, column: ir.Value, tile: list[ir.Value], quad: int) -> None:
        """Finish a quad and store it, as far as there are columns."""
        mask = self._mask(column)
        found = self._finished(row, column, tile, quad, mask)
        if mask is None:
            vector.store(found, self.results[-1], [row, column])
        else:
            vector.maskedstore(self.results[-1], [row, column], mask, found)

    def _finished(
        self,
        row: ir.Value,
        column: ir.Value,
        tile: list[ir.Value],
        quad: int,
        mask: ir.Value | None,
    ) -> ir.Value:
        parts = [
            vector.extract_strided_slice(of(f32(), QUAD), total, [QUAD * quad], [QUAD], [1])
            for total in tile
        ]
        places = [
            Place(row, plus(column, half * self.contraction.width), mask)
            for half in range(len(parts))
        ]
        return self.finish.apply(parts, places)

    def _mask(self, column: ir.Value) -> ir.Value | None:
        """Which of the columns from `column` on there are; None where all of a quad are."""
        width = self.contraction.width
        if width % QUAD == 0:
            return None
        kind = of(ir.IntegerType.get_signless(1), QUAD)
        return vector.create_mask(kind, [arith.subi(index(width), column)])
