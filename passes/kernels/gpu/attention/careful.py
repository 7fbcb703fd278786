"""Attention over keys and values of which some are infinite or NaN: the second pass of a wave.

Zero times an infinite value is NaN in a matrix instruction, which multiplies values also by the
zero weights of rows that do not attend to a key, and keys also by parts of queries that are zero.
So in this pass

    scores that are not finite are computed again, by multiply-adds of f32
    values that are not finite are zero in matrix instructions; multiply-adds then add them to the
        rows that have a weight for them

A row that attends to no such key has the same bits as in the first pass, whatever the other rows of
its wave attend to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math, scf, vector

from mxc.dialects.amdgpu import no_reordering, pinned
from mxc.dialects.amdgpu_narrow import of_lane
from mxc.passes.kernels.gpu.attention.operands import PoolBlock, WaveOperands, extended
from mxc.passes.kernels.gpu.attention.shape import BLOCK_KEYS, TILE, GpuAttention
from mxc.passes.kernels.gpu.attention.softmax import in_all, number, zero
from mxc.passes.kernels.gpu.attention.wave import LaneRow
from mxc.passes.kernels.gpu.fragments import FRAGMENT
from mxc.passes.kernels.gpu.lanes import short, unknown_zero
from mxc.passes.kernels.vectors import (
    bitcast,
    elements,
    f32,
    i32,
    index,
    lanes_of,
    loop,
    of,
    part_of,
    splat,
)

#: Adds the products of a chunk of keys, elements [run], and of queries, f32 [run], to scores.
Product = Callable[[ir.Value, ir.Value, ir.Value], ir.Value]


def scores_of_any(
    operands: WaveOperands, row: LaneRow, block: PoolBlock, product: Product
) -> list[ir.Value]:
    """Return the scores of a block of keys, a vector per tile: summed by `product`, in the order of
    the chunks along D; those that are not finite by multiply-adds of f32.

    `block`: the keys. The query is loaded in loops along D: there are no registers for all of it,
    in bf16 and in f32.
    """
    shape, tiles = operands.shape, BLOCK_KEYS // TILE
    begun = [zero(shape.sums)] * tiles
    with loop(index(0), index(shape.chunks), index(1), begun) as (chunk, given, op):
        query = operands.query_chunk(row, chunk)
        keys = [operands.key_chunk(block, tile, chunk) for tile in range(tiles)]
        found = []
        for key, total in zip(keys, given, strict=True):
            found.append(product(key, query, total))
            # One tile at a time: splitting floats takes a mask for each element, for infinities.
            no_reordering()
        scf.YieldOp(found)
    scores = list(op.results)
    exact = _exact_scores(operands, row, block)
    return [
        arith.select(_finite(score), score, vector.from_elements(score.type, own))
        for score, own in zip(scores, exact, strict=True)
    ]


def _exact_scores(operands: WaveOperands, row: LaneRow, block: PoolBlock) -> list[list[ir.Value]]:
    """Return the scores of the keys that a lane has, by tile, as multiply-adds of f32."""
    shape = operands.shape
    begun = [number(0.0)] * (BLOCK_KEYS // TILE * shape.sums)
    with loop(index(0), index(shape.depth), index(FRAGMENT), begun) as (at, given, op):
        query, found = elements(operands.query_part(row, at)), []
        # Computed in each iteration: there are no registers for the addresses of all keys.
        group = operands.lane.group + unknown_zero()
        for key, total in zip(_keys(shape, group), given, strict=True):
            own = elements(extended(operands.elements(block, key, at, FRAGMENT)))
            for pair in zip(query, own, strict=True):
                total = math.fma(*pair, total)
            found.append(total)
            no_reordering()
        scf.YieldOp(found)
    totals = list(op.results)
    return [totals[n : n + shape.sums] for n in range(0, len(totals), shape.sums)]


def _keys(shape: GpuAttention, group: ir.Value) -> Iterator[ir.Value]:
    """Yield the keys of a block, counted from its first, whose scores a lane of `group` has."""
    for tile in range(0, BLOCK_KEYS, TILE):
        for place in range(shape.sums):
            yield group * shape.sums + (tile + place)


def finite_only(values: ir.Value) -> ir.Value:
    """Return a vector of floats with zeros in place of elements that are not finite.

    Vectors of 16-bit elements are tested in the order in which this function is called: a mask for
    each element of a block would take more scalar registers than there are. Vectors of f32 are not
    held in this order: if all of a block were tested first, they would fill the vector registers.
    """
    kind = ir.VectorType(values.type)
    nothing = splat(0.0, kind.element_type, kind.shape[0])
    if kind.element_type == f32():
        return arith.select(_finite(values), values, nothing)
    # Otherwise LLVM would compare the decoded elements, and hold half a register for each.
    values = _pinned(values)
    values = _pinned(arith.select(_finite(extended(values)), values, nothing))
    no_reordering()
    return values


def _pinned(values: ir.Value) -> ir.Value:
    """Pin a vector of 16-bit elements (see `pinned`), as 32-bit registers."""
    kind, count = ir.VectorType(values.type).element_type, lanes_of(values)
    if count % 2:
        values = vector.shuffle(values, values, [*range(count), count - 1])
    words = pinned(elements(bitcast(values, i32(), lanes_of(values) // 2)))
    whole = vector.from_elements(of(i32(), len(words)), words)
    return part_of(bitcast(whole, kind, 2 * len(words)), 0, count)


def add_nonfinite_values(
    operands: WaveOperands, block: PoolBlock, weights: ir.Value, sums: Sequence[ir.Value]
) -> list[ir.Value]:
    """Return `sums` plus weights times the values of a block that are not finite, for rows with a
    weight for them that is not zero.

    `weights`: f32, of the keys that the lane has. Those of the row's other keys come from other
    lanes.
    """
    shape, lane = operands.shape, operands.lane.lane
    with loop(index(0), index(shape.lanes // TILE), index(1), sums) as (group, given, op):
        sums = list(given)
        owner = short(group * TILE + lane % TILE)
        for key, weight in zip(_keys(shape, group), elements(weights), strict=True):
            bits = of_lane(arith.bitcast(i32(), weight), owner)
            sums = _with_key(operands, block, key, arith.bitcast(f32(), bits), sums)
            # One key at a time: there are no registers to load more of them at once.
            no_reordering()
        scf.YieldOp(sums)
    return list(op.results)


def _with_key(
    operands: WaveOperands,
    block: PoolBlock,
    key: ir.Value,
    weight: ir.Value,
    sums: Sequence[ir.Value],
) -> list[ir.Value]:
    """Return `sums` plus `weight` times the elements that are not finite of the value of a key."""
    shape, columns = operands.shape, []
    nothing = arith.cmpf(arith.CmpFPredicate.OEQ, weight, number(0.0))
    none = zero(shape.slots)
    rows = [operands.lane.group * shape.sums + place for place in range(shape.sums)]
    places = [operands.first + row * shape.slots for row in rows]
    loaded = [operands.load(block, key, at, shape.slots) for at in places]
    for each in loaded:
        values = extended(operands.decoded(each, shape.slots))
        # Finite values are in the sums already, also with a weight that is infinite or NaN.
        values = arith.select(_finite(values), none, values)
        columns.append(elements(arith.select(nothing, none, values)))
        # One vector at a time: the test takes a mask for each element.
        no_reordering()
    return [
        math.fma(in_all(weight, before), vector.from_elements(before.type, list(own)), before)
        for own, before in zip(zip(*columns, strict=True), sums, strict=True)
    ]


def _finite(values: ir.Value) -> ir.Value:
    """Return which elements, f32, are finite: for these, x - x is zero."""
    own = values - values
    return arith.cmpf(arith.CmpFPredicate.OEQ, own, zero(lanes_of(values)))
