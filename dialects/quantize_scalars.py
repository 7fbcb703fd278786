"""The arithmetic of a quantized block, on scalars or on vectors.

It uses integers and additions only: `arith.scaling_truncf` rounds wrongly on CPUs, and IREE's
workers flush subnormal numbers. The result is, bit for bit, what recipes.py and rounding.py
compute, including subnormal inputs. A float is passed as its bits, i32.
"""

from __future__ import annotations

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.generic import constant
from mxc.formats.formats import E8M0, BlockFormat, ElementFormat
from mxc.formats.nvfp4 import MIN_TENSOR_SCALE
from mxc.formats.recipes import MANTISSA, NAN_BYTE, ScaleRecipe, addend

#: Bits of float32: Inf, mask of all but the sign, a NaN.
INFINITY = 0xFF << MANTISSA
MAGNITUDE = 0x7FFFFFFF
NAN = INFINITY | 1 << (MANTISSA - 1)
_BIAS = 127

#: The largest int8 element; -128 is not used.
INT8_MAX = 127

#: The smallest scale of int8. A subnormal number is less than half of it, and so rounds to zero
#: whether or not a target flushes it.
INT8_LEAST_SCALE = 2.0**-125
_LEAST_INT8 = int(np.float32(INT8_MAX * INT8_LEAST_SCALE).view(np.int32))


def scale_byte(amax: ir.Value, element: ElementFormat, recipe: ScaleRecipe) -> ir.Value:
    """Emit recipes.scale_bytes for one magnitude, given as its bits, i32. Returns i32."""
    ordered = amax
    if not element.emax:
        # For the other elements, a subnormal amax has the byte 0 either way.
        twice = amax + amax - like(amax, 1 << MANTISSA)
        ordered = arith.select(below(amax, 1 << MANTISSA), twice, amax)
    # Additions of zero are left out, as a compiler would: quantizations.py matches the resulting
    # form.
    added = addend(element, recipe)
    raised = ordered + like(amax, added) if added else ordered
    byte = arith.shrsi(raised, like(amax, MANTISSA))
    byte = byte - like(amax, element.emax) if element.emax else byte
    byte = arith.minsi(arith.maxsi(byte, like(amax, 0)), like(amax, E8M0.max_code))
    if recipe is ScaleRecipe.RCEIL:
        byte = arith.select(below(amax, INFINITY), byte, like(amax, E8M0.max_code))
    return arith.select(above(amax, INFINITY), like(amax, NAN_BYTE), byte)


def element_code(bits: ir.Value, byte: ir.Value | None, element: ElementFormat) -> ir.Value:
    """Emit rounding.encode of a float32 (its bits), divided by the scale `byte` if given: i32."""
    magnitude = bits & like(bits, MAGNITUDE)
    # A subnormal m * 2^-149 as bits with exponents extended below 1: the bits of f32(m), minus 149
    # in the exponent. Zero is clamped to exponent -23: under the smallest scale, 2^-127, it becomes
    # 2^-23, which rounds to zero in every format.
    small = as_bits(arith.sitofp(shaped_as(ir.F32Type.get(), bits), magnitude))
    small = small - like(bits, 149 << MANTISSA)
    small = arith.maxsi(small, like(bits, -(23 << MANTISSA)))
    wide = arith.select(below(magnitude, 1 << MANTISSA), small, magnitude)
    # Divide by the scale in the exponent. A result below 1 << MANTISSA rounds to zero in every
    # format.
    if byte is not None:
        shift = like(bits, _BIAS) - byte << like(bits, MANTISSA)
        wide = wide + shift
    scaled = arith.maxsi(wide, like(bits, 0))
    scaled = arith.select(below(magnitude, INFINITY), scaled, like(bits, INFINITY))
    code = arith.minsi(_nearest(scaled, element), like(bits, element.max_code))
    if element.exponent:
        sign = bits >> like(bits, 32 - element.bits)
        code = code | sign & like(bits, element.sign_bit)
    else:
        code = signed(code, bits)
    if byte is None:
        return code
    return arith.select(below(byte, NAN_BYTE), code, like(bits, 0))


def _nearest(magnitude: ir.Value, element: ElementFormat) -> ir.Value:
    """Code nearest to a float32 >= 0 (its bits), ties to even; above max_code for larger values."""
    least = steps(magnitude, element.min_positive)
    if not element.exponent:
        return least
    dropped = MANTISSA - element.mantissa
    odd = magnitude >> like(magnitude, dropped) & like(magnitude, 1)
    raised = magnitude + like(magnitude, (1 << dropped - 1) - 1) + odd
    rebias = (_BIAS - element.bias) << element.mantissa
    normal = (raised >> like(magnitude, dropped)) - like(magnitude, rebias)
    return arith.select(below(magnitude, bits_of(element.min_normal)), least, normal)


def cast_code(bits: ir.Value, element: ElementFormat) -> ir.Value:
    """The code, i32, of a float32 (its bits) in a FNUZ element, as casts compute it.

    Rounds to nearest, ties to even. NaN, and values beyond the largest, become NaN. No zero is
    negative.
    """
    magnitude = arith.minsi(bits & like(bits, MAGNITUDE), like(bits, INFINITY))
    # A subnormal float32 rounds to zero, whether or not it is flushed.
    code = _nearest(magnitude, element)
    sign = bits >> like(bits, 32 - element.bits) & like(bits, element.sign_bit)
    nothing = arith.cmpi(arith.CmpIPredicate.eq, code, like(bits, 0))
    number = arith.select(nothing, code, code | sign)
    (nan,) = element.nan_codes
    return arith.select(above(code, element.max_code), like(bits, nan), number)


def cast_value(code: ir.Value, element: ElementFormat) -> ir.Value:
    """The float32 of a code, i32, of a FNUZ element."""
    magnitude = code & like(code, element.magnitude_mask)
    places = MANTISSA - element.mantissa
    normal = magnitude << like(code, places)
    normal = normal + like(code, (_BIAS - element.bias) << MANTISSA)
    small = arith.sitofp(shaped_as(ir.F32Type.get(), code), magnitude)
    small = as_bits(small * like(small, element.min_positive))
    size = arith.select(below(magnitude, 1 << element.mantissa), small, normal)
    sign = (code & like(code, element.sign_bit)) << like(code, 32 - element.bits)
    (nan,) = element.nan_codes
    special = arith.cmpi(arith.CmpIPredicate.eq, code, like(code, nan))
    return as_float(arith.select(special, like(code, NAN), size | sign))


def steps(magnitude: ir.Value, step: float) -> ir.Value:
    """A float32 >= 0 (its bits) divided by a power of two, to nearest, ties to even: i32."""
    # The sum has `step` as its last place, so that the addition rounds.
    magic = step * (1 << MANTISSA)
    value = as_float(magnitude)
    rounded = value + like(value, magic)
    return as_bits(rounded) - like(magnitude, bits_of(magic))


def signed(magnitude: ir.Value, bits: ir.Value) -> ir.Value:
    """An i32 with the sign of the float32 with these bits."""
    return arith.select(below(bits, 0), like(magnitude, 0) - magnitude, magnitude)


def int8_scale(amax: ir.Value) -> ir.Value:
    """The f32 scale of a block of int8, from the bits of its amax."""
    largest = as_float(amax)
    scale = largest / like(largest, INT8_MAX)
    scale = arith.select(below(amax, _LEAST_INT8), like(scale, 0.0), scale)
    return arith.select(below(amax, INFINITY), scale, like(scale, np.nan))


def int8_element(value: ir.Value, scale: ir.Value) -> ir.Value:
    """The int8 element of an f32 under the f32 scale of its block, as i32."""
    zero = like(value, 0.0)
    quotient = value * (like(value, 1.0) / scale)
    # False also for a NaN.
    ordinary = arith.cmpf(arith.CmpFPredicate.OGT, scale, zero)
    bits = as_bits(arith.select(ordinary, quotient, zero))
    # Clamped as integers, so that no compiler fuses the product with the addition in `steps`: the
    # product has to be rounded first, and may then be a tie.
    magnitude = bits & like(bits, MAGNITUDE)
    magnitude = arith.minsi(magnitude, like(bits, bits_of(INT8_MAX)))
    # Clamped again: otherwise a compiler would combine the subtraction in `steps` with the
    # negation, and quantizations.py would not match the form.
    return signed(arith.minsi(steps(magnitude, 1.0), like(bits, INT8_MAX)), bits)


def row_scale(amax: ir.Value, format: BlockFormat) -> ir.Value:
    """The f32 scale of a row of a format with two levels of scales, from the bits of its amax.

    Equals nvfp4.tensor_scale of the row; NaN where the row has an Inf or a NaN.
    """
    largest = float(format.scale.max * format.element.max)
    least = like(amax, bits_of(MIN_TENSOR_SCALE))
    peak = as_float(amax)
    scale = as_bits(peak / like(peak, largest))
    # Positive floats are ordered like their bits.
    scale = as_float(arith.maxsi(scale, least))
    return arith.select(below(amax, INFINITY), scale, like(scale, np.nan))


def block_scale(amax: ir.Value, whole: ir.Value, format: BlockFormat) -> ir.Value:
    """The code, i32, of the scale of a block, from the bits of its amax and its row's scale."""
    peak = as_float(amax)
    wanted = as_bits(peak / like(peak, format.element.max) / whole)
    least, largest = (bits_of(float(n)) for n in (format.scale.min_normal, format.scale.max))
    wanted = arith.maxsi(arith.minsi(wanted, like(amax, largest)), like(amax, least))
    return element_code(wanted, None, format.scale)


def quotient(value: ir.Value, scale: ir.Value) -> ir.Value:
    """An f32 divided by a scale of 8 or 16 bits, also where a target reads 2^-127, the least
    f8E8M0FNU, as zero."""
    f32 = ir.F32Type.get()
    if scale.type == f32:
        return value / scale
    divisor = arith.extf(f32, scale)
    if not isinstance(scale.type, ir.Float8E8M0FNUType):
        return value / divisor
    byte = arith.bitcast(ir.IntegerType.get_signless(8), scale)
    least = arith.cmpi(arith.CmpIPredicate.eq, byte, like(byte, 0))
    divisor = arith.select(least, like(value, 2.0**-126), divisor)
    return arith.select(least, value + value, value) / divisor


def bits_of(value: float) -> int:
    """The bits of a float32 constant."""
    return int(np.float32(value).view(np.int32))


def i32(value: int) -> ir.Value:
    """A constant of type i32."""
    return constant(value, ir.IntegerType.get_signless(32))


def like(sample: ir.Value, value: float) -> ir.Value:
    """Constant of the type of `sample`, a scalar or a vector, with this value in every element."""
    return constant(value, sample.type)


def as_float(bits: ir.Value) -> ir.Value:
    """Bitcast i32 to f32."""
    return arith.bitcast(shaped_as(ir.F32Type.get(), bits), bits)


def as_bits(value: ir.Value) -> ir.Value:
    """Bitcast f32 to i32."""
    return arith.bitcast(shaped_as(ir.IntegerType.get_signless(32), value), value)


def above(left: ir.Value, right: int) -> ir.Value:
    """Whether an i32 is greater than a constant."""
    return arith.cmpi(arith.CmpIPredicate.sgt, left, like(left, right))


def below(left: ir.Value, right: int) -> ir.Value:
    """Whether an i32 is less than a constant."""
    return arith.cmpi(arith.CmpIPredicate.slt, left, like(left, right))


def shaped_as(element: ir.Type, sample: ir.Value) -> ir.Type:
    """`element`, or a vector of it with the shape of `sample`."""
    if not isinstance(sample.type, ir.VectorType):
        return element
    return ir.VectorType.get(ir.VectorType(sample.type).shape, element)
