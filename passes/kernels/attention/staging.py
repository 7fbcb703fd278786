"""What a workgroup does once with a block of keys and values, for all of its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.passes.kernels.attention.rows import transpose
from mxc.passes.kernels.attention.shape import Attention, Source
from mxc.passes.kernels.vectors import bitcast, i32, index, load, loop, of, prefetch, splat

#: Keys ahead that the cache is asked for.
AHEAD = 64


def scratch(shape: list[int], element: ir.Type) -> ir.Value:
    """Memory of the workgroup, aligned to cache lines."""
    kind = ir.MemRefType.get(shape, element)
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64)
    return memref.AllocaOp(kind, [], [], alignment=alignment).result


def extended(value: ir.Value) -> ir.Value:
    """A vector of the cache in f32, exactly."""
    kind = ir.VectorType(value.type)
    if isinstance(kind.element_type, ir.F32Type):
        return value
    return arith.extf(of(ir.F32Type.get(), kind.shape[0]), value)


@dataclass(frozen=True)
class Staging:
    """`staged` is [D, keys of a block] f32, `copied` [keys of a block, D] as in the cache."""

    shape: Attention
    keys: Source
    values: Source
    staged: ir.Value
    copied: ir.Value | None
    head: ir.Value

    def stage_keys(self, start: ir.Value, end: ir.Value) -> None:
        """Put keys from `start` into `staged`. Behind `end` the last key before it is repeated."""
        lanes, depth = self.shape.lanes, self.shape.depth
        last = arith.subi(end, index(1))
        pairs = 2 * lanes if self.shape.element == "bf16" else lanes
        whole = depth // pairs * pairs
        with loop(index(0), index(self.shape.block_keys), index(lanes)) as (column, _, _):
            first = arith.addi(start, column)
            rows = [arith.minsi(arith.addi(first, index(i)), last) for i in range(lanes)]
            with loop(index(0), index(whole), index(pairs)) as (at, _, _):
                self._stage_square(rows, at, column, pairs)
                scf.YieldOp([])
            if whole < depth:
                self._stage_square(rows, index(whole), column, lanes)
            scf.YieldOp([])

    def _stage_square(
        self, rows: list[ir.Value], at: ir.Value, column: ir.Value, width: int
    ) -> None:
        """`width` elements from `at` of each row: as many as lanes, or pairs of bf16."""
        lanes = self.shape.lanes
        kind = self.shape.element_type()
        registers = []
        for row in rows:
            place = self.keys.at(row, self.head, at)
            registers.append(load(self.keys.memref, place, kind, width))
            if self.shape.copies_values:
                ahead = arith.addi(row, index(AHEAD))
                prefetch(self.keys.memref, self.keys.at(ahead, self.head, at))
        if width == lanes:
            columns = transpose([extended(register) for register in registers])
        else:
            columns = []
            for pair in transpose([bitcast(register, i32(), lanes) for register in registers]):
                # A bf16 is the upper half of the f32 of the same value; the even one comes first.
                even = arith.shli(pair, splat(16, i32(), lanes))
                odd = arith.andi(pair, splat(-0x10000, i32(), lanes))
                columns += [bitcast(half, ir.F32Type.get(), lanes) for half in (even, odd)]
        for i, register in enumerate(columns):
            vector.store(register, self.staged, [arith.addi(at, index(i)), column])

    def copy_values(self, start: ir.Value, end: ir.Value) -> None:
        """Copy values `start` .. `end` - 1, as they are."""
        lanes, depth, kind = self.shape.lanes, self.shape.mixed, self.shape.element_type()
        width = math.gcd(depth, lanes * 32 // kind.width)
        with loop(start, end, index(1)) as (key, _, _):
            ahead = arith.addi(key, index(AHEAD))
            number = arith.subi(key, start)
            for at in range(0, depth, width):
                place = self.values.at(key, self.head, index(at))
                value = load(self.values.memref, place, kind, width)
                vector.store(value, self.copied, [number, index(at)])
                prefetch(self.values.memref, self.values.at(ahead, self.head, index(at)))
            scf.YieldOp([])
