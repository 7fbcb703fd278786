"""Process a tile of rows for one block of keys, in registers: scores, softmax, values.

The maximum and the total of each row are carried from block to block of a piece. The result of a
piece is added to that of the pieces before it (see pieces.py).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, vector

from mxc.passes.kernels.attention.memory import AttentionBuffers, KeyBlock, QueryRows
from mxc.passes.kernels.attention.mix import BlockValues, Mix
from mxc.passes.kernels.attention.pieces import (
    FLOOR,
    SoftmaxState,
    added,
    mean,
    merged,
    only_sink,
)
from mxc.passes.kernels.attention.rows import kept_rows, reduce_rows, row_lanes, spread_rows
from mxc.passes.kernels.attention.scores import Scores, scores
from mxc.passes.kernels.attention.shape import CpuAttention
from mxc.passes.kernels.attention.staging import extended
from mxc.passes.kernels.exponential import exponential, greater
from mxc.passes.kernels.vectors import (
    broadcast,
    choose,
    f32,
    index,
    load,
    loop,
    signed_below,
    splat,
    when,
)


class AttentionTile:
    """The tile of `rows` in a workgroup."""

    def __init__(self, shape: CpuAttention, memory: AttentionBuffers, rows: QueryRows) -> None:
        """Build nothing yet."""
        self._shape = shape
        self._memory = memory
        self._rows = rows

    def begin(self) -> None:
        """Before the first piece: start with the sink only, which has no value."""
        lanes, memory, rows = self._shape.lanes, self._memory, self._rows
        sinks = [
            extended(broadcast(memory.sinks, [rows.head, member], lanes)) for member in rows.members
        ]
        self._store(memory.all_maxima, memory.all_totals, only_sink(reduce_rows(sinks, greater)))

    def begin_piece(self) -> None:
        """Before the first block of a piece: clear its state and its sums of values."""
        lanes, memory, rows = self._shape.lanes, self._memory, self._rows
        zero = splat(0.0, f32(), lanes)
        none = SoftmaxState(splat(FLOOR, f32(), lanes), zero)
        self._store(memory.maxima, memory.totals, none)
        with loop(index(0), index(self._shape.mixed), index(lanes)) as (at, _, _):
            for i in range(rows.count):
                vector.store(zero, memory.sums, [*rows.part(i), at])

    def block(self, block: KeyBlock, values: BlockValues) -> None:
        """Process a block of keys, if the tile attends to any of them."""
        shape, positions = self._shape, self._rows.positions
        behind = block.start + shape.block_keys
        own, oldest = positions[-1] + 1, shape.first_seen(positions[0])
        with when(signed_below(block.start, own) & signed_below(oldest, behind)):
            self._weight_scores(scores(shape, self._memory, self._rows, block))
            mix = Mix(shape, self._memory, self._rows, block, values)
            first = arith.maxsi(block.start, oldest)
            mix.add(*(at - block.start for at in (first, arith.minsi(behind, own))))

    def _weight_scores(self, scores: Scores) -> None:
        """Turn scores into weights, and scale earlier sums to the new maximum."""
        memory, lanes = self._memory, self._shape.lanes
        before = self._load(memory.maxima, memory.totals)
        highest = reduce_rows([functools.reduce(greater, row) for row in scores], greater)
        maximum = greater(highest, before.maximum)
        self._store_one(maximum, memory.maxima)
        sums = []
        for i, row in enumerate(scores):
            top = broadcast(memory.maxima, self._state(i), lanes)
            weights = [exponential(score - top) for score in row]
            for j, weight in enumerate(weights):
                vector.store(weight, memory.weights, [index(i), index(j * lanes)])
            sums.append(functools.reduce(arith.addf, weights))
        # The factors of the rows are stored in the extra row of `weights`.
        factor = exponential(before.maximum - maximum)
        vector.store(factor, memory.weights, [index(self._shape.tile_rows), index(0)])
        total = math.fma(before.total, factor, reduce_rows(sums, arith.addf))
        self._store_one(total, memory.totals)

    def leave_piece(self) -> None:
        """Write maximum and total of the piece, for `merge_pieces`."""
        memory = self._memory
        for i in range(self._rows.count):
            for number, source in enumerate((memory.maxima, memory.totals)):
                value = memref.LoadOp(source, self._state(i)).result
                place = self._shape.state_of(self._rows.part(i), number)
                memref.StoreOp(value, memory.parts, place)

    def add_piece(self, first: ir.Value, last: ir.Value) -> None:
        """Add the piece to the earlier ones. `first`: whether it is the first piece, so that there
        are none. `last`: whether it is the last one, so that sums are divided by the totals."""
        memory, rows, lanes = self._memory, self._rows, self._shape.lanes
        after, factors = merged(
            self._load(memory.all_maxima, memory.all_totals),
            self._load(memory.maxima, memory.totals),
        )
        self._store(memory.all_maxima, memory.all_totals, after)
        for row, factor in enumerate(factors):
            vector.store(factor, memory.weights, [index(row), index(0)])
        width, none = row_lanes(rows.count, lanes), [splat(0.0, f32(), lanes)] * rows.count
        target = arith.select(last, memory.result, memory.parts)
        with loop(index(0), index(self._shape.mixed), index(lanes)) as (at, _, _):

            def earlier(at: ir.Value = at) -> list[ir.Value]:
                return [
                    load(memory.parts, [*rows.row(i), at], f32(), lanes) for i in range(rows.count)
                ]

            # All are loaded before any is stored, since a tile may contain a row twice.
            results = []
            for i, old in enumerate(choose(first ^ 1, earlier, none)):
                own = [
                    broadcast(memory.weights, [index(j), index(i * width)], lanes) for j in range(2)
                ]
                new = load(memory.sums, [*rows.part(i), at], f32(), lanes)
                results.append(added(old, new, (own[0], own[1])))

            def means(results: Sequence[ir.Value] = tuple(results)) -> list[ir.Value]:
                totals = [
                    broadcast(memory.all_totals, self._state(i), lanes) for i in range(rows.count)
                ]
                return [mean(self._shape, *pair) for pair in zip(results, totals, strict=True)]

            for i, result in enumerate(choose(last, means, results)):
                vector.store(result, target, [*rows.row(i), at])

    def _state(self, row: int) -> list[ir.Value]:
        """The indices of the maximum and the total of a row."""
        return [self._rows.number, index(row)]

    def _load(self, maxima: ir.Value, totals: ir.Value) -> SoftmaxState:
        rows, lanes = self._rows.count, self._shape.lanes
        count = lanes // row_lanes(rows, lanes)
        found = [load(each, self._state(0), f32(), count) for each in (maxima, totals)]
        return SoftmaxState(*(spread_rows(each, lanes) for each in found))

    def _store(self, maxima: ir.Value, totals: ir.Value, state: SoftmaxState) -> None:
        self._store_one(state.maximum, maxima)
        self._store_one(state.total, totals)

    def _store_one(self, value: ir.Value, target: ir.Value) -> None:
        vector.store(kept_rows(value, self._rows.count), target, self._state(0))
