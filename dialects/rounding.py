"""float32 -> element codes: to nearest, ties to even, saturating (OCP MX 1.0 section 6.3).

Rounding goes through a table of 65536 codes, one for each value of the upper half of a float32.
The lower half is folded into one sticky bit before, which is rounding to odd to 8 significant
bits; rounding that again to p bits is exact for p <= 6 (Boldo and Melquiond, "Emulation of a
FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from mxc.dialects.errors import FormatError
from mxc.dialects.formats import ElementFormat

#: Significant bits of the upper half of a float32, the implicit one included.
_TABLE_PRECISION = 8


def encode(values: npt.NDArray[np.float32], element: ElementFormat) -> npt.NDArray[np.uint8]:
    """Codes, uint8, one a byte, of already scaled `values`, float32; any shape.

    To nearest, ties to even; beyond max, and Inf, saturates to max; -0.0 keeps its sign. INT8
    saturates to +-(1 + 63/64): code 0x80, -2, is left unused. NaN gives the code 0: its block has
    the scale NaN, or the caller has refused it.
    """
    if not element.exponent:
        return _encode_fixed_point(values, element)
    bits = values.view(np.uint32)
    upper = (bits >> np.uint32(16)).astype(np.uint16)
    sticky = (bits.astype(np.uint16) != 0).view(np.uint8)
    codes: npt.NDArray[np.uint8] = _nearest(element).take(upper | sticky)
    return codes


def _encode_fixed_point(
    values: npt.NDArray[np.float32], element: ElementFormat
) -> npt.NDArray[np.uint8]:
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.rint(values * np.float32(1 << element.mantissa))
    steps = np.where(np.isnan(steps), np.float32(0), steps)
    limit = element.max_code
    codes: npt.NDArray[np.int8] = np.clip(steps, -limit, limit).astype(np.int8)
    return codes.view(np.uint8)


@cache
def _nearest(element: ElementFormat) -> npt.NDArray[np.uint8]:
    """Table uint8 [65536]: upper half of a float32, lowest bit sticky -> code."""
    if element.mantissa + 1 > _TABLE_PRECISION - 2 or not element.signed:
        raise FormatError(f"{element} does not round exactly through {_TABLE_PRECISION} bits")
    finite = element.values[: element.max_code + 1].astype(np.float64)
    midpoints = (finite[:-1] + finite[1:]) / 2
    # From zero to Inf; what follows Inf is NaN.
    upper = np.arange((0x7F80 << 16) + 1, step=1 << 16, dtype=np.uint32)
    magnitude = upper.view(np.float32).astype(np.float64)
    below = np.searchsorted(midpoints, magnitude, side="left")
    above = np.searchsorted(midpoints, magnitude, side="right")
    # The two differ on a tie alone, between neighbours: one of them is even.
    codes = np.zeros(1 << 15, np.intp)
    codes[: len(upper)] = np.where(below % 2 == 0, below, above)
    table = np.concatenate([codes, codes | element.sign_bit]).astype(np.uint8)
    table.flags.writeable = False
    return table


def round_to_odd(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """float64 -> float32: toward zero, and the last bit is set where that was not exact.

    A later rounding to a narrower type, or comparison with a number of few bits, then gives
    what it would have given for the float64: there is no double rounding. Raises FormatError for
    a finite number that is beyond float32.
    """
    with np.errstate(over="ignore"):
        nearest = values.astype(np.float32)
    beyond = np.isinf(nearest) & np.isfinite(values)
    if beyond.any():
        raise FormatError(
            f"values must be within float32, found {values[beyond].flat[0]}; "
            "divide the tensor by a power of two first"
        )
    bits = nearest.view(np.uint32)
    # Magnitudes order as their bits: one less is the next number toward zero.
    toward_zero = bits - (np.abs(nearest.astype(np.float64)) > np.abs(values))
    inexact = (nearest != values) & ~np.isnan(values)
    odd: npt.NDArray[np.uint32] = (toward_zero | inexact).astype(np.uint32)
    return odd.view(np.float32)
