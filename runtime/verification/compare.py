"""How far a kernel's results are from the simulator's, and how far they may be.

Buffers are parts of larger ones, so what a kernel writes is found by what changes: on either
machine. The report says of which types a dispatch's results are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mxc.runtime.arrays import DTYPES
from mxc.simulator.compute.operations import Array

#: Largest difference of floats that may be, over the largest number. Sums of f32 are in an
#: order that AMD does not document: a few thousand roundings of 2**-24. Narrower results may be
#: rounded to the other neighbour.
FLOATS = {"f64": 2.0**-40, "f32": 2.0**-14, "f16": 2.0**-10, "bf16": 2.0**-7}
#: Share of the codes of narrow elements and of their scales that may be another one, because a
#: sum was on the other side of a tie. Of other integers and addresses none.
CODES = 2.0**-10
_CODES = ("i8", "f8", "f6", "f4")
#: Bound of the results of a whole call, as of floats: what one kernel rounds to the other
#: neighbour, the kernels after it carry on.
CALLS = 2.0**-5
#: Least f32 of kernels with results of both kinds: a word that is less is an integer.
_SMALLEST = 2.0**-100


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`error` may be at most `bound`: of floats the largest difference over the largest number, of
    integers the share of those that differ. `types`: of the results. `bytes` were compared."""

    types: tuple[str, ...]
    bytes: int
    error: float
    bound: float

    @property
    def agrees(self) -> bool:
        """Whether the error is within the bound; NaN is not."""
        return self.error <= self.bound


def compare(
    before: Sequence[Array],
    wanted: Sequence[Array],
    found: Sequence[Array],
    types: Sequence[str],
) -> Comparison:
    """What changed of some buffers (bytes), on the simulator (`wanted`) and on the GPU (`found`).

    types: MLIR types of what was written. Where they are not known every byte must be the same.
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
    """The same of two results of a whole call, of MLIR type `name`."""
    raw = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (wanted, found)]
    other = ~raw[0]  # every byte counts as written
    return replace(compare([other], [raw[0]], [raw[1]], [name]), bound=CALLS)


def _changed(before: Array, wanted: Array, found: Array, width: int) -> tuple[Array, Array]:
    """The elements of `width` bytes, [n, width], that are not in both what they were."""
    end = -(-before.size // width) * width
    old, right, given = (
        np.pad(each, (0, end - each.size)).reshape(-1, width) for each in (before, wanted, found)
    )
    written = ((old != right) | (old != given)).any(axis=1)
    return right[written], given[written]


def _differing(wanted: Array, found: Array) -> float:
    """The share of elements that are not the same."""
    return float((wanted != found).any(axis=1).mean()) if len(wanted) else 0.0


def _is_number(words: Array) -> Array:
    return np.asarray(np.abs(words.reshape(-1).view(np.float32)) >= _SMALLEST)


def _distance(wanted: Array, found: Array) -> float:
    """The largest difference over the largest number; infinite where one is NaN or infinite, and
    the other is something else."""
    same = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
    finite = np.isfinite(wanted) & np.isfinite(found)
    if not (same | finite).all():
        return float("inf")
    if same.all():
        return 0.0
    largest = float(np.abs(wanted[finite]).max())
    difference = float(np.abs(wanted - found, where=finite, out=np.zeros_like(wanted)).max())
    return difference / largest if largest else float("inf")
