"""Queries, keys and values on their way from memory to fragments of matrix instructions.

v_mfma_f32_16x16x32_bf16 computes c[m, n] += sum over k of a[m, k] b[n, k]; of a and b a lane has
row lane % 16 and k = 8 g .. 8 g + 7 of its group g = lane // 16, of c column n = lane % 16 and rows
4 g .. 4 g + 3 (CDNA4 ISA guide, 7.1).

    scores[key, row]  a: keys, along D      b: queries
    result[d, row]    a: values, along keys b: weights

The second product may take keys in any order. In the lanes where scores are left, group g has keys
4 g .. 4 g + 3 of two tiles: these are its eight k, and weights move to no other lane. The values of
eight keys, loaded with their elements of D side by side, are transposed in registers: lane n has
d = slots * n .. of them, so that row m of the j-th product is d = slots * m + j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import bounded
from mxc.passes.kernels.gpu.attention.shape import BLOCK_KEYS, FRAGMENT, TILE, Attention
from mxc.passes.kernels.gpu.floats import bf16_parts
from mxc.passes.kernels.gpu.lanes import divided, plus, rest, times
from mxc.passes.kernels.vectors import f32, index, of

#: The bf16 that add up to a fragment.
Parts = list[ir.Value]


def extended(values: ir.Value) -> ir.Value:
    """A vector or a number as f32."""
    vectors = isinstance(values.type, ir.VectorType)
    kind = of(f32(), ir.VectorType(values.type).shape[0]) if vectors else f32()
    return values if values.type == kind else arith.extf(kind, values)


@dataclass(frozen=True)
class Row:
    """The row of a tile that this lane has: its number, and the token and query head it is."""

    number: ir.Value
    token: ir.Value
    member: ir.Value


def row_of(shape: Attention, first: ir.Value, tile: int, lane: ir.Value) -> Row:
    """This lane's row of the tile; behind the last one, the last one."""
    number = plus(plus(first, tile * TILE), rest(lane, TILE))
    inside = arith.minui(number, index(shape.rows - 1))
    return Row(number, divided(inside, shape.group), rest(inside, shape.group))


@dataclass(frozen=True)
class Operands:
    """What one wave reads. `keys`, `values`: bounded memrefs [S, V, D] of one entry of the cache.

    `head`: the key/value head; `first`: the first element of a value that the wave has; `lane`: 0
    .. 63.
    """

    shape: Attention
    queries: ir.Value
    bounded_queries: ir.Value
    keys: ir.Value
    values: ir.Value
    head: ir.Value
    first: ir.Value
    lane: ir.Value

    @property
    def group(self) -> ir.Value:
        """Of the lane, along K."""
        return divided(self.lane, TILE)

    @property
    def chunks(self) -> int:
        """Matrix instructions along D for a score."""
        return self.shape.depth // (4 * FRAGMENT)

    def query(self, row: Row, *, apart: bool = False) -> list[ir.Value]:
        """f32 [8] of the row, chunk by chunk along D.

        `apart`: through another pointer, so that LLVM does not keep in registers, or in scratch
        memory, what was loaded before.
        """
        found = []
        for chunk in range(self.chunks):
            at = plus(times(self.group, FRAGMENT), chunk * 4 * FRAGMENT)
            place = [row.token, self.head, row.member, at]
            source = self.queries if apart else self.bounded_queries
            found.append(vector.load(of(f32(), FRAGMENT), source, place))
        return found

    def load_keys(self, start: ir.Value) -> list[ir.Value]:
        """A block from key `start` on, tile by tile and chunk by chunk: [8]. Zeros where the cache
        ends; a row sees none of what lies behind its keys."""
        found = []
        for tile in range(BLOCK_KEYS // TILE):
            key = plus(plus(start, tile * TILE), rest(self.lane, TILE))
            for chunk in range(self.chunks):
                at = plus(times(self.group, FRAGMENT), chunk * 4 * FRAGMENT)
                kind = of(self.shape.element_type(), FRAGMENT)
                found.append(vector.load(kind, self.keys, [key, self.head, at]))
        return found

    def load_values(self, start: ir.Value) -> list[ir.Value]:
        """This lane's elements of D, for each of its eight keys: [slots]."""
        kind = of(self.shape.element_type(), self.shape.slots)
        at = plus(self.first, times(rest(self.lane, TILE), self.shape.slots))
        own = plus(start, times(self.group, 4))
        found = []
        for tile in range(BLOCK_KEYS // TILE):
            for place in range(4):
                key = plus(own, tile * TILE + place)
                found.append(vector.load(kind, self.values, [key, self.head, at]))
        return found

    def parts(self, fragment: ir.Value) -> Parts:
        """A fragment of the cache as bf16."""
        if self.shape.element == "bf16":
            return [fragment]
        return bf16_parts(extended(fragment), self.shape.parts)

    def transposed(self, loaded: Sequence[ir.Value]) -> list[ir.Value]:
        """Of what `load_values` gave: the eight keys of each element of D."""
        slots = self.shape.slots
        rows = list(loaded)
        # One instruction for two keys: pairs, then pairs of pairs, whole registers.
        mixed = [d + slots * which for d in range(slots) for which in range(2)]
        pairs = [vector.shuffle(rows[k], rows[k + 1], mixed) for k in range(0, len(rows), 2)]
        found = []
        for d in range(slots):
            own = [
                vector.extract_strided_slice(
                    of(self.shape.element_type(), 2), pair, [2 * d], [2], [1]
                )
                for pair in pairs
            ]
            halves = [vector.shuffle(a, b, [0, 1, 2, 3]) for a, b in (own[:2], own[2:])]
            found.append(vector.shuffle(*halves, list(range(FRAGMENT))))
        return found


def entry(buffer: ir.Value, place: Sequence[ir.Value]) -> ir.Value:
    """One entry [S, V, D] of a cache, bounded: all of them may be more than offsets reach."""
    kind = ir.MemRefType(buffer.type)
    shape, count = list(kind.shape), len(place)
    if not count:
        return bounded(buffer)
    dynamic = ir.ShapedType.get_dynamic_size()
    sizes = [1] * count + shape[count:]
    strides = [shape[count + 1] * shape[count + 2], shape[count + 2], 1]
    layout = ir.StridedLayoutAttr.get(ir.ShapedType.get_dynamic_stride_or_offset(), strides)
    part = ir.MemRefType.get(shape[count:], kind.element_type, layout, kind.memory_space)
    offsets = [dynamic] * count + [0] * 3
    view = memref.SubViewOp(
        part, buffer, list(place), [], [], offsets, sizes, [1] * len(shape)
    ).result
    return bounded(view)
