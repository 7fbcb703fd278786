"""What a product of two computed tensors is: its loops, its memory, how waves share it.

    result[g.., m, n] = sum over k of lhs[g.., m, k] * rhs[g.., k, n]

Any size may come with the call. Operands have their dimensions in any order, and need not have all
of g. A wave has up to four tiles of rows by four of columns; a workgroup has four such waves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from iree.compiler import ir

from mxc.dialects.dispatches import element_bits
from mxc.passes.kernels.epilogues import Epilogue
from mxc.passes.kernels.executables import Threads
from mxc.passes.kernels.extents import Buffer, Size, named, product, quotient_up
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.rewriting.plain_products import Terms

#: Rows and columns of a tile.
TILE = 16
#: Tiles of rows and of columns that a wave has at most, by its lanes.
_TILES = {64: (4, 4), 32: (2, 4)}
#: Rows, columns or terms of a sum that a wave has at most.
REACH = 64
#: Waves of a workgroup.
_WAVES = 4
#: Bytes of a load.
LOAD = 16


@dataclass(frozen=True)
class OperandLayout:
    """A tensor in memory: the MLIR name of its elements, and its dimensions.

    A dimension is read at a loop, or, as that of an image is in a convolution, at a sum of loops
    times numbers: `dims` has the loops and the numbers of each, and `extents` the size of such a
    dimension, else None.
    """

    element: str
    dims: tuple[Terms, ...]
    extents: tuple[int | None, ...]

    @property
    def rows(self) -> OperandLayout:
        """The dimensions but the last one."""
        return replace(self, dims=self.dims[:-1], extents=self.extents[:-1])

    @property
    def last(self) -> int | None:
        """The loop of the last dimension, if it is one."""
        return self.dims[-1][0][0] if self.extents[-1] is None else None

    @property
    def kind(self) -> ir.Type:
        """The type of an element."""
        return ir.Type.parse(self.element)

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return element_bits(self.kind) // 8


@dataclass(frozen=True)
class ProductShape:
    """A product over loops s.., g.., m, n, k of `sizes`; those that are None come with the call.

    The sum is over k for each of the `outer` loops s. `element`: what both sides are in registers;
    the `instruction` for it takes `depth` elements along K. `after`: what follows, of which the
    columns are the last dimension of the result. `start`: a loop of the result; sums then start
    from f32 numbers for each of its iterations.
    """

    sizes: tuple[Size, ...]
    lhs: OperandLayout
    rhs: OperandLayout
    out: OperandLayout
    element: str
    depth: int
    instruction: TileInstruction
    after: Epilogue
    outer: int = 0
    start: int | None = None

    @property
    def name(self) -> str:
        """The symbol of the kernel."""
        sizes = "x".join(map(named, self.sizes))
        letters = [
            *(f"s{number}" for number in range(self.outer)),
            *(f"g{number}" for number in range(self.m - self.outer)),
            *"mnk",
        ]

        def dim(terms: Terms, extent: int | None) -> str:
            own = "".join(f"{n if n > 1 else ''}{letters[loop]}" for loop, n in terms)
            return own if extent is None else f"_{own}of{extent}_"

        sides = [
            f"{each.element}_{''.join(map(dim, each.dims, each.extents))}".strip("_")
            for each in (self.lhs, self.rhs, self.out)
        ]
        sides += [] if self.start is None else [f"from_{letters[self.start]}"]
        return f"mxc_product_{sizes}_{'_'.join(sides)}"

    @property
    def m(self) -> int:
        """The loop of rows."""
        return len(self.sizes) - 3

    @property
    def n(self) -> int:
        """The loop of columns."""
        return len(self.sizes) - 2

    @property
    def k(self) -> int:
        """The loop of the sum."""
        return len(self.sizes) - 1

    @property
    def scalars(self) -> int:
        """Number of sizes that a call supplies."""
        return self.sizes.count(None)

    def given(self, scalars: Sequence[ir.Value]) -> Self:
        """A copy with these sizes."""
        rest = iter(scalars)
        return replace(self, sizes=tuple(next(rest) if s is None else s for s in self.sizes))

    @property
    def buffers(self) -> list[Buffer]:
        """Both sides, what the epilogue reads, what sums start from, and the result."""
        lhs, rhs, out = (
            Buffer(self._rows(each), each.kind) for each in (self.lhs, self.rhs, self.out)
        )
        *rows, columns = self.sizes_of(self.out)
        beside = self.after.buffers(_product(rows), None, columns)
        if self.start is not None:
            beside.append(Buffer([self.sizes[self.start]], ir.F32Type.get()))
        return [lhs, rhs, *beside, out]

    def sizes_of(self, layout: OperandLayout) -> list[Size]:
        """The size of each dimension of a tensor."""
        return [
            self.sizes[terms[0][0]] if extent is None else extent
            for terms, extent in zip(layout.dims, layout.extents, strict=True)
        ]

    def _rows(self, layout: OperandLayout) -> list[Size]:
        """The sizes of a buffer: rows of a known length, or one row."""
        *rows, last = self.sizes_of(layout)
        return [_product(rows), last] if isinstance(last, int) else [_product([*rows, last])]

    def tiles(self, loop: int) -> int:
        """Tiles of rows or of columns that a wave has: a power of two."""
        most = _TILES[self.instruction.unit.lanes][loop - self.m]
        size = self.sizes[loop]
        if not isinstance(size, int):
            return most
        return min(most, 1 << (-(-size // TILE) - 1).bit_length())

    def waves(self, loop: int) -> int:
        """Waves of a workgroup along rows or columns."""
        rows = self.sizes[self.m]
        down = 1 if isinstance(rows, int) and rows <= TILE * self.tiles(self.m) else 2
        return down if loop == self.m else _WAVES // down

    @property
    def threads(self) -> Threads:
        """Lanes of a workgroup."""
        lanes = self.instruction.unit.lanes
        return Threads(_WAVES * lanes, lanes)

    @property
    def workgroups(self) -> list[Size]:
        """Along columns, along rows, and of all g."""
        right, down = (
            quotient_up(self.sizes[loop], TILE * self.tiles(loop) * self.waves(loop))
            for loop in (self.n, self.m)
        )
        return [right, down, _product(self.sizes[self.outer : self.m])]

    @property
    def count(self) -> int:
        """Elements along K that a lane gives to an instruction."""
        return self.depth // self.instruction.groups

    @property
    def run(self) -> int:
        """Elements along K that a lane has of a step: of one instruction, or of several."""
        return max(self.count, LOAD * 8 // element_bits(ir.Type.parse(self.element)))

    @property
    def step(self) -> int:
        """Elements along K of all lanes."""
        return self.run * self.instruction.groups


def _product(sizes: Sequence[Size]) -> Size:
    found: Size = 1
    for size in sizes:
        found = product(found, size)
    return found
