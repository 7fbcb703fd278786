"""Sums of the pieces so far, kept in shared memory while another piece is computed.

A wave has no registers for them beside those of the piece. Each lane reads what it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.dialects.amdgpu import shared
from mxc.passes.kernels.gpu.lanes import LANES, long, plus, rest
from mxc.passes.kernels.vectors import f32, index, of

#: Elements of a slot: registers of a sum.
_FOUR = 4


@dataclass(frozen=True)
class Kept:
    """`count` sums f32 [4] of each lane, after one piece and after the next one.

    They are not written where they were read: LLVM would see one place that a loop reads and
    writes, and carry it in registers.
    """

    memory: ir.Value
    lane: ir.Value
    count: int

    @staticmethod
    def of(count: int, lane: ir.Value) -> Kept:
        """Memory for so many."""
        return Kept(shared([2, count, LANES, _FOUR], f32()), lane, count)

    def write(self, values: Sequence[ir.Value], piece: ir.Value, first: int = 0) -> None:
        """Those from number `first` on, after a piece."""
        for number, value in enumerate(values, first):
            vector.store(value, self.memory, self._at(piece, number))

    def read(self, piece: ir.Value, first: int, count: int) -> list[ir.Value]:
        """So many from number `first` on, as they were written after the piece."""
        kind = of(f32(), _FOUR)
        numbers = range(first, first + count)
        return [vector.load(kind, self.memory, self._at(piece, number)) for number in numbers]

    def _at(self, piece: ir.Value, number: int) -> list[ir.Value]:
        return [long(rest(piece, 2)), index(number), self.lane, index(0)]


def beside(piece: ir.Value) -> ir.Value:
    """A piece that is kept where the one before `piece` is."""
    return plus(piece, 1)
