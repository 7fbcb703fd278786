"""A kernel over MX blocks, as many as are known or come with each call: what all of them have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from iree.compiler import ir

from mxc.passes.kernels.extents import Buffer, Size, Sized, product, quotient_up

#: Lanes of a workgroup: four waves, and none waits for another.
THREADS = 256


@dataclass(frozen=True)
class OverBlocks(Sized, ABC):
    """`blocks`: how many; where it is None, their number is an index scalar of each call."""

    blocks: Size

    @property
    @abstractmethod
    def _kinds(self) -> list[tuple[int, ir.Type]]:
        """Number and type of the elements of a block, for each buffer."""

    @property
    @abstractmethod
    def _lanes(self) -> int:
        """That share a block."""

    @property
    def threads(self) -> int:
        """Lanes of a workgroup."""
        return THREADS

    @property
    def workgroups(self) -> list[Size]:
        """Along the blocks."""
        return [quotient_up(self.blocks, self._together)]

    @property
    def buffers(self) -> list[Buffer]:
        """What is read, then the results."""
        return [Buffer([product(self.blocks, size)], element) for size, element in self._kinds]

    @property
    def _together(self) -> int:
        """Blocks of a workgroup."""
        return THREADS // self._lanes
