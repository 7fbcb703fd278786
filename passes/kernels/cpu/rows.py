"""The rows of activations that a workgroup multiplies, and their experts.

    all       every row with the single weight
    own       `rows` rows per group, group g with expert g
    chosen    `rows` rows per group, group g with expert ids[g]
    sorted    row p with expert ids[p]; the rows of an expert are together, sorted by routes.py

The number of groups, and of rows per group, may be known at the call only: see extents.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.passes.kernels.extents import Buffer, Size, Sized, least, plus, product, quotient
from mxc.passes.kernels.vectors import i32


@dataclass(frozen=True)
class GroupedRows(Sized):
    """The rows of a product: `groups` groups of `rows` rows. `experts`: 0 if there is a single
    weight.

    `sorted`: groups have one row each, and the kernel processes them expert by expert. `own`: group
    i uses expert i. `share`: number of consecutive rows of the result with the same activations.
    """

    groups: Size
    rows: Size
    experts: int = 0
    sorted: bool = False
    share: int = 1
    own: bool = False

    @property
    def results(self) -> Size:
        """Number of rows of the result."""
        return product(self.groups, self.rows)

    @property
    def sources(self) -> Size:
        """Number of rows of the activations."""
        return quotient(self.results, self.share)

    @property
    def buffers(self) -> list[Buffer]:
        """The buffer of ids or routes, if experts are chosen."""
        if not self.experts or self.own:
            return []
        return [Buffer([plus(self.order, self.groups) if self.sorted else self.groups], i32())]

    @property
    def order(self) -> int:
        """Number of entries of the routes before those of the rows."""
        return 2 * self.experts + 1

    @property
    def most(self) -> Size:
        """Number of groups along the grid. For sorted rows, the largest number of experts that can
        have rows."""
        return least(self.groups, self.experts) if self.sorted else self.groups

    def source(self, row: ir.Value) -> ir.Value:
        """The row of activations for a row of the result."""
        return row if self.share == 1 else row // self.share
