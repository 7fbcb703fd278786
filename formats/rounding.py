"""float32 -> element codes: to nearest, saturating (OCP MX 1.0 section 6.3), with a choice of ties.

Rounding uses a table of 65536 codes, one for each value of the upper half of a float32. The lower
half is first folded into one sticky bit, which is rounding to odd to 8 significant bits; rounding
that again to p bits is exact for p <= 6 (Boldo and Melquiond, "Emulation of a FMA and correctly
rounded sums: proved algorithms using rounding to odd", 2008).
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mxc.errors import FormatError
from mxc.formats.formats import ElementFormat, Specials

#: Significant bits of the upper half of a float32, including the implicit one.
_TABLE_PRECISION = 8


class Ties(StrEnum):
    """Rounding of a value halfway between two elements; all are symmetric about zero."""

    #: To the even code. OCP MX 1.0 section 6.3; torchao, Quark, compressed-tensors, AMD GPUs.
    EVEN = "even"
    #: To the smaller magnitude. ggml, whose search keeps the first of equally near codes; modelopt.
    ZERO = "zero"
    #: To the larger magnitude.
    AWAY = "away"


def tie_rule(name: str) -> Ties:
    """The rule called `name`. Raises FormatError for an unknown name, listing the known ones."""
    try:
        return Ties(name)
    except ValueError as error:
        raise FormatError(f"unknown ties {name!r}; mxc knows {', '.join(Ties)}") from error


def encode(
    values: npt.NDArray[np.float32], element: ElementFormat, ties: Ties = Ties.EVEN
) -> npt.NDArray[np.uint8]:
    """Codes, uint8, one per byte, of already scaled float32 `values`; any shape.

    Rounds to nearest, and halfway values as `ties` says. Values beyond max, and Inf, saturate to
    max; -0.0 keeps its sign where the type has one. INT8 saturates to +-(1 + 63/64): code 0x80, -2,
    is not used. NaN gives the code 0: its block has a NaN scale, or the caller has refused it.
    """
    if not element.exponent:
        return _encode_fixed_point(values, element, ties)
    bits = values.view(np.uint32)
    upper = (bits >> np.uint32(16)).astype(np.uint16)
    sticky = (bits.astype(np.uint16) != 0).view(np.uint8)
    codes: npt.NDArray[np.uint8] = nearest_codes(element, ties).take(upper | sticky)
    return codes


def _encode_fixed_point(
    values: npt.NDArray[np.float32], element: ElementFormat, ties: Ties
) -> npt.NDArray[np.uint8]:
    with np.errstate(over="ignore", invalid="ignore"):
        steps = nearest_integers(values * np.float32(1 << element.mantissa), ties)
    steps = np.where(np.isnan(steps), np.float32(0), steps)
    limit = element.max_code
    codes: npt.NDArray[np.int8] = np.clip(steps, -limit, limit).astype(np.int8)
    return codes.view(np.uint8)


def nearest_integers(steps: npt.NDArray[Any], ties: Ties) -> npt.NDArray[Any]:
    """`steps`, float32 or float64, rounded to nearest integers, halfway as `ties` says."""
    if ties is Ties.EVEN:
        even: npt.NDArray[Any] = np.rint(steps)
        return even
    magnitude = np.abs(steps)
    whole = np.floor(magnitude)
    # Exact: a magnitude that has a fraction at all is small enough for the difference to be exact.
    rest = magnitude - whole
    up = rest > 0.5 if ties is Ties.ZERO else rest >= 0.5
    found: npt.NDArray[Any] = np.copysign(whole + up.astype(steps.dtype), steps)
    return found


@cache
def nearest_codes(element: ElementFormat, ties: Ties = Ties.EVEN) -> npt.NDArray[np.uint8]:
    """Table uint8 [65536]: upper half of a float32, with a sticky lowest bit -> code."""
    if element.mantissa + 1 > _TABLE_PRECISION - 2 or not element.signed:
        raise FormatError(f"{element} does not round exactly through {_TABLE_PRECISION} bits")
    finite = element.values[: element.max_code + 1].astype(np.float64)
    midpoints = (finite[:-1] + finite[1:]) / 2
    # Magnitudes from zero to Inf; larger bit patterns are NaN.
    upper = np.arange((0x7F80 << 16) + 1, step=1 << 16, dtype=np.uint32)
    magnitude = upper.view(np.float32).astype(np.float64)
    below = np.searchsorted(midpoints, magnitude, side="left")
    above = np.searchsorted(midpoints, magnitude, side="right")
    # The two differ only on a tie, and then are neighbours, of which one is even.
    chosen = {
        Ties.EVEN: np.where(below % 2 == 0, below, above),
        Ties.ZERO: below,
        Ties.AWAY: above,
    }
    codes = np.zeros(1 << 15, np.intp)
    codes[: len(upper)] = chosen[ties]
    negative = codes | element.sign_bit
    if element.specials is Specials.FNUZ:
        negative[codes == 0] = 0  # there is no negative zero
    table = np.concatenate([codes, negative]).astype(np.uint8)
    table.flags.writeable = False
    return table


def round_to_odd(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """float64 -> float32: rounded toward zero, with the last bit set where the result is not exact.

    A later rounding to a narrower type, or a comparison with a number of few bits, then gives the
    same result as for the float64: there is no double rounding. Raises FormatError for a finite
    number that is beyond float32.
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
    # Magnitudes are ordered like their bits: one less is the next number toward zero.
    toward_zero = bits - (np.abs(nearest.astype(np.float64)) > np.abs(values))
    inexact = (nearest != values) & ~np.isnan(values)
    odd: npt.NDArray[np.uint32] = (toward_zero | inexact).astype(np.uint32)
    return odd.view(np.float32)
