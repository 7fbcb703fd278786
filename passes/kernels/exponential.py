"""exp(x) and tanh(x) of f32 vectors, for any number of lanes."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.dialects.generic import constant
from mxc.dialects.quantize_scalars import like
from mxc.passes.kernels.vectors import bitcast, i32, lanes_of

#: exp(x) = 2^n exp(r), n = round(x / ln 2). Adding this constant to x / ln 2 rounds it: the low
#: bits of the sum are n + 127, which is the exponent field of 2^n.
_ROUND = 1.5 * 2.0**23 + 127
#: exp(x) = 2 ^ (x * LOG2_E).
LOG2_E = 1.4426950408889634
#: ln 2 in two parts; the first has 9 bits, so that its product with n is exact.
_LN_2_HIGH = 0.693359375
_LN_2_LOW = -2.12194440054690583e-4
#: (exp(r) - 1 - r) / r^2 for r within half of ln 2: S. L. Moshier, Cephes, single/expf.c.
_POLYNOMIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
    1.0,
    1.0,
)
#: (tanh(x) / x - 1) / x^2 up to the bound: S. L. Moshier, Cephes, single/tanhf.c.
TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)
TANH_BOUND = 0.625
#: (2^r - 1) / r for r within a half, to 2 ** -23.
_POWER = (
    1.326472731307149e-3,
    9.671512991189957e-3,
    5.550733581185341e-2,
    2.4022242426872253e-1,
    6.931470036506653e-1,
)
#: At and below this the exponent field is zero: 2^n is zero, and so is the result.
_LOWEST = -88.0


def exponential(x: ir.Value) -> ir.Value:
    """exp(x) of an f32 vector, x at most 88: within 1 ulp where the result is a normal number.

    Zero from -88 down, including -inf; subnormal results may be zero. NaN stays NaN.
    """
    lanes = lanes_of(x)
    # This order of operands keeps NaN: a comparison with NaN is false.
    x = greater(like(x, _LOWEST), x)
    rounded = math.fma(x, like(x, LOG2_E), like(x, _ROUND))
    n = rounded - like(x, _ROUND)
    r = math.fma(n, like(x, -_LN_2_HIGH), x)
    r = math.fma(n, like(x, -_LN_2_LOW), r)
    power = polynomial(r, _POLYNOMIAL)
    exponent = bitcast(rounded, i32(), lanes) << 23
    return power * bitcast(exponent, ir.F32Type.get(), lanes)


def power(x: ir.Value, top: ir.Value) -> ir.Value:
    """2 ^ (x * LOG2_E - top) of f32 vectors, with an exponent up to 127: within 3 ulp of 2 to
    the rounded exponent; exactly 1 for 0. Zero from -127 down, including -inf. NaN stays NaN.
    """
    lanes = lanes_of(x)
    x = greater(like(x, -127.0), math.fma(x, like(x, LOG2_E), like(x, 0.0) - top))
    rounded = x + like(x, _ROUND)
    r = x - (rounded - like(x, _ROUND))
    found = math.fma(polynomial(r, _POWER), r, like(x, 1.0))
    return found * bitcast(bitcast(rounded, i32(), lanes) << 23, ir.F32Type.get(), lanes)


def polynomial(x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """The polynomial in a float or vector, coefficients from the highest power on."""
    found = constant(coefficients[0], x.type)
    for coefficient in coefficients[1:]:
        found = math.fma(found, x, constant(coefficient, x.type))
    return found


def tanh(x: ir.Value) -> ir.Value:
    """tanh(x) of an f32 vector, within 2 ulp; the result for -0 may be 0. NaN stays NaN."""
    size, square = math.absf(x), x * x
    near = math.fma(polynomial(square, TANH) * square, x, x)
    below = exponential(size * like(x, -2.0))
    far = (like(x, 1.0) - below) / (like(x, 1.0) + below)
    small = arith.cmpf(arith.CmpFPredicate.OLT, size, like(x, TANH_BOUND))
    return arith.select(small, near, math.copysign(far, x))


def greater(x: ir.Value, y: ir.Value) -> ir.Value:
    """The greater of two floats or vectors; y where one is NaN: vmaxps."""
    return arith.select(arith.cmpf(arith.CmpFPredicate.OGT, x, y), x, y)
