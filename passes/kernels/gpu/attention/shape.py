"""What one attention kernel is: its sizes, its memory, how it is shared out among waves."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.attention import F32_BITS, AttentionChunk
from mxc.passes.kernels.extents import Size, value_of
from mxc.passes.kernels.gpu.attention.softmax import LOG2_E
from mxc.passes.kernels.gpu.fragments import FRAGMENT, TileInstruction
from mxc.passes.kernels.gpu.lanes import at_most
from mxc.passes.kernels.paged_attention import PagedAttention
from mxc.passes.kernels.runs import reach_size
from mxc.passes.kernels.vectors import below, equal, index, unequal

#: Rows, keys or elements of D that a matrix instruction takes.
TILE = 16
#: Keys of a block: K of one instruction or two where weights meet values. A block lies in one page.
BLOCK_KEYS = 32
#: Keys of a piece, at absolute positions: sums of a row are those of its pieces, in their order.
PIECE_KEYS = 256
#: Significant bits of a bf16.
_BF16_BITS = 8
#: Registers for a mask.
_MASK = 16
#: Registers for the sums of the values of a tile.
_SUMS = 64
#: Numbers that a piece has after the values of a row: its maximum and its total, then nothing.
TAIL = 4
#: Lanes of a workgroup that adds pieces up.
MERGED = 64
#: Bytes that pieces computed apart may take.
MOST_PARTS = 1 << 30


@dataclass(frozen=True, kw_only=True)
class GpuAttention(PagedAttention):
    """Sizes of one kernel. `instruction`: for bf16, of 16 rows. `bits`: significant bits that
    queries and weights need."""

    instruction: TileInstruction
    bits: int = F32_BITS

    @property
    def unit(self) -> float:
        """What a score is multiplied by to be a power of two: one that has a cap is the tanh, one
        with a mask is a power of two."""
        if self.mask is not None:
            return 1.0
        return LOG2_E * (self.scale if self.cap is None else self.cap)

    @property
    def lanes(self) -> int:
        """Lanes of a wave."""
        return self.instruction.unit.lanes

    @property
    def run(self) -> int:
        """Elements along D that a lane has of a chunk: of one instruction, or of two."""
        return max(FRAGMENT, self.instruction.fragment)

    @property
    def chunk(self) -> int:
        """Elements along D of all lanes of a row."""
        return self.instruction.groups * self.run

    @property
    def chunks(self) -> int:
        """Chunks along D; the last one may go beyond its end."""
        return -(-self.depth // self.chunk)

    @property
    def sums(self) -> int:
        """Sums that a lane has of a tile: scores of its row, or elements of D of the result."""
        return self.instruction.totals

    @property
    def keys_of_tile(self) -> int:
        """Keys of a tile whose weights a lane gives to an instruction."""
        return TILE // self.instruction.groups

    @property
    def steps(self) -> int:
        """Products along the keys of a block."""
        return BLOCK_KEYS // self.instruction.form.k

    @property
    def tiles(self) -> int:
        """Tiles of 16 rows that a wave may have. Two share what is read, where registers are
        enough for them."""
        few = self.head_bytes <= 128 and self.part_bytes <= 192
        return 2 if few and self.lanes == 64 else 1

    def waves(self, tiles: int) -> int:
        """Waves that a SIMD is to hold, by registers: one of them waits while another computes.

        A wave of 64 was seen to take up to one register for each byte of a key, or 48 and 3/7 for
        each byte of the parts of a key; where it decodes keys by more than one instruction for two
        of them, or masks both ends of a chunk, 72 and 9/16 for each byte of a key in registers. A
        mask was seen to take up to _MASK more.
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
        """Whether the last block of a page may have fewer keys."""
        return not isinstance(self.positions, int) or self.positions % BLOCK_KEYS != 0

    @property
    def decodes(self) -> bool:
        """Whether keys and values are decoded in registers."""
        return self.packed is not None

    @property
    def head_bytes(self) -> int:
        """Bytes of a key in registers."""
        return self.depth * int(self.element_type().width) // 8

    @property
    def part_bytes(self) -> int:
        """Bytes of the bf16 that add up to a key."""
        return 2 * self.depth * self.parts_of_element

    @property
    def at_once(self) -> int:
        """Chunks along D that are loaded while as many others are multiplied."""
        registers = self._registers(BLOCK_KEYS * self.head_bytes)
        return min(self.chunks, max(1, self.chunks * self._most // 8 // registers))

    @property
    def queries_at_once(self) -> int:
        """Chunks of the f32 of a row of queries that are loaded at once, in half of registers."""
        return self._most // (2 * self.run)

    @property
    def ahead(self) -> bool:
        """Whether registers have room for keys of a block while those of another are used."""
        return self.at_once == self.chunks

    @property
    def staged(self) -> bool:
        """Whether queries are in shared memory: registers have no room for their bf16."""
        size = self.parts_of_f32 * 2 * TILE * self.depth
        return self.lanes == 32 and self._registers(size) > 3 * self._most // 16

    @property
    def slices(self) -> int:
        """Waves that share out the values of a row: all compute its scores, each sums a slice."""
        count = 1
        while (
            TILE * self.mixed // (self.lanes * count) > _SUMS
            and self.mixed % (4 * count * TILE) == 0
        ):
            count *= 2
        return count

    @property
    def _most(self) -> int:
        """Registers of a wave, at most: half of them are for accumulation in waves of 64."""
        return 8 * self.lanes

    def _registers(self, size: int) -> int:
        """Registers for so many bytes of operands of matrix instructions."""
        return size // (4 * TILE * self.instruction.groups)

    @property
    def slots(self) -> int:
        """Elements of a value that a lane has."""
        return self.mixed // (TILE * self.slices)

    @property
    def parts_of_f32(self) -> int:
        """The bf16 that a query or a weight becomes: two at least, because NaN may get lost where
        the last one is rounded by an addition."""
        return max(2, -(-self.bits // _BF16_BITS))

    @property
    def products(self) -> int:
        """Products of bf16: of each part of a query or a weight with each of an element."""
        return self.parts_of_f32 * self.parts_of_element

    @property
    def parts_of_element(self) -> int:
        """The bf16 that add up to an element of the pool."""
        return 1 if self.packed is not None else {"bf16": 1, "f16": 2, "f32": 3}[self.element]

    def element_type(self) -> ir.Type:
        """The MLIR type of keys and values in registers: bf16 of what is packed, exactly."""
        return ir.BF16Type.get() if self.packed is not None else ir.Type.parse(self.element)

    @property
    def pieces_apart(self) -> ir.Value:
        """Waves among which the keys of a decoded token are shared out: Z.

        0: there is one run, of several tokens, so that no token is decoded. 1: a wave goes over all
        pieces and writes the result. More: each piece has a wave, and `parts` has what it comes to.
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
        """[Z * S, V, G, mixed + TAIL]; [1, ..] where pieces are not computed apart."""
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
        """Tiles of rows of one token."""
        return -(-self.group // TILE)

    @property
    def workgroups(self) -> list[Size]:
        """Along slices of heads; then blocks of rows, and what is computed apart."""
        runs, pieces = value_of(self.runs), value_of(self.pieces)
        apart = runs * pieces * self.token_blocks
        blocks = self.blocks(1)
        if self.tiles > 1:
            none = below(pieces, 1)
            blocks = arith.select(none, self.blocks(self.tiles), blocks)
        return [self.heads * self.slices, blocks + apart]

    def blocks(self, tiles: int) -> ir.Value:
        """Blocks of rows of all runs, at most: those of run s begin at `first_block`. None where
        all tokens are decoded, and computed apart."""
        tokens, runs, pieces = map(value_of, (self.tokens, self.runs, self.pieces))
        some = self.first_block(tokens, tiles) + runs
        decoded = equal(tokens, runs)
        apart = unequal(pieces, 0)
        return arith.select(decoded & apart, index(0), some)

    def first_block(self, token: ir.Value, tiles: int) -> ir.Value:
        """The first block of the run that begins at a token; add the number of the run.

        A run of c tokens has at least floor(c * G / rows) + 1 from there to the next run.
        """
        return token * self.group // (tiles * TILE)

    @property
    def merge_workgroups(self) -> list[Size]:
        """Workgroups of the second kernel, a run of one token each: a lane has four elements of a
        row."""
        count = -(-self.heads * self.group * (self.mixed // TAIL) // MERGED)
        runs = value_of(self.runs)
        few = below(value_of(self.pieces), 2)
        return [count, arith.select(few, index(0), runs)]


def piece_of(key: ir.Value) -> ir.Value:
    """The piece that has a key."""
    return key // PIECE_KEYS


def pieces_between(first: ir.Value, last: ir.Value) -> ir.Value:
    """How many pieces have some of the keys `first` .. `last`."""
    return piece_of(last) - piece_of(first) + 1
