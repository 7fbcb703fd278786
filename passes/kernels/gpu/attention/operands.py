"""Queries, keys and values on their way from memory to fragments of matrix instructions.

A matrix instruction computes c[m, n] += sum over k of a[m, k] b[n, k]. Lane l has row l % 16 of a
and b, there the elements along K of its group g = l // 16; of c it has column l % 16, and some rows
(targets/matrix_unit.py). With v_mfma_f32_16x16x32_bf16 these are k = 8 g .. and rows 4 g .. + 3.

    scores[key, row]  a: keys, along D      b: queries
    result[d, row]    a: values, along keys b: weights

A sum may take what it adds in any order. Along D a lane has a run of at least eight elements, of
one instruction or two. Along keys its elements are those of the scores that it has: a few of each
tile of 16, so that weights move to no other lane. Where an instruction wants all keys of a tile in
each lane (gfx11), the two halves of a wave exchange their weights.

The values of a lane's keys, loaded with their elements of D side by side, are transposed in
registers: lane n has d = slots * n .. of them, so that row m of the j-th product is d = slots * m +
j.

A block of keys lies in one page, and is read from a base of its own: offsets are those within it,
the same for all blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import bounded
from mxc.dialects.amdgpu_narrow import exchanged
from mxc.dialects.attention import F32_BITS
from mxc.dialects.quantize import BLOCK
from mxc.dialects.sizes import Size, split, value_of
from mxc.passes.kernels.gpu.attention.packed import byte_of, decoded, first_scale, load_words
from mxc.passes.kernels.gpu.attention.shape import BLOCK_KEYS, TILE, GpuAttention
from mxc.passes.kernels.gpu.attention.wave import LaneRow
from mxc.passes.kernels.gpu.floats import bf16_parts
from mxc.passes.kernels.gpu.fragments import FRAGMENT
from mxc.passes.kernels.gpu.lanes import Lane, at_most, long
from mxc.passes.kernels.vectors import (
    below,
    bitcast,
    concat,
    elements,
    f32,
    i32,
    index,
    lanes_of,
    of,
    part_of,
    splat,
    unequal,
)

#: Keys whose scales are loaded at once.
_QUAD = 4
#: Vectors of bf16 that add up to one of floats.
Parts = Sequence[ir.Value]


def extended(values: ir.Value) -> ir.Value:
    """A vector or a number as f32."""
    vectors = isinstance(values.type, ir.VectorType)
    kind = of(f32(), lanes_of(values)) if vectors else f32()
    return values if values.type == kind else arith.extf(kind, values)


@dataclass(frozen=True)
class KeyTile:
    """`elements` [BLOCK_KEYS, D], bounded, and the `scales` of those in an MX format: of the first
    32 elements of each key, and B further on those of the next ones."""

    elements: ir.Value
    scales: ir.Value | None


@dataclass(frozen=True)
class PageReader:
    """Keys or values: one `entry` of the pages of the pool [N, E, B, V, D] that `lists` i32 [S, P]
    has for run `run`; `head` of them. `packed`: see bytes_of_entries, where pages have scales."""

    shape: GpuAttention
    pool: ir.Value
    lists: ir.Value
    run: ir.Value
    entry: ir.Value
    head: ir.Value
    packed: ir.Value | None

    def page(self, key: ir.Value) -> ir.Value:
        """The page that has a key, i32. The key is the same for all lanes."""
        number = index(0) if self.shape.dense else long(key // self.shape.page)
        return memref.LoadOp(self.lists, [self.run, number]).result

    def block(self, page: ir.Value, key: ir.Value) -> KeyTile:
        """From a key of a page on."""
        _, entries, _, _, depth = ir.MemRefType(self.pool.type).shape
        position = long(key if self.shape.dense else key % self.shape.page)
        place = [long(page), self.entry, position, self.head, index(0)]
        keys: Size = BLOCK_KEYS
        if self.shape.ragged:
            # What is read of other keys is zero.
            keys = at_most(value_of(self.shape.positions) - position, BLOCK_KEYS)
        elements = bounded(part(self.pool, place, [1, 1, keys, 1, depth], kept=(2, 4)))
        if self.packed is None:
            return KeyTile(elements, None)
        row = long(page) * entries + self.entry
        place = [row, first_scale(self.pool, position, self.head)]
        count = (depth // BLOCK - 1) * self.shape.page + BLOCK_KEYS
        return KeyTile(elements, bounded(part(self.packed, place, [1, count], kept=(1,))))


@dataclass(frozen=True)
class WaveOperands:
    """What one wave reads. `queries`: a memref [tokens, G, D] of its key/value head.

    `first`: the first element of a value that the wave has.
    """

    shape: GpuAttention
    queries: ir.Value
    bounded_queries: ir.Value
    keys: PageReader
    values: PageReader
    first: ir.Value
    lane: Lane

    def query(self, row: LaneRow) -> Iterator[ir.Value]:
        """f32 [run] of the row, chunk by chunk along D; so many are loaded before the first."""
        chunks, count = range(self.shape.chunks), self.shape.queries_at_once
        for group in (chunks[first : first + count] for first in chunks[::count]):
            yield from [self._query(self.bounded_queries, row, index(chunk)) for chunk in group]

    def query_chunk(self, row: LaneRow, chunk: ir.Value) -> ir.Value:
        """f32 [run] of the row.

        Through another pointer, so that LLVM does not keep in registers, or in scratch memory, what
        was loaded before.
        """
        return self._query(self.queries, row, chunk)

    def query_part(self, row: LaneRow, at: ir.Value) -> ir.Value:
        """f32 [FRAGMENT] of the row from an element on."""
        place = [long(row.token), row.member, at]
        return vector.load(of(f32(), FRAGMENT), self.queries, place)

    def _query(self, source: ir.Value, row: LaneRow, chunk: ir.Value) -> ir.Value:
        column, run = self._column(chunk), self.shape.run
        return self._inside(
            column,
            lambda at: vector.load(of(f32(), run), source, [long(row.token), row.member, at]),
        )

    def load_keys(self, page: ir.Value, start: ir.Value, chunks: range) -> list[ir.Value]:
        """Chunks of a block from key `start` on, for `keys_of`: of each its tiles."""
        block = self.keys.block(page, start)
        tiles = range(BLOCK_KEYS // TILE)
        each = [self._load_key(block, tile, index(chunk)) for chunk in chunks for tile in tiles]
        return [value for loaded in each for value in loaded]

    def keys_of(self, loaded: Sequence[ir.Value]) -> list[ir.Value]:
        """What was loaded, [run] each."""
        format, run = self.shape.packed, self.shape.run
        if format is None:
            return list(loaded)
        if not self.shape.scaled:
            return [self._decoded(words, run, None) for words in loaded]
        pairs = zip(loaded[::2], loaded[1::2], strict=True)
        return [self._decoded(words, run, byte_of(scale, 0)) for words, scale in pairs]

    def key_chunk(self, block: KeyTile, tile: int, chunk: ir.Value) -> ir.Value:
        """[run] of the key that the lane has in a tile of a block."""
        return self.keys_of(self._load_key(block, tile, chunk))[0]

    def _load_key(self, block: KeyTile, tile: int, chunk: ir.Value) -> list[ir.Value]:
        key, column, run = self.lane.column + tile * TILE, self._column(chunk), self.shape.run
        elements = self._inside(column, lambda at: self._load_elements(block, [key, at], run))
        if block.scales is None:
            return [elements]
        scale = memref.LoadOp(block.scales, [self._scale(key, column)]).result
        return [elements, arith.extui(i32(), scale)]

    def _inside(self, column: ir.Value, load: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """What is loaded from a column on; zero past the end of D."""
        if self.shape.depth % self.shape.chunk == 0:
            return load(column)
        inside = below(column, self.shape.depth)
        loaded = load(arith.select(inside, column, index(0)))
        kind = ir.VectorType(loaded.type)
        return arith.select(inside, loaded, splat(0, kind.element_type, kind.shape[0]))

    def _load_elements(self, block: KeyTile, at: Sequence[ir.Value], count: int) -> ir.Value:
        """So many: floats, or words of what is packed."""
        if self.shape.packed is not None:
            return load_words(block.elements, at, count)
        return vector.load(of(self.shape.element_type(), count), block.elements, list(at))

    def _column(self, chunk: ir.Value) -> ir.Value:
        """The first element that the lane has of a chunk along D."""
        return chunk * self.shape.chunk + self.lane.block * self.shape.run

    def load_values(self, page: ir.Value, start: ir.Value, step: int) -> list[ir.Value]:
        """This lane's elements of D for `values_of`, for each key of a product along keys."""
        block, count = self.values.block(page, start), self.shape.keys_of_tile
        at = self.first + self.lane.column * self.shape.slots
        own, found, size = self.lane.block * count, [], self.shape.instruction.fragment
        for number in range(step * size, (step + 1) * size, _QUAD):
            tile, quad = divmod(number, count)
            first = own + (tile * TILE + quad)
            for place in range(_QUAD):
                place_of_key = [first + place, at]
                found.append(self._load_elements(block, place_of_key, self.shape.slots))
            if block.scales is not None:
                # Those of four keys are side by side.
                found.append(load_words(block.scales, [self._scale(first, at)], _QUAD))
        return found

    def values_of(self, loaded: Sequence[ir.Value]) -> Iterator[ir.Value]:
        """What was loaded: [slots] of each key, decoded where it is taken."""
        size = _QUAD + self.shape.scaled
        for quad in range(0, len(loaded), size):
            keys, scales = loaded[quad : quad + _QUAD], loaded[quad + _QUAD : quad + size]
            word = vector.extract(scales[0], [], [0]) if scales else None
            for place, key in enumerate(keys):
                scale = None if word is None else byte_of(word, place)
                yield self.decoded((key, scale), self.shape.slots)

    def load(
        self, block: KeyTile, key: ir.Value, at: ir.Value, count: int
    ) -> tuple[ir.Value, ir.Value | None]:
        """So many elements from `at` on of a key of a block, or of its value, and their scale."""
        scale = None
        if block.scales is not None:
            scale = memref.LoadOp(block.scales, [self._scale(key, at)]).result
        return self._load_elements(block, [key, at], count), scale

    def decoded(self, loaded: tuple[ir.Value, ir.Value | None], count: int) -> ir.Value:
        """What `load` gave."""
        elements, scale = loaded
        return elements if self.shape.packed is None else self._decoded(elements, count, scale)

    def elements(self, block: KeyTile, key: ir.Value, at: ir.Value, count: int) -> ir.Value:
        """So many elements from `at` on of a key of a block, of one scale."""
        return self.decoded(self.load(block, key, at, count), count)

    def _decoded(self, words: ir.Value, count: int, scale: ir.Value | None) -> ir.Value:
        format, unit = self.shape.packed, self.shape.instruction.unit
        assert format is not None
        return decoded(format, words, count, scale, converts=unit.converts)

    def _scale(self, key: ir.Value, at: ir.Value) -> ir.Value:
        """Where the scale of the elements from `at` on is, which are of one block of the format."""
        return at // BLOCK * self.shape.page + key

    def parts(self, fragment: ir.Value) -> Parts:
        """A fragment of the pool as bf16."""
        if self.shape.element == "bf16":
            return [fragment]
        return bf16_parts(extended(fragment), self.shape.parts_of_element)

    def bf16_of(self, floats: ir.Value, *, finite: bool = False) -> Parts:
        """The bf16 that queries or weights, f32 [n], become: they add up to all of an f32, or to
        what is nearest with fewer bits."""
        unit = None if self.shape.bits == F32_BITS else self.shape.instruction.unit
        return bf16_parts(floats, self.shape.parts_of_f32, finite=finite, rounded=unit)

    def weights(self, parts: Parts) -> Parts:
        """Weights of the keys that a lane has, as it gives them to instructions.

        Where those want all keys of a tile in each lane, its halves exchange theirs: the first
        ones of a tile are those of the lower half.
        """
        instruction = self.shape.instruction
        if not instruction.unit.replicated:
            return parts
        upper = unequal(self.lane.group, 0)
        found = []
        for values in parts:
            count = lanes_of(values)
            halves: list[list[ir.Value]] = [[], []]
            for word in elements(bitcast(values, i32(), count // 2)):
                _, other = exchanged(word, TILE, instruction.unit)
                halves[0].append(arith.select(upper, other, word))
                halves[1].append(arith.select(upper, word, other))
            size = self.shape.sums // 2
            tiles = [half[n : n + size] for n in range(0, count // 2, size) for half in halves]
            whole = vector.from_elements(of(i32(), count), [word for own in tiles for word in own])
            found.append(bitcast(whole, ir.BF16Type.get(), 2 * count))
        return found

    def transposed(self, loaded: Sequence[ir.Value]) -> list[ir.Value]:
        """The keys of each element of D, from what `load_values` gave."""
        slots = self.shape.slots
        rows = list(loaded)
        # One instruction for two keys: pairs, then pairs of pairs, whole registers.
        mixed = [d + slots * which for d in range(slots) for which in range(2)]
        pairs = [vector.shuffle(rows[k], rows[k + 1], mixed) for k in range(0, len(rows), 2)]
        found = []
        for d in range(slots):
            found.append(concat([part_of(pair, 2 * d, 2) for pair in pairs]))
        return found


def part(
    buffer: ir.Value, place: Sequence[ir.Value], sizes: Sequence[Size], *, kept: Sequence[int]
) -> ir.Value:
    """`sizes` of a memref from `place` on, of which the dimensions `kept` are not 1 and stay.

    All of a buffer may be more than offsets reach.
    """
    kind = ir.MemRefType(buffer.type)
    dynamic = ir.ShapedType.get_dynamic_size()
    strides, _ = kind.get_strides_and_offset()
    layout = ir.StridedLayoutAttr.get(
        ir.ShapedType.get_dynamic_stride_or_offset(), [strides[n] for n in kept]
    )
    static, given = split(sizes)
    wanted = ir.MemRefType.get(
        [static[n] for n in kept], kind.element_type, layout, kind.memory_space
    )
    offsets = [dynamic] * len(place)
    return memref.SubViewOp(
        wanted, buffer, list(place), given, [], offsets, static, [1] * len(sizes)
    ).result
