"""Copy prepared rows into the order of their experts, so that the rows of a tile are contiguous.

    routes = .. 1 3 0 2 (the numbers of the rows before sorting)    ->    prepared rows 1 3 0 2

Rows past the last one are not written. Tiles read them, but no result depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.passes.kernels.cpu.activations import Prepared
from mxc.passes.kernels.cpu.rows import GroupedRows
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Buffer, Size, named, quotient_up, value_of
from mxc.passes.kernels.vectors import i32, index, load, loop

#: Dwords that are copied at once.
_LANES = 16
#: Rows of a workgroup.
_ROWS = 8


@dataclass(frozen=True)
class SortedRows:
    """The kernel that copies prepared rows of `blocks` blocks."""

    prepared: Prepared
    rows: GroupedRows
    blocks: int

    @property
    def name(self) -> str:
        """The symbol of the kernel."""
        size = f"{named(self.rows.groups)}x{self.blocks}x{self.prepared.dwords}"
        return f"mxc_sorted_rows_{size}_of_{self.rows.experts}_share_{self.rows.share}"

    @property
    def scalars(self) -> int:
        """Number of index values that are known at the call."""
        return self.rows.scalars

    def given(self, scalars: Sequence[ir.Value]) -> SortedRows:
        """The kernel with its number of rows given."""
        return replace(self, rows=self.rows.given(scalars)) if self.scalars else self

    @property
    def workgroups(self) -> list[Size]:
        """Number of workgroups along the rows."""
        return [quotient_up(self.rows.groups, _ROWS)]

    @property
    def buffers(self) -> list[Buffer]:
        """The prepared rows, the routes, and the sorted rows."""
        unsorted = replace(self.prepared, padding=0)
        return [
            unsorted.buffer(self.rows.sources, self.blocks),
            *self.rows.buffers,
            self.prepared.buffer(self.rows.groups, self.blocks),
        ]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        source, routes, result = buffers
        first = workgroup(0) * _ROWS
        last = arith.minui(first + _ROWS, value_of(self.rows.groups))
        with loop(first, last, index(1)) as (row, _, _):
            at = row + self.rows.order
            number = memref.LoadOp(routes, [at]).result
            own = arith.index_cast(ir.IndexType.get(), number)
            own = self.rows.source(own)
            with loop(index(0), index(self.blocks), index(1)) as (block, _, _):
                for place in range(0, self.prepared.dwords, _LANES):
                    value = load(source, [own, block, index(place)], i32(), _LANES)
                    vector.store(value, result, [row, block, index(place)])
