"""The largest magnitudes of as many blocks as a register has lanes: one block per lane.

Registers of partial maxima are merged in pairs, so that each shuffle serves two blocks. Each letter
is a partial maximum of the block of this letter:

    A A A A, B B B B  ->  A B A B, C D C D  ->  A B C D        within 128 bits
    A B C D in each 128 bits, E F G H in each  ->  A B C D E F G H ..

This takes three operations per block, where a reduction of each block would take eight (16 lanes).
Magnitudes of f32 are compared as integers of 32 bits, those of bf16 and f16 as integers of 16 bits,
two per lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.passes.kernels.vectors import bitcast, i16, i32, lanes_of

#: Lanes in 128 bits.
_QUAD = 4

#: Lane-wise maximum of two registers.
Greater = Callable[[ir.Value, ir.Value], ir.Value]


def of_dwords(a: ir.Value, b: ir.Value) -> ir.Value:
    """Maximum of magnitudes of f32."""
    return arith.maxsi(a, b)


def of_words(a: ir.Value, b: ir.Value) -> ir.Value:
    """Maximum of magnitudes of 16 bits, two in each i32 lane."""
    lanes = lanes_of(a)
    first, second = (bitcast(value, i16(), 2 * lanes) for value in (a, b))
    return bitcast(arith.maxsi(first, second), i32(), lanes)


def merged(parts: Sequence[ir.Value], greater: Greater) -> ir.Value:
    """Return a register whose lane i is the maximum over all lanes of part i. There is one part,
    i32, per lane."""
    lanes = len(parts)
    merging = list(parts)
    for pattern in [*_within_quads(lanes), *[_across_quads(lanes)] * (lanes // _QUAD // 2)]:
        pairs = zip(merging[0::2], merging[1::2], strict=True)
        merging = [greater(*(vector.shuffle(a, b, p) for p in pattern)) for a, b in pairs]
    (found,) = merging
    return found


def _within_quads(lanes: int) -> list[tuple[list[int], list[int]]]:
    """The lanes of both operands of a maximum, for each of two steps that merge within 128 bits."""
    starts = range(0, lanes, _QUAD)
    orders = [
        ([0, lanes, 1, lanes + 1], [2, lanes + 2, 3, lanes + 3]),
        ([0, 1, lanes, lanes + 1], [2, 3, lanes + 2, lanes + 3]),
    ]
    return [
        ([s + i for s in starts for i in low], [s + i for s in starts for i in high])
        for low, high in orders
    ]


def _across_quads(lanes: int) -> tuple[list[int], list[int]]:
    """The lanes of both operands of a maximum: every second quad of two registers; the others."""
    low, high = (
        [s + i for s in range(p * _QUAD, 2 * lanes, 2 * _QUAD) for i in range(_QUAD)]
        for p in range(2)
    )
    return low, high
