"""Stage a block of keys and values, once for all rows of a workgroup."""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.quantize import BLOCK
from mxc.passes.kernels.attention.memory import AttentionBuffers, KeyBlock
from mxc.passes.kernels.attention.packed import (
    as_bf16,
    of_bytes,
    of_dwords,
    place_of_scale,
    scales_of,
)
from mxc.passes.kernels.attention.rows import shuffle, transpose
from mxc.passes.kernels.attention.shape import CpuAttention
from mxc.passes.kernels.vectors import (
    bitcast,
    broadcast,
    f32,
    i8,
    i32,
    index,
    load,
    loop,
    of,
    prefetch,
    splat,
    when,
)


def extended(value: ir.Value) -> ir.Value:
    """A vector of the pool extended to f32, which is exact."""
    kind = ir.VectorType(value.type)
    if isinstance(kind.element_type, ir.F32Type):
        return value
    return arith.extf(of(f32(), kind.shape[0]), value)


@dataclass(frozen=True)
class Staging:
    """Copies blocks of keys and values to the scratch of the workgroup."""

    shape: CpuAttention
    memory: AttentionBuffers

    def stage_keys(self, block: KeyBlock) -> None:
        """Store the keys to `staged`, transposed. Keys past the last one repeat it."""
        lanes, depth = self.shape.lanes, self.shape.depth
        last = block.stop - block.start - 1
        # The elements of a key that are transposed at once: 32 bits of them per lane.
        packed = self.shape.packed is not None
        width = (4 if packed else 2 if self.shape.element == "bf16" else 1) * lanes
        whole = depth // width * width
        stage = self._stage_packed if packed else self._stage_square
        with loop(index(0), index(self.shape.block_keys), index(lanes)) as (column, _, _):
            numbers = [arith.minsi(column + i, last) for i in range(lanes)]
            with loop(index(0), index(whole), index(width)) as (at, _, _):
                stage(block, numbers, at, column, width)
            if whole < depth:
                stage(block, numbers, index(whole), column, depth - whole)

    def stage_factors(self, block: KeyBlock) -> None:
        """Store the scales of the values to `factors`, and prefetch those of a later block."""
        shape, memory, lanes = self.shape, self.memory, self.shape.lanes
        with loop(index(0), index(shape.mixed // BLOCK), index(1)) as (part, _, _):
            place = place_of_scale(shape, memory.values, block.here, part)
            for column in range(0, shape.block_keys, lanes):
                found = scales_of(shape, memory, place, index(column))
                vector.store(found, memory.factors, [part, index(column)])
            for entry in (memory.keys, memory.values):
                ahead = place_of_scale(shape, entry, block.ahead, part)
                prefetch(memory.packed, ahead)

    def _stage_square(
        self,
        block: KeyBlock,
        numbers: list[ir.Value],
        at: ir.Value,
        column: ir.Value,
        width: int,
    ) -> None:
        """Stage `width` elements from `at` on of each key: one per lane, or a pair of bf16."""
        lanes, memory = self.shape.lanes, self.memory
        registers = []
        for number in numbers:
            here = block.here.at(memory.keys, number, at)
            registers.append(load(memory.pool, here, self.shape.pool_type, width))
        self._ask_for_keys(block, column, at)
        if width == lanes:
            columns = transpose([extended(register) for register in registers])
        else:
            columns = []
            for pair in transpose([bitcast(register, i32(), lanes) for register in registers]):
                # A bf16 is the upper half of the f32 of the same value; the even element is the
                # lower one.
                even = pair << 16
                odd = pair & -0x10000
                columns += [bitcast(half, f32(), lanes) for half in (even, odd)]
        for i, register in enumerate(columns):
            vector.store(register, memory.staged, [at + i, column])

    def _stage_packed(
        self,
        block: KeyBlock,
        numbers: list[ir.Value],
        at: ir.Value,
        column: ir.Value,
        width: int,
    ) -> None:
        """Stage `width` elements from `at` on of each key: four per lane, or two."""
        shape, memory, lanes = self.shape, self.memory, self.shape.lanes
        assert shape.packed is not None
        registers = []
        for number in numbers:
            here = block.here.at(memory.keys, number, at)
            codes = load(memory.pool, here, i8(), width)
            if width == 2 * lanes:
                # IREE would fold the cast and a later extension into an extension of smaller
                # elements.
                pairs = [[2 * lane, 2 * lane + 1, width, width] for lane in range(lanes)]
                codes = shuffle(codes, splat(0, i8(), width), [i for pair in pairs for i in pair])
            registers.append(bitcast(codes, i32(), lanes))
        self._ask_for_keys(block, column, at)
        first = at // BLOCK
        scales = []
        for part in range(-(-width // BLOCK) if shape.scaled else 0):
            each = first + part
            place = place_of_scale(shape, memory.keys, block.here, each)
            scales.append(scales_of(shape, memory, place, column))
        each = width // lanes
        for i, dwords in enumerate(transpose(registers)):
            for byte in range(each):
                element = i * each + byte
                value = of_dwords(shape.packed, dwords, byte)
                if shape.scaled:
                    value = value * scales[element // BLOCK]
                here = [at + element, column]
                vector.store(value, memory.staged, here)

    def _ask_for_keys(self, block: KeyBlock, first: ir.Value, at: ir.Value) -> None:
        """Prefetch keys of a later block, where the loop over values does not (mix.py)."""
        end = first + self.shape.lanes
        with when(self.memory.copies), loop(first, end, index(1)) as (number, _, _):
            prefetch(self.memory.pool, block.ahead.at(self.memory.keys, number, at))

    def copy_values(self, block: KeyBlock) -> None:
        """Copy the values to `copied`: unchanged, or as bf16 if they are packed."""
        shape, lanes, memory = self.shape, self.shape.lanes, self.memory
        depth, packed, kind = shape.mixed, shape.packed, shape.pool_type
        width = math.gcd(depth, lanes * 32 // kind.width) if packed is None else lanes
        count = block.stop - block.start
        with loop(index(0), count, index(1)) as (number, _, _):
            for at in range(0, depth, width):
                here = block.here.at(memory.values, number, index(at))
                value = load(memory.value_pool, here, kind, width)
                if packed is not None:
                    value = of_bytes(packed, value)
                    if shape.scaled:
                        factor = broadcast(memory.factors, [index(at // BLOCK), number], lanes)
                        value = value * factor
                    value = as_bf16(value)
                vector.store(value, memory.copied, [number, index(at)])
                if at * kind.width % 512 == 0:
                    ahead = block.ahead.at(memory.values, number, index(at))
                    prefetch(memory.value_pool, ahead)
