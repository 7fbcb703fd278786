"""Unpack codes of small formats, and decode them by integer operations and a few products.

This works on any target. The exponent and mantissa bits of a code are shifted to those of an f32,
and the difference of the biases is added. The result is x = (1 + m) 2^(e - bias), which is the
value if e > 0. A subnormal, with e = 0, has the value m 2^(1 - bias) = 2x - 2^(1 - bias). This is
less than x if e is 0, and not less for any other e. So the value is the minimum of x and 2x - 2^(1
- bias). No intermediate number is a subnormal f32, which a target may flush to zero.
"""

from __future__ import annotations

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.formats.formats import ElementFormat, Specials
from mxc.passes.kernels.vectors import bitcast, equal, f32, i32, of, splat, table, unequal

_MANTISSA = 23
_BIAS = 127
_EXPONENT = 0xFF << _MANTISSA


def codes_of(raw: ir.Value, element: ElementFormat) -> ir.Value:
    """Unpack codes to i32 from bytes i8, which hold them as a little-endian stream of bits. The
    bits above a code are those of other codes."""
    (count,) = ir.VectorType(raw.type).shape
    if element.bits == 6:
        # Four codes in three bytes: copy the bytes to a dword per code, and shift each.
        lanes = count * 8 // 6
        places = [3 * (k // 4) + byte if byte < 3 else 0 for k in range(lanes) for byte in range(4)]
        words = bitcast(vector.shuffle(raw, raw, places), i32(), lanes)
        shifts = np.array([6 * (k % 4) for k in range(lanes)], np.int32)
        return words >> table(shifts, i32())
    codes = arith.extui(of(i32(), count), raw)
    if element.bits == 8:
        return codes
    return vector.interleave(codes, codes >> 4)


def floats_of_codes(codes: ir.Value, element: ElementFormat, lanes: int) -> ir.Value:
    """Decode the codes in the low bits of i32 [lanes] to f32 [lanes]. Bits above a code are
    ignored."""

    def number(value: int) -> ir.Value:
        return splat(value, i32(), lanes)

    if not element.exponent:
        top = number(32 - element.bits)
        wide = arith.shrsi(codes << top, top)
        value = arith.sitofp(of(f32(), lanes), wide)
        return value * element.min_positive
    shift = _MANTISSA - element.mantissa
    placed = codes << number(shift)
    magnitude = placed & number(element.magnitude_mask << shift)
    bits = magnitude + number((_BIAS - element.bias) << _MANTISSA)
    normal = bitcast(bits, f32(), lanes)
    twice = normal + normal
    small = twice - element.min_normal
    is_small = arith.cmpf(arith.CmpFPredicate.OLT, small, normal)
    bits = bitcast(arith.select(is_small, small, normal), i32(), lanes)
    if element.specials is Specials.FNUZ:
        # The code of the negative zero: the only code with sign and without magnitude.
        sign = codes & number(element.sign_bit)
        is_nan = unequal(sign, number(0)) & equal(magnitude, number(0))
        bits = arith.select(is_nan, number(_EXPONENT | 1 << (_MANTISSA - 1)), bits)
    elif element.nan_codes:
        first = min(element.inf_codes or element.nan_codes)
        special = arith.cmpi(arith.CmpIPredicate.sge, magnitude, number(first << shift))
        # With an exponent of ones, an infinity has no mantissa, as in the code.
        exponent = number(_EXPONENT if element.inf_codes else _EXPONENT | 1 << (_MANTISSA - 1))
        bits = arith.select(special, magnitude | exponent, bits)
    if element.signed:
        sign = codes << number(32 - element.bits) & number(-(2**31))
        bits = bits | sign
    return bitcast(bits, f32(), lanes)
