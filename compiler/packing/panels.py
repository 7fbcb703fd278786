"""The panel layout: 16 rows side by side, unit by unit, as the kernels of the CPU read weights.

    rows of a tensor [N, row]      16 rows of a panel       after
    n0: a0 a1 a2 ..                a0 b0 c0 .. p0           unit 0 of 16 rows, then
    n1: b0 b1 b2 ..        ->      a1 b1 c1 .. p1           unit 1 of 16 rows, ..
    ..                             ..

"panel16xU" has units of U bytes. Rows that are missing in the last panel of an expert are zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

#: Rows of a panel: the f32 lanes of a 512-bit register.
PANEL = 16

#: Layout name -> bytes of a unit.
UNITS = {"panel16x1": 1, "panel16x2": 2, "panel16x4": 4}


def panel_bytes(experts: int, rows: int, row_bytes: int) -> int:
    """Bytes of a tensor [experts, rows, row] in panels."""
    return experts * -(-rows // PANEL) * PANEL * row_bytes


def to_panels(
    chunks: Iterable[NDArray[np.uint8]], rows: int, row_bytes: int, unit: int
) -> Iterator[NDArray[np.uint8]]:
    """Reorder the bytes of a tensor [experts, rows, row], which come in order, in any pieces.

    Holds one piece and less than a panel. Raises ValueError where a row is no whole number of
    units.
    """
    if row_bytes % unit:
        raise ValueError(f"a row of {row_bytes} bytes has no whole number of {unit}-byte units")
    held: NDArray[np.uint8] = np.empty(0, np.uint8)
    left = rows
    for chunk in chunks:
        held = np.concatenate([held, chunk]) if held.size else chunk
        while True:
            # What is left of this expert, or whole panels of it.
            whole = held.size >= left * row_bytes
            wanted = left if whole else held.size // (PANEL * row_bytes) * PANEL
            if not wanted:
                break
            yield _transpose(held[: wanted * row_bytes], wanted, row_bytes, unit)
            held = held[wanted * row_bytes :]
            left = left - wanted or rows


def _transpose(data: NDArray[np.uint8], rows: int, row_bytes: int, unit: int) -> NDArray[np.uint8]:
    missing = -rows % PANEL
    if missing:
        data = np.concatenate([data, np.zeros(missing * row_bytes, np.uint8)])
    units = data.view(f"u{unit}").reshape(-1, PANEL, row_bytes // unit)
    return np.ascontiguousarray(units.transpose(0, 2, 1)).view(np.uint8).reshape(-1)
