"""The kernel of a plain product, whose operands go straight from memory to registers.

    total = 0, or a number for each row, each column or each product
    for place of the window, in a convolution:
      for step of K: total += rows . columns, loaded while the step before was multiplied
      for the rest of K: the same, with zeros past the end

Nothing goes through LDS: what one wave of a workgroup has read, the others find in the cache of the
compute unit. Each step has a buffer with a base of its own, so that offsets are small.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.gpu.lanes import at_most, lane_of
from mxc.passes.kernels.gpu.plain.operands import PlainOperand, PlainSide
from mxc.passes.kernels.gpu.plain.result import PlainResult
from mxc.passes.kernels.gpu.plain.shape import ProductShape
from mxc.passes.kernels.gpu.products import multiply_tiles
from mxc.passes.kernels.vectors import (
    below,
    elements,
    index,
    loop,
    parts_of,
    when,
)


class PlainProduct(ProductShape):
    """The kernel of a plain product."""

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        _Body(self, buffers).build()


class _Body:
    """The values of a body while it is built. `places`: where the wave begins along each loop."""

    def __init__(self, kernel: ProductShape, buffers: Sequence[ir.Value]) -> None:
        self.kernel, self.lane = kernel, lane_of(kernel.instruction)
        self.sizes = [value_of(size) for size in kernel.sizes]
        m, n = kernel.m, kernel.n
        right = kernel.waves(n)
        waves = {m: self.lane.wave // right, n: self.lane.wave % right}
        self.places = [index(0)] * kernel.outer
        self.places += _places(workgroup(2), self.sizes[kernel.outer : m])
        for along, number in ((m, workgroup(1)), (n, workgroup(0))):
            tile = number * kernel.waves(along) + waves[along]
            self.places.append(tile * (kernel.instruction.rows * kernel.tiles(along)))
        self.places.append(index(0))
        lhs, rhs = (
            PlainOperand(kernel, layout, buffer, self.places)
            for layout, buffer in zip((kernel.lhs, kernel.rhs), buffers, strict=False)
        )
        # A lane has several sums along the loop of the first operand, and one along the other. So
        # the first operand is the one along whose loop results lie side by side in memory, if any.
        rows, columns = (lhs, m), (rhs, n)
        first, second = (rows, columns) if kernel.out.last == m else (columns, rows)
        self.first = PlainSide(kernel, *first, self.lane.column, self.lane)
        self.second = PlainSide(kernel, *second, self.lane.row, self.lane)
        self.result = PlainResult(kernel, buffers, self.places, self.first, self.second, self.lane)

    def build(self) -> None:
        """The whole body."""
        inside = [below(self.places[at], self.sizes[at]) for at in (self.kernel.m, self.kernel.n)]
        with when(inside[0] & inside[1]):
            self.result.store(self._totals(self.result.started()))

    def _totals(self, totals: list[ir.Value]) -> list[ir.Value]:
        """The totals with all products added."""
        kernel, size, sides = self.kernel, self.sizes[-1], (self.first, self.second)
        tiles = len(totals)
        # The last step is loaded one element at a time if K may end within it, or if a load of
        # several elements may cross the end of a buffer: such a load returns only zeros.
        depth = kernel.sizes[kernel.k]
        whole = isinstance(depth, int) and depth % kernel.step == 0
        split = not (whole and all(side.is_whole for side in sides))
        steps = (arith.maxui(size, index(1)) + -1 if split else size) // kernel.step

        def add(totals: list[ir.Value], outer: Sequence[ir.Value]) -> list[ir.Value]:
            def load(step: ir.Value) -> list[list[ir.Value]]:
                return [side.load(step * kernel.step, outer) for side in sides]

            rows, columns = load(index(0))
            carried = [*totals, *rows, *columns]
            with loop(index(0), steps, index(1), carried) as (step, given, op):
                coming = load(at_most(step + 1, steps + -1))
                own, left = given[tiles:], len(rows)
                runs = self.first.runs(own[:left]), self.second.runs(own[left:])
                scf.YieldOp([*self._added(given[:tiles], *runs), *coming[0], *coming[1]])
            found = list(op.results)[:tiles]
            if split:
                start = steps * kernel.step
                found = self._added(found, *(side.end(start, size, outer) for side in sides))
            return found

        if not kernel.outer:
            return add(totals, [])
        counts = self.sizes[: kernel.outer]
        every = reduce(operator.mul, counts)
        with loop(index(0), every, index(1), totals) as (number, given, op):
            scf.YieldOp(add(given, _places(number, counts)))
        return list(op.results)

    def _added(
        self, totals: Sequence[ir.Value], rows: Sequence[ir.Value], columns: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """The totals with a step added. `rows`, `columns`: the run of each tile of the operands."""
        found: list[ir.Value] = []
        for row in rows:
            for column in columns:
                total = totals[len(found)]
                for a, b in zip(self._cut(row), self._cut(column), strict=True):
                    total = multiply_tiles(self.kernel.instruction, self.kernel.depth, a, b, total)
                found.append(total)
        return found

    def _cut(self, run: ir.Value) -> list[ir.Value]:
        """Cut a run into what the lane gives to each of several matrix instructions."""
        count = self.kernel.count
        return elements(run) if count == 1 else list(parts_of(run, count))


def _places(number: ir.Value, sizes: Sequence[ir.Value]) -> list[ir.Value]:
    """The place along each of nested loops in iteration `number` of all of them together."""
    found: list[ir.Value] = []
    for size in reversed(sizes[1:]):
        found.insert(0, number % size)
        number = number // size
    return [number, *found] if sizes else []
