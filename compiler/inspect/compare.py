"""Comparison of two checkpoints of any dialects: same bytes, same values, or the differences."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.inspect.pairs import pairs

#: Number of bytes of elements compared at a time, and of differences that are shown.
_CHUNK = 1 << 20
_SHOWN = 4

SAME_BYTES, SAME_VALUES, DIFFERENT = "same bytes", "same values", "different"


def compare(
    first: CheckpointSource, second: CheckpointSource, name: str | None = None
) -> dict[str, Any]:
    """Compare two checkpoints; the result can be written as JSON.

    `tensors` has a row for each parameter that both have (see pairs.py; or for those of the tensor
    `name`). Its `result` is SAME_BYTES (equal canonical bytes of elements, scales and tensor
    scale), SAME_VALUES or DIFFERENT; for the last the row has the first differences.
    `only_in_first` and `only_in_second` are names; the overall `result` is the worst of all. Raises
    CheckpointError for a name that one checkpoint lacks.
    """
    found_pairs = pairs(first, second, name)
    only = [list(names) for names in found_pairs.only]
    rows = [compare_tensors(*pair) for pair in found_pairs.both]
    found = {row["result"] for row in rows}
    worst = next((r for r in (DIFFERENT, SAME_VALUES) if r in found), SAME_BYTES)
    if only[0] or only[1] or not rows:
        worst = DIFFERENT
    return {
        "path": str(first.path),
        "against": str(second.path),
        "dialects": [first.dialect, second.dialect],
        "result": worst,
        "only_in_first": only[0],
        "only_in_second": only[1],
        "tensors": rows,
    }


def compare_tensors(first: CanonicalTensor, second: CanonicalTensor) -> dict[str, Any]:
    """Return one row of `compare`. NaN equals NaN, and -0 equals 0."""
    row: dict[str, Any] = {"name": first.name, "formats": [first.format, second.format]}
    if first.shape != second.shape:
        return row | {"result": DIFFERENT, "shapes": [list(first.shape), list(second.shape)]}
    if _same_bytes(first, second):
        return row | {"result": SAME_BYTES}
    count, largest = 0, 0.0
    places: list[dict[str, Any]] = []
    width = max(1, first.shape[-1] if first.shape else 1)
    step = max(1, _CHUNK // width)
    heights = [1 if t.block is None else t.block[0] for t in (first, second)]
    step = max(*heights, step // max(heights) * max(heights))
    for start in range(0, first.rows, step):
        rows = min(step, first.rows - start)
        a, b = first.values(start, rows), second.values(start, rows)
        wrong = (a != b) & ~(np.isnan(a) & np.isnan(b))
        here = int(np.count_nonzero(wrong))
        if not here:
            continue
        count += here
        with np.errstate(invalid="ignore"):
            gap = np.abs(a[wrong].astype(np.float64) - b[wrong])
        largest = max(largest, float(np.nan_to_num(gap, nan=np.inf, posinf=np.inf).max()))
        for place in np.argwhere(wrong)[: _SHOWN - len(places)].tolist():
            values = [float(x[tuple(place)]) for x in (a, b)]
            places.append(
                {
                    "row": start + place[0],
                    "column": place[1],
                    "values": [v if np.isfinite(v) else str(v) for v in values],
                }
            )
    if not count:
        return row | {"result": SAME_VALUES}
    return row | {
        "result": DIFFERENT,
        "elements": count,
        "largest_difference": largest if np.isfinite(largest) else str(largest),
        "first": places,
    }


def _same_bytes(first: CanonicalTensor, second: CanonicalTensor) -> bool:
    if (first.format, first.block) != (second.format, second.block):
        return False
    factors = [t.tensor_scale for t in (first, second)]
    if (factors[0] is None) != (factors[1] is None):
        return False
    if factors[0] is not None and factors[1] is not None:
        if factors[0].convention is not factors[1].convention:
            return False
        # As bytes, so that a NaN equals itself.
        if factors[0].read().tobytes() != factors[1].read().tobytes():
            return False
    for a, b in ((first.elements, second.elements), (first.scales, second.scales)):
        if a is None or b is None:
            if a is not b:
                return False
            continue
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        reads = [part.rows // max(1, first.rows) or 1 for part in (a, b)]
        whole = a.rows // reads[0]
        step = max(1, _CHUNK // max(1, a.row_bytes * reads[0]))
        for start in range(0, whole, step):
            count = min(step, whole - start)
            left = a.read(start * reads[0], count * reads[0]).reshape(-1)
            right = b.read(start * reads[1], count * reads[1]).reshape(-1)
            if not np.array_equal(left, right):
                return False
    return True
