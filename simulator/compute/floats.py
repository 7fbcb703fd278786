"""Vector floating-point instructions: arithmetic, rounding, compares, division.

Source: AMD CDNA4 instruction set architecture, sections on VOP1, VOP2, VOP3 and VOPC. Results are
rounded to nearest even, fused where the name says so. Minimum and maximum return the other
operand for a quiet NaN (IEEE mode). Transcendental functions are numpy's, correct to the last bit;
the hardware's may differ by 1 ulp. exp and log of float32 flush denormals, which is why LLVM's
AMDGPU backend lowers denormal inputs of exp and log separately.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mxc.simulator.compute.division import division
from mxc.simulator.compute.operations import Array, Operation, operation

#: The bits of a float64 that a float32 does not have, and those of the middle between two.
_REST, _HALFWAY = np.uint64(0x1FFFFFFF), np.uint64(0x10000000)
_TINY = 2.0**-126
_TWO_PI = 2 * np.pi


def fused32(a: Array, b: Array, c: Array) -> Array:
    """float32 a * b + c, rounded once.

    The product is exact in float64. Rounding the sum to float64 and then to float32 rounds twice,
    which differs only where the float64 lies halfway between two float32 or where the result is
    denormal: there the sum is first rounded to odd (Boldo and Melquiond 2008).
    """
    product = a.astype(np.float64) * b
    total = product + c
    bits = total.view(np.uint64)
    halfway = (bits & _REST) == _HALFWAY
    denormal = (np.abs(total) < _TINY) & (total != 0)
    if np.count_nonzero(halfway | denormal):
        other = total - product
        error = (product - (total - other)) + (c - other)
        inexact = (error != 0) & np.isfinite(total) & ((bits & np.uint64(1)) == 0)
        if inexact.any():
            # The odd neighbour on the side of the error: one step outwards or inwards.
            outwards = (error > 0) == (total > 0)
            step = np.where(outwards, np.uint64(1), ~np.uint64(0))
            total = np.where(inexact, bits + step, bits).view(np.float64)
    return total.astype(np.float32)


def fused16(a: Array, b: Array, c: Array) -> Array:
    """float16 a * b + c, rounded once.

    The product is exact in float64. The sum spans 2**-48 to 2**33, so it can be inexact in float64
    only when one addend is below a quarter of an ulp of the float16 result.
    """
    return (a.astype(np.float64) * b + c).astype(np.float16)


def fused64(a: Array, b: Array, c: Array) -> Array:
    """float64 a * b + c, rounded once, by exact rational arithmetic for finite operands."""
    from fractions import Fraction

    def one(x: float, y: float, z: float) -> float:
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
            return x * y + z
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if exact == 0:
            return x * y + z
        try:
            return float(exact)
        except OverflowError:
            return float("inf") if exact > 0 else float("-inf")

    return np.asarray(np.vectorize(one, otypes=[np.float64])(a, b, c))


def _flushed(run: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return `run` with denormal float32 operands and results flushed to zero."""

    def flush(value: Array) -> Array:
        tiny = np.abs(value) < np.float32(_TINY)
        return np.where(tiny, np.copysign(np.float32(0), value), value)

    return lambda a: flush(run(flush(a)))


def _fraction(value: Array) -> Array:
    rest = value - np.floor(value)
    # The result must be below 1.
    result: Array = np.minimum(rest, np.nextafter(value.dtype.type(1), value.dtype.type(0)))
    return result


def _signalling(value: Array) -> Array:
    """Return which elements are signalling NaN."""
    kind = value.dtype
    quiet = value.view(f"u{kind.itemsize}") >> (np.finfo(kind).nmant - 1) & 1
    result: Array = np.isnan(value) & (quiet == 0)
    return result


def _quietened(result: Array, a: Array, b: Array) -> Array:
    """Make the result NaN for a signalling NaN (IEEE mode); quiet NaN operands are ignored."""
    if not (np.isnan(a).any() or np.isnan(b).any()):
        return result
    return np.where(_signalling(a) | _signalling(b), result.dtype.type(np.nan), result)


def float_minimum(a: Array, b: Array) -> Array:
    """The smaller operand; -0 is smaller than +0."""
    equal = np.where(np.signbit(b), b, a)
    return _quietened(np.where(a == b, equal, np.fmin(a, b)), a, b)


def float_maximum(a: Array, b: Array) -> Array:
    """The larger operand; +0 is larger than -0."""
    equal = np.where(np.signbit(b), a, b)
    return _quietened(np.where(a == b, equal, np.fmax(a, b)), a, b)


def _least3(a: Array, b: Array, c: Array) -> Array:
    return float_minimum(float_minimum(a, b), c)


def _most3(a: Array, b: Array, c: Array) -> Array:
    return float_maximum(float_maximum(a, b), c)


def minimum3(a: Array, b: Array, c: Array) -> Array:
    """The smallest of three operands, NaN if any is NaN (IEEE 754-2019 minimum)."""
    two = np.where(a == b, np.where(np.signbit(b), b, a), np.minimum(a, b))
    return np.where(two == c, np.where(np.signbit(c), c, two), np.minimum(two, c))


def maximum3(a: Array, b: Array, c: Array) -> Array:
    """The largest of three operands, NaN if any is NaN (IEEE 754-2019 maximum)."""
    two = np.where(a == b, np.where(np.signbit(b), a, b), np.maximum(a, b))
    return np.where(two == c, np.where(np.signbit(c), two, c), np.maximum(two, c))


def _multiply_legacy(a: Array, b: Array) -> Array:
    """a * b, where zero times anything is +0."""
    return np.where((a == 0) | (b == 0), np.float32(0), a * b)


def _middle(a: Array, b: Array, c: Array) -> Array:
    middle = float_maximum(float_minimum(a, b), float_minimum(float_maximum(a, b), c))
    return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), _least3(a, b, c), middle)


def _exponent(value: Array) -> Array:
    exponent = np.frexp(value)[1].astype(np.int32)
    return np.where(np.isfinite(value) & (value != 0), exponent, 0).astype(np.int32)


def _mantissa(value: Array) -> Array:
    return np.where(np.isfinite(value), np.frexp(value)[0], value).astype(value.dtype)


def _scale(value: Array, exponent: Array) -> Array:
    result: Array = np.ldexp(value, np.clip(exponent, -400, 400))
    return result


def _class(value: Array, mask: Array) -> Array:
    """v_cmp_class: whether the value's class is among the bits of the mask.

    0 signalling NaN, 1 quiet NaN, 2 -infinity, 3 -normal, 4 -denormal, 5 -0, 6 +0, 7 +denormal,
    8 +normal, 9 +infinity.
    """
    info = np.finfo(value.dtype)
    wide = np.dtype(f"u{value.dtype.itemsize}")
    bits = value.view(wide)
    quiet = (bits >> wide.type(info.nmant - 1) & wide.type(1)) == 1
    negative = np.signbit(value)
    size = np.abs(value)
    kind = np.where(size < info.smallest_normal, 7, 8)
    kind = np.where(size == 0, 6, np.where(np.isinf(value), 9, kind))
    kind = np.where(negative, 11 - kind, kind)
    kind = np.where(np.isnan(value), np.where(quiet, 1, 0), kind)
    result: Array = (mask.astype(np.uint32) >> kind.astype(np.uint32) & 1) != 0
    return result


def _compares() -> dict[str, Operation]:
    def unordered(a: Array, b: Array) -> Array:
        return np.isnan(a) | np.isnan(b)

    tests: dict[str, Callable[[Any, Any], Any]] = {
        "f": lambda a, b: np.zeros(np.broadcast(a, b).shape, bool),
        "lt": operator.lt,
        "eq": operator.eq,
        "le": operator.le,
        "gt": operator.gt,
        "lg": lambda a, b: (a < b) | (a > b),
        "ge": operator.ge,
        "o": lambda a, b: ~unordered(a, b),
        "u": unordered,
        "nge": lambda a, b: ~(a >= b),
        "nlg": lambda a, b: ~((a < b) | (a > b)),
        "ngt": lambda a, b: ~(a > b),
        "nle": lambda a, b: ~(a <= b),
        "neq": lambda a, b: ~(a == b),
        "nlt": lambda a, b: ~(a < b),
        "tru": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    }
    kinds = {"f16": "h", "f32": "f", "f64": "d"}
    table = {
        f"v_cmp{x}_{name}_{width}": operation("m", kind * 2, test)
        for x in ("", "x")
        for name, test in tests.items()
        for width, kind in kinds.items()
    }
    for x in ("", "x"):
        for width, kind in kinds.items():
            table[f"v_cmp{x}_class_{width}"] = operation("m", f"{kind}u", _class)
    return table


def _of_every_width() -> dict[str, Operation]:
    """Return the operations that exist for float16, float32 and float64."""
    table: dict[str, Operation] = {}
    for width, kind in {"f16": "h", "f32": "f", "f64": "d"}.items():
        two, three = kind * 2, kind * 3
        fused = {"h": fused16, "f": fused32, "d": fused64}[kind]
        table |= {
            f"v_add_{width}": operation(kind, two, operator.add),
            f"v_sub_{width}": operation(kind, two, operator.sub),
            f"v_subrev_{width}": operation(kind, two, lambda a, b: b - a),
            f"v_mul_{width}": operation(kind, two, operator.mul),
            f"v_min_{width}": operation(kind, two, float_minimum),
            f"v_max_{width}": operation(kind, two, float_maximum),
            f"v_fma_{width}": operation(kind, three, fused),
            f"v_fmac_{width}": operation(kind, two, fused, tied=True),
            f"v_min3_{width}": operation(kind, three, _least3),
            f"v_max3_{width}": operation(kind, three, _most3),
            f"v_med3_{width}": operation(kind, three, _middle),
            f"v_trunc_{width}": operation(kind, kind, np.trunc),
            f"v_ceil_{width}": operation(kind, kind, np.ceil),
            f"v_rndne_{width}": operation(kind, kind, np.rint),
            f"v_floor_{width}": operation(kind, kind, np.floor),
            f"v_fract_{width}": operation(kind, kind, _fraction),
            f"v_sqrt_{width}": operation(kind, kind, np.sqrt),
            f"v_rcp_{width}": operation(kind, kind, lambda a: a.dtype.type(1) / a),
            f"v_rsq_{width}": operation(kind, kind, lambda a: a.dtype.type(1) / np.sqrt(a)),
            f"v_frexp_mant_{width}": operation(kind, kind, _mantissa),
        }
    return table


FLOATS: dict[str, Operation] = {
    **_compares(),
    **_of_every_width(),
    "v_rcp_iflag_f32": operation("f", "f", lambda a: np.float32(1) / a),
    "v_exp_f32": operation("f", "f", _flushed(np.exp2)),
    "v_log_f32": operation("f", "f", _flushed(np.log2)),
    "v_exp_f16": operation("h", "h", np.exp2),
    "v_log_f16": operation("h", "h", np.log2),
    "v_sin_f32": operation("f", "f", lambda a: np.sin(a * _TWO_PI).astype(np.float32)),
    "v_cos_f32": operation("f", "f", lambda a: np.cos(a * _TWO_PI).astype(np.float32)),
    "v_ldexp_f32": operation("f", "fi", _scale),
    "v_ldexp_f64": operation("d", "di", lambda a, n: np.ldexp(a, np.clip(n, -4000, 4000))),
    "v_ldexp_f16": operation("h", "hs", lambda a, n: np.ldexp(a, np.clip(n, -99, 99))),
    "v_frexp_exp_i32_f32": operation("i", "f", _exponent),
    "v_frexp_exp_i32_f64": operation("i", "d", _exponent),
    "v_frexp_exp_i16_f16": operation("s", "h", _exponent),
    "v_fmamk_f32": operation("f", "fff", fused32),
    "v_fmaak_f32": operation("f", "fff", fused32),
    "v_minimum3_f32": operation("f", "fff", minimum3),
    "v_maximum3_f32": operation("f", "fff", maximum3),
    "v_mul_legacy_f32": operation("f", "ff", _multiply_legacy),
    **division(fused32, fused64),
}
