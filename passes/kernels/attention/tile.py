"""Some rows over one block of keys, all in registers: scores, softmax, values.

scores:  one or two registers of keys a row; each element of the queries goes to all lanes
softmax: the maximum and the total of each row are carried from block to block
mix:     some registers along D a row; each weight goes to all lanes
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, scf, vector

from mxc.passes.kernels.attention.rows import (
    Combine,
    choose,
    reduce_rows,
    row_lanes,
    shuffle,
    spread,
    when,
)
from mxc.passes.kernels.attention.shape import KEY_REGISTERS, Attention, Source
from mxc.passes.kernels.attention.staging import extended
from mxc.passes.kernels.caches import Seen
from mxc.passes.kernels.exponential import exponential, greater, lanes_of
from mxc.passes.kernels.vectors import (
    bitcast,
    broadcast,
    i32,
    index,
    load,
    loop,
    prefetch,
    splat,
    table,
)

#: Elements of D that the loop over the scores takes at once.
UNROLL = 8
#: Sums that hide the latency of a multiply-add.
CHAINS = 8
#: What a score is where a row does not see the key, and the least that a maximum can be: the
#: exponential of their difference is zero.
MASKED, FLOOR = -3.0e38, -1.0e38


@dataclass(frozen=True)
class Memory:
    """`queries` and `result` as the caller gave them; the rest is the workgroup's own.

    `staged` [D, keys] and `copied` [keys, D] are a block of keys and of values; `weights` [rows of
    a tile and one more, keys]; `maxima` and `totals` [tiles, lanes], where row i of a tile has the
    lanes from i * row_lanes.
    """

    queries: ir.Value
    sinks: ir.Value
    result: ir.Value
    keys: Source
    values: Source
    staged: ir.Value
    copied: ir.Value | None
    weights: ir.Value
    maxima: ir.Value
    totals: ir.Value


class Tile:
    """`count` rows from `first`; the `number`-th tile of its workgroup.

    head: the key/value head. piece: which piece of the keys, or None.
    """

    def __init__(
        self,
        shape: Attention,
        memory: Memory,
        head: ir.Value,
        piece: ir.Value | None,
        first: ir.Value,
        number: ir.Value,
        count: int,
    ) -> None:
        """Compute where the rows are."""
        self._shape = shape
        self._memory = memory
        self._head = head
        self._piece = piece
        self._number = number
        self._count = count
        self._lane = row_lanes(count, shape.lanes)
        self._numbers = [arith.addi(first, index(i)) for i in range(count)]
        self._tokens, self._members = _split_rows(first, self._numbers, shape.group)

    def _query(self, i: int, at: ir.Value) -> list[ir.Value]:
        return [self._tokens[i], self._head, self._members[i], at]

    def _result(self, i: int, at: ir.Value) -> list[ir.Value]:
        if self._piece is None:
            return self._query(i, at)
        return [self._piece, self._head, self._numbers[i], at]

    def begin(self) -> None:
        """Before the first block: no values yet, and the sink, which has none."""
        shape, memory = self._shape, self._memory
        lanes = shape.lanes
        zero = splat(0.0, ir.F32Type.get(), lanes)
        maximum = splat(FLOOR, ir.F32Type.get(), lanes)
        total = zero
        if self._piece is None:
            sinks = [
                extended(broadcast(memory.sinks, [self._head, self._members[i]], lanes))
                for i in range(self._count)
            ]
            sink = reduce_rows(sinks, greater)
            maximum = greater(maximum, sink)
            total = exponential(arith.subf(sink, maximum))
        vector.store(maximum, memory.maxima, [self._number, index(0)])
        vector.store(total, memory.totals, [self._number, index(0)])
        for i in range(self._count):
            with loop(index(0), index(shape.mixed), index(lanes)) as (at, _, _):
                vector.store(zero, memory.result, self._result(i, at))
                scf.YieldOp([])

    def block(self, seen: Seen, start: ir.Value) -> None:
        """Go over the block of keys from `start`, where the tile sees any."""
        behind = arith.addi(start, index(self._shape.block_keys))
        first = seen.first(self._tokens[0])
        last = seen.behind(self._tokens[-1])
        some = arith.andi(_less(first, behind), _less(start, last))
        with when(some):
            scores = self._mask(self._scores(start), seen, start, behind)
            self._soften(scores)
            self._mix(start, arith.maxsi(start, first), arith.minsi(behind, last))

    def _scores(self, start: ir.Value) -> list[list[ir.Value]]:
        """[row][register of keys]."""
        lanes, f32, registers = self._shape.lanes, ir.F32Type.get(), self._shape.key_registers
        split = max(1, CHAINS // (registers * self._count))
        zero = [splat(0.0, f32, lanes)] * (split * self._count * registers)
        with loop(index(0), index(self._shape.depth), index(UNROLL), zero) as (at, sums, op):
            if self._memory.copied is None:
                self._ask_for_values(start, at)
            for step in range(UNROLL):
                here = arith.addi(at, index(step))
                keys = [
                    load(self._memory.staged, [here, index(j * lanes)], f32, lanes)
                    for j in range(registers)
                ]
                for i in range(self._count):
                    query = broadcast(self._memory.queries, self._query(i, here), lanes)
                    for j, key in enumerate(keys):
                        chain = (step % split * self._count + i) * registers + j
                        sums[chain] = math.fma(query, key, sums[chain])
            scf.YieldOp(sums)
        size = self._count * registers
        sums = list(op.results)
        for part in range(1, split):
            more = sums[part * size : (part + 1) * size]
            sums[:size] = [arith.addf(a, b) for a, b in zip(sums[:size], more, strict=True)]
        scale = splat(self._shape.scale, f32, lanes)
        sums = [arith.mulf(value, scale) for value in sums[:size]]
        return [sums[i * registers : (i + 1) * registers] for i in range(self._count)]

    def _mask(
        self, scores: list[list[ir.Value]], seen: Seen, start: ir.Value, behind: ir.Value
    ) -> list[list[ir.Value]]:
        """Scores of keys that a row does not see are MASKED; most blocks have none of them."""
        late = _less(seen.behind(self._tokens[0]), behind)
        early = _less(start, seen.first(self._tokens[-1]))
        flat = [value for row in scores for value in row]

        def masked() -> list[ir.Value]:
            masks: dict[ir.Value, list[ir.Value]] = {}
            lowest = splat(MASKED, ir.F32Type.get(), self._shape.lanes)
            found = []
            for i, row in enumerate(scores):
                token = self._tokens[i]
                if token not in masks:
                    masks[token] = self._seen_keys(seen, token, start)
                found += [
                    arith.select(mask, score, lowest)
                    for mask, score in zip(masks[token], row, strict=True)
                ]
            return found

        flat = choose(arith.ori(late, early), masked, flat)
        registers = self._shape.key_registers
        return [flat[i * registers : (i + 1) * registers] for i in range(self._count)]

    def _seen_keys(self, seen: Seen, token: ir.Value, start: ir.Value) -> list[ir.Value]:
        lanes = self._shape.lanes
        first, behind = (
            spread(arith.index_cast(i32(), arith.subi(bound, start)), lanes)
            for bound in (seen.first(token), seen.behind(token))
        )
        masks = []
        for j in range(self._shape.key_registers):
            keys = table(np.arange(j * lanes, (j + 1) * lanes, dtype=np.int32), i32())
            before = arith.cmpi(arith.CmpIPredicate.slt, keys, behind)
            after = arith.cmpi(arith.CmpIPredicate.sge, keys, first)
            masks.append(arith.andi(before, after))
        return masks

    def _soften(self, scores: list[list[ir.Value]]) -> None:
        """Scores to weights; what came before is scaled to the new maximum."""
        memory, lanes = self._memory, self._shape.lanes
        f32, here = ir.F32Type.get(), [self._number, index(0)]
        before = load(memory.maxima, here, f32, lanes)
        highest = reduce_rows([_fold(row, greater) for row in scores], greater)
        maximum = greater(highest, before)
        vector.store(maximum, memory.maxima, here)
        sums = []
        for i, row in enumerate(scores):
            top = broadcast(memory.maxima, [self._number, index(i * self._lane)], lanes)
            weights = [exponential(arith.subf(score, top)) for score in row]
            for j, weight in enumerate(weights):
                vector.store(weight, memory.weights, [index(i), index(j * lanes)])
            sums.append(_fold(weights, arith.addf))
        # The factor of each row lies where a row more of weights would be.
        factor = exponential(arith.subf(before, maximum))
        vector.store(factor, memory.weights, [index(self._shape.tile_rows), index(0)])
        total = load(memory.totals, here, f32, lanes)
        total = math.fma(total, factor, reduce_rows(sums, arith.addf))
        vector.store(total, memory.totals, here)

    def _mix(self, start: ir.Value, first: ir.Value, behind: ir.Value) -> None:
        """Add weights times values of the keys `first` .. `behind` - 1 to the result."""
        lanes, depth = self._shape.lanes, self._shape.mixed
        most = KEY_REGISTERS * self._shape.tile_rows // self._count
        registers = max(n for n in range(1, most + 1) if depth // lanes % n == 0)
        with loop(index(0), index(depth), index(registers * lanes)) as (at, _, _):
            columns = [arith.addi(at, index(j * lanes)) for j in range(registers)]

            def mixed(careful: bool, columns: list[ir.Value] = columns) -> list[ir.Value]:
                return self._mix_columns(columns, start, first, behind, careful=careful)

            # Zero times what a row does not see is zero, unless that is infinite or NaN.
            results = mixed(careful=False)
            results = choose(_any_not_finite(results), lambda: mixed(careful=True), results)
            for place, value in enumerate(results):
                row, column = divmod(place, registers)
                vector.store(value, self._memory.result, self._result(row, columns[column]))
            scf.YieldOp([])

    def _mix_columns(
        self,
        columns: Sequence[ir.Value],
        start: ir.Value,
        first: ir.Value,
        behind: ir.Value,
        *,
        careful: bool,
    ) -> list[ir.Value]:
        """[row, column]; `careful`: a value whose weight is zero is not there."""
        memory, lanes, f32 = self._memory, self._shape.lanes, ir.F32Type.get()
        rest = index(self._shape.tile_rows)
        sums = []
        for i in range(self._count):
            factor = broadcast(memory.weights, [rest, index(i * self._lane)], lanes)
            for at in columns:
                before = load(memory.result, self._result(i, at), f32, lanes)
                sums.append(arith.mulf(before, factor))
        with loop(first, behind, index(1), sums) as (key, totals, op):
            number = arith.subi(key, start)
            if self._memory.copied is None:
                self._ask_for_next(key, columns)
            values = [self._value(key, number, at) for at in columns]
            for i in range(self._count):
                weight = broadcast(memory.weights, [index(i), number], lanes)
                for j, value in enumerate(values):
                    place = i * len(columns) + j
                    taken = _unless_zero(weight, value) if careful else value
                    totals[place] = math.fma(weight, taken, totals[place])
            scf.YieldOp(totals)
        return list(op.results)

    def _ask_for_next(self, key: ir.Value, columns: Sequence[ir.Value]) -> None:
        """Ask for what the next head needs of a key.

        Evenly, since only some lines can be asked for at a time. Keys alone for the first-level
        cache: rows of a head are heads * D apart, so that few of its sets take them all.
        """
        ahead, head = arith.addi(key, index(self._shape.block_keys)), self._head
        if self._shape.heads_a_workgroup > 1:
            following = arith.addi(head, index(1))
            last = arith.cmpi(arith.CmpIPredicate.eq, following, index(self._shape.heads))
            ahead = arith.select(last, ahead, key)
            head = arith.select(last, index(0), following)
        for at in columns[:: max(1, self._line // self._shape.lanes)]:
            keys, values = self._memory.keys, self._memory.values
            prefetch(keys.memref, keys.at(ahead, head, at))
            memref.PrefetchOp(values.memref, values.at(ahead, head, at), False, 2, True)

    def _ask_for_values(self, start: ir.Value, at: ir.Value) -> None:
        """Ask for a part of the values of the block, in the loop over its scores from `at`."""
        keys, depth = self._shape.block_keys, self._shape.depth
        first = arith.addi(start, arith.divui(arith.muli(at, index(keys)), index(depth)))
        for row in range(max(1, keys * UNROLL // depth)):
            key = arith.addi(first, index(row))
            for column in range(0, self._shape.mixed, self._line):
                values = self._memory.values
                prefetch(values.memref, values.at(key, self._head, index(column)))

    @property
    def _line(self) -> int:
        """Elements of a cache line."""
        return 512 // int(self._shape.element_type().width)

    def _value(self, key: ir.Value, number: ir.Value, at: ir.Value) -> ir.Value:
        kind, lanes = self._shape.element_type(), self._shape.lanes
        if self._memory.copied is not None:
            return extended(load(self._memory.copied, [number, at], kind, lanes))
        values = self._memory.values
        return extended(load(values.memref, values.at(key, self._head, at), kind, lanes))

    def finish(self) -> None:
        """Divide by the totals; a piece writes maximum and totals behind its rows instead."""
        memory, lanes, depth = self._memory, self._shape.lanes, self._shape.mixed
        for i in range(self._count):
            lane = [self._number, index(i * self._lane)]
            total = broadcast(memory.totals, lane, lanes)
            if self._piece is not None:
                maximum = broadcast(memory.maxima, lane, lanes)
                both = shuffle(maximum, total, [0, *range(lanes + 1, 2 * lanes)])
                vector.store(both, memory.result, self._result(i, index(depth)))
                continue
            with loop(index(0), index(depth), index(lanes)) as (at, _, _):
                mixed = load(memory.result, self._result(i, at), ir.F32Type.get(), lanes)
                vector.store(arith.divf(mixed, total), memory.result, self._result(i, at))
                scf.YieldOp([])


def _split_rows(
    first: ir.Value, rows: Sequence[ir.Value], group: int
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Token and query head of each row; what rows have in common is one value."""
    each = index(group)
    count = len(rows)
    if group % count == 0:
        token, member = arith.divui(first, each), arith.remui(first, each)
        return [token] * count, [arith.addi(member, index(i)) for i in range(count)]
    if count % group == 0:
        token = arith.divui(first, each)
        tokens = [arith.addi(token, index(i)) for i in range(count // group)]
        members = [index(i) for i in range(group)]
        return [t for t in tokens for _ in range(group)], members * (count // group)
    return [arith.divui(row, each) for row in rows], [arith.remui(row, each) for row in rows]


def _unless_zero(weight: ir.Value, value: ir.Value) -> ir.Value:
    """The value, or zero where its weight is zero: what is not seen may be NaN."""
    zero = splat(0.0, ir.F32Type.get(), lanes_of(value))
    unseen = arith.cmpf(arith.CmpFPredicate.OEQ, weight, zero)
    return arith.select(unseen, zero, value)


def _any_not_finite(values: Sequence[ir.Value]) -> ir.Value:
    """Whether a lane is infinite or NaN: x - x is zero of all others."""
    lanes = lanes_of(values[0])
    bits = [bitcast(arith.subf(value, value), i32(), lanes) for value in values]
    over = arith.cmpi(arith.CmpIPredicate.ne, _fold(bits, arith.ori), splat(0, i32(), lanes))
    flag = ir.IntegerType.get_signless(1)
    return vector.ReductionOp(flag, vector.CombiningKind.OR, over).result


def _fold(values: Sequence[ir.Value], combine: Combine) -> ir.Value:
    return functools.reduce(combine, values)


def _less(x: ir.Value, y: ir.Value) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.slt, x, y)
