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

A block of keys lies in one page, and is read from a base of its own: offsets are those within it,
the same for all blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import bounded
from mxc.dialects.quantise import BLOCK
from mxc.passes.kernels.gpu.attention.packed import byte_of, decoded, first_scale, load_words
from mxc.passes.kernels.gpu.attention.shape import BLOCK_KEYS, FRAGMENT, TILE, Attention
from mxc.passes.kernels.gpu.floats import bf16_parts
from mxc.passes.kernels.gpu.lanes import divided, long, plus, rest, times
from mxc.passes.kernels.vectors import f32, i32, index, of

#: The bf16 that add up to a fragment.
Parts = list[ir.Value]


def extended(values: ir.Value) -> ir.Value:
    """A vector or a number as f32."""
    vectors = isinstance(values.type, ir.VectorType)
    kind = of(f32(), ir.VectorType(values.type).shape[0]) if vectors else f32()
    return values if values.type == kind else arith.extf(kind, values)


@dataclass(frozen=True)
class Row:
    """The row of a tile that this lane has.

    `number`: counted from the first row of the wave's first token, i32; `token`, counted from that
    one, i32, and query head `member` are those of the last row where the wave has fewer.
    """

    number: ir.Value
    token: ir.Value
    member: ir.Value


@dataclass(frozen=True)
class Block:
    """`elements` [BLOCK_KEYS, D], bounded, and the `scales` of those in an MX format: of the first
    32 elements of each key, and B further on those of the next ones."""

    elements: ir.Value
    scales: ir.Value | None


@dataclass(frozen=True)
class Pages:
    """Keys or values: one `entry` of the pages of the pool [N, E, B, V, D] that `lists` i32 [S, P]
    has for run `run`; `head` of them. `positions`: B; `packed`: see bytes_of_entries, where pages
    have scales."""

    pool: ir.Value
    lists: ir.Value
    run: ir.Value
    entry: ir.Value
    head: ir.Value
    positions: int
    packed: ir.Value | None

    def page(self, key: ir.Value) -> ir.Value:
        """The page that has a key, i32. The key is the same for all lanes."""
        return memref.LoadOp(self.lists, [self.run, long(divided(key, self.positions))]).result

    def block(self, page: ir.Value, key: ir.Value) -> Block:
        """From a key of a page on."""
        _, entries, _, _, depth = ir.MemRefType(self.pool.type).shape
        position = long(rest(key, self.positions))
        place = [long(page), self.entry, position, self.head, index(0)]
        elements = bounded(part(self.pool, place, [1, 1, BLOCK_KEYS, 1, depth], kept=(2, 4)))
        if self.packed is None:
            return Block(elements, None)
        row = arith.addi(times(long(page), entries), self.entry)
        place = [row, first_scale(self.pool, position, self.head)]
        count = (depth // BLOCK - 1) * self.positions + BLOCK_KEYS
        return Block(elements, bounded(part(self.packed, place, [1, count], kept=(1,))))


@dataclass(frozen=True)
class Operands:
    """What one wave reads. `queries`: a memref [tokens, G, D] of its key/value head.

    `first`: the first element of a value that the wave has; `lane`: 0 .. 63.
    """

    shape: Attention
    queries: ir.Value
    bounded_queries: ir.Value
    keys: Pages
    values: Pages
    first: ir.Value
    lane: ir.Value

    @property
    def group(self) -> ir.Value:
        """The lane's group along K."""
        return divided(self.lane, TILE)

    @property
    def chunks(self) -> int:
        """Matrix instructions along D for a score."""
        return self.shape.depth // (4 * FRAGMENT)

    def query(self, row: Row) -> list[ir.Value]:
        """f32 [8] of the row, chunk by chunk along D."""
        chunks = range(self.chunks)
        return [self._query(self.bounded_queries, row, index(chunk)) for chunk in chunks]

    def query_chunk(self, row: Row, chunk: ir.Value) -> ir.Value:
        """f32 [8] of the row.

        Through another pointer, so that LLVM does not keep in registers, or in scratch memory, what
        was loaded before.
        """
        return self._query(self.queries, row, chunk)

    def _query(self, source: ir.Value, row: Row, chunk: ir.Value) -> ir.Value:
        place = [long(row.token), row.member, self._column(chunk)]
        return vector.load(of(f32(), FRAGMENT), source, place)

    def load_keys(self, page: ir.Value, start: ir.Value) -> list[ir.Value]:
        """A block from key `start` on, for `keys_of`: tile by tile and chunk by chunk."""
        block, chunks = self.keys.block(page, start), range(self.chunks)
        tiles = range(BLOCK_KEYS // TILE)
        each = [self._load_key(block, tile, index(chunk)) for tile in tiles for chunk in chunks]
        return [value for loaded in each for value in loaded]

    def keys_of(self, loaded: Sequence[ir.Value]) -> list[ir.Value]:
        """What was loaded, [8] each."""
        if self.shape.packed is None:
            return list(loaded)
        if not self.shape.scaled:
            return [decoded(self.shape.packed, words, FRAGMENT, None) for words in loaded]
        pairs = zip(loaded[::2], loaded[1::2], strict=True)
        return [
            decoded(self.shape.packed, words, FRAGMENT, byte_of(scale, 0)) for words, scale in pairs
        ]

    def key_chunk(self, block: Block, tile: int, chunk: ir.Value) -> ir.Value:
        """[8] of the key that the lane has in a tile of a block."""
        return self.keys_of(self._load_key(block, tile, chunk))[0]

    def _load_key(self, block: Block, tile: int, chunk: ir.Value) -> list[ir.Value]:
        key = plus(rest(self.lane, TILE), tile * TILE)
        elements = self._load_elements(block, [key, self._column(chunk)], FRAGMENT)
        if block.scales is None:
            return [elements]
        # A chunk along D is a block of the format.
        place = arith.addi(times(chunk, self.keys.positions), key)
        scale = arith.extui(i32(), memref.LoadOp(block.scales, [place]).result)
        return [elements, scale]

    def _load_elements(self, block: Block, at: Sequence[ir.Value], count: int) -> ir.Value:
        """So many: floats, or words of what is packed."""
        if self.shape.packed is not None:
            return load_words(block.elements, at, count)
        return vector.load(of(self.shape.element_type(), count), block.elements, list(at))

    def _column(self, chunk: ir.Value) -> ir.Value:
        """The first element that the lane has of a chunk along D."""
        return plus(times(chunk, 4 * FRAGMENT), times(self.group, FRAGMENT))

    def load_values(self, page: ir.Value, start: ir.Value) -> list[ir.Value]:
        """This lane's elements of D, for each of its eight keys, for `values_of`."""
        block = self.values.block(page, start)
        at = plus(self.first, times(rest(self.lane, TILE), self.shape.slots))
        found = []
        for tile in range(BLOCK_KEYS // TILE):
            first = plus(times(self.group, 4), tile * TILE)
            for place in range(4):
                place_of_key = [plus(first, place), at]
                found.append(self._load_elements(block, place_of_key, self.shape.slots))
            if block.scales is not None:
                # Those of four keys are side by side.
                found.append(load_words(block.scales, [self._scale(first, at)], 4))
        return found

    def values_of(self, loaded: Sequence[ir.Value]) -> list[ir.Value]:
        """What was loaded: [slots] of each key."""
        if self.shape.packed is None:
            return list(loaded)
        if not self.shape.scaled:
            return [decoded(self.shape.packed, key, self.shape.slots, None) for key in loaded]
        found = []
        for tile in range(BLOCK_KEYS // TILE):
            *keys, scales = loaded[5 * tile : 5 * tile + 5]
            word = vector.extract(scales, [], [0])
            for place, key in enumerate(keys):
                scale = byte_of(word, place)
                found.append(decoded(self.shape.packed, key, self.shape.slots, scale))
        return found

    def value(self, block: Block, key: ir.Value, at: ir.Value) -> ir.Value:
        """[slots] elements from `at` on of the value of a key of a block."""
        loaded = self._load_elements(block, [key, at], self.shape.slots)
        if self.shape.packed is None:
            return loaded
        scale = None
        if block.scales is not None:
            scale = memref.LoadOp(block.scales, [self._scale(key, at)]).result
        return decoded(self.shape.packed, loaded, self.shape.slots, scale)

    def _scale(self, key: ir.Value, at: ir.Value) -> ir.Value:
        """Where the scale of the elements from `at` on is, which are of one block of the format."""
        return arith.addi(times(divided(at, BLOCK), self.values.positions), key)

    def parts(self, fragment: ir.Value) -> Parts:
        """A fragment of the pool as bf16."""
        if self.shape.element == "bf16":
            return [fragment]
        return bf16_parts(extended(fragment), self.shape.parts_of_element)

    def transposed(self, loaded: Sequence[ir.Value]) -> list[ir.Value]:
        """The eight keys of each element of D, from what `load_values` gave."""
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


def part(
    buffer: ir.Value, place: Sequence[ir.Value], sizes: Sequence[int], *, kept: Sequence[int]
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
    wanted = ir.MemRefType.get(
        [sizes[n] for n in kept], kind.element_type, layout, kind.memory_space
    )
    offsets = [dynamic] * len(place)
    return memref.SubViewOp(
        wanted, buffer, list(place), [], [], offsets, list(sizes), [1] * len(sizes)
    ).result
