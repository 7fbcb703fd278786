"""mxc-decode-nan: decode both codes of NaN of f8E4M3FN where the code generator knows only one.

f8E4M3FN has NaN as 0x7F and as 0xFF. On CPUs IREE decodes the latter as -480, a number that the
type does not have. This pass gives conversions the other code in its place.

before:
    %y = arith.extf %e : f8E4M3FN to f32
after:
    %b = arith.bitcast %e : f8E4M3FN to i8
    %n = arith.cmpi eq, %b, 0xFF : i8
    %s = arith.select %n, 0x7F, %b : i8
    %c = arith.bitcast %s : i8 to f8E4M3FN
    %y = arith.extf %c : f8E4M3FN to f32

The element of `arith.scaling_extf` is treated in the same way.

Leaves alone: kernels of mxc, which decode both codes; all other types.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.dispatches import walk_outside_kernels
from mxc.dialects.generic import constant
from mxc.formats.formats import E4M3
from mxc.passes.base import Pass
from mxc.passes.rewriting.worklist import Worklist

_CONVERSIONS = ("arith.extf", "arith.scaling_extf")


@dataclass(frozen=True)
class DecodeNan(Pass):
    """Decode both codes of NaN of f8E4M3FN."""

    name = "mxc-decode-nan"

    def run(self, module: ir.Operation) -> None:
        """Rewrite the element of every conversion of a scalar outside of kernels."""
        found = [
            op
            for op in walk_outside_kernels(module)
            if op.name in _CONVERSIONS and str(op.operands[0].type) == E4M3.mlir
        ]
        for op in Worklist(found):
            with ir.InsertionPoint(op), op.location:
                op.operands[0] = _positive(op.operands[0])


def _positive(element: ir.Value) -> ir.Value:
    """The element; the NaN without a sign in place of that with one."""
    byte = ir.IntegerType.get_signless(8)
    code = arith.bitcast(byte, element)
    other, nan = (constant(number, byte) for number in (-1, E4M3.magnitude_mask))
    negative = arith.cmpi(arith.CmpIPredicate.eq, code, other)
    return arith.bitcast(element.type, arith.select(negative, nan, code))
