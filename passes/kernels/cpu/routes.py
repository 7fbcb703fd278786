"""Sort rows by expert in a small dispatch, so that a kernel reads each expert's weights once.

    ids [P] = 2 0 2, with E = 3 experts    ->    routes [2 E + 1 + P] = 0 1 3 3  0 2 0  1 0 2

    0 1 3 3    the first sorted row of each group, then the number of rows
    0 2 0      the expert of each group
    1 0 2      for each sorted row, its number before sorting

A group is the rows of one expert that has rows. Unused entries of the first list hold the number of
rows, and those of the second 0: groups without rows. The counting sort is stable, and the order of
rows does not depend on threads. An id outside of the experts would write outside of the buffer, and
is clamped to the last expert.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf

from mxc.passes.kernels.extents import Buffer, Size, Sized, named, plus, value_of
from mxc.passes.kernels.vectors import i32, index, loop


@dataclass(frozen=True)
class Routes(Sized):
    """The kernel that sorts `rows` rows of ids below `experts`."""

    rows: Size
    experts: int

    @property
    def name(self) -> str:
        """The symbol of the kernel."""
        return f"mxc_routes_{named(self.rows)}_of_{self.experts}"

    @property
    def workgroups(self) -> list[Size]:
        """One workgroup, which takes microseconds."""
        return [1]

    @property
    def buffers(self) -> list[Buffer]:
        """The ids and the routes."""
        return [
            Buffer([self.rows], i32()),
            Buffer([plus(2 * self.experts + 1, self.rows)], i32()),
        ]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        ids, routes = buffers
        zero, one = index(0), index(1)
        none = arith.index_cast(i32(), zero)
        unit = arith.index_cast(i32(), one)
        cursor = memref.AllocaOp(ir.MemRefType.get([self.experts], i32()), [], []).result

        def expert(row: ir.Value) -> ir.Value:
            found = arith.index_cast(ir.IndexType.get(), memref.LoadOp(ids, [row]).result)
            return arith.minui(found, index(self.experts - 1))

        def bump(buffer: ir.Value, at: ir.Value) -> ir.Value:
            before = memref.LoadOp(buffer, [at]).result
            memref.StoreOp(before + unit, buffer, [at])
            return before

        with loop(zero, index(self.experts), one) as (e, _, _):
            memref.StoreOp(none, cursor, [e])
        with loop(zero, value_of(self.rows), one) as (row, _, _):
            bump(cursor, expert(row))

        def group(number: ir.Value, begin: ir.Value, expert: ir.Value) -> None:
            memref.StoreOp(begin, routes, [number])
            at = number + (self.experts + 1)
            memref.StoreOp(expert, routes, [at])

        with loop(zero, index(self.experts), one, [none, zero]) as (e, (begin, number), op):
            count = memref.LoadOp(cursor, [e]).result
            group(number, begin, arith.index_cast(i32(), e))
            memref.StoreOp(begin, cursor, [e])
            some = arith.index_cast(ir.IndexType.get(), arith.minui(count, unit))
            scf.YieldOp([begin + count, number + some])
        end, groups = op.results
        with loop(groups, index(self.experts), one) as (number, _, _):
            group(number, end, none)
        memref.StoreOp(end, routes, [index(self.experts)])
        with loop(zero, value_of(self.rows), one) as (row, _, _):
            place = arith.index_cast(ir.IndexType.get(), bump(cursor, expert(row)))
            at = place + (2 * self.experts + 1)
            memref.StoreOp(arith.index_cast(i32(), row), routes, [at])
