"""The instructions of a division sequence: scaling, the last step, special cases.

Source: AMD CDNA4 instruction set architecture, section on VOP3. "1 / b is denormal" refers to the
type of the operands, as in LLVM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mxc.simulator.compute.operations import Array, Operation, operation

Run = Callable[..., Any]


class _Type(NamedTuple):
    """A float type: its exponent field, and the constants of v_div_scale and v_div_fixup."""

    kind: Any
    mantissa: int
    field: int
    bias: int
    scale: float
    far: int
    tiny_numerator: int
    gap: int


_SINGLE = _Type(np.float32, 23, 0xFF, 127, 2.0**64, 96, 23, 150)
_DOUBLE = _Type(np.float64, 52, 0x7FF, 1023, 2.0**128, 768, 53, 1075)


def _exponent(value: Array, t: _Type) -> Array:
    unsigned = value.view(f"u{value.dtype.itemsize}")
    field: Array = (unsigned >> unsigned.dtype.type(t.mantissa)).astype(np.int64) & t.field
    return field


def _below_normal(numerator: Any, denominator: Array, t: _Type) -> Array:
    """Whether the exact quotient is below the smallest normal number of the type.

    Both are scaled near 1 first, so that float64 can hold the quotient of either type.
    """
    (x, m), (y, n) = np.frexp(numerator), np.frexp(denominator)
    quotient = np.abs(np.asarray(x, np.float64) / y)
    power = m.astype(np.int64) - n
    lowest = int(np.finfo(t.kind).minexp)
    far = power < lowest - 2
    near = np.ldexp(quotient, np.clip(power - lowest, -3, 3)) < 1
    small: Array = np.where(far, quotient > 0, near & (power <= lowest + 2))
    denormal: Array = small | (quotient == 0)
    return denormal


def _scale_for(t: _Type) -> Run:
    """v_div_scale: the operand a, scaled so that the division of c by b does not overflow.

    b is the denominator and c the numerator; a is one of them. The mask says where v_div_fmas
    must scale the quotient back.
    """

    def run(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        up, down = a * t.kind(t.scale), a * t.kind(1 / t.scale)
        zero = (b == 0) | (c == 0)
        far = _exponent(c, t) - _exponent(b, t) >= t.far
        denormal = np.abs(b) < np.finfo(t.kind).smallest_normal
        inverse = _below_normal(t.kind(1), b, t)
        quotient = _below_normal(c, b, t)
        tiny = _exponent(c, t) <= t.tiny_numerator
        tests = [zero, far, denormal, inverse & quotient, inverse, quotient, tiny]
        results = [
            np.full_like(a, np.nan),
            np.where(a == b, up, a),
            up,
            # The document scales up, which overflows; LLVM's division is right only if scaled down.
            np.where(a == b, down, a),
            down,
            np.where(a == c, up, a),
            up,
        ]
        shape = np.broadcast(a, b, c).shape
        result = np.select([np.broadcast_to(x, shape) for x in tests], results, a)
        return result.astype(t.kind), ~zero & (far | (~denormal & quotient))

    return run


def _finish_for(t: _Type) -> Run:
    """v_div_fixup: the special cases of numerator / denominator, else the quotient."""

    def run(quotient: Array, denominator: Array, numerator: Array) -> Array:
        sign = np.signbit(denominator) ^ np.signbit(numerator)
        gap = _exponent(numerator, t) - _exponent(denominator, t)
        infinite = (denominator == 0) | np.isinf(numerator)
        nothing = np.isinf(denominator) | (numerator == 0)
        size = np.where(gap < -t.gap, t.kind(0), np.abs(quotient))
        # A quotient far beyond the range: earlier steps give NaN, but the result is infinity.
        size = np.where((gap > t.bias + 1) & np.isnan(size), t.kind(np.inf), size)
        size = np.where(nothing, t.kind(0), size)
        size = np.where(infinite, t.kind(np.inf), size)
        result = np.where(sign, -size, size)
        result = np.where(infinite & nothing, t.kind(-np.nan), result)
        result = np.where(np.isnan(denominator), denominator, result)
        final: Array = np.where(np.isnan(numerator), numerator, result).astype(t.kind)
        return final

    return run


def _finish_half(quotient: Array, denominator: Array, numerator: Array) -> Array:
    half = _Type(np.float16, 10, 0x1F, 15, 1.0, 0, 0, 99)
    result: Array = _finish_for(half)(quotient, denominator, numerator)
    return result


def _last_step(t: _Type, fused: Run) -> Run:
    """v_div_fmas: a fused multiply-add, scaled back where the mask says so.

    The direction follows the RDNA3 document: by the exponent of c, the quotient so far. For float32
    the CDNA document states 2**32, which does not undo the 2**64 of v_div_scale and would make
    LLVM's divisions wrong. The same holds for float64 and 2**128.
    """

    def run(a: Array, b: Array, c: Array, mask: Array) -> Array:
        power = np.where(_exponent(c, t) > t.bias, 1, -1) * int(np.log2(t.scale))
        if t is _SINGLE:
            scaled = np.ldexp(a.astype(np.float64) * b + c, power).astype(np.float32)
        else:
            scaled = np.ldexp(fused(a, b, c), power)
        result: Array = np.where(mask, scaled, fused(a, b, c))
        return result

    return run


def division(fused32: Run, fused64: Run) -> dict[str, Operation]:
    """Return the operations, given the fused multiply-adds."""
    return {
        "v_div_scale_f32": operation("fm", "fff", _scale_for(_SINGLE)),
        "v_div_scale_f64": operation("dm", "ddd", _scale_for(_DOUBLE)),
        "v_div_fmas_f32": operation("f", "fffm", _last_step(_SINGLE, fused32)),
        "v_div_fmas_f64": operation("d", "dddm", _last_step(_DOUBLE, fused64)),
        "v_div_fixup_f32": operation("f", "fff", _finish_for(_SINGLE)),
        "v_div_fixup_f64": operation("d", "ddd", _finish_for(_DOUBLE)),
        "v_div_fixup_f16": operation("h", "hhh", _finish_half),
    }
