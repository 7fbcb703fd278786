"""Scales of decoded weights, straight from memory to the lanes that decode.

A lane needs a scale for each of its tiles in a k-step. Eight blocks of a row, four k-steps, are 8
bytes that it loads at once, some k-steps ahead: too few for LDS to help. Lane group g has
block 2 t + g in turn t; its words are shifted so that this is byte 0 or 2 of word t / 2.
"""

from __future__ import annotations

from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.lanes import Lane, at_most
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION
from mxc.passes.kernels.gpu.sides import Scaled
from mxc.passes.kernels.vectors import bitcast, f32, i8, i32, of

#: Blocks whose scales are loaded at once.
AT_ONCE = K_STEPS * INSTRUCTION.groups
_WORDS = AT_ONCE // 4
#: Bits of an f32 that are its exponent, of which the first is this.
_EXPONENT, _FIRST = 0x7F800000, 23


class RowScales:
    """Scales of `tiles` tiles for one lane: see StagedSide. Rows have AT_ONCE blocks or more."""

    def __init__(
        self,
        kind: Scaled,
        lane: Lane,
        buffer: ir.Value,
        tiles: int,
        first: ir.Value,
        row_of: Callable[[ir.Value], ir.Value],
    ) -> None:
        """At the insertion point: what is the same in all k-steps."""
        self._buffer, self._blocks = buffer, kind.blocks
        own = first + lane.row
        self._offsets = [
            row_of(own + tile * INSTRUCTION.rows) * kind.blocks for tile in range(tiles)
        ]
        self._group = arith.index_cast(i32(), lane.group * 8)

    def load(self, four: ir.Value) -> list[ir.Value]:
        """Scales of four k-steps, after `four` such groups: 8 bytes a tile, as they are in memory.

        The last ones end with the row: what is after it is the next row's, and may be NaN.
        """
        at = at_most(four * AT_ONCE, self._blocks - AT_ONCE)
        kind = of(i8(), AT_ONCE)
        return [vector.load(kind, self._buffer, [offset + at]) for offset in self._offsets]

    def words(self, loaded: list[ir.Value], four: ir.Value) -> list[list[ir.Value]]:
        """The same for this lane's group: two words a tile. Blocks that a row has not have 0."""
        i64 = ir.IntegerType.get_signless(64)
        start = four * AT_ONCE
        beyond = start - at_most(start, self._blocks - AT_ONCE)
        shift = arith.index_cast(i64, at_most(beyond, AT_ONCE - 1) * 8)
        found = []
        for scales in loaded:
            whole = vector.extract(bitcast(scales, i64, 1), [], [0])
            moved = whole >> shift
            halves = bitcast(vector.broadcast(of(i64, 1), moved), i32(), _WORDS)
            words = [vector.extract(halves, [], [at]) for at in range(_WORDS)]
            found.append([word >> self._group for word in words])
        return found

    @staticmethod
    def factor(words: list[ir.Value], k_step: int) -> ir.Value:
        """The scale for a k-step of four, as the exponent of an f32: 0 is 2^-127, 255 is NaN."""
        moved = words[k_step // 2] << _FIRST - k_step % 2 * 16
        return arith.bitcast(f32(), moved & _EXPONENT)
