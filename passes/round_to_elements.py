"""mxc-round-to-elements: fix rounding to the smallest normal number of 4-bit to 8-bit elements.

On CPUs IREE computes `arith.truncf` to elements of 4 and 8 bits in integers, and loses a carry: a
value between the largest subnormal number and the smallest normal one, nearer to the latter,
becomes zero (for f8E4M3FN, 0.0151 instead of 0.015625). This pass replaces such a value by the
smallest normal number before the truncation. `arith.scaling_truncf` is written as the truncation of
a quotient, and fixed the same way. f16 is extended to f32 first, because IREE cannot truncate it.

before:
    %e = arith.truncf %x : f32 to f8E4M3FN
after:
    %m = math.absf %x
    %n = math.copysign (2^-6), %x
    %b = (%m >= 2^-6 - 2^-10) and (%m < 2^-6)
    %s = arith.select %b, %n, %x
    %e = arith.truncf %s : f32 to f8E4M3FN

Leaves alone: kernels of mxc, which do their own rounding; scales, which have no subnormal numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.dialects.dispatches import walk_outside_kernels
from mxc.dialects.generic import constant
from mxc.formats.formats import E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, ElementFormat
from mxc.passes.base import Pass
from mxc.passes.rewriting.worklist import Worklist, erase

_TRUNCATIONS = ("arith.truncf", "arith.scaling_truncf")
_ELEMENTS = {each.mlir: each for each in (E2M1, E2M3, E3M2, E4M3, E5M2, E4M3FNUZ, E5M2FNUZ)}


@dataclass(frozen=True)
class RoundToElements(Pass):
    """Truncate floats to elements with the carry that the code generator for CPUs loses."""

    name = "mxc-round-to-elements"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every truncation of a scalar outside of kernels."""
        found = [
            op
            for op in walk_outside_kernels(module)
            if op.name in _TRUNCATIONS and str(op.results[0].type) in _ELEMENTS
        ]
        for op in Worklist(found):
            kind = op.results[0].type
            with ir.InsertionPoint(op), op.location:
                value = _quotient(*op.operands)
                value = _carried(value, _ELEMENTS[str(kind)])
                op.results[0].replace_all_uses_with(arith.truncf(kind, value))
            erase(op)


def _quotient(value: ir.Value, scale: ir.Value | None = None) -> ir.Value:
    """A scalar, divided by its scale if given; extended to f32 if it is f16 or divided."""
    f32 = ir.F32Type.get()
    if value.type != f32 and (scale is not None or isinstance(value.type, ir.F16Type)):
        value = arith.extf(f32, value)
    return value if scale is None else value / arith.extf(f32, scale)


def _carried(value: ir.Value, element: ElementFormat) -> ir.Value:
    """A scalar; the smallest normal number in place of a smaller scalar that rounds to it."""
    least = element.min_normal
    from_, to = (
        constant(number, value.type) for number in (least - element.min_positive / 2, least)
    )
    size = math.absf(value)
    reaches = arith.cmpf(arith.CmpFPredicate.OGE, size, from_)
    below = arith.cmpf(arith.CmpFPredicate.OLT, size, to)
    return arith.select(reaches & below, math.copysign(to, value), value)
