"""Values of AMD's pseudocode, and the functions that it calls.

Integers are Python's, floats are numpy's scalars; no code of the simulator is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

FLOAT: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}
BITS: dict[int, Any] = {16: np.uint16, 32: np.uint32, 64: np.uint64}


@dataclass
class Value:
    """A value of `width` bits. `kind`: u or i (a Python int within the width), or f (a numpy
    scalar)."""

    kind: str
    width: int
    number: Any

    @property
    def bits(self) -> int:
        if self.kind == "f":
            return int(np.array(self.number, FLOAT[self.width]).view(BITS[self.width]))
        return int(self.number) & ((1 << self.width) - 1)


def make(kind: str, width: int, bits: int) -> Value:
    bits &= (1 << width) - 1
    if kind == "f":
        return Value("f", width, np.array(bits, BITS[width]).view(FLOAT[width])[()])
    signed = kind == "i" and bits >> (width - 1)
    return Value(kind, width, bits - (1 << width) if signed else bits)


def real(value: Value) -> float:
    return float(value.number)


def arithmetic(op: str, a: Value, b: Value) -> Value:
    if "f" in (a.kind, b.kind):
        width = max(v.width for v in (a, b) if v.kind == "f")
        x, y = (FLOAT[width](v.number) for v in (a, b))
        run: dict[str, Any] = {
            "+": np.add,
            "-": np.subtract,
            "*": np.multiply,
            "/": np.divide,
            "**": np.power,
        }
        return Value("f", width, run[op](x, y))
    width = max(a.width, b.width)
    kind = "u" if "u" in (a.kind, b.kind) else "i"
    x, y = int(a.number), int(b.number)
    found = {"+": x + y, "-": x - y, "*": x * y} if op in "+-*" else {"/": x // y if y else 0}
    return make(kind, width, found[op])


def saturated(kind: str, width: int) -> Callable[[Value], Value]:
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if kind == "i" else (0, (1 << width) - 1)

    def run(value: Value) -> Value:
        number = value.number
        if value.kind == "f":
            number = 0 if np.isnan(number) else np.clip(float(number), low - 1.0, high + 1.0)
        return make(kind, width, max(low, min(high, int(number))))

    return run


def cast(width: int) -> Callable[[Value], Value]:
    return lambda v: Value("f", width, FLOAT[width](v.number))


def widened(kind: str) -> Callable[[Value], Value]:
    return lambda v: make(kind, 32, int(v.number))


def exact_fma(a: Value, b: Value, c: Value) -> Value:
    x, y, z = (float(v.number) for v in (a, b, c))
    kind = FLOAT[a.width]
    if not all(map(np.isfinite, (x, y, z))):
        return Value("f", a.width, kind(x * y + z))
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return Value("f", a.width, kind(x * y + z))
    if a.width == 64:
        return Value("f", 64, np.float64(float(exact)))
    # Round to odd in float64 first, so that the second rounding gives the correctly rounded result.
    near = np.float64(float(exact))
    if Fraction(float(near)) != exact and not int(near.view(np.uint64)) & 1:
        toward = np.inf if Fraction(float(near)) < exact else -np.inf
        near = np.nextafter(near, toward)
    return Value("f", a.width, kind(near))


def ieee_extreme(*, largest: bool) -> Callable[..., Value]:
    """Return minimum or maximum of IEEE 754-2019: NaN if an operand is NaN; -0 is below +0."""

    def run(*values: Value) -> Value:
        if any(np.isnan(v.number) for v in values):
            return Value("f", values[0].width, FLOAT[values[0].width](np.nan))
        order = sorted(values, key=lambda v: (real(v), not np.signbit(v.number)))
        return order[-1 if largest else 0]

    return run


def unary(run: Callable[[Any], Any]) -> Callable[[Value], Value]:
    return lambda v: Value(v.kind, v.width, type(v.number)(run(v.number)))


def exponent(v: Value) -> Value:
    fraction = {16: 10, 32: 23, 64: 52}[v.width]
    return make("i", 32, v.bits >> fraction & (1 << v.width - 1 - fraction) - 1)


def mantissa(v: Value) -> Value:
    return Value("f", v.width, np.frexp(v.number)[0])


def quiet(v: Value) -> bool:
    return bool(v.bits >> 51 & 1)


def sign_extended(v: Value, width: Value | None = None) -> Value:
    size = v.width if width is None else int(width.number)
    if size == 0:
        return make("i", v.width if v.width > 32 else 32, 0)
    return make("i", max(v.width, 32), make("i", size, v.bits).number)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "fma": exact_fma,
    "abs": lambda v: Value(v.kind, v.width, abs(v.number)),
    "floor": unary(np.floor),
    "trunc": unary(np.trunc),
    "fract": unary(lambda x: x - np.floor(x)),
    "sqrt": unary(np.sqrt),
    "log2": unary(np.log2),
    "sin": unary(np.sin),
    "cos": unary(np.cos),
    "pow": lambda a, b: Value("f", a.width, np.power(a.number, b.number)),
    "ldexp": lambda a, n: Value(
        "f", a.width, np.ldexp(a.number, int(np.clip(n.number, -4000, 4000)))
    ),
    "isEven": lambda v: Value("u", 1, int(np.fmod(v.number, 2) == 0)),
    "isNAN": lambda v: Value("u", 1, int(np.isnan(v.number))),
    "isSignalNAN": lambda v: Value("u", 1, int(np.isnan(v.number) and not quiet(v))),
    "isQuietNAN": lambda v: Value("u", 1, int(np.isnan(v.number) and quiet(v))),
    "cvtToQuietNAN": lambda v: make("f", 64, v.bits | 1 << 51),
    "exponent": exponent,
    "mantissa": mantissa,
    "sign": lambda v: make("u", 1, v.bits >> v.width - 1),
    "signext": sign_extended,
    "signext_from_bit": sign_extended,
    "f32_to_bf16": lambda v: make(
        "u", 16, int(np.array(v.number).astype(ml_dtypes.bfloat16).view(np.uint16))
    ),
    "bf16_to_f32": lambda v: make("f", 32, v.bits << 16),
    **{f"{k}{w}_to_{k}32": widened(k) for k in "ui" for w in (4, 8, 16)},
    "u32_to_u16": saturated("u", 16),
    "i32_to_i16": saturated("i", 16),
    **{f"f{w}_to_{k}{n}": saturated(k, n) for w in (16, 32, 64) for k in "ui" for n in (16, 32)},
    **{f"{k}{n}_to_f{w}": cast(w) for w in (16, 32, 64) for k in "uif" for n in (16, 32, 64)},
    **{f"v_minimum_f{w}": ieee_extreme(largest=False) for w in (16, 32)},
    **{f"v_maximum_f{w}": ieee_extreme(largest=True) for w in (16, 32)},
    **{f"v_minimum3_f{w}": ieee_extreme(largest=False) for w in (16, 32)},
    **{f"v_maximum3_f{w}": ieee_extreme(largest=True) for w in (16, 32)},
}
