"""The codes of a small format from their bytes, and their values by integer operations and a few
products: any target.

A code, shifted to where an f32 has exponent and mantissa, is x = (1 + m) 2^(e - bias) once the
difference of the biases is added. That is the value where e > 0. A subnormal, e = 0, is worth
m 2^(1 - bias) = 2x - 2^(1 - bias), which is less than x there, and not less for any other e. So
the value is the lesser of both, and no number on the way is a subnormal f32, which a target may
read as zero.
"""

from __future__ import annotations

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.formats.formats import ElementFormat, Specials
from mxc.passes.kernels.vectors import bitcast, f32, i32, of, splat, table

_MANTISSA = 23
_BIAS = 127
_EXPONENT = 0xFF << _MANTISSA


def codes_of(raw: ir.Value, element: ElementFormat) -> ir.Value:
    """Codes i32 from bytes i8, in which they lie as a little-endian stream of bits; above the bits
    of a code are others."""
    (count,) = ir.VectorType(raw.type).shape
    if element.bits == 6:
        # Four codes in three bytes: a dword of their own, and one shift for each.
        lanes = count * 8 // 6
        places = [3 * (k // 4) + byte if byte < 3 else 0 for k in range(lanes) for byte in range(4)]
        words = bitcast(vector.shuffle(raw, raw, places), i32(), lanes)
        shifts = np.array([6 * (k % 4) for k in range(lanes)], np.int32)
        return arith.shrui(words, table(shifts, i32()))
    codes = arith.extui(of(i32(), count), raw)
    if element.bits == 8:
        return codes
    return vector.interleave(codes, arith.shrui(codes, splat(4, i32(), count)))


def floats_of_codes(codes: ir.Value, element: ElementFormat, lanes: int) -> ir.Value:
    """f32 [lanes] of the low bits of i32 [lanes]; bits above those of a code are not looked at."""

    def number(value: int) -> ir.Value:
        return splat(value, i32(), lanes)

    if not element.exponent:
        top = number(32 - element.bits)
        wide = arith.shrsi(arith.shli(codes, top), top)
        value = arith.sitofp(of(f32(), lanes), wide)
        return arith.mulf(value, splat(element.min_positive, f32(), lanes))
    shift = _MANTISSA - element.mantissa
    placed = arith.shli(codes, number(shift))
    magnitude = arith.andi(placed, number(element.magnitude_mask << shift))
    bits = arith.addi(magnitude, number((_BIAS - element.bias) << _MANTISSA))
    normal = bitcast(bits, f32(), lanes)
    twice = arith.addf(normal, normal)
    small = arith.subf(twice, splat(element.min_normal, f32(), lanes))
    is_small = arith.cmpf(arith.CmpFPredicate.OLT, small, normal)
    bits = bitcast(arith.select(is_small, small, normal), i32(), lanes)
    if element.specials is Specials.FNUZ:
        # The code of the negative zero: the only one whose sign is set and whose magnitude is not.
        sign = arith.andi(codes, number(element.sign_bit))
        is_nan = arith.andi(
            arith.cmpi(arith.CmpIPredicate.ne, sign, number(0)),
            arith.cmpi(arith.CmpIPredicate.eq, magnitude, number(0)),
        )
        bits = arith.select(is_nan, number(_EXPONENT | 1 << (_MANTISSA - 1)), bits)
    elif element.nan_codes:
        first = min(element.inf_codes or element.nan_codes)
        special = arith.cmpi(arith.CmpIPredicate.sge, magnitude, number(first << shift))
        # Under an exponent of ones, an infinity is the one without mantissa, as in the code.
        exponent = number(_EXPONENT if element.inf_codes else _EXPONENT | 1 << (_MANTISSA - 1))
        bits = arith.select(special, arith.ori(magnitude, exponent), bits)
    if element.signed:
        sign = arith.andi(arith.shli(codes, number(32 - element.bits)), number(-(2**31)))
        bits = arith.ori(bits, sign)
    return bitcast(bits, f32(), lanes)
