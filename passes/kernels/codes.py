"""The value of the codes of a small format by integer operations and one product: any target.

A normal number is its code, shifted to where an f32 has exponent and mantissa, plus the difference
of the biases. A subnormal is an integer times the smallest positive number. No f32 that comes up
on the way is subnormal, since targets may read those as zero.
"""

from __future__ import annotations

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.formats import ElementFormat
from mxc.passes.kernels.vectors import bitcast, f32, i32, of, splat

_MANTISSA = 23
_BIAS = 127


def floats_of_codes(codes: ir.Value, element: ElementFormat, lanes: int) -> ir.Value:
    """f32 [lanes] of the low bits of i32 [lanes]; bits above those of a code are not looked at."""

    def number(value: int) -> ir.Value:
        return splat(value, i32(), lanes)

    if not element.exponent:
        top = number(32 - element.bits)
        wide = arith.shrsi(arith.shli(codes, top), top)
        value = arith.sitofp(of(f32(), lanes), wide)
        return arith.mulf(value, splat(element.min_positive, f32(), lanes))
    magnitude = arith.andi(codes, number(element.magnitude_mask))
    placed = arith.shli(magnitude, number(_MANTISSA - element.mantissa))
    normal = arith.addi(placed, number((_BIAS - element.bias) << _MANTISSA))
    whole = arith.sitofp(of(f32(), lanes), magnitude)
    small = arith.mulf(whole, splat(element.min_positive, f32(), lanes))
    is_small = arith.cmpi(arith.CmpIPredicate.ult, magnitude, number(1 << element.mantissa))
    bits = arith.select(is_small, bitcast(small, i32(), lanes), normal)
    for special, value in ((element.inf_codes, np.inf), (element.nan_codes, np.nan)):
        for code in {code & element.magnitude_mask for code in special}:
            hit = arith.cmpi(arith.CmpIPredicate.eq, magnitude, number(code))
            bits = arith.select(hit, number(int(np.float32(value).view(np.int32))), bits)
    if element.signed:
        sign = arith.andi(codes, number(element.sign_bit))
        bits = arith.ori(bits, arith.shli(sign, number(32 - element.bits)))
    return bitcast(bits, f32(), lanes)
