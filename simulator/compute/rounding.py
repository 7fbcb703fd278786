"""Arithmetic with directed rounding, for MODE other than nearest even.

The exact result is first rounded to odd in float64 (Boldo and Melquiond 2008), which preserves on
which side of every narrower number the exact result lies, and then rounded in the wanted direction.
float64 results are computed by exact rational arithmetic, since they are rare in such kernels.
Modes: 1 toward +infinity, 2 toward -infinity, 3 toward zero (CDNA4 ISA, section 3.5).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import copysign, isfinite, prod
from typing import Any

import numpy as np

from mxc.simulator.compute.operations import Array

UP, DOWN, ZERO = 1, 2, 3
Run = Callable[..., Any]
#: The value toward which a mode rounds.
_TOWARD = {UP: np.inf, DOWN: -np.inf, ZERO: 0.0}


def narrow(exact: Array, kind: Any, mode: int) -> Array:
    """Round float64, exact or rounded to odd, to `kind` in the direction of `mode`."""
    near = exact.astype(kind)
    back = near.astype(np.float64)
    wrong = {
        UP: back < exact,
        DOWN: back > exact,
        ZERO: np.abs(back) > np.abs(exact),
    }[mode]
    target = np.asarray(_TOWARD[mode], kind)
    return np.where(wrong, np.nextafter(near, target), near)


def _signed_zero(total: Array, a: Array, b: Array, mode: int) -> Array:
    """Give a zero sum a + b its sign: opposite addends give -0 when rounding down, else +0."""
    same = np.signbit(a) == np.signbit(b)
    zero = np.where(same, np.copysign(0.0, a), -0.0 if mode == DOWN else 0.0)
    return np.where(total == 0, zero, total)


def _odd_sum(a: Array, b: Array, mode: int) -> Array:
    """float64 a + b rounded to odd (Knuth's two-sum gives the error)."""
    total = a + b
    other = total - a
    error = (a - (total - other)) + (b - other)
    bits = total.view(np.uint64)
    even = (bits & np.uint64(1)) == 0
    outwards = (error > 0) == (total > 0)
    step = np.where(outwards, np.uint64(1), ~np.uint64(0))
    inexact = (error != 0) & np.isfinite(total) & even
    return _signed_zero(np.where(inexact, bits + step, bits).view(np.float64), a, b, mode)


def _wide(value: Array) -> Array:
    return value.astype(np.float64)


def _sum(mode: int) -> Run:
    def run(a: Array, b: Array) -> Array:
        if a.dtype == np.float64:
            return _exactly(lambda x, y: x + y, mode)(a, b)
        return narrow(_odd_sum(_wide(a), _wide(b), mode), a.dtype, mode)

    return run


def _product(mode: int) -> Run:
    def run(a: Array, b: Array) -> Array:
        if a.dtype == np.float64:
            return _exactly(lambda x, y: x * y, mode, factors=2)(a, b)
        return narrow(_wide(a) * _wide(b), a.dtype, mode)

    return run


def _fused(mode: int) -> Run:
    def run(a: Array, b: Array, c: Array) -> Array:
        if a.dtype == np.float64:
            return _exactly(lambda x, y, z: x * y + z, mode)(a, b, c)
        return narrow(_odd_sum(_wide(a) * _wide(b), _wide(c), mode), a.dtype, mode)

    return run


def _scaled(mode: int) -> Run:
    def run(a: Array, exponent: Array) -> Array:
        if a.dtype == np.float64:
            return _exactly(_power, mode, factors=1)(a, np.clip(exponent, -4000, 4000))
        return narrow(np.ldexp(_wide(a), np.clip(exponent, -400, 400)), a.dtype, mode)

    return run


def _exactly(run: Run, mode: int, *, factors: int = 0) -> Callable[..., Array]:
    """Return a float64 operation by rational arithmetic, rounded in the direction of `mode`.

    factors: number of operands that determine the sign of a zero product; 0 for a sum of the last
    operand and the product of the others.
    """

    def one(*operands: Any) -> float:
        numbers = [float(x) for x in operands]
        if not all(map(isfinite, numbers)):
            with np.errstate(all="ignore"):
                return float(run(*map(np.float64, numbers)))
        exact = run(*map(Fraction, numbers))
        if exact != 0:
            return _round(exact, mode)
        signs = [copysign(1.0, x) for x in numbers]
        if factors:
            return 0.0 * prod(signs[:factors])
        same = prod(signs[:-1]) == signs[-1]
        return copysign(0.0, signs[-1]) if same else -0.0 if mode == DOWN else 0.0

    return lambda *arrays: np.asarray(np.vectorize(one, otypes=[np.float64])(*arrays))


def _power(value: Any, exponent: Any) -> Any:
    return value * Fraction(2) ** int(exponent) if isinstance(value, Fraction) else value


def _round(exact: Fraction, mode: int) -> float:
    """Round a fraction to float64 in the direction of `mode`."""
    try:
        near = float(exact)
    except OverflowError:
        near = float("inf") if exact > 0 else float("-inf")
    if isfinite(near) and Fraction(near) == exact:
        return near
    above = Fraction(near) > exact if isfinite(near) else near > 0
    inward = {UP: not above, DOWN: above, ZERO: above == (exact > 0)}[mode]
    return float(np.nextafter(near, _TOWARD[mode])) if inward else near


def _converted(kind: Any) -> Callable[[int], Run]:
    return lambda mode: lambda value: narrow(_wide(value), kind, mode)


def _reversed(make: Callable[[int], Run]) -> Callable[[int], Run]:
    return lambda mode: lambda a, b: make(mode)(b, a)


def _difference(mode: int) -> Run:
    return lambda a, b: _sum(mode)(a, -b)


def _by_name(names: tuple[str, ...], make: Callable[[int], Run]) -> dict[str, Callable[[int], Run]]:
    return {f"v_{name}": make for name in names}


_WIDTHS = ("f16", "f32", "f64")
#: Makers of an instruction's operation for a mode, by name.
DIRECTED: dict[str, Callable[[int], Run]] = {
    **_by_name(tuple(f"add_{w}" for w in _WIDTHS), _sum),
    **_by_name(tuple(f"sub_{w}" for w in _WIDTHS), _difference),
    **_by_name(tuple(f"subrev_{w}" for w in _WIDTHS), _reversed(_difference)),
    **_by_name(tuple(f"mul_{w}" for w in _WIDTHS), _product),
    **_by_name(tuple(f"fma_{w}" for w in _WIDTHS), _fused),
    **_by_name(tuple(f"fmac_{w}" for w in _WIDTHS), _fused),
    **_by_name(tuple(f"ldexp_{w}" for w in _WIDTHS), _scaled),
    **_by_name(("fmamk_f32", "fmaak_f32", "mad_mix_f32", "pk_fma_f32", "pk_fma_f16"), _fused),
    **_by_name(("pk_add_f32", "pk_add_f16"), _sum),
    **_by_name(("pk_mul_f32", "pk_mul_f16"), _product),
    **_by_name(("cvt_f32_i32", "cvt_f32_u32", "cvt_f32_f64"), _converted(np.float32)),
    **_by_name(("cvt_f16_f32", "cvt_f16_u16", "cvt_f16_i16"), _converted(np.float16)),
}
_EXACT = ("min", "max", "min3", "max3", "med3", "minimum3", "maximum3", "trunc", "ceil", "floor")
#: Float instructions whose result is exact, or always rounded to nearest even.
UNROUNDED = frozenset(
    (
        *(f"v_{name}_{width}" for name in (*_EXACT, "rndne", "frexp_mant") for width in _WIDTHS),
        *(f"v_pk_{name}_f16" for name in ("min", "max", "minimum3", "maximum3")),
        *("v_cvt_f32_f16", "v_cvt_f64_f32", "v_cvt_f64_i32", "v_cvt_f64_u32", "v_cvt_f32_bf16"),
        *(f"v_cvt_f32_{kind}" for kind in ("fp8", "bf8", "fp8z", "bf8z")),
        *(f"v_cvt_f32_ubyte{n}" for n in range(4)),
        *("v_div_fixup_f32", "v_div_fixup_f64", "v_div_fixup_f16", "v_pk_mov_b32"),
        *("v_cvt_off_f32_i4", "v_cubeid_f32"),
    )
)


def limited(result: Array, *operands: Array) -> Array:
    """FP16_OVFL: replace an infinite result of finite operands by the largest number."""
    finite = np.isinf(result)
    for operand in operands:
        if operand.dtype.kind == "f":
            finite = finite & np.isfinite(operand)
    return np.where(finite, np.copysign(result.dtype.type(65504), result), result)
