"""Keys and values that may be infinite or NaN where a row does not see them.

What a matrix instruction makes of them is not what f32 would: zero times infinity. So they are left
out of it, and what they are to a row that does see them is added apart. A row that sees none has
the same bits as without care, whatever the other rows of its wave see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math, rocdl, scf, vector

from mxc.dialects.amdgpu import mfma, no_reordering
from mxc.passes.kernels.gpu.attention.operands import Block, Operands, Row, extended
from mxc.passes.kernels.gpu.attention.shape import BLOCK_KEYS, FRAGMENT, TILE
from mxc.passes.kernels.gpu.attention.softmax import in_all, number, zero
from mxc.passes.kernels.gpu.lanes import plus, rest, times
from mxc.passes.kernels.vectors import f32, i32, index, loop, of, splat

_F32 = (TILE, TILE, 4)
#: Adds the products of a key's elements and of a query's f32 [8] to scores f32 [4].
Product = Callable[[ir.Value, ir.Value, ir.Value], ir.Value]


def scores_of_any(operands: Operands, row: Row, block: Block, product: Product) -> list[ir.Value]:
    """Scores of a block of keys, two f32 [4]: as `product` gives them, in the order of the chunks
    along D; those that are not finite by f32 instructions.

    block: the keys. A loop, for there are no registers for the query in both forms.
    """
    halves = BLOCK_KEYS // TILE
    with loop(index(0), index(operands.chunks), index(1), [zero(4)] * 2 * halves) as (
        chunk,
        given,
        op,
    ):
        query = operands.query_chunk(row, chunk)
        totals, exact = list(given[:halves]), list(given[halves:])
        for half in range(halves):
            key = operands.key_chunk(block, half, chunk)
            totals[half] = product(key, query, totals[half])
            wide = extended(key)
            for at in range(FRAGMENT):
                a, b = (vector.extract(each, [], [at]) for each in (wide, query))
                exact[half] = mfma(_F32, a, b, exact[half])
        scf.YieldOp([*totals, *exact])
    found = list(op.results)
    return [
        arith.select(_finite(score), score, exact)
        for score, exact in zip(found[:halves], found[halves:], strict=True)
    ]


def finite_only(values: ir.Value) -> ir.Value:
    """A vector whose elements are zero where they are not finite."""
    kind = ir.VectorType(values.type)
    nothing = splat(0.0, kind.element_type, kind.shape[0])
    return arith.select(_finite(extended(values)), values, nothing)


def with_the_others(
    operands: Operands, block: Block, weights: ir.Value, sums: Sequence[ir.Value]
) -> list[ir.Value]:
    """`sums` with the values of a block that are not finite, where a row has a weight for them.

    weights: f32 [8] of the keys that the lane has.
    """
    each = [vector.extract(weights, [], [at]) for at in range(FRAGMENT)]
    with loop(index(0), index(4), index(1), sums) as (group, given, op):
        sums = list(given)
        owner = plus(times(group, TILE), rest(operands.lane, TILE))
        for at, weight in enumerate(each):
            half, place = divmod(at, 4)
            key = plus(plus(times(group, 4), place), half * (BLOCK_KEYS // 2))
            sums = _with_key(operands, block, key, _of_lane(weight, owner), sums)
            # One key at a time: there are no registers to load more of them at once.
            no_reordering()
        scf.YieldOp(sums)
    return list(op.results)


def _with_key(
    operands: Operands,
    block: Block,
    key: ir.Value,
    weight: ir.Value,
    sums: Sequence[ir.Value],
) -> list[ir.Value]:
    slots = operands.shape.slots
    nothing = arith.cmpf(arith.CmpFPredicate.OEQ, weight, number(0.0))
    columns = []
    for place in range(4):
        at = plus(operands.first, times(plus(times(operands.group, 4), place), slots))
        values = extended(operands.value(block, key, at))
        values = arith.select(_finite(values), zero(slots), values)
        columns.append(arith.select(nothing, zero(slots), values))
    found = []
    for slot, before in enumerate(sums):
        own = [vector.extract(column, [], [slot]) for column in columns]
        # Of finite values nothing is added: a weight that is infinite or NaN is in the sums.
        four = vector.from_elements(of(f32(), 4), own)
        found.append(math.fma(in_all(weight, 4), four, before))
    return found


def _finite(values: ir.Value) -> ir.Value:
    """Where f32 are finite: x - x is zero."""
    own = arith.subf(values, values)
    return arith.cmpf(arith.CmpFPredicate.OEQ, own, zero(ir.VectorType(values.type).shape[0]))


def _of_lane(value: ir.Value, lane: ir.Value) -> ir.Value:
    """An f32 of another lane."""
    at = arith.index_cast(i32(), times(lane, 4))
    return arith.bitcast(f32(), rocdl.ds_bpermute(i32(), at, arith.bitcast(i32(), value)))
