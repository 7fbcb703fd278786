"""The arithmetic of a quantized block on scalars, or on vectors of them.

Integers and additions alone: `arith.scaling_truncf` rounds wrongly on CPUs, and IREE's workers read
subnormal numbers as zero. So what is computed is, bit for bit, what recipes.py and rounding.py say,
subnormal inputs included. A float is given as its bits, i32.
"""

from __future__ import annotations

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.generic import constant
from mxc.formats.formats import E8M0, BlockFormat, ElementFormat
from mxc.formats.nvfp4 import MIN_TENSOR_SCALE
from mxc.formats.recipes import MANTISSA, NAN_BYTE, ScaleRecipe, addend

#: Bits of float32: Inf, all but the sign, a NaN.
INFINITY = 0xFF << MANTISSA
MAGNITUDE = 0x7FFFFFFF
NAN = INFINITY | 1 << (MANTISSA - 1)
_BIAS = 127

#: The largest int8 element; -128 is not used.
INT8_MAX = 127

#: The smallest scale of int8. A subnormal number is less than half of it, and rounds to zero where
#: targets read it as one and where they do not.
INT8_LEAST_SCALE = 2.0**-125
_LEAST_INT8 = int(np.float32(INT8_MAX * INT8_LEAST_SCALE).view(np.int32))


def scale_byte(amax: ir.Value, element: ElementFormat, recipe: ScaleRecipe) -> ir.Value:
    """recipes.scale_bytes of the bits of one magnitude, i32, at the insertion point: i32."""
    ordered = amax
    if not element.emax:
        # Of the other elements, a subnormal amax has the byte 0 either way.
        twice = arith.subi(arith.addi(amax, amax), like(amax, 1 << MANTISSA))
        ordered = arith.select(below(amax, 1 << MANTISSA), twice, amax)
    # Zeros are left out, as a compiler would: what is built is recognised by its form later.
    added = addend(element, recipe)
    raised = arith.addi(ordered, like(amax, added)) if added else ordered
    byte = arith.shrsi(raised, like(amax, MANTISSA))
    byte = arith.subi(byte, like(amax, element.emax)) if element.emax else byte
    byte = arith.minsi(arith.maxsi(byte, like(amax, 0)), like(amax, E8M0.max_code))
    if recipe is ScaleRecipe.RCEIL:
        byte = arith.select(below(amax, INFINITY), byte, like(amax, E8M0.max_code))
    return arith.select(above(amax, INFINITY), like(amax, NAN_BYTE), byte)


def element_code(bits: ir.Value, byte: ir.Value | None, element: ElementFormat) -> ir.Value:
    """rounding.encode of a float32 (its bits), over the scale `byte` if there is one: i32."""
    magnitude = arith.andi(bits, like(bits, MAGNITUDE))
    # The bits of a subnormal as if exponents below 1 were ordinary ones: bits(m) of m * 2^-149. No
    # element is smaller than 2^-22 of it, so that zero may be any number far below.
    small = as_bits(arith.sitofp(shaped_as(ir.F32Type.get(), bits), magnitude))
    small = arith.subi(small, like(bits, 149 << MANTISSA))
    small = arith.maxsi(small, like(bits, -(23 << MANTISSA)))
    wide = arith.select(below(magnitude, 1 << MANTISSA), small, magnitude)
    # Divided by the scale in the exponent. Below 1 << MANTISSA it rounds to zero everywhere.
    if byte is not None:
        shift = arith.shli(arith.subi(like(bits, _BIAS), byte), like(bits, MANTISSA))
        wide = arith.addi(wide, shift)
    scaled = arith.maxsi(wide, like(bits, 0))
    scaled = arith.select(below(magnitude, INFINITY), scaled, like(bits, INFINITY))
    code = arith.minsi(_nearest(scaled, element), like(bits, element.max_code))
    if element.exponent:
        sign = arith.shrui(bits, like(bits, 32 - element.bits))
        code = arith.ori(code, arith.andi(sign, like(bits, element.sign_bit)))
    else:
        code = signed(code, bits)
    if byte is None:
        return code
    return arith.select(below(byte, NAN_BYTE), code, like(bits, 0))


def _nearest(magnitude: ir.Value, element: ElementFormat) -> ir.Value:
    """The code nearest to a float32 >= 0 (its bits), ties to even; beyond the largest, above it."""
    least = steps(magnitude, element.min_positive)
    if not element.exponent:
        return least
    dropped = MANTISSA - element.mantissa
    odd = arith.andi(arith.shrui(magnitude, like(magnitude, dropped)), like(magnitude, 1))
    raised = arith.addi(arith.addi(magnitude, like(magnitude, (1 << dropped - 1) - 1)), odd)
    rebias = (_BIAS - element.bias) << element.mantissa
    normal = arith.subi(arith.shrui(raised, like(magnitude, dropped)), like(magnitude, rebias))
    return arith.select(below(magnitude, bits_of(element.min_normal)), least, normal)


def cast_code(bits: ir.Value, element: ElementFormat) -> ir.Value:
    """The code, i32, of a float32 (its bits) in an element of FNUZ kind, as casts have it.

    To nearest, ties to even; NaN and what is beyond the largest are NaN, and no zero is negative.
    """
    magnitude = arith.minsi(arith.andi(bits, like(bits, MAGNITUDE)), like(bits, INFINITY))
    # A subnormal float32 rounds to zero, whether it is read as one or not.
    code = _nearest(magnitude, element)
    sign = arith.andi(
        arith.shrui(bits, like(bits, 32 - element.bits)), like(bits, element.sign_bit)
    )
    nothing = arith.cmpi(arith.CmpIPredicate.eq, code, like(bits, 0))
    number = arith.select(nothing, code, arith.ori(code, sign))
    (nan,) = element.nan_codes
    return arith.select(above(code, element.max_code), like(bits, nan), number)


def cast_value(code: ir.Value, element: ElementFormat) -> ir.Value:
    """The float32 of a code, i32, of an element of FNUZ kind."""
    magnitude = arith.andi(code, like(code, element.magnitude_mask))
    places = MANTISSA - element.mantissa
    normal = arith.shli(magnitude, like(code, places))
    normal = arith.addi(normal, like(code, (_BIAS - element.bias) << MANTISSA))
    small = arith.sitofp(shaped_as(ir.F32Type.get(), code), magnitude)
    small = as_bits(arith.mulf(small, like(small, element.min_positive)))
    size = arith.select(below(magnitude, 1 << element.mantissa), small, normal)
    sign = arith.shli(arith.andi(code, like(code, element.sign_bit)), like(code, 32 - element.bits))
    (nan,) = element.nan_codes
    special = arith.cmpi(arith.CmpIPredicate.eq, code, like(code, nan))
    return as_float(arith.select(special, like(code, NAN), arith.ori(size, sign)))


def steps(magnitude: ir.Value, step: float) -> ir.Value:
    """A float32 >= 0 (its bits) in multiples of a power of two, to nearest, ties to even: i32."""
    # A sum whose last place is the step: the addition rounds.
    magic = step * (1 << MANTISSA)
    value = as_float(magnitude)
    rounded = arith.addf(value, like(value, magic))
    return arith.subi(as_bits(rounded), like(magnitude, bits_of(magic)))


def signed(magnitude: ir.Value, bits: ir.Value) -> ir.Value:
    """An i32 with the sign of the float32 whose bits these are."""
    return arith.select(below(bits, 0), arith.subi(like(magnitude, 0), magnitude), magnitude)


def int8_scale(amax: ir.Value) -> ir.Value:
    """The scale f32 of a block of int8, of the bits of its largest magnitude."""
    largest = as_float(amax)
    scale = arith.divf(largest, like(largest, INT8_MAX))
    scale = arith.select(below(amax, _LEAST_INT8), like(scale, 0.0), scale)
    return arith.select(below(amax, INFINITY), scale, like(scale, np.nan))


def int8_element(value: ir.Value, scale: ir.Value) -> ir.Value:
    """The int8 of an f32 under the scale f32 of its block, as i32."""
    zero = like(value, 0.0)
    quotient = arith.mulf(value, arith.divf(like(value, 1.0), scale))
    # False for a NaN too.
    ordinary = arith.cmpf(arith.CmpFPredicate.OGT, scale, zero)
    bits = as_bits(arith.select(ordinary, quotient, zero))
    # As integers, so that no compiler makes one fused operation of the product and the sum in
    # `steps`: a product that is rounded first may be a tie that it was not.
    magnitude = arith.andi(bits, like(bits, MAGNITUDE))
    magnitude = arith.minsi(magnitude, like(bits, bits_of(INT8_MAX)))
    # Once more: else a compiler would take the subtraction in `steps` and the sign's for one, and
    # what is built would not be recognised by its form.
    return signed(arith.minsi(steps(magnitude, 1.0), like(bits, INT8_MAX)), bits)


def row_scale(amax: ir.Value, format: BlockFormat) -> ir.Value:
    """The scale f32 of a row of a format with two levels of scales, of the bits of its amax.

    nvfp4.tensor_scale of the row; NaN where the row has an Inf or a NaN.
    """
    largest = float(format.scale.max * format.element.max)
    least = like(amax, bits_of(MIN_TENSOR_SCALE))
    peak = as_float(amax)
    scale = as_bits(arith.divf(peak, like(peak, largest)))
    # Numbers above zero have the order of their bits.
    scale = as_float(arith.maxsi(scale, least))
    return arith.select(below(amax, INFINITY), scale, like(scale, np.nan))


def block_scale(amax: ir.Value, whole: ir.Value, format: BlockFormat) -> ir.Value:
    """The code of the scale of a block, of the bits of its amax and the f32 of its row: i32."""
    peak = as_float(amax)
    wanted = as_bits(arith.divf(arith.divf(peak, like(peak, format.element.max)), whole))
    least, largest = (bits_of(float(n)) for n in (format.scale.min_normal, format.scale.max))
    wanted = arith.maxsi(arith.minsi(wanted, like(amax, largest)), like(amax, least))
    return element_code(wanted, None, format.scale)


def bits_of(value: float) -> int:
    """The bits of a float32 constant."""
    return int(np.float32(value).view(np.int32))


def i32(value: int) -> ir.Value:
    """A constant of type i32."""
    return constant(value, ir.IntegerType.get_signless(32))


def like(sample: ir.Value, value: float) -> ir.Value:
    """A constant of the type of `sample`, a scalar or a vector, whose every element it is."""
    return constant(value, sample.type)


def as_float(bits: ir.Value) -> ir.Value:
    """The f32 of these bits."""
    return arith.bitcast(shaped_as(ir.F32Type.get(), bits), bits)


def as_bits(value: ir.Value) -> ir.Value:
    """The bits of an f32."""
    return arith.bitcast(shaped_as(ir.IntegerType.get_signless(32), value), value)


def above(left: ir.Value, right: int) -> ir.Value:
    """Whether an i32 is greater than a constant."""
    return arith.cmpi(arith.CmpIPredicate.sgt, left, like(left, right))


def below(left: ir.Value, right: int) -> ir.Value:
    """Whether an i32 is less than a constant."""
    return arith.cmpi(arith.CmpIPredicate.slt, left, like(left, right))


def shaped_as(element: ir.Type, sample: ir.Value) -> ir.Type:
    """`element`, or a vector of as many as `sample` has."""
    if not isinstance(sample.type, ir.VectorType):
        return element
    return ir.VectorType.get(ir.VectorType(sample.type).shape, element)
