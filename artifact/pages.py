"""What pages of keys and values may be packed in, and how many rows of bytes an entry takes."""

from __future__ import annotations

#: Elements of a block of an MX format, and what positions and elements of packed pages are
#: multiples of.
PAGE_BLOCK = 32

#: Formats of pages -> whether their scales, a byte per block, are in the page. Of fp8 each layer
#: has its own, among the weights.
PAGE_FORMATS = {"mxint8": True, "mxfp8e4m3": True, "fp8e4m3": False}


def stored_positions(format: str | None, positions: int) -> int:
    """Rows [V, D] of an entry of a page: its positions, and what its scales take after them.

    `format`: a key of PAGE_FORMATS, or None for floats.
    """
    if format is None or not PAGE_FORMATS[format]:
        return positions
    return positions + positions // PAGE_BLOCK
