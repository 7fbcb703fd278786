"""Conversions of 16-bit floats in kernels that compute with f32; maximum and minimum.

All functions take scalars and vectors. An operation in bf16 or f16 equals the operation in f32
followed by a rounding, because f32 has more than twice their digits.
"""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.generic import constant

#: For rounding an f32 to its upper half, a bf16: just less than half of the last bit of the bf16,
#: to which that bit is added (ties to even); the quiet bit of a NaN; bits of the lower half.
_HALF, _QUIET, _SHIFT = 0x7FFF, 0x400000, 16


def widened(value: ir.Value) -> ir.Value:
    """bf16 or f16 extended to f32; other values unchanged."""
    kind = _element(value)
    if not isinstance(kind, (ir.BF16Type, ir.F16Type)):
        return value
    return arith.extf(_like(value, ir.F32Type.get()), value)


def rounded(value: ir.Value, kind: ir.Type) -> ir.Value:
    """f32 rounded to the values of bf16 or f16, still as f32; unchanged for other types."""
    if isinstance(kind, ir.BF16Type):
        bits = _rounded_bits(value) & _number(value, -1 << _SHIFT)
        return arith.bitcast(value.type, bits)
    if isinstance(kind, ir.F16Type):
        return widened(arith.truncf(_like(value, kind), value))
    return value


def narrowed(value: ir.Value, kind: ir.Type) -> ir.Value:
    """f32 converted to a 16-bit float, rounded to nearest, ties to even; unchanged for f32.

    bf16 is rounded by integer operations, because conversion instructions flush subnormal numbers.
    """
    if not isinstance(kind, ir.BF16Type):
        return arith.truncf(_like(value, kind), value) if _element(value) != kind else value
    half = ir.IntegerType.get_signless(_SHIFT)
    high = _rounded_bits(value) >> _number(value, _SHIFT)
    return arith.bitcast(_like(value, kind), arith.trunci(_like(value, half), high))


def extreme(a: ir.Value, b: ir.Value, *, largest: bool) -> ir.Value:
    """arith.maximumf or arith.minimumf: NaN where an operand is NaN, and -0.0 below 0.0.

    It is expanded, because v_max_f32 and vmaxps do not propagate NaN from both operands.
    """
    predicate = arith.CmpFPredicate.OGT if largest else arith.CmpFPredicate.OLT
    found = arith.select(arith.cmpf(predicate, a, b), a, b)
    i32 = _like(a, ir.IntegerType.get_signless(32))
    pair = [arith.bitcast(i32, each) for each in (a, b)]
    zeros = arith.andi(*pair) if largest else arith.ori(*pair)
    same = arith.cmpf(arith.CmpFPredicate.OEQ, a, b)
    found = arith.select(same, arith.bitcast(a.type, zeros), found)
    either = arith.cmpf(arith.CmpFPredicate.UNO, a, b)
    return arith.select(either, a + b, found)


def _rounded_bits(value: ir.Value) -> ir.Value:
    """The bits of an f32, adjusted so that their upper half is the nearest bf16."""
    bits = arith.bitcast(_like(value, ir.IntegerType.get_signless(32)), value)
    odd = bits >> _number(value, _SHIFT) & _number(value, 1)
    near = bits + (odd + _number(value, _HALF))
    is_nan = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    return arith.select(is_nan, bits | _number(value, _QUIET), near)


def _number(like: ir.Value, number: int) -> ir.Value:
    return constant(number, _like(like, ir.IntegerType.get_signless(32)))


def _element(value: ir.Value) -> ir.Type:
    kind = value.type
    return kind.element_type if isinstance(kind, ir.VectorType) else kind


def _like(value: ir.Value, element: ir.Type) -> ir.Type:
    """`element`, or a vector of it with the shape of `value`."""
    if isinstance(value.type, ir.VectorType):
        return ir.VectorType.get(value.type.shape, element)
    return element
