"""Turn scores into weights, in the lanes in which the matrix instruction leaves the scores.

Weights are powers of two. A lane has eight scores of its row for a block of 32 keys (sixteen in
waves of 32), a vector per tile of keys. The other lanes of the row are 16, 32 and 48 further on.
The maximum is over all lanes of a row; the total is of the lane's own keys until the end of a
piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math, rocdl, vector

from mxc.dialects.amdgpu_narrow import exchanged
from mxc.dialects.generic import constant
from mxc.passes.kernels.exponential import LOG2_E, TANH, TANH_BOUND, polynomial
from mxc.passes.kernels.vectors import elements, f32, i32, lanes_of, of, signed_below, splat
from mxc.targets.matrix_unit import MatrixUnit

#: The score of a key that a row does not attend to.
MASKED = float("-inf")
#: The least and the greatest `scale` of scores, and `cap`, that kernels take.
SCALES, CAPS = (1.0e-6, 2.0), (1.0e-3, 1.0e6)

Combine = Callable[[ir.Value, ir.Value], ir.Value]
#: Combines an f32 over the lanes of a row.
OfRow = Callable[[ir.Value, Combine], ir.Value]


def number(value: float) -> ir.Value:
    """An f32 constant."""
    return constant(value, f32())


def power(x: ir.Value) -> ir.Value:
    """2 ** x of an f32: v_exp_f32."""
    return rocdl.exp2(f32(), x)


def greatest(x: ir.Value, y: ir.Value) -> ir.Value:
    """The greater f32; the other one where one is NaN."""
    return arith.maxnumf(x, y)


def over_row(value: ir.Value, combine: Combine, unit: MatrixUnit) -> ir.Value:
    """Combine an f32 over the two or four lanes of a row. `combine` must give the same bits for its
    operands in either order."""
    distance = 16
    while distance < unit.lanes:
        both = exchanged(arith.bitcast(i32(), value), distance, unit)
        value = combine(*(arith.bitcast(f32(), part) for part in both))
        distance *= 2
    return value


@dataclass(frozen=True)
class BlockSoftmax:
    """The softmax of a tile of rows after one more block.

    `maximum` and `total` include the block. `weights`: of the block, f32 of the keys that the lane
    has. The sums of values over earlier blocks have to be multiplied by `factor`.
    """

    maximum: ir.Value
    total: ir.Value
    factor: ir.Value
    weights: ir.Value


def online_softmax(
    scores: Sequence[ir.Value], maximum: ir.Value, total: ir.Value, unit: float, of_row: OfRow
) -> BlockSoftmax:
    """Add a block to the softmax of a tile of rows, and return its weights.

    `scores`: a vector per tile of keys; times `unit` they are exponents of two. `maximum`, such an
    exponent, and `total` are of the earlier blocks. `of_row`: combines an f32 over the lanes of a
    row.
    """
    own = [score for each in scores for score in elements(each)]
    highest = own[0]
    for score in own[1:]:
        highest = greatest(highest, score)
    times = number(unit)
    highest = greatest(maximum, of_row(highest, greatest) * times)
    factor = power(maximum - highest)
    down = arith.negf(highest)
    weights = [power(math.fma(score, times, down)) for score in own]
    # An fma, because LLVM may or may not contract other forms, and the bits of a row have to be the
    # same wherever it is computed.
    total = math.fma(total, factor, weights[0])
    for weight in weights[1:]:
        total = total + weight
    kind = of(f32(), len(weights))
    return BlockSoftmax(highest, total, factor, vector.from_elements(kind, weights))


def capped(scores: Sequence[ir.Value], scale: float, cap: float) -> list[ir.Value]:
    """Return tanh(scale * score / cap). The factor `cap` is left to `GpuAttention.unit`."""
    factor = number(scale / cap)
    return [
        vector.from_elements(each.type, [tanh(x * factor) for x in elements(each)])
        for each in scores
    ]


def tanh(x: ir.Value) -> ir.Value:
    """tanh(x) of an f32, within some units of the last place."""
    size = math.absf(x)
    square = x * x
    sum_ = polynomial(square, TANH)
    small = math.fma(square * x, sum_, x)
    # 1 - 2 / (exp(2 |x|) + 1), which is 1 if exp overflows.
    grown = power(size * number(2 * LOG2_E))
    divisor = grown + number(1.0)
    large = math.fma(number(-2.0), rocdl.rcp(f32(), divisor), number(1.0))
    large = math.copysign(large, x)
    return arith.select(arith.cmpf(arith.CmpFPredicate.OLT, size, number(TANH_BOUND)), small, large)


def masked(
    scores: Sequence[ir.Value], first_key: ir.Value, low: ir.Value, high: ir.Value
) -> list[ir.Value]:
    """Return scores, a vector per tile of keys, MASKED for keys outside of `low` .. `high` - 1.

    `first_key`: the lane's first key in a tile. All three are i32, counted from the first key of
    the block.
    """
    found = []
    for tile, own in enumerate(scores):
        kept = []
        for place, score in enumerate(elements(own)):
            key = first_key + (16 * tile + place)
            inside = arith.cmpi(arith.CmpIPredicate.sge, key, low) & signed_below(key, high)
            kept.append(arith.select(inside, score, number(MASKED)))
        found.append(vector.from_elements(own.type, kept))
    return found


def in_all(value: ir.Value, like: ir.Value) -> ir.Value:
    """Broadcast an f32 to the type of the vector `like`."""
    return vector.broadcast(like.type, value)


def rounded(values: ir.Value, element: str) -> ir.Value:
    """An f32 vector as `element`, "f32" or "bf16"."""
    if element == "f32":
        return values
    return arith.truncf(of(ir.Type.parse(element), lanes_of(values)), values)


def zero(lanes: int) -> ir.Value:
    """A vector of zeros, f32."""
    return splat(0.0, f32(), lanes)
