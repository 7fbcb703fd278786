"""Which rows of the activations a workgroup multiplies, and by which expert.

all       every row by the one weight
chosen    `rows` rows a group, group g by expert ids[g]
sorted    row p by expert ids[p], and the rows of an expert together: routes.py has sorted them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf

from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.vectors import i32, index, loop


@dataclass(frozen=True)
class Span:
    """The rows of one workgroup: from `start` to `stop`, and where row r is read and written."""

    start: ir.Value
    stop: ir.Value
    expert: ir.Value | None
    row: Callable[[ir.Value], ir.Value]


@dataclass(frozen=True)
class Rows:
    """`groups` groups of `rows` rows; `experts`: 0 where there is one weight for all.

    `sorted`: groups of one row, which the kernel takes expert by expert. `share`: so many
    consecutive rows of the result have the same activations.
    """

    groups: int
    rows: int
    experts: int = 0
    sorted: bool = False
    share: int = 1
    rows_a_workgroup: int = 1 << 30

    @property
    def results(self) -> int:
        """Rows of the result."""
        return self.groups * self.rows

    @property
    def sources(self) -> int:
        """Rows of the activations."""
        return self.results // self.share

    @property
    def workgroups(self) -> tuple[int, int]:
        """Along the rows of a group and along groups."""
        if self.sorted:
            return 1, self.experts
        return -(-self.rows // self.rows_a_workgroup), self.groups

    def memrefs(self) -> list[ir.Type]:
        """The type of what chooses experts, if anything does."""
        if not self.experts:
            return []
        size = self.experts + 1 + self.groups if self.sorted else self.groups
        return [ir.MemRefType.get([size], i32())]

    def begin(self, choice: ir.Value | None) -> Span:
        """The rows of this workgroup."""
        group = workgroup(2)
        if self.sorted:
            assert choice is not None
            after = arith.addi(group, index(1))
            first = index(self.experts + 1)
            return Span(
                _read(choice, group),
                _read(choice, after),
                group,
                lambda row: _read(choice, arith.addi(first, row)),
            )
        expert = None
        if choice is not None:
            # An id outside of the experts would read outside of the weights: it is the last one.
            expert = arith.minui(_read(choice, group), index(self.experts - 1))
        base = arith.muli(group, index(self.rows))
        if self.workgroups[0] == 1:
            start, stop = index(0), index(self.rows)
        else:
            start = arith.muli(workgroup(1), index(self.rows_a_workgroup))
            stop = arith.minui(arith.addi(start, index(self.rows_a_workgroup)), index(self.rows))
        return Span(start, stop, expert, lambda row: arith.addi(base, row))

    def tiles(self, span: Span, height: int) -> Iterator[list[ir.Value]]:
        """Loops over the span in tiles; yields the rows of the result of a tile inside of each."""
        if self.sorted:
            yield from self._ragged_tiles(span, height)
            return
        start = span.start
        for size in (height, self.rows % height):
            if not 0 < size <= self.rows:
                continue
            count = arith.divui(arith.subi(span.stop, start), index(size))
            stop = arith.addi(start, arith.muli(count, index(size)))
            with loop(start, stop, index(size)) as (row, _, _):
                yield [span.row(arith.addi(row, index(i))) for i in range(size)]
                scf.YieldOp([])
            start = stop

    def _ragged_tiles(self, span: Span, height: int) -> Iterator[list[ir.Value]]:
        """Whole tiles, then one of half or of whole height for what is left, if anything is.

        Rows that it has too many repeat the last one: they are stored twice, and equal.
        """
        count = arith.subi(span.stop, span.start)
        whole = arith.divui(arith.addi(count, index(height - height // 2 - 1)), index(height))
        behind = arith.addi(span.start, arith.muli(whole, index(height)))
        final = arith.subi(span.stop, index(1))
        for start, stop, size in (
            (span.start, behind, height),
            (behind, span.stop, height // 2),
        ):
            with loop(start, stop, index(size)) as (row, _, _):
                numbers = [arith.addi(row, index(i)) for i in range(size)]
                yield [span.row(arith.minui(number, final)) for number in numbers]
                scf.YieldOp([])

    def source(self, row: ir.Value) -> ir.Value:
        """The activations of a row of the result."""
        return row if self.share == 1 else arith.divui(row, index(self.share))


def _read(source: ir.Value, at: ir.Value) -> ir.Value:
    value = memref.LoadOp(source, [at]).result
    return arith.index_cast(ir.IndexType.get(), value)
