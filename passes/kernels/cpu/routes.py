"""Rows sorted by expert: one small dispatch, so that a kernel reads each expert's weights once.

    ids [P] = 2 0 2 1    ->    routes [E + 1 + P] = 0 1 2 4 (where each expert's rows begin, and the
                                                   end), 1 3 0 2 (the rows, expert by expert)

Counting sort, stable: the order of rows does not depend on threads. An id outside of the experts
would write outside of the buffer, and is taken as the last expert.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf

from mxc.passes.kernels.vectors import i32, index, loop


@dataclass(frozen=True)
class Routes:
    """The kernel that sorts `rows` rows of ids below `experts`."""

    rows: int
    experts: int

    @property
    def name(self) -> str:
        """The symbol of the kernel."""
        return f"mxc_routes_{self.rows}_of_{self.experts}"

    @property
    def workgroups(self) -> list[int]:
        """One: it takes microseconds."""
        return [1]

    @property
    def buffers(self) -> list[ir.Type]:
        """Memref types: ids, routes."""
        return [
            ir.MemRefType.get([self.rows], i32()),
            ir.MemRefType.get([self.experts + 1 + self.rows], i32()),
        ]

    def body(self, ids: ir.Value, routes: ir.Value) -> None:
        """Build the body at the insertion point."""
        zero, one = index(0), index(1)
        none = arith.index_cast(i32(), zero)
        unit = arith.index_cast(i32(), one)
        cursor = memref.AllocaOp(ir.MemRefType.get([self.experts], i32()), [], []).result

        def expert(row: ir.Value) -> ir.Value:
            found = arith.index_cast(ir.IndexType.get(), memref.LoadOp(ids, [row]).result)
            return arith.minui(found, index(self.experts - 1))

        def bump(buffer: ir.Value, at: ir.Value) -> ir.Value:
            before = memref.LoadOp(buffer, [at]).result
            memref.StoreOp(arith.addi(before, unit), buffer, [at])
            return before

        with loop(zero, index(self.experts), one) as (e, _, _):
            memref.StoreOp(none, cursor, [e])
            scf.YieldOp([])
        with loop(zero, index(self.rows), one) as (row, _, _):
            bump(cursor, expert(row))
            scf.YieldOp([])
        with loop(zero, index(self.experts), one, [none]) as (e, (begin,), op):
            count = memref.LoadOp(cursor, [e]).result
            memref.StoreOp(begin, routes, [e])
            memref.StoreOp(begin, cursor, [e])
            scf.YieldOp([arith.addi(begin, count)])
        memref.StoreOp(op.results[0], routes, [index(self.experts)])
        with loop(zero, index(self.rows), one) as (row, _, _):
            place = arith.index_cast(ir.IndexType.get(), bump(cursor, expert(row)))
            at = arith.addi(place, index(self.experts + 1))
            memref.StoreOp(arith.index_cast(i32(), row), routes, [at])
            scf.YieldOp([])
