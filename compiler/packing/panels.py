"""The panel layout: 16 rows interleaved unit by unit, as kernels read weights.

  rows of a tensor [N, row]      interleaved rows         in memory
  n0: a0 a1 a2 ..                a0 b0 c0 .. p0           unit 0 of 16 rows, then
  n1: b0 b1 b2 ..        ->      a1 b1 c1 .. p1           unit 1 of 16 rows, ..
  ..                             ..

"panel16xU" has units of U bytes: of 1 and 4 for CPUs, of 16 for GPUs. The last panel of an expert
is padded with rows of zeros.

"panel16x4of6" is for 6-bit elements. Each block of 24 bytes (a little-endian bit stream) is first
split into two planes: 16 bytes of low nibbles (byte i has elements 2i and 2i + 1), then 8 bytes of
high bits. The high bits for the nibbles of byte b of dword j are in byte b of dword 4 + j / 2, from
bit 4 (j % 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxc.formats.panels import PANEL

#: Bytes per unit, by the name of the layout.
UNITS = {"panel16x1": 1, "panel16x4": 4, "panel16x4of6": 4, "panel16x16": 16}

#: Name of the layout whose blocks are split into planes.
PLANES = "panel16x4of6"


def panel_bytes(experts: int, rows: int, row_bytes: int) -> int:
    """Return the size in bytes of a tensor [experts, rows, row] in panels."""
    return experts * -(-rows // PANEL) * PANEL * row_bytes


def to_panels(data: NDArray[np.uint8], rows: int, row_bytes: int, layout: str) -> NDArray[np.uint8]:
    """Reorder the bytes of a tensor [experts, rows, row], or of rows that start at a panel.

    `layout` is a key of UNITS. Raises ValueError if a row is no whole number of units.
    """
    unit = UNITS[layout]
    if row_bytes % unit:
        raise ValueError(f"a row of {row_bytes} bytes has no whole number of {unit}-byte units")
    if layout == PLANES:
        data = split_planes(data)
    if missing := -rows % PANEL:
        matrices = data.reshape(-1, rows, row_bytes)
        data = np.pad(matrices, ((0, 0), (0, missing), (0, 0))).reshape(-1)
    units = data.view(f"V{unit}").reshape(-1, PANEL, row_bytes // unit)
    return np.ascontiguousarray(units.transpose(0, 2, 1)).view(np.uint8).reshape(-1)


def split_planes(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Split each 24-byte block of 32 6-bit elements into low nibbles and high bits."""
    triples = data.reshape(-1, 8, 3).astype(np.uint32)
    words = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    codes = np.stack([words >> shift & 63 for shift in (0, 6, 12, 18)], -1).reshape(-1, 16, 2)
    low = (codes[..., 0] & 15) | (codes[..., 1] & 15) << 4
    # [blocks, pairs of dwords, dword of the pair, byte, nibble]
    high = (codes >> 4).reshape(-1, 2, 2, 4, 2)
    shifts = np.array([[0, 2], [4, 6]], np.uint32)[:, None, :]
    high_bits = np.bitwise_or.reduce(np.bitwise_or.reduce(high << shifts, axis=4), axis=2)
    return np.concatenate([low, high_bits.reshape(-1, 8)], axis=1).astype(np.uint8).reshape(-1)
