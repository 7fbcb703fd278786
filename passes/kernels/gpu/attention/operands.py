"""Load queries, keys and values, and turn them into operands of matrix instructions.

A matrix instruction computes c[m, n] += sum over k of a[m, k] b[n, k]. Lane l has row l % 16 of a
and of b, with the elements along K of its group g = l // 16. Of c it has column l % 16 and some
rows (targets/matrix_unit.py). With v_mfma_f32_16x16x32_bf16 these are the elements k = 8 g .. 8 g +
7 and the rows 4 g .. 4 g + 3.

    scores[key, row]  a: keys, along D        b: queries
    result[d, row]    a: values, along keys   b: weights

A sum may take its terms in any order. Along D, a lane has a run of at least eight consecutive
elements, for one instruction or two. Along keys, a lane has the keys whose scores it holds, a few
of each tile of 16, so that no weight moves to another lane. Where an instruction takes all keys of
a tile in each lane (gfx11), the two halves of a wave exchange their weights.

For each of its keys a lane loads consecutive elements of the value, and transposes them in
registers: lane n has the elements d = slots * n .., so that row m of the j-th product is element d
= slots * m + j.

A block of keys lies in one page, and is a buffer of its own: offsets are within the block, and the
same for all blocks.
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

#: Consecutive keys whose scales are loaded at once.
_QUAD = 4
#: Vectors of bf16 whose sum is a vector of floats.
Parts = Sequence[ir.Value]


def extended(values: ir.Value) -> ir.Value:
    """Extend a vector or a number to f32."""
    vectors = isinstance(values.type, ir.VectorType)
    kind = of(f32(), lanes_of(values)) if vectors else f32()
    return values if values.type == kind else arith.extf(kind, values)


@dataclass(frozen=True)
class PoolBlock:
    """A block of keys, or of values, of one head in the pool, as memrefs with checked bounds.

    `elements`: [keys, D], at most BLOCK_KEYS keys. `scales`: in an MX format, bytes: the scale of
    the first 32 elements of each key, then, B bytes further, of the next 32, ..; else None.
    """

    elements: ir.Value
    scales: ir.Value | None


@dataclass(frozen=True)
class PageReader:
    """Finds blocks of the keys, or of the values, of key/value head `head` of run `run`: these are
    entry `entry` of the pages that `lists` i32 [S, P] names in the `pool` [N, E, B, V, D].

    `packed`: the pool as bytes (bytes_of_entries) if pages have scales, else None.
    """

    shape: GpuAttention
    pool: ir.Value
    lists: ir.Value
    run: ir.Value
    entry: ir.Value
    head: ir.Value
    packed: ir.Value | None

    def page(self, key: ir.Value) -> ir.Value:
        """Load the number of the page that contains `key`, i32. All lanes have the same `key`."""
        number = index(0) if self.shape.dense else long(key // self.shape.page)
        return memref.LoadOp(self.lists, [self.run, number]).result

    def block(self, page: ir.Value, key: ir.Value) -> PoolBlock:
        """Return the block from `key` on, a position of the run that lies in page number `page`."""
        _, entries, _, _, depth = ir.MemRefType(self.pool.type).shape
        position = long(key if self.shape.dense else key % self.shape.page)
        place = [long(page), self.entry, position, self.head, index(0)]
        keys: Size = BLOCK_KEYS
        if self.shape.ragged:
            # Keys past the last one are out of bounds, and read as zero.
            keys = at_most(value_of(self.shape.positions) - position, BLOCK_KEYS)
        elements = bounded(part(self.pool, place, [1, 1, keys, 1, depth], kept=(2, 4)))
        if self.packed is None:
            return PoolBlock(elements, None)
        row = long(page) * entries + self.entry
        place = [row, first_scale(self.pool, position, self.head)]
        count = (depth // BLOCK - 1) * self.shape.page + BLOCK_KEYS
        return PoolBlock(elements, bounded(part(self.packed, place, [1, count], kept=(1,))))


@dataclass(frozen=True)
class WaveOperands:
    """Loads and decodes what one wave reads.

    `queries`: a memref [tokens, G, D] of the wave's tokens and key/value head; `bounded_queries`:
    the same with checked bounds. `first`: the first element of the wave's slice of values.
    """

    shape: GpuAttention
    queries: ir.Value
    bounded_queries: ir.Value
    keys: PageReader
    values: PageReader
    first: ir.Value
    lane: Lane

    def query(self, row: LaneRow) -> Iterator[ir.Value]:
        """Yield f32 [run] of the row for each chunk along D; `queries_at_once` chunks are loaded
        before the first of them is yielded."""
        chunks, count = range(self.shape.chunks), self.shape.queries_at_once
        for group in (chunks[first : first + count] for first in chunks[::count]):
            yield from [self._query(self.bounded_queries, row, index(chunk)) for chunk in group]

    def query_chunk(self, row: LaneRow, chunk: ir.Value) -> ir.Value:
        """Load f32 [run] of a chunk along D of the row, once more.

        It uses another pointer than `query`, so that LLVM does not keep what `query` loaded in
        registers or in scratch memory for this use.
        """
        return self._query(self.queries, row, chunk)

    def query_part(self, row: LaneRow, at: ir.Value) -> ir.Value:
        """Load f32 [FRAGMENT] of the row from element `at` on."""
        place = [long(row.token), row.member, at]
        return vector.load(of(f32(), FRAGMENT), self.queries, place)

    def _query(self, source: ir.Value, row: LaneRow, chunk: ir.Value) -> ir.Value:
        column, run = self._column(chunk), self.shape.run
        return self._inside(
            column,
            lambda at: vector.load(of(f32(), run), source, [long(row.token), row.member, at]),
        )

    def load_keys(self, page: ir.Value, start: ir.Value, chunks: range) -> list[ir.Value]:
        """Load `chunks` along D of the block from key `start` on: for each chunk, the lane's key of
        each tile. `keys_of` decodes what is returned."""
        block = self.keys.block(page, start)
        tiles = range(BLOCK_KEYS // TILE)
        each = [self._load_key(block, tile, index(chunk)) for chunk in chunks for tile in tiles]
        return [value for loaded in each for value in loaded]

    def keys_of(self, loaded: Sequence[ir.Value]) -> list[ir.Value]:
        """Return what `load_keys` loaded, decoded: a vector [run] per chunk and tile."""
        format, run = self.shape.packed, self.shape.run
        if format is None:
            return list(loaded)
        if not self.shape.scaled:
            return [self._decoded(words, run, None) for words in loaded]
        pairs = zip(loaded[::2], loaded[1::2], strict=True)
        return [self._decoded(words, run, byte_of(scale, 0)) for words, scale in pairs]

    def key_chunk(self, block: PoolBlock, tile: int, chunk: ir.Value) -> ir.Value:
        """Load and decode a chunk along D of the lane's key in a tile of a block: [run]."""
        return self.keys_of(self._load_key(block, tile, chunk))[0]

    def _load_key(self, block: PoolBlock, tile: int, chunk: ir.Value) -> list[ir.Value]:
        key, column, run = self.lane.column + tile * TILE, self._column(chunk), self.shape.run
        elements = self._inside(column, lambda at: self._load_elements(block, [key, at], run))
        if block.scales is None:
            return [elements]
        scale = memref.LoadOp(block.scales, [self._scale(key, column)]).result
        return [elements, arith.extui(i32(), scale)]

    def _inside(self, column: ir.Value, load: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """Return what `load` loads from element `column` on; zero past the end of D."""
        if self.shape.depth % self.shape.chunk == 0:
            return load(column)
        inside = below(column, self.shape.depth)
        loaded = load(arith.select(inside, column, index(0)))
        kind = ir.VectorType(loaded.type)
        return arith.select(inside, loaded, splat(0, kind.element_type, kind.shape[0]))

    def _load_elements(self, block: PoolBlock, at: Sequence[ir.Value], count: int) -> ir.Value:
        """Load `count` elements: floats, or packed elements as words i32."""
        if self.shape.packed is not None:
            return load_words(block.elements, at, count)
        return vector.load(of(self.shape.element_type(), count), block.elements, list(at))

    def _column(self, chunk: ir.Value) -> ir.Value:
        """The first element that the lane has of a chunk along D."""
        return chunk * self.shape.chunk + self.lane.block * self.shape.run

    def load_values(self, page: ir.Value, start: ir.Value, step: int) -> list[ir.Value]:
        """Load the lane's elements of the values of the keys that product number `step` along keys
        takes: `slots` of each key, every four keys followed by their scales if there are scales.
        `values_of` decodes what is returned."""
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
                # The scales of consecutive keys are adjacent.
                found.append(load_words(block.scales, [self._scale(first, at)], _QUAD))
        return found

    def values_of(self, loaded: Sequence[ir.Value]) -> Iterator[ir.Value]:
        """Yield what `load_values` loaded, [slots] of each key, decoded when it is asked for."""
        size = _QUAD + self.shape.scaled
        for quad in range(0, len(loaded), size):
            keys, scales = loaded[quad : quad + _QUAD], loaded[quad + _QUAD : quad + size]
            word = vector.extract(scales[0], [], [0]) if scales else None
            for place, key in enumerate(keys):
                scale = None if word is None else byte_of(word, place)
                yield self.decoded((key, scale), self.shape.slots)

    def load(
        self, block: PoolBlock, key: ir.Value, at: ir.Value, count: int
    ) -> tuple[ir.Value, ir.Value | None]:
        """Load `count` elements from `at` on of a key of a block of keys or values, and their
        scale, if there are scales. `decoded` decodes them."""
        scale = None
        if block.scales is not None:
            scale = memref.LoadOp(block.scales, [self._scale(key, at)]).result
        return self._load_elements(block, [key, at], count), scale

    def decoded(self, loaded: tuple[ir.Value, ir.Value | None], count: int) -> ir.Value:
        """Return the `count` elements that `load` loaded, decoded."""
        elements, scale = loaded
        return elements if self.shape.packed is None else self._decoded(elements, count, scale)

    def elements(self, block: PoolBlock, key: ir.Value, at: ir.Value, count: int) -> ir.Value:
        """Load and decode `count` elements from `at` on of a key of a block; they share a scale."""
        return self.decoded(self.load(block, key, at, count), count)

    def _decoded(self, words: ir.Value, count: int, scale: ir.Value | None) -> ir.Value:
        format, unit = self.shape.packed, self.shape.instruction.unit
        assert format is not None
        return decoded(format, words, count, scale, converts=unit.converts)

    def _scale(self, key: ir.Value, at: ir.Value) -> ir.Value:
        """The index in `PoolBlock.scales` of the scale of the elements of `key` from `at` on, which
        lie in one block of the format."""
        return at // BLOCK * self.shape.page + key

    def parts(self, fragment: ir.Value) -> Parts:
        """Split elements of the pool into bf16 parts, whose sum they are."""
        if self.shape.element == "bf16":
            return [fragment]
        return bf16_parts(extended(fragment), self.shape.parts_of_element)

    def bf16_of(self, floats: ir.Value, *, finite: bool = False) -> Parts:
        """Split queries or weights, f32 [n], into bf16 parts. Their sum is the f32, or, where fewer
        `bits` are enough, the nearest number that is such a sum. `finite`: none is infinite."""
        unit = None if self.shape.bits == F32_BITS else self.shape.instruction.unit
        return bf16_parts(floats, self.shape.parts_of_f32, finite=finite, rounded=unit)

    def weights(self, parts: Parts) -> Parts:
        """Return the lane's weights as operands of matrix instructions.

        Where these take all keys of a tile in each lane, the two halves of the wave exchange their
        weights; of each tile, those of the lower half come first.
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
        """Transpose the vectors of `values_of`, [slots] of each key: a vector of all keys for each
        of the `slots` elements of D."""
        slots = self.shape.slots
        rows = list(loaded)
        # Interleave every two keys, then join their pairs. A pair of 16-bit elements takes one
        # instruction, and is a whole register.
        mixed = [d + slots * which for d in range(slots) for which in range(2)]
        pairs = [vector.shuffle(rows[k], rows[k + 1], mixed) for k in range(0, len(rows), 2)]
        found = []
        for d in range(slots):
            found.append(concat([part_of(pair, 2 * d, 2) for pair in pairs]))
        return found


def part(
    buffer: ir.Value, place: Sequence[ir.Value], sizes: Sequence[Size], *, kept: Sequence[int]
) -> ir.Value:
    """Return the subview of `sizes` from `place` on of a memref, with only the dimensions `kept`;
    all others have size 1.

    A buffer may be larger than offsets reach, so those of a subview begin at `place`.
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
