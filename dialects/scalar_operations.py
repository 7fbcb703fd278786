"""Evaluate scalar operations of arith and math on numpy arrays.

A pass uses this to find what a body computes for every code. Integers are uint64 arrays of their
bits, floats float64 arrays of their values. A result is rounded once to its type: for f32, bf16 and
f16, the operation in float64 followed by a rounding equals the operation in that type, since
float64 has more than twice the digits plus two.

`evaluate` returns None for unknown operations and for those without a unique value (math.exp
depends on the library; 2 to an integer power is exact everywhere).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
from iree.compiler import ir

from mxc.formats.rounding import round_to_odd

Array: TypeAlias = npt.NDArray[Any]

#: The numpy types of MLIR's floats, by name.
FLOATS: Mapping[str, type] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
    "f6E2M3FN": ml_dtypes.float6_e2m3fn,
    "f6E3M2FN": ml_dtypes.float6_e3m2fn,
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
}
_ROUNDED = ("f64", "f32", "f16", "bf16")
_INDEX_BITS = 64


def bits_of(kind: ir.Type) -> int:
    """Width of a scalar type in bits; 64 for an index."""
    if isinstance(kind, ir.IndexType):
        return _INDEX_BITS
    return int(ir.FloatType(kind).width if isinstance(kind, ir.FloatType) else kind.width)


def decoded(bits: Array, kind: ir.Type) -> Array | None:
    """The values of bits of a scalar type; None for a float type that numpy lacks."""
    if not isinstance(kind, ir.FloatType):
        return bits & _mask(bits_of(kind))
    name = str(kind)
    if name not in FLOATS:
        return None
    width = max(8, bits_of(kind))
    raw = (bits & _mask(bits_of(kind))).astype(f"u{width // 8}")
    return np.asarray(raw.view(FLOATS[name]).astype(np.float64))


def evaluate(op: ir.Operation, inputs: Sequence[Array]) -> Array | None:
    """The result of a scalar operation with one result; None for an unknown operation."""
    result = op.results[0].type
    kinds = [value.type for value in op.operands]
    with np.errstate(all="ignore"):
        if op.name in _FLOAT:
            return rounded(_FLOAT[op.name](*inputs), result)
        if op.name in _INTEGER and not isinstance(result, ir.FloatType):
            width = bits_of(kinds[0]) if kinds else bits_of(result)
            found = _INTEGER[op.name](width, *inputs)
            return np.asarray(found).astype(np.uint64) & _mask(bits_of(result))
        if op.name in ("arith.sitofp", "arith.uitofp"):
            number = inputs[0]
            if op.name == "arith.sitofp":
                number = _signed(bits_of(kinds[0]), number)
            return rounded(number.astype(np.float64), result)
        if op.name == "math.fpowi":
            power = _signed(bits_of(kinds[1]), inputs[1]).astype(np.float64)
            return rounded(np.power(inputs[0], power), result)
        if op.name == "arith.bitcast":
            return bitcast(inputs[0], kinds[0], result)
        if op.name == "arith.scaling_extf":
            # In f16, most scales are rounded before the multiplication.
            return None if str(result) == "f16" else rounded(inputs[0] * inputs[1], result)
        if op.name == "arith.select":
            return np.where(inputs[0].astype(bool), inputs[1], inputs[2])
        if op.name in ("arith.cmpi", "arith.cmpf"):
            number = ir.IntegerAttr(op.attributes["predicate"]).value
            compared = (
                _compare_integers(number, bits_of(kinds[0]), *inputs)
                if op.name == "arith.cmpi"
                else _compare_floats(number, *inputs)
            )
            return compared.astype(np.uint64)
    return None


def rounded(values: Array, kind: ir.Type) -> Array | None:
    """float64 values rounded once to a float type of 16 bits or more; None for another type."""
    name = str(kind)
    if name not in _ROUNDED:
        return None
    if name == "f64":
        return values
    with np.errstate(all="ignore"):
        if name == "f32":
            return np.asarray(values.astype(np.float32).astype(np.float64))
        largest = np.finfo(np.float32).max
        beyond = np.where(np.abs(values) > largest, np.copysign(np.inf, values), values)
        near = round_to_odd(np.asarray(beyond, np.float64))
        return np.asarray(near.astype(FLOATS[name]).astype(np.float64))


def _mask(width: int) -> np.uint64:
    return np.uint64((1 << width) - 1)


def _signed(width: int, bits: Array) -> Array:
    """Bits as two's complement integers, int64."""
    shift = np.int64(64 - width)
    whole: Array = np.asarray(bits).astype(np.uint64).view(np.int64)
    return np.asarray((whole << shift) >> shift)


def _shift(
    width: int, x: Array, by: Array, shifted: Callable[[Array, Array], Array], over: Array
) -> Array:
    """A shift. Shifting by the width or more is poison in MLIR, and `over` here."""
    within = shifted(x, np.minimum(by, np.uint64(width - 1)))
    return np.asarray(np.where(by < np.uint64(width), within, over))


def _shift_signed(width: int, x: Array, by: Array) -> Array:
    least: Array = np.minimum(by, np.uint64(width - 1)).astype(np.int64)
    return np.asarray(_signed(width, x) >> least)


def _whole(width: int, divide: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
    """A signed division. Division by zero is undefined in MLIR, and zero here."""
    a, b = _signed(width, x), _signed(width, y)
    return np.where(b == 0, 0, divide(a, np.where(b == 0, 1, b))).astype(np.int64)


def _toward_zero(a: Array, b: Array) -> Array:
    return np.asarray((np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b))


def _remainder(a: Array, b: Array) -> Array:
    return np.asarray(a - _toward_zero(a, b) * b)


_INTEGER: dict[str, Callable[..., Array]] = {
    "arith.addi": lambda w, x, y: x + y,
    "arith.subi": lambda w, x, y: x - y,
    "arith.muli": lambda w, x, y: x * y,
    "arith.andi": lambda w, x, y: x & y,
    "arith.ori": lambda w, x, y: x | y,
    "arith.xori": lambda w, x, y: x ^ y,
    "arith.shli": lambda w, x, y: _shift(w, x, y, np.left_shift, np.zeros_like(x)),
    "arith.shrui": lambda w, x, y: _shift(w, x, y, np.right_shift, np.zeros_like(x)),
    "arith.shrsi": _shift_signed,
    "arith.divui": lambda w, x, y: x // np.maximum(y, np.uint64(1)),
    "arith.remui": lambda w, x, y: x % np.maximum(y, np.uint64(1)),
    "arith.divsi": lambda w, x, y: _whole(w, _toward_zero, x, y),
    "arith.floordivsi": lambda w, x, y: _whole(w, np.floor_divide, x, y),
    "arith.remsi": lambda w, x, y: _whole(w, _remainder, x, y),
    "arith.minui": lambda w, x, y: np.minimum(x, y),
    "arith.maxui": lambda w, x, y: np.maximum(x, y),
    "arith.minsi": lambda w, x, y: np.minimum(_signed(w, x), _signed(w, y)),
    "arith.maxsi": lambda w, x, y: np.maximum(_signed(w, x), _signed(w, y)),
    "arith.extsi": _signed,
    "arith.extui": lambda w, x: x,
    "arith.trunci": lambda w, x: x,
    "arith.index_cast": _signed,
    "arith.index_castui": lambda w, x: x,
}

_FLOAT: dict[str, Callable[..., Array]] = {
    "arith.extf": lambda x: x,
    "arith.truncf": lambda x: x,
    "arith.addf": lambda x, y: x + y,
    "arith.subf": lambda x, y: x - y,
    "arith.mulf": lambda x, y: x * y,
    "arith.divf": lambda x, y: x / y,
    "arith.negf": lambda x: -x,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "math.absf": np.abs,
    "math.copysign": np.copysign,
    "math.floor": np.floor,
    "math.exp2": np.exp2,
    "math.powf": np.power,
}


def bitcast(values: Array, source: ir.Type, result: ir.Type) -> Array | None:
    """The bits of one scalar type as values of another; None for a float type that numpy lacks."""
    if isinstance(source, ir.FloatType):
        if str(source) not in FLOATS:
            return None
        narrow: Array = values.astype(FLOATS[str(source)])
        values = narrow.view(f"u{narrow.dtype.itemsize}").astype(np.uint64)
    return decoded(values, result)


def _compare_integers(predicate: int, width: int, x: Array, y: Array) -> Array:
    a, b = (x, y) if predicate > 5 else (_signed(width, x), _signed(width, y))
    compare = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
    return np.asarray(compare[predicate if predicate < 6 else predicate - 4](a, b))


def _compare_floats(predicate: int, x: Array, y: Array) -> Array:
    """Evaluate a predicate: 1 to 6 ordered, 8 to 13 the same unordered, 7 ordered, 14 unordered."""
    either = np.isnan(x) | np.isnan(y)
    if predicate in (0, 15):
        return np.full(np.broadcast(x, y).shape, predicate == 15)
    if predicate in (7, 14):
        return either if predicate == 14 else ~either
    compare = (np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal)
    found = compare[(predicate - 1) % 7](x, y)
    return np.asarray(found | either if predicate > 7 else found & ~either)
