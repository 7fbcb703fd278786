"""The shape of a product of two computed tensors: its loops, its operands in memory, its tiles.

    result[g.., m, n] = sum over k of lhs[g.., m, k] * rhs[g.., k, n]

Any size may come with the call. Operands have their dimensions in any order, and need not have all
loops g. A wave has up to four tiles of rows by four of columns, and a workgroup has four waves.
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
#: Lanes of a wave -> most tiles of rows, and of columns, that it has.
_TILES = {64: (4, 4), 32: (2, 4)}
#: Most rows, or columns, of a wave, and most elements along K of a step: offsets within them have
#: 32 bits.
REACH = 64
#: Waves of a workgroup.
_WAVES = 4
#: Bytes of a load, at most.
LOAD = 16


@dataclass(frozen=True)
class OperandLayout:
    """A tensor in memory: the MLIR name of its element type, and its dimensions.

    The index along a dimension is a loop, or, for an image in a convolution, a sum of loops times
    numbers. `dims`: for each dimension the pairs (loop, number). `extents`: for each dimension its
    size if its index is such a sum, else None.
    """

    element: str
    dims: tuple[Terms, ...]
    extents: tuple[int | None, ...]

    @property
    def rows(self) -> OperandLayout:
        """A copy without the last dimension."""
        return replace(self, dims=self.dims[:-1], extents=self.extents[:-1])

    @property
    def last(self) -> int | None:
        """The loop that is the index along the last dimension; None if that is a sum."""
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
    """A product over loops s.., g.., m, n, k of `sizes`; sizes that are None come with the call.

    The sum goes over k and over the first `outer` loops, s... `element`: the type of both sides in
    registers. `instruction`: the matrix instruction for it, which takes `depth` elements along K.
    `after`: the epilogue, whose columns are the last dimension of the result. `start`: a loop of
    the result; if not None, sums start from an f32 for each of its iterations.
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
        """Return a copy with these sizes in place of None."""
        rest = iter(scalars)
        return replace(self, sizes=tuple(next(rest) if s is None else s for s in self.sizes))

    @property
    def buffers(self) -> list[Buffer]:
        """Both sides, the operands of the epilogue, what sums start from, if any, and the
        result."""
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
        """The sizes of a tensor's buffer: rows of the length of the last dimension if that is
        known, else a single row."""
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
        """Workgroups along columns, along rows, and along all loops g together."""
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
        """Elements along K that a lane has of its row in a step: for one instruction, or for as
        many as a load of 16 bytes serves."""
        return max(self.count, LOAD * 8 // element_bits(ir.Type.parse(self.element)))

    @property
    def step(self) -> int:
        """Elements along K of a step: the runs of all lane groups."""
        return self.run * self.instruction.groups


def _product(sizes: Sequence[Size]) -> Size:
    found: Size = 1
    for size in sizes:
        found = product(found, size)
    return found
