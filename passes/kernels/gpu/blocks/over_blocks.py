"""A kernel over MX blocks, as many as are known or come with each call: what all of them have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from iree.compiler import ir

from mxc.passes.kernels.extents import Buffer, Size, product, quotient_up

#: Lanes of a workgroup: four waves, and none waits for another.
THREADS = 256


class OverBlocks(ABC):
    """`blocks`: how many; where it is None, their number is an index scalar of each call."""

    blocks: int | None

    @property
    @abstractmethod
    def _kinds(self) -> list[tuple[int, ir.Type]]:
        """Of each buffer the elements of a block, and their type."""

    @property
    @abstractmethod
    def _lanes(self) -> int:
        """That share a block."""

    @property
    def threads(self) -> int:
        """Lanes of a workgroup."""
        return THREADS

    @property
    def scalars(self) -> int:
        """How many index values come with each call."""
        return int(self.blocks is None)

    def workgroups(self, scalars: Sequence[ir.Value] = ()) -> list[Size]:
        """Along the blocks."""
        return [quotient_up(self._count(scalars), self._together)]

    def buffers(self, scalars: Sequence[ir.Value] = ()) -> list[Buffer]:
        """What is read, then the results."""
        count = self._count(scalars)
        return [Buffer([product(count, size)], element) for size, element in self._kinds]

    def _count(self, scalars: Sequence[ir.Value]) -> Size:
        """Blocks of a call."""
        return next(iter(scalars), None) if self.blocks is None else self.blocks

    @property
    def _together(self) -> int:
        """Blocks of a workgroup."""
        return THREADS // self._lanes
