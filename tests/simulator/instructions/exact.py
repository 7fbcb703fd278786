"""Conversion of register bits to numbers, and rounding of exact results to floats."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tests.simulator.pseudocode.pcode_values import BITS, FLOAT

ALL = 0xFFFFFFFF


def signed(value: int, width: int = 32) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> width - 1 else value


def parts(value: int, width: int) -> list[int]:
    return [value >> n & (1 << width) - 1 for n in range(0, 32, width)]


def number(bits: int, width: int = 32) -> Any:
    return np.array([bits], BITS[width]).view(FLOAT[width])[0]


def bits_of(value: Any, width: int = 32) -> int:
    with np.errstate(all="ignore"):
        return int(np.array([value]).astype(FLOAT[width]).view(BITS[width])[0])


def limited(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def fused(width: int) -> Callable[[int, int, int], int]:
    """Return a fused multiply-add on the bits of floats, which rounds once, by exact fractions."""

    def run(a: int, b: int, c: int) -> int:
        x, y, z = (number(v, width) for v in (a, b, c))
        if not all(map(np.isfinite, (x, y, z))):
            with np.errstate(all="ignore"):
                wide = np.float64(x) * np.float64(y) + np.float64(z)
            return bits_of(wide, width)
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if exact == 0:
            return bits_of(float(x) * float(y) + float(z), width)
        return rounded(exact, width)

    return run


def rounded(exact: Fraction, width: int) -> int:
    """Return the bits of the float that is nearest to a fraction other than zero."""
    mantissa, bias = {16: (10, 15), 32: (23, 127), 64: (52, 1023)}[width]
    sign, size = int(exact < 0) << width - 1, abs(exact)
    power = size.numerator.bit_length() - size.denominator.bit_length()
    power -= size < Fraction(2) ** power
    unit = max(power, 1 - bias) - mantissa
    units = round(size / Fraction(2) ** unit)
    if units >> mantissa + 1:
        units, unit = units >> 1, unit + 1
    field = unit + mantissa + bias if units >> mantissa else 0
    top = (1 << width - 1 - mantissa) - 1
    if field >= top:
        return sign | top << mantissa
    return sign | field << mantissa | units & (1 << mantissa) - 1


def width_of(kind: str) -> int:
    return 64 if kind in "UId" else 16 if kind in "hws" else 32


def same(kind: str, found: int, wanted: int, loose: bool) -> bool:
    width = width_of(kind)
    found, wanted = found & (1 << width) - 1, wanted & (1 << width) - 1
    if kind not in "fhd":
        return found == wanted
    a, b = number(found, width), number(wanted, width)
    if np.isnan(a) or np.isnan(b):
        return bool(np.isnan(a) and np.isnan(b))
    return bool(abs(float(a) - float(b)) < 2e-6) if loose else found == wanted
