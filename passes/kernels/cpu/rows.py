"""Which rows of the activations a workgroup multiplies, and by which expert.

all       every row by the one weight
own       `rows` rows a group, group g by expert g
chosen    `rows` rows a group, group g by expert ids[g]
sorted    row p by expert ids[p], and the rows of an expert together: routes.py has sorted them

How many groups, or rows a group, may come with each call: see extents.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.passes.kernels.extents import Buffer, Size, Sized, least, plus, product, quotient
from mxc.passes.kernels.vectors import i32, index


@dataclass(frozen=True)
class Rows(Sized):
    """`groups` groups of `rows` rows; `experts`: 0 where there is one weight for all.

    `sorted`: groups of one row, which the kernel takes expert by expert. `own`: nothing chooses,
    there are as many experts as groups. `share`: so many consecutive rows of the result have the
    same activations.
    """

    groups: Size
    rows: Size
    experts: int = 0
    sorted: bool = False
    share: int = 1
    own: bool = False

    @property
    def results(self) -> Size:
        """Rows of the result."""
        return product(self.groups, self.rows)

    @property
    def sources(self) -> Size:
        """Rows of the activations."""
        return quotient(self.results, self.share)

    @property
    def buffers(self) -> list[Buffer]:
        """What chooses experts, if anything does."""
        if not self.experts or self.own:
            return []
        return [Buffer([plus(self.order, self.groups) if self.sorted else self.groups], i32())]

    @property
    def order(self) -> int:
        """Numbers of routes before those of the rows."""
        return 2 * self.experts + 1

    @property
    def most(self) -> Size:
        """How many groups a kernel has workgroups for: of sorted rows, experts that have rows."""
        return least(self.groups, self.experts) if self.sorted else self.groups

    def source(self, row: ir.Value) -> ir.Value:
        """The activations of a row of the result."""
        return row if self.share == 1 else arith.divui(row, index(self.share))
