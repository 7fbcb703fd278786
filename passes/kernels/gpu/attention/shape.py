"""Sizes of an attention kernel, and what follows: registers, memory, the split among waves."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.attention import F32_BITS, AttentionChunk
from mxc.passes.kernels.exponential import LOG2_E
from mxc.passes.kernels.extents import Size, value_of
from mxc.passes.kernels.gpu.fragments import FRAGMENT, TileInstruction
from mxc.passes.kernels.gpu.lanes import at_most
from mxc.passes.kernels.paged_attention import PagedAttention
from mxc.passes.kernels.runs import reach_size
from mxc.passes.kernels.vectors import below, equal, index, unequal

#: Rows, and columns, of the tile of a matrix instruction: rows of queries, keys, elements of D.
TILE = 16
#: Keys of a block, which lies in one page: K of one or two instructions that multiply values by
#: weights.
BLOCK_KEYS = 32
#: Keys of a piece. Pieces begin at multiples of it, and the sums of a row are added piece by piece,
#: in their order.
PIECE_KEYS = 256
#: Significant bits of a bf16.
_BF16_BITS = 8
#: Most registers of a lane that a mask was seen to take: see `GpuAttention.waves`.
_MASK = 16
#: Most registers of a lane for the sums of values of a tile of rows: see `GpuAttention.slices`.
_SUMS = 64
#: Numbers after the values of a row in the sums of a piece: its maximum, its total, two zeros.
TAIL = 4
#: Lanes of a workgroup of the second kernel, which adds pieces up.
MERGED = 64
#: Most bytes of the sums of all pieces that have their own waves.
MOST_PARTS = 1 << 30


@dataclass(frozen=True, kw_only=True)
class GpuAttention(PagedAttention):
    """Sizes of one kernel. `instruction`: the bf16 matrix instruction with 16 rows. `bits`:
    significant bits that queries and weights need."""

    instruction: TileInstruction
    bits: int = F32_BITS

    @property
    def unit(self) -> float:
        """The factor that turns the scores given to the softmax into exponents of two.

        With a cap, these scores are the tanh (`capped`). With a mask, they are exponents of two
        already (masks.py).
        """
        if self.mask is not None:
            return 1.0
        return LOG2_E * (self.scale if self.cap is None else self.cap)

    @property
    def lanes(self) -> int:
        """Lanes of a wave."""
        return self.instruction.unit.lanes

    @property
    def run(self) -> int:
        """Consecutive elements along D that a lane has of a chunk, for one instruction or two."""
        return max(FRAGMENT, self.instruction.fragment)

    @property
    def chunk(self) -> int:
        """Elements along D of a chunk: the runs of all lanes of a row."""
        return self.instruction.groups * self.run

    @property
    def chunks(self) -> int:
        """Chunks along D; the last one may go beyond its end."""
        return -(-self.depth // self.chunk)

    @property
    def sums(self) -> int:
        """Accumulators of a lane per matrix instruction: scores of its row for so many keys of a
        tile, or so many elements of D of its result."""
        return self.instruction.totals

    @property
    def keys_of_tile(self) -> int:
        """Keys of a tile whose weights a lane passes to matrix instructions: all 16 on gfx11."""
        return TILE // self.instruction.groups

    @property
    def steps(self) -> int:
        """Matrix instructions along the keys of a block."""
        return BLOCK_KEYS // self.instruction.form.k

    @property
    def tiles(self) -> int:
        """Most tiles of 16 rows of a wave. Two share the keys and values that are loaded, where
        there are enough registers."""
        few = self.head_bytes <= 128 and self.part_bytes <= 192
        return 2 if few and self.lanes == 64 else 1

    def waves(self, tiles: int) -> int:
        """Number of waves that a SIMD is to hold, so that one computes while another waits.

        It follows from the registers that a wave of 64 was seen to take at most: with K bytes of a
        key in registers (`head_bytes`) and P bytes of its bf16 parts, the greatest of

            tiles * K
            tiles * (48 + P * 3 / 7)
            72 + tiles * K * 9 / 16     where it decodes two elements by more than one instruction,
                                        or masks both ends of a chunk

        and _MASK more with a mask.
        """
        sizes = [self.head_bytes * tiles, (48 + 3 * self.part_bytes // 7) * tiles]
        converts = self.instruction.unit.converts and not self.scaled
        if (self.decodes and not converts) or isinstance(self.reach, AttentionChunk):
            sizes.append(72 + 9 * self.head_bytes * tiles // 16)
        if self.mask is not None:
            sizes.append(max(sizes) + _MASK)
        most = 512 * self.lanes // 64
        return max(1, min(4 // tiles, *(most // each for each in sizes)))

    @property
    def ragged(self) -> bool:
        """Whether the last block of a page may have fewer than BLOCK_KEYS keys."""
        return not isinstance(self.positions, int) or self.positions % BLOCK_KEYS != 0

    @property
    def decodes(self) -> bool:
        """Whether keys and values are decoded in registers."""
        return self.packed is not None

    @property
    def head_bytes(self) -> int:
        """Bytes of a key in registers, where packed elements are bf16."""
        return self.depth * int(self.element_type().width) // 8

    @property
    def part_bytes(self) -> int:
        """Bytes of the bf16 parts of a key."""
        return 2 * self.depth * self.parts_of_element

    @property
    def at_once(self) -> int:
        """Chunks along D of a block of keys that are loaded while as many others are multiplied:
        those that fit in an eighth of the registers, at least one."""
        registers = self._registers(BLOCK_KEYS * self.head_bytes)
        return min(self.chunks, max(1, self.chunks * self._most // 8 // registers))

    @property
    def queries_at_once(self) -> int:
        """Chunks of a row of queries, f32, that are loaded at once: they fit in half of the
        registers."""
        return self._most // (2 * self.run)

    @property
    def ahead(self) -> bool:
        """Whether registers have room for all keys of the next block while those of this one are
        used."""
        return self.at_once == self.chunks

    @property
    def staged(self) -> bool:
        """Whether the bf16 parts of queries are in LDS: in waves of 32, if they would take more
        than 3/16 of the registers."""
        size = self.parts_of_f32 * 2 * TILE * self.depth
        return self.lanes == 32 and self._registers(size) > 3 * self._most // 16

    @property
    def slices(self) -> int:
        """Number of waves that split the values of a row: each computes all scores of the row, and
        sums one slice of the elements of D."""
        count = 1
        while (
            TILE * self.mixed // (self.lanes * count) > _SUMS
            and self.mixed % (4 * count * TILE) == 0
        ):
            count *= 2
        return count

    @property
    def _most(self) -> int:
        """Most registers of a lane: 512 in waves of 64, of which half are accumulation registers;
        256 in waves of 32."""
        return 8 * self.lanes

    def _registers(self, size: int) -> int:
        """Registers of a lane for `size` bytes of matrix operands, which are distributed over the
        16 * `groups` lanes that hold different elements."""
        return size // (4 * TILE * self.instruction.groups)

    @property
    def slots(self) -> int:
        """Elements along D that a lane loads of the value of a key. Also the number of matrix
        products, and of vectors of sums, that cover the wave's slice of D."""
        return self.mixed // (TILE * self.slices)

    @property
    def parts_of_f32(self) -> int:
        """Number of bf16 parts of a query or a weight. At least two: the last one may be rounded by
        an integer addition, which may lose a NaN."""
        return max(2, -(-self.bits // _BF16_BITS))

    @property
    def products(self) -> int:
        """Number of bf16 products per multiplication: each part of a query or a weight by each part
        of an element."""
        return self.parts_of_f32 * self.parts_of_element

    @property
    def parts_of_element(self) -> int:
        """Number of bf16 parts whose sum is an element of the pool."""
        return 1 if self.packed is not None else {"bf16": 1, "f16": 2, "f32": 3}[self.element]

    def element_type(self) -> ir.Type:
        """The MLIR type of keys and values in registers: bf16 of packed formats, which is exact."""
        return ir.BF16Type.get() if self.packed is not None else ir.Type.parse(self.element)

    @property
    def pieces_apart(self) -> ir.Value:
        """Number of waves that split the keys of a decoded token: Z.

        0: the call is one run of several tokens, so that no token is decoded. 1: one wave goes over
        all pieces and writes the result. More: each piece has its own wave, which writes its sums
        to `parts`.
        """
        tokens, runs, pages = map(value_of, (self.tokens, self.runs, self.pages))
        apart = index(1)
        if self.reach is None or reach_size(self.reach) > 2 * PIECE_KEYS:
            apart = arith.ceildivui(pages * value_of(self.positions), index(PIECE_KEYS))
            if self.reach is not None:
                most = (reach_size(self.reach) - 2) // PIECE_KEYS + 2
                apart = at_most(apart, most)
            size = runs * apart * (4 * self.heads * self.group * self._part)
            apart = arith.select(below(size, MOST_PARTS), apart, index(1))
        several = arith.cmpi(arith.CmpIPredicate.ugt, tokens, runs)
        alone = equal(runs, 1)
        return arith.select(several & alone, index(0), apart)

    @property
    def parts(self) -> list[Size]:
        """Sizes of the memory for the sums of pieces: [Z * S, V, G, mixed + TAIL], or [1, ..] if
        pieces do not have their own waves."""
        count: Size = None
        if self.pieces is not None:
            runs, pieces = value_of(self.runs), value_of(self.pieces)
            few = below(pieces, 2)
            count = arith.select(few, index(1), runs * pieces)
        return [count, self.heads, self.group, self._part]

    @property
    def _part(self) -> int:
        """Numbers of a row of `parts`."""
        return self.mixed + TAIL

    @property
    def token_blocks(self) -> int:
        """Number of tiles of 16 rows for the query heads of one token."""
        return -(-self.group // TILE)

    @property
    def workgroups(self) -> list[Size]:
        """Number of workgroups, of one wave each: slices of all heads; then blocks of rows,
        followed by tiles of decoded tokens, one for each piece (wave.py)."""
        runs, pieces = value_of(self.runs), value_of(self.pieces)
        apart = runs * pieces * self.token_blocks
        blocks = self.blocks(1)
        if self.tiles > 1:
            none = below(pieces, 1)
            blocks = arith.select(none, self.blocks(self.tiles), blocks)
        return [self.heads * self.slices, blocks + apart]

    def blocks(self, tiles: int) -> ir.Value:
        """Most blocks of `tiles` tiles of rows over all runs; those of run s begin at `first_block`
        + s. 0 if all tokens are decoded and Z is not 0: their waves follow the blocks."""
        tokens, runs, pieces = map(value_of, (self.tokens, self.runs, self.pieces))
        some = self.first_block(tokens, tiles) + runs
        decoded = equal(tokens, runs)
        apart = unequal(pieces, 0)
        return arith.select(decoded & apart, index(0), some)

    def first_block(self, token: ir.Value, tiles: int) -> ir.Value:
        """Number of the first block of the run whose first token is `token`, less the number of the
        run, which the caller adds.

        A run of c tokens has at least floor(c * G / rows) + 1 blocks before those of the next run.
        """
        return token * self.group // (tiles * TILE)

    @property
    def merge_workgroups(self) -> list[Size]:
        """Number of workgroups of the second kernel: for all rows of a token, of which a lane has
        four elements; then runs, 0 of them if pieces do not have their own waves."""
        count = -(-self.heads * self.group * (self.mixed // TAIL) // MERGED)
        runs = value_of(self.runs)
        few = below(value_of(self.pieces), 2)
        return [count, arith.select(few, index(0), runs)]


def piece_of(key: ir.Value) -> ir.Value:
    """Return the number of the piece that contains a key."""
    return key // PIECE_KEYS


def pieces_between(first: ir.Value, last: ir.Value) -> ir.Value:
    """Return how many pieces contain some of the keys `first` .. `last`."""
    return piece_of(last) - piece_of(first) + 1
