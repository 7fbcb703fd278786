"""Which rows of the activations a workgroup multiplies, and by which expert.

all       every row by the one weight
own       `rows` rows a group, group g by expert g
chosen    `rows` rows a group, group g by expert ids[g]
sorted    row p by expert ids[p], and the rows of an expert together: routes.py has sorted them

How many groups, or rows a group, may come with each call: see extents.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf

from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import (
    Buffer,
    Size,
    plus,
    product,
    quotient,
    quotient_up,
    value_of,
)
from mxc.passes.kernels.vectors import i32, index, loop

#: Tiles of fewer rows have no half that is more than one.
_HALVED = 4


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

    `sorted`: groups of one row, which the kernel takes expert by expert. `own`: nothing chooses,
    there are as many experts as groups. `share`: so many consecutive rows of the result have the
    same activations.
    """

    groups: Size
    rows: Size
    experts: int = 0
    sorted: bool = False
    share: int = 1
    rows_a_workgroup: int = 1 << 30
    own: bool = False

    @property
    def scalars(self) -> int:
        """How many index values come with each call."""
        return (self.groups, self.rows).count(None)

    def given(self, scalars: Sequence[ir.Value]) -> Rows:
        """These rows with those values."""
        values = iter(scalars)
        groups, rows = (next(values) if size is None else size for size in (self.groups, self.rows))
        return replace(self, groups=groups, rows=rows)

    @property
    def results(self) -> Size:
        """Rows of the result."""
        return product(self.groups, self.rows)

    @property
    def sources(self) -> Size:
        """Rows of the activations."""
        return quotient(self.results, self.share)

    @property
    def workgroups(self) -> tuple[Size, Size]:
        """Along the rows of a group and along groups."""
        if self.sorted:
            return 1, self.experts
        return quotient_up(self.rows, self.rows_a_workgroup), self.groups

    @property
    def buffers(self) -> list[Buffer]:
        """What chooses experts, if anything does."""
        if not self.experts or self.own:
            return []
        return [
            Buffer([plus(self.experts + 1, self.groups) if self.sorted else self.groups], i32())
        ]

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
        expert = group if self.own else None
        if choice is not None:
            # An id outside of the experts would read outside of the weights: it is the last one.
            expert = arith.minui(_read(choice, group), index(self.experts - 1))
        rows = value_of(self.rows)
        base = arith.muli(group, rows)
        if self.workgroups[0] == 1:
            start, stop = index(0), rows
        else:
            start = arith.muli(workgroup(1), index(self.rows_a_workgroup))
            stop = arith.minui(arith.addi(start, index(self.rows_a_workgroup)), rows)
        return Span(start, stop, expert, lambda row: arith.addi(base, row))

    def tiles(self, span: Span, height: int) -> Iterator[list[ir.Value]]:
        """Loops over the span in tiles; yields the rows of the result of a tile inside of each."""
        if self.sorted or not isinstance(self.rows, int):
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
        """Whole tiles, then one for what is left, if anything is: of whole height, of half, or, but
        for sorted rows, of one.

        Rows that it has too many repeat the last one: they are stored twice, and equal.
        """
        smaller = [height // 2] if self.sorted or height < _HALVED else [height // 2, 1]
        start, final = span.start, arith.subi(span.stop, index(1))
        for size, below in zip([height, *smaller], [*smaller, 0], strict=True):
            # What is left behind these has a tile of the next size.
            count = arith.subi(span.stop, start)
            whole = arith.divui(arith.addi(count, index(size - below - 1)), index(size))
            stop = arith.addi(start, arith.muli(whole, index(size)))
            with loop(start, stop, index(size)) as (row, _, _):
                numbers = [arith.addi(row, index(i)) for i in range(size)]
                yield [span.row(arith.minui(number, final)) for number in numbers]
                scf.YieldOp([])
            start = stop

    def source(self, row: ir.Value) -> ir.Value:
        """The activations of a row of the result."""
        return row if self.share == 1 else arith.divui(row, index(self.share))


def _read(source: ir.Value, at: ir.Value) -> ir.Value:
    value = memref.LoadOp(source, [at]).result
    return arith.index_cast(ir.IndexType.get(), value)
