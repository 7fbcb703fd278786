"""Words that attention needs over those of vectors.py: exp, transposition, reductions of rows.

All are written with generic operations of the vector and arith dialects, for any number of lanes
that is a power of two from 4: 16 for AVX-512, 8 for AVX2, 4 for NEON.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math, scf, vector

from mxc.passes.kernels.vectors import bitcast, i32, of, splat

#: exp(x) = 2^n exp(r), n = round(x / ln 2). Added to x / ln 2 this rounds it: the low bits of the
#: sum are n + 127, which is the exponent field of 2^n.
_ROUND = 1.5 * 2.0**23 + 127
_LOG2_E = 1.4426950408889634
#: ln 2 in two parts; the first has 9 bits, so that its product with n is exact.
_LN_2_HIGH = 0.693359375
_LN_2_LOW = -2.12194440054690583e-4
#: exp(r) - 1 - r over r^2, r within half of ln 2: S. L. Moshier, Cephes, single/expf.c.
_POLYNOMIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
    1.0,
    1.0,
)
#: Below it the exponent field is zero: 2^n is zero and so is the result.
_LOWEST = -88.0


def lanes_of(value: ir.Value) -> int:
    """Lanes of a vector."""
    return int(ir.VectorType(value.type).shape[0])


def exponential(x: ir.Value) -> ir.Value:
    """exp(x) of an f32 vector, x at most 88: within 1 ulp where the result is a normal number.

    Zero from -88 down, -inf included; what is subnormal may be zero. NaN stays NaN.
    """
    lanes = lanes_of(x)

    def same(value: float) -> ir.Value:
        return splat(value, ir.F32Type.get(), lanes)

    # In this order NaN is kept: the comparison with it is false.
    x = greater(same(_LOWEST), x)
    rounded = math.fma(x, same(_LOG2_E), same(_ROUND))
    n = arith.subf(rounded, same(_ROUND))
    r = math.fma(n, same(-_LN_2_HIGH), x)
    r = math.fma(n, same(-_LN_2_LOW), r)
    power = same(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        power = math.fma(power, r, same(coefficient))
    exponent = arith.shli(bitcast(rounded, i32(), lanes), splat(23, i32(), lanes))
    return arith.mulf(power, bitcast(exponent, ir.F32Type.get(), lanes))


def greater(x: ir.Value, y: ir.Value) -> ir.Value:
    """The greater of two floats or vectors; y where one is NaN: vmaxps."""
    return arith.select(arith.cmpf(arith.CmpFPredicate.OGT, x, y), x, y)


def shuffle(x: ir.Value, y: ir.Value, order: Sequence[int]) -> ir.Value:
    """Lanes of x and, from lanes_of(x) on, of y."""
    return vector.shuffle(x, y, list(order))


def transpose(rows: Sequence[ir.Value]) -> list[ir.Value]:
    """Column c of the square matrix `rows` as its c-th register.

    Within groups of four lanes first, then whole groups: each step is one shuffle of two registers
    that x86 has as an instruction (vunpck, vshuff32x4).
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
    """Register g of the result: group g of four lanes of every register."""
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
    """How many lanes each row has in the result of `reduce_rows`: row i is in lane i * that."""
    return lanes >> (rows - 1).bit_length()


def reduce_rows(rows: Sequence[ir.Value], combine: Combine) -> ir.Value:
    """One register with each row reduced over its lanes: see `row_lanes`. At most a row a lane."""
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


def _reduce_pair(x: ir.Value, y: ir.Value, run: int, combine: Combine) -> ir.Value:
    """Halve the runs of 2 * `run` lanes of x and y; runs of y go behind those of x."""
    lanes = lanes_of(x)

    def half(first: int) -> ir.Value:
        starts = [side + at for at in range(first, lanes, 2 * run) for side in (0, lanes)]
        return shuffle(x, y, [start + i for start in starts for i in range(run)])

    return combine(half(0), half(run))


@contextlib.contextmanager
def when(condition: ir.Value) -> Iterator[None]:
    """scf.if without results or else."""
    op = scf.IfOp(condition)
    with ir.InsertionPoint(op.then_block):
        yield
        scf.YieldOp([])


def choose(
    condition: ir.Value, yes: Callable[[], list[ir.Value]], no: list[ir.Value]
) -> list[ir.Value]:
    """What `yes` builds where the condition holds, else the values `no`."""
    op = scf.IfOp(condition, [value.type for value in no], has_else=True)
    with ir.InsertionPoint(op.then_block):
        scf.YieldOp(yes())
    with ir.InsertionPoint(op.else_block):
        scf.YieldOp(no)
    return list(op.results)


def spread(value: ir.Value, lanes: int) -> ir.Value:
    """A scalar in every lane."""
    return vector.broadcast(of(value.type, lanes), value)
