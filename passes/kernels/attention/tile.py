"""Some rows and one block of keys, in registers: scores, softmax, values.

softmax: the maximum and the total of each row are carried from block to block of a piece. The
result of a piece is added to that of the pieces before it (see pieces.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, vector

from mxc.passes.kernels.attention.memory import AttentionBuffers, KeyBlock, QueryRows
from mxc.passes.kernels.attention.mix import Mix
from mxc.passes.kernels.attention.pieces import (
    FLOOR,
    SoftmaxState,
    added,
    joined,
    mean,
    only_sink,
)
from mxc.passes.kernels.attention.rows import reduce_rows, row_lanes
from mxc.passes.kernels.attention.scores import Scores, scores
from mxc.passes.kernels.attention.shape import CpuAttention
from mxc.passes.kernels.attention.staging import extended
from mxc.passes.kernels.exponential import exponential, greater
from mxc.passes.kernels.runs import first_seen
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
    """The tile of `rows` in a workgroup. `all_heads`: see Mix."""

    def __init__(
        self, shape: CpuAttention, memory: AttentionBuffers, rows: QueryRows, *, all_heads: bool
    ) -> None:
        """Build nothing yet."""
        self._shape = shape
        self._memory = memory
        self._rows = rows
        self._all_heads = all_heads
        self._lane = row_lanes(rows.count, shape.lanes)

    def begin(self) -> None:
        """Before the first piece: start with the sink only, which has no value."""
        lanes, memory, rows = self._shape.lanes, self._memory, self._rows
        sinks = [
            extended(broadcast(memory.sinks, [rows.head, member], lanes)) for member in rows.members
        ]
        self._store(memory.all_maxima, memory.all_totals, only_sink(reduce_rows(sinks, greater)))

    def begin_sums(self) -> None:
        """Where there is more than one piece: clear the sums of values before the first."""
        self._clear(self._memory.parts, self._rows.row)

    def begin_piece(self) -> None:
        """Before the first block of a piece: clear its state and its sums of values."""
        lanes, memory = self._shape.lanes, self._memory
        none = SoftmaxState(splat(FLOOR, f32(), lanes), splat(0.0, f32(), lanes))
        self._store(memory.maxima, memory.totals, none)
        self._clear(memory.sums, self._rows.part)

    def block(self, block: KeyBlock) -> None:
        """Process a block of keys, if the tile attends to any of them."""
        shape, positions = self._shape, self._rows.positions
        behind = block.start + shape.block_keys
        own = positions[-1] + 1
        some, first = signed_below(block.start, own), block.start
        if shape.reach is not None:
            oldest = first_seen(shape.reach, positions[0])
            some = some & signed_below(oldest, behind)
            first = arith.maxsi(first, oldest)
        with when(some):
            self._weight_scores(scores(shape, self._memory, self._rows, block))
            mix = Mix(shape, self._memory, self._rows, block, self._all_heads)
            bounds = [at - block.start for at in (first, arith.minsi(behind, own))]
            mix.add(*bounds)

    def _weight_scores(self, scores: Scores) -> None:
        """Turn scores into weights, and scale earlier sums to the new maximum."""
        memory, lanes = self._memory, self._shape.lanes
        here = [self._rows.number, index(0)]
        before = load(memory.maxima, here, f32(), lanes)
        highest = reduce_rows([functools.reduce(greater, row) for row in scores], greater)
        maximum = greater(highest, before)
        vector.store(maximum, memory.maxima, here)
        sums = []
        for i, row in enumerate(scores):
            top = broadcast(memory.maxima, self._state(i), lanes)
            weights = [exponential(score - top) for score in row]
            for j, weight in enumerate(weights):
                vector.store(weight, memory.weights, [index(i), index(j * lanes)])
            sums.append(functools.reduce(arith.addf, weights))
        # The factors of the rows are stored in the extra row of `weights`.
        factor = exponential(before - maximum)
        vector.store(factor, memory.weights, [index(self._shape.tile_rows), index(0)])
        total = load(memory.totals, here, f32(), lanes)
        total = math.fma(total, factor, reduce_rows(sums, arith.addf))
        vector.store(total, memory.totals, here)

    def leave_piece(self) -> None:
        """Write maximum and total of the piece, for `join_pieces`."""
        memory = self._memory
        for i in range(self._rows.count):
            for number, source in enumerate((memory.maxima, memory.totals)):
                value = memref.LoadOp(source, self._state(i)).result
                place = self._shape.state_of(self._rows.part(i), number)
                memref.StoreOp(value, memory.parts, place)

    def add_piece(self) -> None:
        """Add the piece to the earlier ones, and begin the next one."""
        memory, rows, lanes = self._memory, self._rows, self._shape.lanes

        def sums(at: ir.Value) -> list[ir.Value]:
            return [load(memory.parts, [*rows.row(i), at], f32(), lanes) for i in range(rows.count)]

        self._add_piece(sums, memory.parts, lambda total, _: total)
        self.begin_piece()

    def finish(self, several: ir.Value) -> None:
        """Add the last piece to earlier ones, if there are `several`, and divide by the totals."""
        memory, rows, lanes = self._memory, self._rows, self._shape.lanes
        none = [splat(0.0, f32(), lanes)] * rows.count

        def sums(at: ir.Value) -> list[ir.Value]:
            def before() -> list[ir.Value]:
                return [
                    load(memory.parts, [*rows.row(i), at], f32(), lanes) for i in range(len(none))
                ]

            return choose(several, before, none)

        self._add_piece(sums, memory.result, functools.partial(mean, self._shape))

    def _add_piece(
        self,
        sums: Callable[[ir.Value], list[ir.Value]],
        target: ir.Value,
        finished: Callable[[ir.Value, ir.Value], ir.Value],
    ) -> None:
        """Combine the piece, and store `finished` of sums and totals. `sums`: loads the earlier
        sums of values, one register per row."""
        memory, rows, lanes = self._memory, self._rows, self._shape.lanes
        here = [rows.number, index(0)]
        before, piece = (
            SoftmaxState(*(load(source, here, f32(), lanes) for source in sources))
            for sources in (
                (memory.all_maxima, memory.all_totals),
                (memory.maxima, memory.totals),
            )
        )
        after, factors = joined(before, piece)
        self._store(memory.all_maxima, memory.all_totals, after)
        for row, factor in enumerate(factors):
            vector.store(factor, memory.weights, [index(row), index(0)])
        with loop(index(0), index(self._shape.mixed), index(lanes)) as (at, _, _):
            # All are loaded before any is stored, since a tile may contain a row twice.
            results = []
            for i, old in enumerate(sums(at)):
                lane = index(i * self._lane)
                own = [broadcast(memory.weights, [index(j), lane], lanes) for j in range(2)]
                new = load(memory.sums, [*rows.part(i), at], f32(), lanes)
                total = broadcast(memory.all_totals, self._state(i), lanes)
                results.append(finished(added(old, new, (own[0], own[1])), total))
            for i, result in enumerate(results):
                vector.store(result, target, [*rows.row(i), at])

    def _state(self, row: int) -> list[ir.Value]:
        """The indices of the maximum and the total of a row."""
        return [self._rows.number, index(row * self._lane)]

    def _store(self, maxima: ir.Value, totals: ir.Value, state: SoftmaxState) -> None:
        vector.store(state.maximum, maxima, [self._rows.number, index(0)])
        vector.store(state.total, totals, [self._rows.number, index(0)])

    def _clear(self, target: ir.Value, place: Callable[[int], list[ir.Value]]) -> None:
        lanes = self._shape.lanes
        zero = splat(0.0, f32(), lanes)
        for i in range(self._rows.count):
            with loop(index(0), index(self._shape.mixed), index(lanes)) as (at, _, _):
                vector.store(zero, target, [*place(i), at])
