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

#: Rows and columns of a tile.
TILE = 16
#: Tiles of rows and of columns that a wave has at most, by its lanes.
_TILES = {64: (4, 4), 32: (2, 4)}
#: Waves of a workgroup.
_WAVES = 4
#: Bytes of a load.
_LOAD = 16


@dataclass(frozen=True)
class OperandLayout:
    """A tensor in memory: the MLIR name of its elements, and the loops of its dimensions."""

    element: str
    loops: tuple[int, ...]

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
    """A product over loops g.., m, n, k of `sizes`; those that are None come with the call.

    `element`: what both sides are in registers; the `instruction` for it takes `depth` elements
    along K. `after`: what follows, of which the last dimension of the result are the columns.
    """

    sizes: tuple[Size, ...]
    lhs: OperandLayout
    rhs: OperandLayout
    out: OperandLayout
    element: str
    depth: int
    instruction: TileInstruction
    after: Epilogue

    @property
    def name(self) -> str:
        """The symbol of the kernel."""
        sizes = "x".join(map(named, self.sizes))
        letters = [*(f"g{number}" for number in range(self.m)), "m", "n", "k"]
        sides = "_".join(
            f"{each.element}_{''.join(letters[loop] for loop in each.loops)}"
            for each in (self.lhs, self.rhs, self.out)
        )
        return f"mxc_product_{sizes}_{sides}"

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
        """Both sides, what the epilogue reads, and the result."""
        lhs, rhs, out = (
            Buffer(self._rows(each.loops), each.kind) for each in (self.lhs, self.rhs, self.out)
        )
        *rows, column = self.out.loops
        return [lhs, rhs, *self.after.buffers(self._count(rows), None, self.sizes[column]), out]

    def _rows(self, loops: Sequence[int]) -> list[Size]:
        """The sizes of a buffer: rows of a known length, or one row."""
        last = self.sizes[loops[-1]]
        return [self._count(loops[:-1]), last] if isinstance(last, int) else [self._count(loops)]

    def _count(self, loops: Sequence[int]) -> Size:
        """Iterations of some loops together."""
        found: Size = 1
        for loop in loops:
            found = product(found, self.sizes[loop])
        return found

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
        return [right, down, self._count(range(self.m))]

    @property
    def count(self) -> int:
        """Elements along K that a lane gives to an instruction."""
        return self.depth // self.instruction.groups

    @property
    def run(self) -> int:
        """Elements along K that a lane has of a step: of one instruction, or of several."""
        return max(self.count, _LOAD * 8 // element_bits(ir.Type.parse(self.element)))

    @property
    def step(self) -> int:
        """Elements along K of all lanes."""
        return self.run * self.instruction.groups
