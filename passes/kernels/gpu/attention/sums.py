"""What keys come to: their maximum and total, and the sums of their values. How these are added.

    M' = max(M, m)    A' = A * 2 ** (M - M') + a * 2 ** (m - M')    likewise the total

Pieces are added in their order, wherever it is done, and the sink, which has no value, at last. So
the bits of a row are the same. What nobody sees has maximum LOWEST and total zero: it changes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.dialects.dense_attention import LOWEST, SMALLEST
from mxc.passes.kernels.gpu.attention.softmax import (
    LOG2_E,
    greatest,
    in_all,
    number,
    power,
    zero,
)
from mxc.passes.kernels.vectors import lanes_of


@dataclass(frozen=True)
class Sums:
    """Sums over the keys so far: `maximum` in powers of two, `total` of the weights, `values`,
    vectors of f32."""

    maximum: ir.Value
    total: ir.Value
    values: Sequence[ir.Value]

    @staticmethod
    def none(values: Sequence[ir.Value]) -> Sums:
        """Before the first key: `values` are zeros."""
        return Sums(number(LOWEST), number(0.0), values)

    @property
    def all(self) -> list[ir.Value]:
        """As loops carry them."""
        return [self.maximum, self.total, *self.values]

    @staticmethod
    def each(carried: Sequence[ir.Value], tiles: int) -> list[Sums]:
        """What loops carried of so many tiles of rows."""
        size = len(carried) // tiles
        starts = range(0, len(carried), size)
        return [Sums(carried[n], carried[n + 1], carried[n + 2 : n + size]) for n in starts]

    def plus(self, piece: Sums, *, careful: bool) -> Sums:
        """And those of the piece that follows. `careful`: see `scaled`."""
        top = greatest(self.maximum, piece.maximum)
        old, new = (power(each.maximum - top) for each in (self, piece))
        total = math.fma(piece.total, new, self.total * old)
        values = []
        for before, own in zip(self.values, piece.values, strict=True):
            own = _unless_zero(new, own) if careful else own
            values.append(math.fma(own, in_all(new, own), scaled(before, old, careful=careful)))
        return Sums(top, total, values)

    def finished(self, sink: ir.Value) -> list[ir.Value]:
        """Values over the total, with the logit of the sink, f32; zero where no weight is left."""
        top = greatest(self.maximum, sink * LOG2_E)
        factor = power(self.maximum - top)
        own = power(math.fma(sink, number(LOG2_E), arith.negf(top)))
        total = math.fma(self.total, factor, own)
        none = arith.cmpf(arith.CmpFPredicate.OLT, total, number(SMALLEST))
        total = arith.select(none, number(SMALLEST), total)
        found = [scaled(each, factor, careful=True) for each in self.values]
        # A negative zero that was not left alone would be one no longer.
        return [each / in_all(total, each) + zero(lanes_of(each)) for each in found]


def scaled(values: ir.Value, factor: ir.Value, *, careful: bool) -> ir.Value:
    """A vector times `factor`. `careful`: zero times anything is zero, which may be infinite."""
    values = _unless_zero(factor, values) if careful else values
    return values * in_all(factor, values)


def _unless_zero(factor: ir.Value, values: ir.Value) -> ir.Value:
    none = arith.cmpf(arith.CmpFPredicate.OEQ, factor, number(0.0))
    return arith.select(none, zero(lanes_of(values)), values)
