"""What a lane of a ring whose sums are multiplied by f32 scales holds between stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from iree.compiler import ir

from mxc.dialects.generic import constant
from mxc.passes.kernels.gpu.fragments import FRAGMENT
from mxc.passes.kernels.gpu.ring.pairs import PAIRS, PairDecoder
from mxc.passes.kernels.vectors import bitcast, concat, f32, i8, lanes_of


@dataclass
class UnscaledSums:
    """Some sums of a tile of the result, f32 [n], that are yet to be multiplied by their scales.

    `row`: scale of their row, None if lhs has no f32 scales; `columns`: scales of their columns, or
    one for all; empty until something needs them.
    """

    sums: ir.Value
    row: ir.Value | None
    columns: list[ir.Value] = field(default_factory=list)


@dataclass
class SummedRegisters:
    """What a lane holds between stages.

    `rows`: by tile of rows, the fragments of the stage; `totals`: by tile of the result, row by
    row, one vector for each portion in which its sums are scaled; `decoded`: fragments of the first
    tile of columns, empty if nothing is decoded; `row_scales`, `column_scales`: by tile, f32
    [runs], or for rows an i32 with the E8M0 of each k-step in a byte; `ahead`: weights that are
    loaded or in flight, i32 [n], in the order of use; `unscaled`: sums that are yet to be
    multiplied by their scales, the oldest first.
    """

    rows: list[list[ir.Value]]
    totals: list[list[ir.Value]] = field(default_factory=list)
    decoded: list[ir.Value] = field(default_factory=list)
    row_scales: list[ir.Value] = field(default_factory=list)
    column_scales: list[ir.Value] = field(default_factory=list)
    ahead: list[ir.Value] = field(default_factory=list)
    unscaled: list[UnscaledSums] = field(default_factory=list)


class DecodedColumns:
    """The fragments of a tile of columns in a stage, decoded one pair of elements at a time."""

    def __init__(self, decoder: PairDecoder, blocks: Sequence[ir.Value]) -> None:
        """`blocks`: of each k-step the lane's packed block or part of a block, as i32 [n]."""
        self._decoder, self._one = decoder, constant(1.0, f32())
        self._blocks = [bitcast(each, i8(), 4 * lanes_of(each)) for each in blocks]
        self._fragments = lanes_of(self._blocks[0]) * 8 // decoder.element.bits // FRAGMENT
        self._pairs: list[ir.Value] = []
        self._found: list[ir.Value] = []

    def step(self) -> None:
        """Decode the next pair, if one is left."""
        if self._is_done:
            return
        block, fragment = divmod(len(self._found), self._fragments)
        place = fragment * PAIRS + len(self._pairs)
        self._pairs.append(self._decoder.pair(self._blocks[block], self._one, place))
        if len(self._pairs) == PAIRS:
            self._found.append(concat(self._pairs))
            self._pairs = []

    def fragments(self) -> list[ir.Value]:
        """Return all fragments, after decoding the pairs that are left."""
        while not self._is_done:
            self.step()
        return self._found

    @property
    def _is_done(self) -> bool:
        return len(self._found) == len(self._blocks) * self._fragments
