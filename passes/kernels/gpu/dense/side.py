"""One side of a dense product in memory, and how a lane takes its part of it.

Rows lie as the program has them. Matrix instructions take blocks of 32 along K in their order, and
of a block each lane group has consecutive elements: so a load of all lanes reads whole segments of
memory, 64 bytes of a row of 16-bit floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import BEYOND
from mxc.passes.kernels.gpu.floats import LOAD, FloatSide
from mxc.passes.kernels.gpu.fragments import FRAGMENT
from mxc.passes.kernels.gpu.sides import Loaded
from mxc.passes.kernels.vectors import below, bitcast, i8, index, of


@dataclass(frozen=True, kw_only=True)
class DenseSide(FloatSide):
    """Rows of floats, activations or weights, for the tiles of one wave. A k-step is one block.

    `ragged`: a step may go beyond the end of K.
    """

    ragged: bool

    @property
    def _part(self) -> int:
        """Bytes of a block that a lane has."""
        return self.kind.block_bytes // self.instruction.groups

    @property
    def _pieces(self) -> int:
        """Loads of a block of a tile."""
        return self._part // LOAD

    @property
    def loads(self) -> int:
        """Loads for a block of all tiles."""
        return len(self.rows) * self._pieces

    def block(self, first: ir.Value, number: int) -> Loaded:
        """Block `first + number` of all tiles; zero past the end of a row."""
        kind, found = self.kind, []
        own = self.lane.block * self._part
        for row in self.rows:
            start = (row * kind.blocks + first) * kind.block_bytes + own
            for byte in range(0, self._part, LOAD):
                at = start + (number * kind.block_bytes + byte)
                if self.ragged:
                    inside = below(first + number, kind.blocks)
                    at = arith.select(inside, at, index(BEYOND))
                loaded = vector.load(of(i8(), LOAD), self.buffer, [at])
                found.append(bitcast(loaded, kind.element, self._lanes))
        return found

    def parts(self, loaded: Sequence[ir.Value], tile: int, k_step: int) -> list[list[ir.Value]]:
        """Runs of 8 along K that the lane has of a tile; of each the floats that add up to it."""
        return [self.split(each) for each in self.floats(loaded, tile, k_step)]

    def floats(self, loaded: Sequence[ir.Value], tile: int, k_step: int) -> list[ir.Value]:
        """The same as they are in memory, which weights are in registers too."""
        start = k_step * self.loads + tile * self._pieces
        own = list(loaded[start : start + self._pieces])
        if self._lanes == FRAGMENT:
            return own
        pairs = zip(own[::2], own[1::2], strict=True)
        return [vector.shuffle(*pair, list(range(FRAGMENT))) for pair in pairs]
