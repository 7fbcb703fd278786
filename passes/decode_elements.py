"""mxc-decode-elements: decode elements in the steps that the code generator for CPUs can take.

On CPUs IREE decodes 8-bit and 4-bit floats to f32 and bf16 and not to f16. This pass decodes to f32
and rounds to f16, which changes no element without a scale.

f8E4M3FN has NaN as 0x7F and as 0xFF. On CPUs IREE decodes the latter as -480, a number that the
type does not have. This pass gives conversions the other code in its place.

before:
    %y = arith.extf %e : f8E4M3FN to f16
after:
    %b = arith.bitcast %e : f8E4M3FN to i8
    %n = arith.cmpi eq, %b, 0xFF : i8
    %s = arith.select %n, 0x7F, %b : i8
    %c = arith.bitcast %s : i8 to f8E4M3FN
    %w = arith.extf %c : f8E4M3FN to f32
    %y = arith.truncf %w : f32 to f16

The element of `arith.scaling_extf` is treated in the same way.

Leaves alone: kernels of mxc, which decode elements by themselves; all other types.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.dispatches import walk_outside_kernels
from mxc.dialects.generic import constant
from mxc.formats.formats import E2M1, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ
from mxc.passes.base import Pass
from mxc.passes.rewriting.worklist import Worklist, replace_op

_CONVERSIONS = ("arith.extf", "arith.scaling_extf")
_ELEMENTS = {each.mlir for each in (E2M1, E4M3, E4M3FNUZ, E5M2, E5M2FNUZ)}


@dataclass(frozen=True)
class DecodeElements(Pass):
    """Decode to f16 through f32, and both codes of NaN of f8E4M3FN."""

    name = "mxc-decode-elements"

    def run(self, module: ir.Operation) -> None:
        """Rewrite conversions of scalars outside of kernels."""
        found = [
            op
            for op in walk_outside_kernels(module)
            if op.name in _CONVERSIONS and str(op.operands[0].type) in _ELEMENTS
        ]
        for op in Worklist(found):
            with ir.InsertionPoint(op), op.location:
                if str(op.operands[0].type) == E4M3.mlir:
                    op.operands[0] = _positive(op.operands[0])
                if isinstance(op.results[0].type, ir.F16Type):
                    replace_op(op, [_through_f32(op)])


def _positive(element: ir.Value) -> ir.Value:
    """The element, with a positive NaN in place of a negative one."""
    byte = ir.IntegerType.get_signless(8)
    code = arith.bitcast(byte, element)
    other, nan = (constant(number, byte) for number in (-1, E4M3.magnitude_mask))
    negative = arith.cmpi(arith.CmpIPredicate.eq, code, other)
    return arith.bitcast(element.type, arith.select(negative, nan, code))


def _through_f32(op: ir.Operation) -> ir.Value:
    wide = ir.Operation.create(op.name, results=[ir.F32Type.get()], operands=list(op.operands))
    return arith.truncf(op.results[0].type, wide.result)
