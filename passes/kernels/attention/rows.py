"""Vector operations of attention beyond vectors.py: transposition, and reductions of rows.

All use generic operations of the vector and arith dialects, for any number of lanes that is a power
of two from 4: 16 for AVX-512, 8 for AVX2, 4 for NEON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.passes.kernels.vectors import lanes_of, of


def shuffle(x: ir.Value, y: ir.Value, order: Sequence[int]) -> ir.Value:
    """Shuffle lanes of x and, from number lanes_of(x) on, of y."""
    return vector.shuffle(x, y, list(order))


def transpose(rows: Sequence[ir.Value]) -> list[ir.Value]:
    """Transpose the square matrix `rows`: register c of the result is column c.

    First within groups of four lanes, then whole groups: each step is one shuffle of two registers
    that is a single x86 instruction (vunpck, vshuff32x4).
    """
    lanes = lanes_of(rows[0])
    places = range(0, lanes, 4)

    def interleave(x: ir.Value, y: ir.Value, half: int, width: int) -> ir.Value:
        order = [
            place + side + 2 * half + at
            for place in places
            for run in range(0, 2, width)
            for side in (0, lanes)
            for at in range(run, run + width)
        ]
        return shuffle(x, y, order)

    columns: list[list[ir.Value]] = [[] for _ in range(4)]
    for first in range(0, lanes, 4):
        a, b, c, d = rows[first : first + 4]
        for half in range(2):
            ab, cd = interleave(a, b, half, 1), interleave(c, d, half, 1)
            for part in range(2):
                columns[2 * half + part].append(interleave(ab, cd, part, 2))
    sorted_groups = [_sort_groups(column) for column in columns]
    return [sorted_groups[c % 4][c // 4] for c in range(lanes)]


def _sort_groups(registers: Sequence[ir.Value]) -> list[ir.Value]:
    """Register g of the result holds group g of four lanes of every register."""
    if len(registers) == 1:
        return list(registers)
    lanes = lanes_of(registers[0])

    def take(x: ir.Value, y: ir.Value, first: int) -> ir.Value:
        groups = range(first, 2 * lanes // 4, 2)
        return shuffle(x, y, [4 * group + at for group in groups for at in range(4)])

    pairs = list(zip(registers[0::2], registers[1::2], strict=True))
    even, odd = (_sort_groups([take(x, y, first) for x, y in pairs]) for first in range(2))
    return [group for both in zip(even, odd, strict=True) for group in both]


Combine = Callable[[ir.Value, ir.Value], ir.Value]


def row_lanes(rows: int, lanes: int) -> int:
    """Number of lanes per row in the result of `reduce_rows`: row i is in lane i * row_lanes."""
    return lanes >> (rows - 1).bit_length()


def reduce_rows(rows: Sequence[ir.Value], combine: Combine) -> ir.Value:
    """Reduce each row over its lanes, into one register: see `row_lanes`. At most `lanes` rows."""
    lanes = lanes_of(rows[0])
    width = row_lanes(len(rows), lanes)
    registers = [*rows, *[rows[-1]] * (lanes // width - len(rows))]
    run = lanes
    while len(registers) > 1:
        half, run = len(registers) // 2, run // 2
        pairs = zip(registers[:half], registers[half:], strict=True)
        registers = [_reduce_pair(x, y, run, combine) for x, y in pairs]
    total = registers[0]
    while run > 1:
        run //= 2
        total = combine(total, shuffle(total, total, [lane ^ run for lane in range(lanes)]))
    return total


def kept_rows(value: ir.Value, rows: int) -> ir.Value:
    """The lanes of `rows` rows of a result of `reduce_rows`, one lane per row."""
    lanes = lanes_of(value)
    width = row_lanes(rows, lanes)
    return shuffle(value, value, list(range(0, lanes, width)))


def spread_rows(kept: ir.Value, lanes: int) -> ir.Value:
    """The inverse of `kept_rows`."""
    width = lanes // lanes_of(kept)
    return shuffle(kept, kept, [lane // width for lane in range(lanes)])


def _reduce_pair(x: ir.Value, y: ir.Value, run: int, combine: Combine) -> ir.Value:
    """Halve the runs of 2 * `run` lanes of x and y; each run of x is followed by a run of y."""
    lanes = lanes_of(x)

    def half(first: int) -> ir.Value:
        starts = [side + at for at in range(first, lanes, 2 * run) for side in (0, lanes)]
        return shuffle(x, y, [start + i for start in starts for i in range(run)])

    return combine(half(0), half(run))


def in_all_lanes(value: ir.Value, lanes: int) -> ir.Value:
    """Broadcast a scalar to all lanes."""
    return vector.broadcast(of(value.type, lanes), value)
