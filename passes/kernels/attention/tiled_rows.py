"""Sixteen rows of attention on tiles: their queries, softmax and results."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.dialects import x86
from mxc.kernels.amx import TILE
from mxc.kernels.decode import STEP
from mxc.passes.kernels.attention.memory import Workgroup
from mxc.passes.kernels.attention.pieces import (
    FLOOR,
    SoftmaxState,
    added,
    mean,
    merged,
    only_sink,
)
from mxc.passes.kernels.attention.rows import Combine, in_all_lanes, reduce_rows, shuffle
from mxc.passes.kernels.attention.scores import MASKED
from mxc.passes.kernels.attention.staging import extended
from mxc.passes.kernels.attention.tiled_memory import KeyPiece, TiledBuffers
from mxc.passes.kernels.attention.tiled_shape import KEYS, TiledAttention
from mxc.passes.kernels.exponential import LOG2_E, greater, power, tanh
from mxc.passes.kernels.vectors import (
    below,
    bitcast,
    broadcast,
    choose,
    f32,
    i32,
    index,
    lanes_of,
    load,
    loop,
    parts_of,
    signed_below,
    splat,
    table,
    unequal,
    when,
)

#: Rows whose weights are computed at once: as many as hide latencies.
AT_ONCE = 4
#: Least maximum that is subtracted from scores: it is finite also when multiplied by log2 e.
LEAST_TOP = -1e38
#: Mask of the bits of an f32 that a bf16 has.
_UPPER = -(1 << 16)


def planes_of(value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Two f32 vectors whose sum is `value`. The first is a bf16: its upper half."""
    lanes = lanes_of(value)
    upper = bitcast(bitcast(value, i32(), lanes) & _UPPER, f32(), lanes)
    return upper, value - upper


@dataclass(frozen=True)
class Row:
    """A row of a tile: its `number` in the tile, its token counted in the run (`own`) and in the
    call (`token`), and its query head `member`."""

    number: ir.Value
    own: ir.Value
    token: ir.Value
    member: ir.Value


@dataclass(frozen=True)
class RowTile:
    """`count` rows of a head from row `first` of the run on. `buffer`: which half of `scores` has
    their scores, 0 or 1. `state`: index of the first row in the `all_maxima` of the workgroup."""

    shape: TiledAttention
    memory: TiledBuffers
    work: Workgroup
    head: ir.Value
    first: ir.Value
    state: ir.Value
    count: ir.Value
    buffer: ir.Value

    @contextmanager
    def _rows(self) -> Iterator[Row]:
        """Emit a loop over the rows."""
        with loop(index(0), self.count, index(1)) as (number, _, _):
            row, group = self.first + number, index(self.shape.group)
            own = row // group
            token = self.work.run.first + own
            yield Row(number, own, token, row - own * group)

    def _place(self, row: Row, at: int, part: bool = False) -> list[ir.Value]:
        """Indices of element `at` in queries and results, or in partial results."""
        token = self.work.first_part + row.token if part else row.token
        return [token, self.head, row.member, index(at)]

    def stage(self) -> None:
        """Store the queries, times the scale of scores, as planes of bf16."""
        shape, memory = self.shape, self.memory
        with self._rows() as row:
            for step in range(shape.steps):
                halves = []
                for at in range(step * STEP, (step + 1) * STEP, TILE):
                    found = splat(0.0, f32(), TILE)
                    if at < shape.depth:
                        found = load(memory.queries, self._place(row, at), f32(), TILE)
                    halves.append(planes_of(found * shape.scale))
                for plane, both in enumerate(zip(*halves, strict=True)):
                    place = [index(plane), index(step), row.number, index(0)]
                    vector.store(x86.round_to_bf16(*both), memory.planes, place)

    def begin_piece(self, piece: KeyPiece) -> ir.Value:
        """Mask the scores of the piece. Returns the maximum of each row, a row per lane."""
        memory = self.memory
        with self._rows() as row:
            self._mask(row, piece)
            lowest, blocks = splat(FLOOR, f32(), KEYS), (piece.begin, piece.behind, index(KEYS))
            with loop(*blocks, [lowest]) as (column, (highest,), op):
                found = load(memory.scores, [self.buffer, row.number, column], f32(), KEYS)
                scf.YieldOp([greater(found, highest)])
            parts = parts_of(op.results[0], TILE)
            highest = functools.reduce(greater, parts)
            vector.store(highest, memory.wide, [row.number, index(0)])
        maximum = self._reduced(greater)
        # A row that attends to no key of the piece has no weight: its exponents are -inf.
        top = greater(maximum, splat(LEAST_TOP, f32(), TILE))
        vector.store(top * LOG2_E, memory.kept, [index(0), index(0)])
        return maximum

    def weigh(self, column: ir.Value, some: ir.Value, *, first: bool) -> None:
        """Replace scores by planes of weights, and add the weights to the totals.

        It is done for the four rows from 4 * `some` on, and the 64 keys from `column` on. `first`:
        whether these keys are the first of the piece, so that totals begin with them.
        """
        memory = self.memory
        with when(below(some * AT_ONCE, self.count)):
            for i in range(AT_ONCE):
                row = some * AT_ONCE + i
                top = broadcast(memory.kept, [index(0), row], KEYS)
                found = load(memory.scores, [self.buffer, row, column], f32(), KEYS)
                weights = power(found, top)
                sums = functools.reduce(arith.addf, parts_of(weights, TILE))
                if not first:
                    sums = load(memory.wide, [row, index(0)], f32(), TILE) + sums
                vector.store(sums, memory.wide, [row, index(0)])
                for plane, values in enumerate(planes_of(weights)):
                    parts = list(parts_of(values, TILE))
                    for j in range(KEYS // STEP):
                        pairs = x86.round_to_bf16(*parts[2 * j : 2 * j + 2])
                        here = [self.buffer, row, column + (plane * KEYS // 2 + j * TILE)]
                        vector.store(bitcast(pairs, f32(), TILE), memory.scores, here)

    def totals(self) -> ir.Value:
        """The sum of the weights of each row, a row per lane."""
        return self._reduced(arith.addf)

    def _reduced(self, combine: Combine) -> ir.Value:
        """Reduce each row of `wide`: f32 [16], a row per lane."""
        rows = [load(self.memory.wide, [index(i), index(0)], f32(), TILE) for i in range(TILE)]
        return reduce_rows(rows, combine)

    def _mask(self, row: Row, piece: KeyPiece) -> None:
        """Bound the scores of a row by the cap, and mask those of keys that it does not attend to.
        Most pieces have no such keys, and skip the latter."""
        shape, scores, cap = self.shape, self.memory.scores, self.shape.cap
        blocks = piece.begin, piece.behind, index(KEYS)
        if cap is not None:
            with loop(*blocks) as (column, _, _):
                here = [self.buffer, row.number, column]
                bounded = tanh(load(scores, here, f32(), KEYS) * (1 / cap))
                vector.store(bounded * cap, scores, here)
        own = shape.position(self.work.run, row.own)
        first, last = (each - piece.base for each in (shape.first_seen(own), own))
        with when(signed_below(piece.begin, first) | signed_below(last + 1, piece.behind)):
            bounds = [in_all_lanes(arith.index_cast(i32(), each), KEYS) for each in (first, last)]
            with loop(*blocks) as (column, _, _):
                start = in_all_lanes(arith.index_cast(i32(), column), KEYS)
                key = start + table(np.arange(KEYS, dtype=np.int32), i32())
                seen = arith.cmpi(arith.CmpIPredicate.sge, key, bounds[0])
                seen &= arith.cmpi(arith.CmpIPredicate.sle, key, bounds[1])
                here = [self.buffer, row.number, column]
                found = load(scores, here, f32(), KEYS)
                found = arith.select(seen, found, splat(MASKED, f32(), KEYS))
                vector.store(found, scores, here)

    def begin(self) -> None:
        """Before the first piece: start with the sink only, which has no value."""
        memory = self.memory
        with self._rows() as row:
            sink = only_sink(extended(broadcast(memory.sinks, [self.head, row.member], TILE)))
            for value, target in zip(sink.numbers, self._states, strict=True):
                memref.StoreOp(vector.extract(value, [], [0]), target, [self.state + row.number])

    @property
    def _states(self) -> tuple[ir.Value, ir.Value]:
        return self.memory.all_maxima, self.memory.all_totals

    def _keep(self, numbers: Sequence[ir.Value]) -> None:
        """Store two numbers of each row to `kept`. `numbers`: two vectors with a row per lane."""
        for i, values in enumerate(numbers):
            vector.store(values, self.memory.kept, [index(i), index(0)])

    def _kept(self, row: Row) -> tuple[ir.Value, ir.Value]:
        """Load the two numbers of a row from `kept`, each in all lanes."""
        first, second = (
            broadcast(self.memory.kept, [index(i), row.number], TILE) for i in range(2)
        )
        return first, second

    def leave_piece(self, piece: SoftmaxState) -> None:
        """Write sums of values, maxima and totals of the piece, for `merge_pieces`."""
        memory, shape = self.memory, self.shape
        self._keep(piece.numbers)
        with self._rows() as row:
            for number, value in enumerate(self._kept(row)):
                place = shape.state_of(self._place(row, 0, part=True)[:3], number)
                memref.StoreOp(vector.extract(value, [], [0]), memory.parts, place)
            for at, found in self._sums(row):
                vector.store(found, memory.parts, self._place(row, at, part=True))

    def add_piece(self, piece: SoftmaxState, first: ir.Value, last: ir.Value) -> None:
        """Add the piece to the earlier ones. `first`: whether it is the first piece, so that there
        are none. `last`: whether it is the last one, so that sums are divided by the totals."""
        memory, shape = self.memory, self.shape
        before = SoftmaxState(*(load(each, [self.state], f32(), TILE) for each in self._states))
        after, factors = merged(before, piece)
        for value, target in zip(after.numbers, self._states, strict=True):
            vector.store(value, target, [self.state])
        self._keep(factors)
        target = arith.select(last, memory.result, memory.parts)
        with self._rows() as row:
            found = dict(self._sums(row))
            none = [splat(0.0, f32(), TILE)] * len(found)

            def earlier(row: Row = row, found: dict[int, ir.Value] = found) -> list[ir.Value]:
                return [load(memory.parts, self._place(row, at), f32(), TILE) for at in found]

            old, kept = choose(first ^ 1, earlier, none), self._kept(row)
            sums = [added(*pair, kept) for pair in zip(old, found.values(), strict=True)]

            def means(row: Row = row, sums: list[ir.Value] = sums) -> list[ir.Value]:
                total = broadcast(memory.all_totals, [self.state + row.number], TILE)
                return [mean(shape, each, total) for each in sums]

            for at, value in zip(found, choose(last, means, sums), strict=True):
                vector.store(value, target, self._place(row, at))

    def _sums(self, row: Row) -> Iterator[tuple[int, ir.Value]]:
        """Yield the sums of values of a row, 16 elements at a time, after the index of the first.

        They are put back into order from that of `TiledStaging.stage_values`.
        """
        for at in range(0, self.shape.mixed, TILE):
            start = at // STEP * STEP
            here = [[row.number, index(start + i)] for i in (0, TILE)]
            both = [load(self.memory.sums, each, f32(), TILE) for each in here]
            groups = range((at - start) // 2, (at - start) // 2 + TILE // 2, 4)
            order = [side + group + i for group in groups for side in (0, TILE) for i in range(4)]
            yield at, shuffle(both[0], both[1], order)

    def add_weighted(self, column: ir.Value, step: int, values: ir.Value) -> None:
        """Add 32 elements of the value of key `column`, from 32 * `step` on, to the sums of rows
        whose weight for it is not zero. `values`: f32 [32], each infinite, NaN or zero, so that
        they need not be multiplied by the weight."""
        memory = self.memory
        with self._rows() as row:
            pair = column // KEYS * KEYS + column % KEYS // 2
            both = memref.LoadOp(memory.scores, [self.buffer, row.number, pair]).result
            bits = arith.bitcast(i32(), both)
            weight = arith.shrui(bits, arith.index_cast(i32(), column % 2 * 16)) & 0xFFFF
            with when(unequal(weight, 0)):
                for half in range(2):
                    order = [8 * i + 4 * half + j for i in range(4) for j in range(4)]
                    at = [row.number, index(step * STEP + half * TILE)]
                    sums = load(memory.sums, at, f32(), TILE)
                    vector.store(sums + shuffle(values, values, order), memory.sums, at)
