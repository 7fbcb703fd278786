"""mxc-round-to-elements: round to elements of 4 to 8 bits where the code generator does it wrong.

On CPUs IREE computes `arith.truncf` to elements of 4 and 8 bits in integers, and loses a carry: a
value between the largest subnormal number and the smallest normal one, nearer to the latter,
becomes zero (for f8E4M3FN, 0.0151 instead of 0.015625). This pass replaces such a value by the
smallest normal number before the truncation. `arith.scaling_truncf` is written as the truncation of
a quotient, and fixed the same way. The scale 2^-127, a subnormal number that IREE reads as zero, is
replaced by 2^-126, and the number that it divides is doubled. f16 is extended to f32 first, because
IREE cannot truncate it.

before:
    %e = arith.truncf %x : f32 to f8E4M3FN
after:
    %m = math.absf %x
    %n = math.copysign (2^-6), %x
    %b = (%m >= 2^-6 - 2^-10) and (%m < 2^-6)
    %s = arith.select %b, %n, %x
    %e = arith.truncf %s : f32 to f8E4M3FN

With `gpu` it is about f4E2M1FN alone, which IREE also truncates to in integers on GPUs: numbers
between -0.5 and 0 lose their sign, and ties of f16 and bf16 are not rounded to even. The code is
the number of bounds between elements that the magnitude has passed. `arith.scaling_truncf` is
rewritten where no instruction computes it (not `scales`).

before:
    %e = arith.truncf %x : f32 to f4E2M1FN
after:
    %m = math.absf %x
    %c = (%m > 0.25) + (%m >= 0.75) + (%m > 1.25) + .. + (%m > 5.0)
    %s = arith.select (%x is negative), %c + 8, %c : i4
    %e = arith.bitcast %s : i4 to f4E2M1FN

Leaves alone: kernels of mxc, which do their own rounding; scales, which have no subnormal numbers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.dialects.dispatches import walk_outside_kernels
from mxc.dialects.generic import constant
from mxc.dialects.quantize_scalars import quotient
from mxc.formats.formats import E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ
from mxc.passes.base import Pass
from mxc.passes.rewriting.worklist import Worklist, erase

_SCALED = "arith.scaling_truncf"
_TRUNCATIONS = ("arith.truncf", _SCALED)
#: The smallest normal number, and the smallest number, of each element.
_ELEMENTS = {
    each.mlir: (each.min_normal, each.min_positive)
    for each in (E2M1, E2M3, E3M2, E4M3, E5M2, E4M3FNUZ, E5M2FNUZ)
} | {
    # Types of programs that no block format has.
    "f8E4M3": (2.0**-6, 2.0**-9),
    "f8E3M4": (2.0**-2, 2.0**-6),
    "f8E4M3B11FNUZ": (2.0**-10, 2.0**-13),
}


@dataclass(frozen=True)
class RoundToElements(Pass):
    """Truncate floats to elements with the carry that IREE's code generator for CPUs loses.

    `gpu`: truncate to f4E2M1FN by comparisons instead, for GPUs. `scales`: whether the GPU has an
    instruction that divides by scales, so that these truncations stay.
    """

    name = "mxc-round-to-elements"
    gpu: bool = False
    scales: bool = False

    def run(self, module: ir.Operation) -> None:
        """Rewrite every truncation of a scalar outside of kernels."""
        found = [
            op
            for op in walk_outside_kernels(module)
            if op.name in _TRUNCATIONS and self._rounds(op)
        ]
        for op in Worklist(found):
            kind = op.results[0].type
            with ir.InsertionPoint(op), op.location:
                value = _quotient(*op.operands)
                if self.gpu:
                    found = arith.bitcast(kind, _code(value))
                else:
                    found = arith.truncf(kind, _carried(value, *_ELEMENTS[str(kind)]))
                op.results[0].replace_all_uses_with(found)
            erase(op)

    def _rounds(self, op: ir.Operation) -> bool:
        """Whether a truncation is rewritten."""
        kind = str(op.results[0].type)
        if not self.gpu:
            return kind in _ELEMENTS
        return kind == E2M1.mlir and not (self.scales and op.name == _SCALED)


def _quotient(value: ir.Value, scale: ir.Value | None = None) -> ir.Value:
    """A scalar, divided by its scale if given; extended to f32 if it is f16 or divided."""
    f32 = ir.F32Type.get()
    if value.type != f32 and (scale is not None or isinstance(value.type, ir.F16Type)):
        value = arith.extf(f32, value)
    return value if scale is None else quotient(value, scale)


def _code(value: ir.Value) -> ir.Value:
    """Build the bits of the f4E2M1FN nearest to a scalar, ties to even, as an i4."""
    i4 = ir.IntegerType.get_signless(4)
    value = value if value.type == ir.F32Type.get() else arith.extf(ir.F32Type.get(), value)
    size, codes = math.absf(value), E2M1.values[: 1 << 3]
    code = constant(0, i4)
    for number, (below, above) in enumerate(itertools.pairwise(codes)):
        # A tie goes to the even code: up if `number`, the lower code, is odd.
        tie = arith.CmpFPredicate.OGE if number % 2 else arith.CmpFPredicate.OGT
        passed = arith.cmpf(tie, size, constant(float(below + above) / 2, value.type))
        code = code + arith.extui(i4, passed)
    bits = arith.bitcast(ir.IntegerType.get_signless(32), value)
    negative = arith.cmpi(arith.CmpIPredicate.slt, bits, constant(0, bits.type))
    return arith.select(negative, code + constant(8, i4), code)


def _carried(value: ir.Value, least: float, step: float) -> ir.Value:
    """Build `value`; where its magnitude is below the smallest normal number `least` but rounds to
    it, `least` with the sign of `value`. `step`: the distance of subnormal numbers."""
    from_, to = (constant(number, value.type) for number in (least - step / 2, least))
    size = math.absf(value)
    reaches = arith.cmpf(arith.CmpFPredicate.OGE, size, from_)
    below = arith.cmpf(arith.CmpFPredicate.OLT, size, to)
    return arith.select(reaches & below, math.copysign(to, value), value)
