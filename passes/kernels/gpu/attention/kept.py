"""Sums of values over earlier pieces, which are kept in LDS while the next piece is computed.

A wave has no registers for them beside the sums of that piece. Each lane reads what it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.dialects.amdgpu import shared
from mxc.passes.kernels.gpu.lanes import unknown_zero
from mxc.passes.kernels.vectors import concat, f32, index, of, parts_of

#: Elements of a load or store: 16 bytes of each lane, adjacent to those of the next lane.
_FOUR = 4


@dataclass(frozen=True)
class Kept:
    """LDS for some vectors f32 [`size`] of each lane. `memory`: f32 [1, vectors * size / 4, lanes,
    4]. `lane`: this lane."""

    memory: ir.Value
    lane: ir.Value
    size: int

    @staticmethod
    def of(count: int, size: int, lanes: int, lane: ir.Value) -> Kept:
        """Allocate LDS for `count` vectors f32 [`size`] of each of `lanes` lanes."""
        return Kept(shared([1, count * size // _FOUR, lanes, _FOUR], f32()), lane, size)

    def write(self, values: Sequence[ir.Value], first: int) -> None:
        """Store `values` as the vectors from number `first` on."""
        start = unknown_zero()
        for number, value in enumerate(values, first):
            for part, four in enumerate(parts_of(value, _FOUR)):
                vector.store(four, self.memory, self._at(start, number, part))

    def read(self, first: int, count: int) -> list[ir.Value]:
        """Load `count` vectors from number `first` on."""
        kind, start = of(f32(), _FOUR), unknown_zero()
        parts = range(self.size // _FOUR)
        return [
            concat([vector.load(kind, self.memory, self._at(start, number, n)) for n in parts])
            for number in range(first, first + count)
        ]

    def _at(self, start: ir.Value, number: int, part: int) -> list[ir.Value]:
        return [start, index(number * (self.size // _FOUR) + part), self.lane, index(0)]
