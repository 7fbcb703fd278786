"""Arrays of expected values with error bounds: a result is right if |result - value| <= error.

Values are float64. An error of zero means that the value is exact in any order of summation. An
infinite error means that any number, infinity or NaN is right, because some order of summation
overflows. Bounds follow from the rounding of each operation (half a unit in the last place of its
type), from Higham's bound for sums in any order, and from targets that flush subnormal float32
numbers to zero (docs/numerics.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
#: An index into one dimension.
Key = int | slice | EllipsisType | None | npt.NDArray[np.integer[Any]]

TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
#: For each type: bits of the significand, with the hidden one; the largest finite number; the
#: smallest normal number.
_DIGITS = {"f32": 24, "bf16": 8, "f16": 11}
_LARGEST = {"f32": 2.0**128 - 2.0**104, "bf16": 2.0**128 - 2.0**120, "f16": 65504.0}
_SMALLEST = {"f32": 2.0**-126, "bf16": 2.0**-126, "f16": 2.0**-14}
#: Targets may flush numbers of a smaller magnitude to zero: the subnormal numbers of f32 and bf16.
#: Those of f16 are larger, and are kept.
_FLUSHED = 2.0**-126
#: Allowed error of approximated functions, as a share of |argument| + |result|.
_APPROXIMATE = 2.0**-17


@dataclass(frozen=True)
class Bounded:
    """Expected values, and the error allowed at each; both arrays have the same shape."""

    value: Floats
    error: Floats

    def __getitem__(self, key: Key | tuple[Key, ...]) -> Bounded:
        """Index values and errors alike."""
        return Bounded(self.value[key], self.error[key])

    def reshaped(self, *shape: int) -> Bounded:
        """Return values and errors in another shape."""
        return Bounded(self.value.reshape(shape), self.error.reshape(shape))

    def transposed(self) -> Bounded:
        """Exchange the last two dimensions."""
        return Bounded(np.swapaxes(self.value, -1, -2), np.swapaxes(self.error, -1, -2))


def exact(values: npt.ArrayLike) -> Bounded:
    """Return given numbers. Their error is zero, but subnormal ones may be read as zero."""
    found = np.asarray(values).astype(np.float64)
    return Bounded(found, _flush(found))


def _flush(values: Floats) -> Floats:
    """The error by flushing to zero: the magnitude of numbers below `_FLUSHED`, 0 for others."""
    size = np.abs(values)
    return np.where(size < _FLUSHED, size, 0.0)


def rounded(x: Bounded, kind: str) -> Bounded:
    """Round x to the type `kind`, to nearest even. The error covers the neighbors of the rounded
    number where x has an error."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = x.value.astype(TYPES[kind]).astype(np.float64)
        # A whole unit in the last place, not half of one: the number that a program rounds may lie
        # on the other side of the middle between two neighbors.
        unit = np.maximum(np.abs(x.value), _SMALLEST[kind]) * 2.0 ** (1 - _DIGITS[kind])
        same = (value == x.value) & (x.error == 0)
        error = np.where(same, 0.0, x.error + unit)
        # An exact number has one nearest neighbor. In f32 a program may reach it in two roundings.
        error = np.where((x.error == 0) & (kind != "f32"), 0.0, error)
        error = error + _flush(value)
        # Near the end of the range, a number with an error may or may not become infinite.
        size, end = np.abs(x.value), _LARGEST[kind]
        near = (size + x.error >= end) & (size - x.error <= end * (1 + 2.0 ** -_DIGITS[kind]))
        error = np.where(near & (x.error > 0), np.inf, error)
    return _settled(value, error)


def _settled(value: Floats, error: Floats) -> Bounded:
    """Set finite errors of infinite and NaN values to 0, and NaN errors to infinity."""
    odd = ~np.isfinite(value)
    error = np.where(np.isnan(error), np.inf, error)
    return Bounded(value, np.where(odd & np.isfinite(error), 0.0, error))


def either(x: Bounded, wrong: npt.NDArray[np.bool_]) -> Bounded:
    """Return x with an infinite error at `wrong`: any result is right there."""
    return Bounded(x.value, np.where(wrong, np.inf, x.error))


def times(a: Bounded, b: Bounded, kind: str = "f32") -> Bounded:
    """Return a * b, rounded once to the type `kind`."""
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
        product = _settled(a.value * b.value, error)
    return rounded(product, kind)


def plus(a: Bounded, b: Bounded, kind: str = "f32") -> Bounded:
    """Return a + b, rounded once to the type `kind`."""
    with np.errstate(over="ignore", invalid="ignore"):
        return rounded(_settled(a.value + b.value, a.error + b.error), kind)


def through(x: Bounded, function: Callable[[Floats], Floats], slope: float) -> Bounded:
    """Apply a function that targets approximate. `slope`: a bound of its derivative."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = function(x.value)
        size = np.abs(x.value) + np.abs(value)
        # Approximations differ for infinite arguments: any result is right.
        error = np.where(np.isinf(x.value), np.inf, slope * x.error + size * _APPROXIMATE)
    return rounded(_settled(value, error + _FLUSHED), "f32")


def product(a: Bounded, b: Bounded, start: Bounded, kind: str) -> Bounded:
    """Return start + a [.., m, k] @ b [.., k, n], summed in the type `kind` in any order.

    The error is zero where all partial sums are numbers of the type, whatever the order: where the
    sum of the magnitudes is below 2^digits times a unit of which all products are multiples.
    """
    k = a.value.shape[-1]
    plain_a, plain_b = (np.where(np.isfinite(x.value), x.value, 0.0) for x in (a, b))
    with np.errstate(over="ignore", invalid="ignore"):
        value = a.value @ b.value + start.value
        size = np.abs(plain_a) @ np.abs(plain_b)
        both = size + np.abs(np.where(np.isfinite(start.value), start.value, 0.0))
        error = np.abs(plain_a) @ b.error + a.error @ np.abs(plain_b) + a.error @ b.error
        unit = _unit(plain_a, -1)[..., None] * _unit(plain_b, -2)[..., None, :]
        unit = np.minimum(unit, _each_unit(start.value))
        exactly = (error == 0) & (start.error == 0) & (both < unit * 2.0 ** _DIGITS[kind])
        exactly &= unit >= _FLUSHED
        eps = 2.0 ** (1 - _DIGITS[kind])
        summed = (k + 8) * (eps * both + _FLUSHED)
        error = np.where(exactly, 0.0, error + start.error + summed)
        # Partial sums may overflow.
        error = np.where(both > _LARGEST[kind], np.inf, error)
        # A kernel may multiply element and scale exactly: an operand that is infinite in f32 is
        # finite there.
        infinite = _in_either(np.isinf, a, b) & ~_in_either(np.isnan, a, b)
        error = np.where(infinite, np.inf, error)
    found = _settled(value, error)
    return Bounded(rounded(Bounded(value, np.zeros_like(value)), kind).value, found.error)


def _in_either(
    test: Callable[[Floats], npt.NDArray[np.bool_]], a: Bounded, b: Bounded
) -> npt.NDArray[np.bool_]:
    """Return a mask of the elements of a @ b whose row of a, or column of b, has a number that
    passes `test`."""
    rows, columns = test(a.value).any(-1, keepdims=True), test(b.value).any(-2, keepdims=True)
    return np.logical_or(rows, columns)


def _each_unit(values: Floats) -> Floats:
    """The value of the lowest set bit of each number; infinite for zero, infinities and NaN."""
    found = np.where(np.isfinite(values), values, 0.0)
    mantissa, exponent = np.frexp(found)
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    low = (whole & -whole).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.where(found == 0, np.inf, np.ldexp(low, exponent - 53))


def _unit(values: Floats, axis: int) -> Floats:
    """The least value of a lowest set bit along an axis; 1 where no number has a set bit."""
    found = _each_unit(values).min(axis)
    return np.where(np.isinf(found), 1.0, found)
