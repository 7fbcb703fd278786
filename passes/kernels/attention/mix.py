"""Weights of a tile times values of one block, with some registers along D per row.

Each weight is broadcast to all lanes. The sums of earlier blocks of the piece are in memory, and
are scaled to the new maximum.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, scf, vector

from mxc.dialects.quantize import BLOCK
from mxc.passes.kernels.attention.memory import AttentionBuffers, KeyBlock, QueryRows
from mxc.passes.kernels.attention.packed import of_bytes
from mxc.passes.kernels.attention.rows import row_lanes
from mxc.passes.kernels.attention.shape import KEY_REGISTERS, CpuAttention
from mxc.passes.kernels.attention.staging import extended
from mxc.passes.kernels.vectors import (
    bitcast,
    broadcast,
    choose,
    equal,
    f32,
    i1,
    i32,
    index,
    lanes_of,
    load,
    loop,
    prefetch,
    splat,
    unequal,
)


@dataclass(frozen=True)
class Mix:
    """The rows of a tile and a block. `all_heads`: the workgroup processes all heads in turn."""

    shape: CpuAttention
    memory: AttentionBuffers
    rows: QueryRows
    block: KeyBlock
    all_heads: bool

    def add(self, first: ir.Value, behind: ir.Value) -> None:
        """Add weights times values of the keys `first` .. `behind` - 1 of the block."""
        lanes, depth = self.shape.lanes, self.shape.mixed
        most = KEY_REGISTERS * self.shape.tile_rows // self.rows.count
        registers = max(n for n in range(1, most + 1) if depth // lanes % n == 0)
        with loop(index(0), index(depth), index(registers * lanes)) as (at, _, _):
            columns = [at + j * lanes for j in range(registers)]

            def mixed(careful: bool, columns: list[ir.Value] = columns) -> list[ir.Value]:
                return self._columns(columns, first, behind, careful=careful)

            # A weight of zero times a value gives zero, unless the value is infinite or NaN.
            results = mixed(careful=False)
            results = choose(_any_not_finite(results), lambda: mixed(careful=True), results)
            for place, value in enumerate(results):
                row, column = divmod(place, registers)
                vector.store(value, self.memory.sums, [*self.rows.part(row), columns[column]])

    def _columns(
        self, columns: Sequence[ir.Value], first: ir.Value, behind: ir.Value, *, careful: bool
    ) -> list[ir.Value]:
        """The sums [row, column]. `careful`: a value whose weight is zero counts as zero."""
        memory, rows, lanes = self.memory, self.rows, self.shape.lanes
        rest, width = index(self.shape.tile_rows), row_lanes(rows.count, lanes)
        sums = []
        for i in range(rows.count):
            factor = broadcast(memory.weights, [rest, index(i * width)], lanes)
            for at in columns:
                before = load(memory.sums, [*rows.part(i), at], f32(), lanes)
                sums.append(before * factor)
        with loop(first, behind, index(1), sums) as (number, totals, op):
            if memory.copied is None:
                self._ask_for_next(number, columns)
            values = [self._value(number, at) for at in columns]
            for i in range(rows.count):
                weight = broadcast(memory.weights, [index(i), number], lanes)
                for j, value in enumerate(values):
                    place = i * len(columns) + j
                    taken = _unless_zero(weight, value) if careful else value
                    totals[place] = math.fma(weight, taken, totals[place])
            scf.YieldOp(totals)
        return list(op.results)

    def _ask_for_next(self, number: ir.Value, columns: Sequence[ir.Value]) -> None:
        """Prefetch data of a key for the next head.

        Prefetches are spread evenly, since only a few cache lines can be in flight. Only keys go to
        the first-level cache: rows of one head are heads * D apart, and would all map to few of its
        sets.
        """
        page, first = self.block.ahead.page, self.block.ahead.first
        head = self.rows.head
        if self.all_heads:
            here, following = self.block.here, head + 1
            last = equal(following, self.shape.heads)
            page = arith.select(last, page, here.page)
            first = arith.select(last, first, here.first)
            head = arith.select(last, index(0), following)
        key = first + number
        line, memory = 512 // int(self.shape.pool_type.width), self.memory
        for at in columns[:: max(1, line // self.shape.lanes)]:
            prefetch(memory.pool, [page, memory.keys, key, head, at])
            values = [page, memory.values, key, head, at]
            memref.PrefetchOp(memory.value_pool, values, False, 2, True)

    def _value(self, number: ir.Value, at: ir.Value) -> ir.Value:
        memory, packed, lanes = self.memory, self.shape.packed, self.shape.lanes
        if memory.copied is not None:
            return extended(load(memory.copied, [number, at], self.shape.value_type(), lanes))
        place = self.block.here.at(memory.values, number, self.rows.head, at)
        value = load(memory.value_pool, place, self.shape.pool_type, lanes)
        if packed is None:
            return extended(value)
        value = of_bytes(packed, value)
        if not self.shape.scaled:
            return value
        part = at // BLOCK
        return value * broadcast(memory.factors, [part, number], lanes)


def _unless_zero(weight: ir.Value, value: ir.Value) -> ir.Value:
    """The value, or zero where its weight is zero: the value of a masked key may be NaN."""
    zero = splat(0.0, f32(), lanes_of(value))
    unseen = arith.cmpf(arith.CmpFPredicate.OEQ, weight, zero)
    return arith.select(unseen, zero, value)


def _any_not_finite(values: Sequence[ir.Value]) -> ir.Value:
    """Whether a lane is infinite or NaN: x - x is zero for all other values."""
    lanes = lanes_of(values[0])
    bits = [bitcast(value - value, i32(), lanes) for value in values]
    both = functools.reduce(arith.ori, bits)
    over = unequal(both, splat(0, i32(), lanes))
    return vector.ReductionOp(i1(), vector.CombiningKind.OR, over).result
