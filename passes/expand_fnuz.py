"""mxc-expand-fnuz: write conversions from and to 8-bit FNUZ floats as integer arithmetic.

On GPUs, IREE can convert f8E4M3FNUZ and f8E5M2FNUZ only for gfx942, where a number beyond the
largest saturates or becomes NaN depending on a mode of the machine. The expansion computes the same
as LLVM's APFloat and ml_dtypes: to nearest, ties to even, NaN for NaN and for numbers beyond the
largest, and no negative zero.

before:
    %e = arith.truncf %x : f32 to f8E4M3FNUZ
    %y = arith.extf %e : f8E4M3FNUZ to f32
after:
    %b = arith.bitcast %x : f32 to i32
    ..                                             shifts, one addition of floats, comparisons
    %e = arith.bitcast %code : i8 to f8E4M3FNUZ
    %c = arith.bitcast %e : f8E4M3FNUZ to i8
    ..
    %y = arith.bitcast %bits : i32 to f32

With a scale (`arith.scaling_truncf`, `arith.scaling_extf`), the conversion is of the quotient, or
gives the product, in f32.

Leaves alone: kernels of mxc, and all other elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.dispatches import walk_outside_kernels
from mxc.dialects.generic import to_f32
from mxc.dialects.quantize_scalars import as_bits, cast_code, cast_value, quotient
from mxc.formats.formats import E4M3FNUZ, E5M2FNUZ
from mxc.passes.base import Pass
from mxc.passes.rewriting.worklist import Worklist, erase

_ELEMENTS = {each.mlir: each for each in (E4M3FNUZ, E5M2FNUZ)}
_TO = ("arith.truncf", "arith.scaling_truncf")
_FROM = ("arith.extf", "arith.scaling_extf")


@dataclass(frozen=True)
class ExpandFnuz(Pass):
    """Convert scalars from and to FNUZ elements by integer arithmetic."""

    name = "mxc-expand-fnuz"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every conversion of a scalar outside of kernels."""
        found = [
            op
            for op in walk_outside_kernels(module)
            if (op.name in _TO and str(op.results[0].type) in _ELEMENTS)
            or (op.name in _FROM and str(op.operands[0].type) in _ELEMENTS)
        ]
        for op in Worklist(found):
            with ir.InsertionPoint(op), op.location:
                made = _narrowed(op) if op.name in _TO else _widened(op)
                op.results[0].replace_all_uses_with(made)
            erase(op)


def _narrowed(op: ir.Operation) -> ir.Value:
    """Build the element to which `op` rounds a float, after division by a scale if it has one."""
    value, *scale = op.operands
    value = to_f32(value)
    if scale:
        value = quotient(value, scale[0])
    kind = op.results[0].type
    code = cast_code(as_bits(value), _ELEMENTS[str(kind)])
    return arith.bitcast(kind, arith.trunci(ir.IntegerType.get_signless(8), code))


def _widened(op: ir.Operation) -> ir.Value:
    """Build the float to which `op` converts an element, times its scale if it has one."""
    element, *scale = op.operands
    code = arith.bitcast(ir.IntegerType.get_signless(8), element)
    code = arith.extui(ir.IntegerType.get_signless(32), code)
    value = cast_value(code, _ELEMENTS[str(element.type)])
    if scale:
        value = value * to_f32(scale[0])
    kind = op.results[0].type
    return value if kind == value.type else arith.truncf(kind, value)
