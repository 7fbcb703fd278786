"""The sums of rows over some of their keys: maximum, total and values; and how they are added.

    M' = max(M, m)    A' = A * 2 ** (M - M') + a * 2 ** (m - M')    likewise the total

M and A are those of the earlier pieces, m and a those of the next one. Pieces are added in their
order, whichever kernel does it, and the sink, which has no value, is added last. So the bits of a
row are the same in all cases. A piece without a key that a row attends to has maximum LOWEST and
total zero, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.dialects.dense_attention import LOWEST, SMALLEST
from mxc.passes.kernels.exponential import LOG2_E
from mxc.passes.kernels.gpu.attention.softmax import (
    greatest,
    in_all,
    number,
    power,
    zero,
)
from mxc.passes.kernels.vectors import lanes_of


@dataclass(frozen=True)
class Sums:
    """Sums over the keys so far: the `maximum` of the scores, as an exponent of two; the `total` of
    the weights; weights times `values`, vectors of f32."""

    maximum: ir.Value
    total: ir.Value
    values: Sequence[ir.Value]

    @staticmethod
    def none(values: Sequence[ir.Value]) -> Sums:
        """The sums before the first key. `values`: vectors of zeros."""
        return Sums(number(LOWEST), number(0.0), values)

    @property
    def all(self) -> list[ir.Value]:
        """All values, in the order in which loops carry them."""
        return [self.maximum, self.total, *self.values]

    @staticmethod
    def each(carried: Sequence[ir.Value], tiles: int) -> list[Sums]:
        """The sums of each of `tiles` tiles of rows, from the values that a loop carried."""
        size = len(carried) // tiles
        starts = range(0, len(carried), size)
        return [Sums(carried[n], carried[n + 1], carried[n + 2 : n + size]) for n in starts]

    def plus(self, piece: Sums, *, careful: bool) -> Sums:
        """Return these sums with those of the next piece added. `careful`: see `scaled`."""
        top = greatest(self.maximum, piece.maximum)
        old, new = (power(each.maximum - top) for each in (self, piece))
        total = math.fma(piece.total, new, self.total * old)
        values = []
        for before, own in zip(self.values, piece.values, strict=True):
            own = _unless_zero(new, own) if careful else own
            values.append(math.fma(own, in_all(new, own), scaled(before, old, careful=careful)))
        return Sums(top, total, values)

    def finished(self, sink: ir.Value) -> list[ir.Value]:
        """Return the values divided by the total, to which the sink is added; zero if no weight is
        left. `sink`: its logit, f32."""
        top = greatest(self.maximum, sink * LOG2_E)
        factor = power(self.maximum - top)
        own = power(math.fma(sink, number(LOG2_E), arith.negf(top)))
        total = math.fma(self.total, factor, own)
        none = arith.cmpf(arith.CmpFPredicate.OLT, total, number(SMALLEST))
        total = arith.select(none, number(SMALLEST), total)
        found = [scaled(each, factor, careful=True) for each in self.values]
        # Adding zero turns -0 into +0, as any addition of a further piece would.
        return [each / in_all(total, each) + zero(lanes_of(each)) for each in found]


def scaled(values: ir.Value, factor: ir.Value, *, careful: bool) -> ir.Value:
    """Return a vector times `factor`. `careful`: a factor of zero gives zero for all elements, also
    for those that are infinite or NaN."""
    values = _unless_zero(factor, values) if careful else values
    return values * in_all(factor, values)


def _unless_zero(factor: ir.Value, values: ir.Value) -> ir.Value:
    """Return the values, or zeros if `factor` is zero."""
    none = arith.cmpf(arith.CmpFPredicate.OEQ, factor, number(0.0))
    return arith.select(none, zero(lanes_of(values)), values)
