"""Error of a kernel's results against the simulator's, and the bounds of that error.

Buffers are parts of larger ones, so that the bytes which a kernel writes are found by comparing the
buffer before and after it, on both machines. The report states the types of a dispatch's results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mxc.runtime.arrays import DTYPES
from mxc.simulator.compute.operations import Array

#: Bound of the largest difference of floats, relative to the largest value. Sums of f32 are in an
#: order that AMD does not document: a few thousand roundings of 2**-24. Narrower results may be
#: rounded to the other neighbour.
FLOATS = {"f64": 2.0**-40, "f32": 2.0**-14, "f16": 2.0**-10, "bf16": 2.0**-7}
#: Fraction of the codes of narrow elements and their scales that may differ, because a sum was on
#: the other side of a rounding tie. Other integers and addresses must not differ.
CODES = 2.0**-10
_CODES = ("i8", "f8", "f6", "f4")
#: Bound of the results of a whole call, relative to the largest value: later kernels propagate a
#: value that one kernel rounds to the other neighbour.
CALLS = 2.0**-5
#: Smallest magnitude taken as f32 for kernels with f32 and i32 results; smaller words are integers.
_SMALLEST = 2.0**-100


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of a comparison, which agrees where `error` is at most `bound`.

    `error`: for floats the largest difference relative to the largest value, for integers the
    fraction that differs. `types`: MLIR types of the results. `bytes`: number of compared bytes.
    """

    types: tuple[str, ...]
    bytes: int
    error: float
    bound: float

    @property
    def agrees(self) -> bool:
        """Whether the error is within the bound; False for NaN."""
        return self.error <= self.bound


def compare(
    before: Sequence[Array],
    wanted: Sequence[Array],
    found: Sequence[Array],
    types: Sequence[str],
) -> Comparison:
    """Compare the bytes that changed from `before`, on the simulator (`wanted`) and GPU (`found`).

    types: MLIR types of the written values. Where they are unknown every byte must be equal.
    """
    names = tuple(dict.fromkeys(types))
    floats = [name for name in names if name in FLOATS]
    width = max((DTYPES[name].itemsize for name in floats), default=0)
    if not floats:
        whole = [DTYPES[name].itemsize for name in names if name in DTYPES]
        width = min(whole, default=1)
    pairs = [_changed(*each, width) for each in zip(before, wanted, found, strict=True)]
    right = np.concatenate([pair[0] for pair in pairs]) if pairs else np.zeros((0, width), np.uint8)
    given = np.concatenate([pair[1] for pair in pairs]) if pairs else right
    if not floats:
        return Comparison(
            types=names,
            bytes=right.size,
            error=_differing(right, given),
            bound=CODES if names and all(n.startswith(_CODES) for n in names) else 0.0,
        )
    widest = max(floats, key=lambda name: DTYPES[name].itemsize)
    error, bound = 0.0, max(FLOATS[name] for name in floats)
    if "i32" in names and width == 4:
        is_number = _is_number(right) & _is_number(given)
        error = 0.0 if not _differing(right[~is_number], given[~is_number]) else np.inf
        right, given = right[is_number], given[is_number]
    values = [each.reshape(-1).view(DTYPES[widest]).astype(np.float64) for each in (right, given)]
    return Comparison(
        types=names, bytes=right.size, error=max(error, _distance(*values)), bound=bound
    )


def compare_arrays(wanted: Array, found: Array, name: str) -> Comparison:
    """Compare two results of a whole call, of MLIR type `name`."""
    raw = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (wanted, found)]
    other = ~raw[0]  # every byte counts as written
    return replace(compare([other], [raw[0]], [raw[1]], [name]), bound=CALLS)


def _changed(before: Array, wanted: Array, found: Array, width: int) -> tuple[Array, Array]:
    """Return the elements of `width` bytes that changed in either buffer, [n, width] of both."""
    end = -(-before.size // width) * width
    old, right, given = (
        np.pad(each, (0, end - each.size)).reshape(-1, width) for each in (before, wanted, found)
    )
    written = ((old != right) | (old != given)).any(axis=1)
    return right[written], given[written]


def _differing(wanted: Array, found: Array) -> float:
    """Return the fraction of elements that differ."""
    return float((wanted != found).any(axis=1).mean()) if len(wanted) else 0.0


def _is_number(words: Array) -> Array:
    return np.asarray(np.abs(words.reshape(-1).view(np.float32)) >= _SMALLEST)


def _distance(wanted: Array, found: Array) -> float:
    """Return the largest difference relative to the largest finite wanted value.

    Infinite where only one of two values is NaN or infinite, or both are but differ.
    """
    same = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
    finite = np.isfinite(wanted) & np.isfinite(found)
    if not (same | finite).all():
        return float("inf")
    if same.all():
        return 0.0
    largest = float(np.abs(wanted[finite]).max())
    difference = float(np.abs(wanted - found, where=finite, out=np.zeros_like(wanted)).max())
    return difference / largest if largest else float("inf")
