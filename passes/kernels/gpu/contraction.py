"""What a product computes, whatever brings the operands: shapes, buffers, experts, the epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref

from mxc.dialects.amdgpu import GLOBAL
from mxc.passes.kernels.epilogues import NOTHING, Epilogue, flat_shape
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.finish import Finish
from mxc.passes.kernels.gpu.schedule import Schedule
from mxc.passes.kernels.gpu.sides import Scaled
from mxc.passes.kernels.vectors import f32, i32, index

#: Totals of a tile that lie together in the result.
QUAD = 4


@dataclass(frozen=True)
class Contraction:
    """`groups` products of [rows, K] and [columns, K]; `experts`: 0 where there is one rhs for all.

    `share`: so many consecutive rows of the result have the same row of lhs.

    Buffers, in order: elements and scales of lhs, the ids of the groups' experts if any, elements
    and scales of rhs, what the epilogue reads, the result.
    """

    lhs: Scaled
    rhs: Scaled
    groups: int
    rows: int
    columns: int
    experts: int
    schedule: Schedule
    share: int = 1
    after: Epilogue = NOTHING

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
    def buffers(self) -> list[ir.Type]:
        """Memref types of the operands and of the result."""
        results = self.groups * self.rows
        found = self.lhs.memrefs(results // self.share)
        if self.experts:
            found.append(ir.MemRefType.get([self.groups], i32()))
        found += self.rhs.memrefs(max(self.experts, 1) * self.columns)
        for reach, value in self.after.operands:
            shape = flat_shape(reach, value, self.columns)
            found.append(ir.MemRefType.get(shape, ir.RankedTensorType(value.type).element_type))
        found.append(ir.MemRefType.get([results, self.width], f32()))
        space = ir.Attribute.parse(GLOBAL)
        return [
            ir.MemRefType.get(kind.shape, kind.element_type, memory_space=space) for kind in found
        ]


class Given:
    """The buffers of a product by what they are, for the group of the workgroup that runs.

    `lhs`, `rhs`: elements and scales; `expert`: of the group, None where there is one rhs for all.
    """

    def __init__(self, contraction: Contraction, buffers: list[ir.Value]) -> None:
        """At the insertion point."""
        self.contraction = contraction
        self.group = workgroup(2)
        self.lhs, after, self.result = buffers[:2], buffers[2:-1], buffers[-1]
        self.expert: ir.Value | None = None
        if contraction.experts:
            self.expert, after = self._expert(after[0]), after[1:]
        self.rhs, after = after[:2], after[2:]
        memrefs = dict(zip(contraction.after.operands, after, strict=True))
        self.finish = Finish(contraction.after, memrefs, QUAD)

    def _expert(self, ids: ir.Value) -> ir.Value:
        """An id outside of the experts would read outside of them."""
        chosen = memref.LoadOp(ids, [self.group]).result
        chosen = arith.index_cast(ir.IndexType.get(), chosen)
        return arith.minui(chosen, index(self.contraction.experts - 1))
