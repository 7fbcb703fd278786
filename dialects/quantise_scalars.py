"""The arithmetic of a quantised block on scalars, or on what MLIR lets stand for them.

Integers and additions alone: `arith.scaling_truncf` rounds wrongly on CPUs, and IREE's workers read
subnormal numbers as zero. So what is computed is, bit for bit, what recipes.py and rounding.py say,
subnormal inputs included. A float is given as its bits, i32.
"""

from __future__ import annotations

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.formats import E8M0, ElementFormat
from mxc.dialects.generic import constant
from mxc.dialects.recipes import MANTISSA, NAN_BYTE, ScaleRecipe, addend

#: Bits of float32: Inf, all but the sign, a NaN.
INFINITY = 0xFF << MANTISSA
MAGNITUDE = 0x7FFFFFFF
NAN = INFINITY | 1 << (MANTISSA - 1)
_BIAS = 127


def scale_byte(amax: ir.Value, element: ElementFormat, recipe: ScaleRecipe) -> ir.Value:
    """recipes.scale_bytes of the bits of one magnitude, i32, at the insertion point: i32."""
    ordered = amax
    if not element.emax:
        # Of the other elements, a subnormal amax has the byte 0 either way.
        twice = arith.subi(arith.addi(amax, amax), i32(1 << MANTISSA))
        ordered = arith.select(below(amax, 1 << MANTISSA), twice, amax)
    # Zeros are left out, as a compiler would: what is built is recognised by its form later.
    added = addend(element, recipe)
    raised = arith.addi(ordered, i32(added)) if added else ordered
    byte = arith.shrsi(raised, i32(MANTISSA))
    byte = arith.subi(byte, i32(element.emax)) if element.emax else byte
    byte = arith.minsi(arith.maxsi(byte, i32(0)), i32(E8M0.max_code))
    if recipe is ScaleRecipe.RCEIL:
        byte = arith.select(below(amax, INFINITY), byte, i32(E8M0.max_code))
    return arith.select(above(amax, INFINITY), i32(NAN_BYTE), byte)


def element_code(bits: ir.Value, byte: ir.Value, element: ElementFormat) -> ir.Value:
    """rounding.encode of a float32 (its bits) over the scale `byte`: i32, as both are."""
    magnitude = arith.andi(bits, i32(MAGNITUDE))
    # The bits of a subnormal as if exponents below 1 were ordinary ones: bits(m) of m * 2^-149. No
    # element is smaller than 2^-22 of it, so that zero may be any number far below.
    small = arith.sitofp(ir.F32Type.get(), magnitude)
    small = arith.maxsi(arith.subi(as_bits(small), i32(149 << MANTISSA)), i32(-(23 << MANTISSA)))
    wide = arith.select(below(magnitude, 1 << MANTISSA), small, magnitude)
    # Divided by the scale in the exponent. Below 1 << MANTISSA it rounds to zero everywhere.
    shift = arith.shli(arith.subi(i32(_BIAS), byte), i32(MANTISSA))
    scaled = arith.maxsi(arith.addi(wide, shift), i32(0))
    scaled = arith.select(below(magnitude, INFINITY), scaled, i32(INFINITY))
    code = arith.minsi(_nearest(scaled, element), i32(element.max_code))
    if element.exponent:
        sign = arith.shrui(bits, i32(32 - element.bits))
        code = arith.ori(code, arith.andi(sign, i32(element.sign_bit)))
    else:
        code = signed(code, bits)
    return arith.select(below(byte, NAN_BYTE), code, i32(0))


def _nearest(magnitude: ir.Value, element: ElementFormat) -> ir.Value:
    """The code nearest to a float32 >= 0 (its bits), ties to even; beyond the largest, above it."""
    least = steps(magnitude, element.min_positive)
    if not element.exponent:
        return least
    dropped = MANTISSA - element.mantissa
    odd = arith.andi(arith.shrui(magnitude, i32(dropped)), i32(1))
    raised = arith.addi(arith.addi(magnitude, i32((1 << dropped - 1) - 1)), odd)
    rebias = (_BIAS - element.bias) << element.mantissa
    normal = arith.subi(arith.shrui(raised, i32(dropped)), i32(rebias))
    return arith.select(below(magnitude, bits_of(element.min_normal)), least, normal)


def steps(magnitude: ir.Value, step: float) -> ir.Value:
    """A float32 >= 0 (its bits) in multiples of a power of two, to nearest, ties to even: i32."""
    # A sum whose last place is the step: the addition rounds.
    magic = step * (1 << MANTISSA)
    rounded = arith.addf(as_float(magnitude), constant(magic, ir.F32Type.get()))
    return arith.subi(as_bits(rounded), i32(bits_of(magic)))


def signed(magnitude: ir.Value, bits: ir.Value) -> ir.Value:
    """An i32 with the sign of the float32 whose bits these are."""
    return arith.select(below(bits, 0), arith.subi(i32(0), magnitude), magnitude)


def bits_of(value: float) -> int:
    """The bits of a float32 constant."""
    return int(np.float32(value).view(np.int32))


def i32(value: int) -> ir.Value:
    """A constant of type i32."""
    return constant(value, ir.IntegerType.get_signless(32))


def as_float(bits: ir.Value) -> ir.Value:
    """The f32 of these bits."""
    return arith.bitcast(ir.F32Type.get(), bits)


def as_bits(value: ir.Value) -> ir.Value:
    """The bits of an f32."""
    return arith.bitcast(ir.IntegerType.get_signless(32), value)


def above(left: ir.Value, right: int) -> ir.Value:
    """Whether an i32 is greater than a constant."""
    return arith.cmpi(arith.CmpIPredicate.sgt, left, i32(right))


def below(left: ir.Value, right: int) -> ir.Value:
    """Whether an i32 is less than a constant."""
    return arith.cmpi(arith.CmpIPredicate.slt, left, i32(right))
