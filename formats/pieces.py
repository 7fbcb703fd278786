"""Cut a tensor into pieces of whole blocks, so that temporary arrays stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mxc.formats.formats import BlockFormat

#: Elements of a piece: 1 MiB of float32. It is a power of two, and so a multiple of every block.
PIECE = 1 << 18

Index = tuple[slice, ...]


@dataclass(frozen=True)
class PieceIndices:
    """The indices of one piece: in the values, in the packed elements and in the scales."""

    values: Index
    elements: Index
    scales: Index


def pieces(shape: tuple[int, ...], format: BlockFormat) -> list[PieceIndices]:
    """Pieces that together cover an array of `shape` once; blocks lie along its last axis.

    `shape` has at least one axis, and its last is a multiple of the block. An empty array has no
    pieces.
    """
    found = []
    for index in _indices(shape, PIECE) if math.prod(shape) else ():
        *lead, last = index
        start, stop = last.start, last.stop
        packed = slice(format.packed_bytes(start), format.packed_bytes(stop))
        scales = slice(format.blocks(start), format.blocks(stop))
        found.append(PieceIndices(index, (*lead, packed), (*lead, scales)))
    return found


def _indices(shape: tuple[int, ...], limit: int) -> Iterator[Index]:
    first, rest = shape[0], shape[1:]
    whole = tuple(slice(0, n) for n in rest)
    inner = math.prod(rest)
    if inner <= limit:
        step = limit // inner
        for start in range(0, first, step):
            yield slice(start, min(start + step, first)), *whole
        return
    for i in range(first):
        for index in _indices(rest, limit):
            yield slice(i, i + 1), *index
