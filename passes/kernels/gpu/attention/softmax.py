"""Scores to weights, in the lanes where the matrix instruction left them; powers of two.

A lane has eight scores of its row, in two registers of four keys; the other lanes of the row are
16, 32 and 48 further. The maximum is of all of them, the total is each lane's own until the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math, rocdl, vector

from mxc.dialects.amdgpu_narrow import swapped
from mxc.passes.kernels.vectors import f32, i32, of, splat

#: log2 e: exp(x) = 2 ** (x log2 e).
LOG2_E = 1.4426950408889634
#: What a score is where a row does not see the key, and the least that a maximum can be: two to the
#: power of their difference is zero under every scale that SCALES allows.
MASKED, FLOOR = -1.0e38, -1.0e30
#: The least and the greatest factor of a product of a query and a key, and bound of it.
SCALES, CAPS = (1.0e-6, 2.0), (1.0e-3, 1.0e6)
#: tanh(x) = x + x^3 P(x^2) for |x| below: S. L. Moshier, Cephes, single/tanhf.c.
_SMALL = 0.625
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)

Combine = Callable[[ir.Value, ir.Value], ir.Value]


def number(value: float) -> ir.Value:
    """An f32."""
    return arith.ConstantOp(f32(), ir.FloatAttr.get(f32(), value)).result


def power(x: ir.Value) -> ir.Value:
    """2 ** x of an f32: v_exp_f32."""
    return rocdl.exp2(f32(), x)


def greatest(x: ir.Value, y: ir.Value) -> ir.Value:
    """The greater f32; the other one where one is NaN."""
    return arith.maxnumf(x, y)


def over_row(value: ir.Value, combine: Combine) -> ir.Value:
    """An f32 combined over the four lanes of a row."""
    for distance in (16, 32):
        bits = arith.bitcast(i32(), value)
        both = swapped(bits, bits, distance)
        value = combine(*(arith.bitcast(f32(), part) for part in both))
    return value


@dataclass(frozen=True)
class Softened:
    """A block of a tile: `weights` f32 [8]; what came before is to be multiplied by `factor`."""

    maximum: ir.Value
    total: ir.Value
    factor: ir.Value
    weights: ir.Value


def online_softmax(
    scores: Sequence[ir.Value], maximum: ir.Value, total: ir.Value, unit: float
) -> Softened:
    """Weights of `scores`, two f32 [4]; these times `unit` are powers of two, as is `maximum`, that
    of all before."""
    both = vector.shuffle(*scores, list(range(8)))
    own = [vector.extract(both, [], [at]) for at in range(8)]
    highest = own[0]
    for score in own[1:]:
        highest = greatest(highest, score)
    times = number(unit)
    highest = greatest(maximum, arith.mulf(over_row(highest, greatest), times))
    factor = power(arith.subf(maximum, highest))
    down = arith.negf(highest)
    weights = [power(math.fma(score, times, down)) for score in own]
    # LLVM may or may not contract what is no fma; bits are the same wherever a row is computed.
    total = math.fma(total, factor, weights[0])
    for weight in weights[1:]:
        total = arith.addf(total, weight)
    return Softened(highest, total, factor, vector.from_elements(of(f32(), 8), weights))


def capped(scores: Sequence[ir.Value], scale: float, cap: float) -> list[ir.Value]:
    """tanh(scale * score / cap) of f32 [4]; the cap is the `unit` that is left."""
    found = []
    for four in scores:
        own = [vector.extract(four, [], [at]) for at in range(4)]
        bounded = [tanh(arith.mulf(score, number(scale / cap))) for score in own]
        found.append(vector.from_elements(of(f32(), 4), bounded))
    return found


def tanh(x: ir.Value) -> ir.Value:
    """tanh(x) of an f32, within some units of the last place."""
    size = math.absf(x)
    square = arith.mulf(x, x)
    sum_ = number(_TANH[0])
    for coefficient in _TANH[1:]:
        sum_ = math.fma(sum_, square, number(coefficient))
    small = math.fma(arith.mulf(square, x), sum_, x)
    # 1 - 2 / (exp(2 |x|) + 1): what overflows is 1.
    grown = power(arith.mulf(size, number(2 * LOG2_E)))
    divisor = arith.addf(grown, number(1.0))
    large = math.fma(number(-2.0), rocdl.rcp(f32(), divisor), number(1.0))
    large = math.copysign(large, x)
    return arith.select(arith.cmpf(arith.CmpFPredicate.OLT, size, number(_SMALL)), small, large)


def masked(
    scores: Sequence[ir.Value], first_key: ir.Value, low: ir.Value, high: ir.Value
) -> list[ir.Value]:
    """Scores, two f32 [4], of keys `first_key` .. + 3 and 16 further: MASKED outside of low .. high
    - 1. All are i32."""
    found = []
    for tile, four in enumerate(scores):
        kept = []
        for place in range(4):
            at = ir.IntegerAttr.get(i32(), 16 * tile + place)
            key = arith.addi(first_key, arith.ConstantOp(i32(), at).result)
            inside = arith.andi(
                arith.cmpi(arith.CmpIPredicate.sge, key, low),
                arith.cmpi(arith.CmpIPredicate.slt, key, high),
            )
            score = vector.extract(four, [], [place])
            kept.append(arith.select(inside, score, number(MASKED)))
        found.append(vector.from_elements(of(f32(), 4), kept))
    return found


def in_all(value: ir.Value, lanes: int) -> ir.Value:
    """An f32 as a vector of `lanes` of it."""
    return vector.broadcast(of(f32(), lanes), value)


def rounded(values: ir.Value, element: str) -> ir.Value:
    """An f32 vector as `element`, "f32" or "bf16"."""
    if element == "f32":
        return values
    return arith.truncf(of(ir.Type.parse(element), ir.VectorType(values.type).shape[0]), values)


def zero(lanes: int) -> ir.Value:
    """A vector of zeros."""
    return splat(0.0, f32(), lanes)
