"""Packed formats of pages of keys and values, and the rows of bytes that an entry takes."""

from __future__ import annotations

#: Elements of a block of an MX format. Positions and elements of packed pages are multiples of it.
PAGE_BLOCK = 32

#: Formats of pages -> whether their scales, one byte per block, are in the page. For fp8, each
#: layer has its own scales, among the weights.
PAGE_FORMATS = {"mxint8": True, "mxfp8e4m3": True, "fp8e4m3": False}


def stored_positions(format: str | None, positions: int) -> int:
    """Rows [V, D] of an entry of a page: its positions, followed by the rows that hold its scales.

    `format`: a key of PAGE_FORMATS, or None for floats.
    """
    if format is None or not PAGE_FORMATS[format]:
        return positions
    return positions + positions // PAGE_BLOCK
