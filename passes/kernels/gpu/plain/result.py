"""Compute the epilogue of a plain product, and store the result.

In each tile a lane has one place along the loop of one operand, and several along the loop of the
other one. Where results along the latter lie side by side in memory, and the tiles of the wave do
not go past the end of that loop, it stores up to four at once; else one result at a time. Results
outside of the tensor are stored past the end of the buffer, which drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.dialects.amdgpu import KEEPS_NAN
from mxc.dialects.generic import constant
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.finish import Finish, ResultColumns
from mxc.passes.kernels.gpu.fragments import QUAD
from mxc.passes.kernels.gpu.lanes import Lane, at_most
from mxc.passes.kernels.gpu.plain.operands import PlainOperand, PlainSide
from mxc.passes.kernels.gpu.plain.shape import ProductShape
from mxc.passes.kernels.vectors import (
    below,
    f32,
    i32,
    index,
    lanes_of,
    of,
    part_of,
    parts_of,
    signed_below,
)

#: A place along the loop of the first operand, and the sums from that place on.
_Placed = tuple[ir.Value, ir.Value]


@dataclass(frozen=True)
class PlainResult:
    """The tiles of the result that a wave computes. `places`: where it begins along each loop.
    `first`: the operand along whose loop a lane has several sums of a tile; `second`: the other."""

    kernel: ProductShape
    buffers: Sequence[ir.Value]
    places: Sequence[ir.Value]
    first: PlainSide
    second: PlainSide
    lane: Lane

    def started(self) -> list[ir.Value]:
        """The values from which the sums of each tile start."""
        kernel, first, second = self.kernel, self.first, self.second
        kind = of(i32() if kernel.element == "i8" else f32(), kernel.instruction.totals)
        loop = kernel.start
        if loop is None:
            return [constant(0, kind)] * (first.tiles * second.tiles)
        last = value_of(kernel.sizes[loop]) + -1

        def at(place: ir.Value) -> ir.Value:
            return memref.LoadOp(
                self.buffers[-2], [at_most(self.places[loop] + place, last)]
            ).result

        def along(tile: int, other: int) -> ir.Value:
            if loop == first.loop:
                own = [at(first.element(tile, row)) for row in self._rows()]
                return vector.from_elements(kind, own)
            place = second.element(other, self.lane.row) if loop == second.loop else index(0)
            return vector.broadcast(kind, at(place))

        return [along(m, n) for m in range(first.tiles) for n in range(second.tiles)]

    def store(self, totals: Sequence[ir.Value]) -> None:
        """Compute the epilogue of the totals and store those that are in the result."""
        first, kernel = self.first, self.kernel
        left = value_of(kernel.sizes[first.loop]) - self.places[first.loop]
        size = kernel.instruction.rows * first.tiles
        known = kernel.sizes[first.loop]
        if kernel.out.last != first.loop:
            self._put(self._alone, totals, left)
        elif isinstance(known, int) and known % size == 0:
            self._put(self._together, totals, None)
        else:
            branch = scf.IfOp(signed_below(index(size - 1), left), has_else=True)
            with ir.InsertionPoint(branch.then_block):
                self._put(self._together, totals, None)
                scf.YieldOp([])
            with ir.InsertionPoint(branch.else_block):
                self._put(self._alone, totals, left)
                scf.YieldOp([])

    def _put(
        self,
        placed: Callable[[Sequence[ir.Value]], Iterator[_Placed]],
        totals: Sequence[ir.Value],
        left: ir.Value | None,
    ) -> None:
        """Compute the epilogue and store. `placed`: cuts the sums of all tiles along the first loop
        into pieces with their places. `left`: number of places of the result along the first loop,
        from the wave's first one on; None if all places of the wave are in the result."""
        first, second = self.first, self.second
        out = PlainOperand(self.kernel, self.kernel.out, self.buffers[-1], self.places)
        memory = out.after(index(0))
        others = value_of(self.kernel.sizes[second.loop]) - self.places[second.loop]
        for tile in range(second.tiles):
            other = second.element(tile, self.lane.row)
            inside = below(other, others)
            finish = self._finish(at_most(other, others + -1))
            for place, values in placed(totals[tile :: second.tiles]):
                own = inside if left is None else inside & below(place, left)
                at = place * out.stride(first.loop) + other * out.stride(second.loop)
                last = place if left is None else at_most(place, left + -1)
                values = self._rounded(finish(last, values))
                vector.store(values, memory, [arith.select(own, at, out.beyond)])

    def _finish(self, other: ir.Value) -> Callable[[ir.Value, ir.Value], ir.Value]:
        """Return a function that computes the epilogue of sums, from their place along the first
        loop. `other`: their place along the second one."""
        kernel, after = self.kernel, self.kernel.after
        if not after.stages:
            return lambda place, values: values
        memrefs = dict(zip(after.operands, self.buffers[2:], strict=False))
        # A row of the result is numbered over all dimensions except the last one.
        rows = PlainOperand(kernel, kernel.out.rows, self.buffers[-1], self.places)
        row = rows.start + other * rows.stride(self.second.loop)

        def apply(place: ir.Value, values: ir.Value) -> ir.Value:
            column = ResultColumns(row, self.places[self.first.loop] + place, None)
            return Finish(after, memrefs, lanes_of(values), KEEPS_NAN).apply([values], [column])

        return apply

    def _rounded(self, values: ir.Value) -> ir.Value:
        wanted = of(self.kernel.out.kind, lanes_of(values))
        return values if values.type == wanted else arith.truncf(wanted, values)

    def _rows(self) -> list[ir.Value]:
        """The place in a tile of each sum that the lane has of it, along the first loop."""
        instruction = self.kernel.instruction
        start = self.lane.group * instruction.run
        numbers = range(instruction.totals)
        return [start + (instruction.row(e // QUAD) + e % QUAD) for e in numbers]

    def _alone(self, totals: Sequence[ir.Value]) -> Iterator[_Placed]:
        """Yield the sums of tiles along the first loop, one by one."""
        for tile, values in enumerate(totals):
            for row, value in zip(self._rows(), parts_of(values, 1), strict=True):
                yield self.first.element(tile, row), value

    def _together(self, totals: Sequence[ir.Value]) -> Iterator[_Placed]:
        """Yield the sums of tiles along the first loop, those whose results lie side by side at
        once."""
        rows = self._rows()
        if self.first.is_transposed:
            for number, row in enumerate(rows):
                values = [vector.extract(tile, [], [number]) for tile in totals]
                together = vector.from_elements(of(values[0].type, len(values)), values)
                yield self.first.element(0, row), together
            return
        for tile, values in enumerate(totals):
            for at in range(0, len(rows), QUAD):
                yield self.first.element(tile, rows[at]), part_of(values, at, QUAD)
