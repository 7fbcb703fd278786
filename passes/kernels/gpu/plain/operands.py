"""Load the operands of a plain product from memory to registers.

A lane needs a run of elements along K of its row of each tile (fragments.py). Where elements along
K lie side by side, it loads several at once. Where elements of several rows lie side by side
instead, it loads those of all T tiles for each place of its run, and transposes them in registers:
row r of tile j is then row T r + j of the wave. Else it loads one element at a time.

Loads past the last row of an operand read other elements or zeros, for sums that are not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import BEYOND
from mxc.passes.kernels.extents import Size, product, value_of
from mxc.passes.kernels.gpu.bounded_views import flat, rows_of
from mxc.passes.kernels.gpu.lanes import Lane, at_most
from mxc.passes.kernels.gpu.plain.shape import LOAD, TILE, OperandLayout, ProductShape
from mxc.passes.kernels.vectors import below, concat, index, lanes_of, of


class PlainOperand:
    """A tensor in memory, of which a wave reads from element `start` on: that at `places` along the
    loops."""

    def __init__(
        self,
        kernel: ProductShape,
        layout: OperandLayout,
        buffer: ir.Value,
        places: Sequence[ir.Value],
    ) -> None:
        """Compute the strides and the first element of the wave."""
        self.layout, self._kernel, self._flat = layout, kernel, flat(buffer)
        self._strides: dict[int, Size] = {}
        stride: Size = 1
        sizes = kernel.sizes_of(layout)
        for terms, size in zip(reversed(layout.dims), reversed(sizes), strict=True):
            for loop, number in terms:
                self._strides[loop] = product(stride, number)
            stride = product(stride, size)
        self._total = value_of(stride)
        self.start = index(0)
        for loop in self._strides:
            self.start = self.start + places[loop] * self.stride(loop)

    def stride(self, loop: int) -> ir.Value:
        """Distance, in elements, from one place along a loop to the next one."""
        return value_of(self._strides[loop])

    def is_last(self, loop: int) -> bool:
        """Whether elements along a loop lie side by side."""
        return self._strides[loop] == 1

    def after(self, k: ir.Value, outer: Sequence[ir.Value] = ()) -> ir.Value:
        """Return a bounded buffer that begins at element `k` along K, in the iteration `outer` of
        the outer loops of the sum."""
        start = self.start
        if self._kernel.k in self._strides:
            start = start + k * self.stride(self._kernel.k)
            for loop, place in enumerate(outer):
                start = start + place * self.stride(loop)
        # If a loop has no iterations, there is no such element.
        start = at_most(start, self._total)
        return rows_of(self._flat, 1, start, BEYOND // self.layout.bytes, self._total)

    @property
    def beyond(self) -> ir.Value:
        """An index past the end of every buffer that `after` returns."""
        return index(BEYOND // self.layout.bytes)


@dataclass(frozen=True)
class PlainSide:
    """An operand of a wave: its `tiles` along `loop`, that of rows or that of columns. `row`: the
    row of the lane in each tile."""

    kernel: ProductShape
    operand: PlainOperand
    loop: int
    row: ir.Value
    lane: Lane

    @property
    def tiles(self) -> int:
        """Number of tiles of the wave."""
        return self.kernel.tiles(self.loop)

    @property
    def is_transposed(self) -> bool:
        """Whether a load reads elements of several rows, one for each tile."""
        return self.operand.is_last(self.loop)

    @property
    def is_whole(self) -> bool:
        """Whether no load of several elements crosses the end of the buffer, if K is whole
        steps."""
        size = self.kernel.sizes[self.loop]
        return not self.is_transposed or (isinstance(size, int) and size % self.tiles == 0)

    def element(self, tile: int, row: ir.Value) -> ir.Value:
        """The place along the loop of a row of a tile, counted from the first place of the wave."""
        return row * self.tiles + tile if self.is_transposed else row + TILE * tile

    def load(self, start: ir.Value, outer: Sequence[ir.Value]) -> list[ir.Value]:
        """Load a step that begins at element `start` along K, in the iteration `outer` of the outer
        loops. The result is for `runs`."""
        memory, kind = self.operand.after(start, outer), self.operand.layout.kind
        if self.is_transposed:
            return [
                vector.load(of(kind, self.tiles), memory, [self._at(0, place)])
                for place in range(self.kernel.run)
            ]
        size = min(self.kernel.run, LOAD // self.operand.layout.bytes)
        if not self.operand.is_last(self.kernel.k):
            size = 1
        return [
            vector.load(of(kind, size), memory, [self._at(tile, place)])
            for tile in range(self.tiles)
            for place in range(0, self.kernel.run, size)
        ]

    def runs(self, loaded: Sequence[ir.Value]) -> list[ir.Value]:
        """Return the run of each tile, extended to the type of the kernel, from what `load`
        returned."""
        if self.is_transposed:
            each = [
                vector.from_elements(
                    of(self.operand.layout.kind, len(loaded)),
                    [vector.extract(values, [], [tile]) for values in loaded],
                )
                for tile in range(self.tiles)
            ]
        else:
            count = len(loaded) // self.tiles
            each = [concat(loaded[at : at + count]) for at in range(0, len(loaded), count)]
        return [self._widened(run) for run in each]

    def end(self, start: ir.Value, size: ir.Value, outer: Sequence[ir.Value]) -> list[ir.Value]:
        """Load the rest of K one element at a time, and return the run of each tile. `start`: where
        the rest begins; `size`: where K ends; elements past it are zero."""
        memory, kind, found = self.operand.after(start, outer), self.operand.layout.kind, []
        left = size - start
        for tile in range(self.tiles):
            values = []
            for place in range(self.kernel.run):
                inside = below(self._element(place), left)
                at = arith.select(inside, self._at(tile, place), self.operand.beyond)
                values.append(memref.LoadOp(memory, [at]).result)
            found.append(self._widened(vector.from_elements(of(kind, len(values)), values)))
        return found

    def _element(self, place: int) -> ir.Value:
        """The element along K, in a step, at a place of the lane's run."""
        return self.lane.block * self.kernel.run + place

    def _at(self, tile: int, place: int) -> ir.Value:
        """The index of that element of the lane's row of a tile, in a buffer that begins at the
        step."""
        row = self.element(tile, self.row) * self.operand.stride(self.loop)
        return row + self._element(place) * self.operand.stride(self.kernel.k)

    def _widened(self, run: ir.Value) -> ir.Value:
        """A run, extended to the type that both sides have in registers."""
        kind = ir.Type.parse(self.kernel.element)
        if self.operand.layout.kind == kind:
            return run
        return arith.extf(of(kind, lanes_of(run)), run)
