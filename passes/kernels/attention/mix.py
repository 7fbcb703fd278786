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
    when,
)


class BlockValues:
    """Loads the values of a block, [keys, mixed], for all tiles: from the copy or from the pool."""

    def __init__(self, shape: CpuAttention, memory: AttentionBuffers, block: KeyBlock) -> None:
        """Build the views of the memory, which are the same for all tiles."""
        self._shape = shape
        self._memory = memory
        pool, dynamic = memory.value_pool, ir.ShapedType.get_dynamic_stride_or_offset()
        *_, heads, depth = ir.MemRefType(pool.type).shape
        size = [1, 1, shape.block_keys, 1, shape.mixed]
        place = block.here.at(memory.values, index(0), index(0))
        unknown = [ir.ShapedType.get_dynamic_size()] * len(size)
        self._pool = memref.SubViewOp(
            self._kind(heads * depth), pool, place, [], [], unknown, size, [1] * len(size)
        ).result
        if memory.copied is not None and shape.packed is None:
            both = [
                memref.CastOp(self._kind(dynamic), each).result
                for each in (memory.copied, self._pool)
            ]
            self._pool = arith.select(memory.copies, *both)

    def _kind(self, stride: int) -> ir.Type:
        shape, dynamic = self._shape, ir.ShapedType.get_dynamic_stride_or_offset()
        layout = ir.StridedLayoutAttr.get(dynamic, [stride, 1])
        return ir.MemRefType.get([shape.block_keys, shape.mixed], shape.pool_type, layout)

    def load(self, number: ir.Value, columns: Sequence[ir.Value]) -> list[ir.Value]:
        """f32 [lanes] of the value of key `number`, at each of the columns."""
        shape, copied, lanes = self._shape, self._memory.copied, self._shape.lanes
        if shape.packed is None:
            return [
                extended(load(self._pool, [number, at], shape.pool_type, lanes)) for at in columns
            ]

        def unpacked() -> list[ir.Value]:
            return [self._unpacked(number, at) for at in columns]

        if copied is None:
            return unpacked()

        def loaded() -> list[ir.Value]:
            return [
                extended(load(copied, [number, at], shape.value_type(), lanes)) for at in columns
            ]

        none = [splat(0.0, f32(), lanes)] * len(columns)
        packed = choose(self._memory.copies ^ 1, unpacked, none)
        return choose(self._memory.copies, loaded, packed)

    def _unpacked(self, number: ir.Value, at: ir.Value) -> ir.Value:
        shape, lanes = self._shape, self._shape.lanes
        assert shape.packed is not None
        value = of_bytes(shape.packed, load(self._pool, [number, at], shape.pool_type, lanes))
        if not shape.scaled:
            return value
        return value * broadcast(self._memory.factors, [at // BLOCK, number], lanes)


@dataclass(frozen=True)
class Mix:
    """Adds weights times the values of a block to the sums of the rows of a tile."""

    shape: CpuAttention
    memory: AttentionBuffers
    rows: QueryRows
    block: KeyBlock
    values: BlockValues

    def add(self, first: ir.Value, behind: ir.Value) -> None:
        """Add weights times values of the keys `first` .. `behind` - 1 of the block, after scaling
        the earlier sums."""
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
        """Return the new sums, row by row, of the registers along D that begin at `columns`.

        `careful`: a value whose weight is zero counts as zero.
        """
        memory, rows, lanes = self.memory, self.rows, self.shape.lanes
        rest, width = index(self.shape.tile_rows), row_lanes(rows.count, lanes)
        sums = []
        for i in range(rows.count):
            factor = broadcast(memory.weights, [rest, index(i * width)], lanes)
            for at in columns:
                before = load(memory.sums, [*rows.part(i), at], f32(), lanes)
                sums.append(before * factor)
        with loop(first, behind, index(1), sums) as (number, totals, op):
            with when(memory.copies ^ 1):
                self._ask_for_next(number, columns)
            values = self.values.load(number, columns)
            for i in range(rows.count):
                weight = broadcast(memory.weights, [index(i), number], lanes)
                for j, value in enumerate(values):
                    place = i * len(columns) + j
                    taken = _unless_zero(weight, value) if careful else value
                    totals[place] = math.fma(weight, taken, totals[place])
            scf.YieldOp(totals)
        return list(op.results)

    def _ask_for_next(self, number: ir.Value, columns: Sequence[ir.Value]) -> None:
        """Prefetch data of a key of a later block.

        Prefetches are spread evenly, since only a few cache lines can be in flight. Only keys go to
        the first-level cache: rows of one head are heads * D apart, and would all map to few of its
        sets.
        """
        line, memory, ahead = 512 // int(self.shape.pool_type.width), self.memory, self.block.ahead
        for at in columns[:: max(1, line // self.shape.lanes)]:
            prefetch(memory.pool, ahead.at(memory.keys, number, at))
            values = ahead.at(memory.values, number, at)
            prefetch(memory.value_pool, values, far=True)


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
