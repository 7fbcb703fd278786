"""One side of a product in memory, and how a lane takes its part of it: bytes, then fragments.

Elements lie row after row, as the program has them, or in panels (panels.py); scales lie in rows.
`ScaledSide.load` reads what a lane needs for a k-step; `ScaledSide.fragment` and
`ScaledSide.floats` make of it what instructions multiply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import log2

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import BEYOND, concat, pinned
from mxc.dialects.sizes import constant
from mxc.formats.formats import E8M0, F32, BlockFormat, Specials
from mxc.passes.kernels.extents import Buffer, Size, product
from mxc.passes.kernels.gpu.decode import Register, decode, decode_unscaled, decoded_one
from mxc.passes.kernels.gpu.decode_bits import decode_bits
from mxc.passes.kernels.gpu.decode_fnuz import decode_fnuz
from mxc.passes.kernels.gpu.float_scales import StepFactors, factors_of_step
from mxc.passes.kernels.gpu.fragments import (
    BLOCK,
    K_STEPS,
    FragmentPiece,
    TileInstruction,
    pieces,
    shared_pieces,
    whole,
)
from mxc.passes.kernels.gpu.lanes import Lane, at_most
from mxc.passes.kernels.gpu.panels import along, spread, start_of
from mxc.passes.kernels.gpu.parts import load_bytes
from mxc.passes.kernels.vectors import (
    below,
    bitcast,
    elements,
    f32,
    i8,
    i32,
    index,
    lanes_of,
    of,
    part_of,
    parts_of,
    signed_below,
    splat,
)


@dataclass(frozen=True)
class Loaded:
    """What was loaded of a step: elements, by places of the side's own; of tiles, their scales
    in parts."""

    elements: dict[int, ir.Value] = field(default_factory=dict)
    scales: dict[int, list[ir.Value]] = field(default_factory=dict)

    def __or__(self, other: Loaded) -> Loaded:
        """Both; of what both have, the other's."""
        return Loaded(self.elements | other.elements, self.scales | other.scales)


#: The E8M0 of 1.
_ONE = 127
#: Bytes of a word.
_WORD = 4


@dataclass(frozen=True)
class ScaledBlocks:
    """`blocks` of 32 elements a row, whatever number of them a scale of `format` is for. `panels`:
    of the elements, as in panels.py."""

    format: BlockFormat
    blocks: int
    panels: int = 0

    @staticmethod
    def takes(block: int) -> bool:
        """Whether kernels read scales of so many elements: half a block, or 1, 2, 4.. of them."""
        return block >= BLOCK // 2 and block.bit_count() == 1

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return self.format.element.bits

    @property
    def scales(self) -> int:
        """Scales of a block of 32; 1 where a larger block shares it."""
        return max(1, BLOCK // self.format.block)

    @property
    def shared(self) -> int:
        """Blocks of 32 that have the same scale."""
        return max(1, self.format.block // BLOCK)

    @property
    def rows_of_scale(self) -> int:
        """Rows that have the same scale."""
        return self.format.rows

    @property
    def multiplies_sums(self) -> bool:
        """Whether its scales are f32: no instruction takes them, so they multiply sums."""
        return self.format.scale == F32

    @property
    def decoded_one(self) -> float:
        """The float that an element of 1 becomes where it is decoded and f32 scales multiply sums:
        a product is multiplied by the reciprocal at its end."""
        integers = self.multiplies_sums and not self.format.element.exponent
        return decoded_one(self.format.element) if integers else 1.0

    @property
    def is_whole(self) -> bool:
        """Whether scaled matrix instructions take it: floats, a power of two for 32 of them."""
        powers = self.format.scale in (E8M0, F32)
        return self.scales == 1 and powers and self.format.element.exponent > 0 and not self.is_fnuz

    @property
    def is_fnuz(self) -> bool:
        """Whether no instruction under a scale knows its elements: they are decoded by integers."""
        return self.format.element.specials is Specials.FNUZ

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's elements."""
        return BLOCK * self.bits // 8

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """Bytes of a row's elements, and of its scales."""
        scales = self.blocks * self.scales // self.shared
        return self.blocks * self.block_bytes, scales * self.format.scale.bits // 8

    def buffers(self, rows: Size) -> list[Buffer]:
        """The elements and the scales of so many rows."""
        return [Buffer([product(rows, size)], i8()) for size in self.row_sizes]


@dataclass(frozen=True)
class ScaledSide:
    """Rows of a scaled operand, for the tiles of one wave.

    `buffers`: bounded memrefs of the elements and the scales; `rows`: the row that this lane has of
    each tile, somewhere inside. `decoded`: a lane takes whole blocks, which become floats of this
    type; else the fragments of scaled matrix instructions.

    `factors`: rows of the f32 scales that this lane needs, of each tile. `sums`: a k-step is over
    consecutive blocks, one a lane group, and is so many sums, each under one scale; 0 where no sum
    is scaled.
    """

    kind: ScaledBlocks
    instruction: TileInstruction
    lane: Lane
    buffers: tuple[ir.Value, ir.Value]
    rows: tuple[ir.Value, ...]
    decoded: Register | None = None
    factors: tuple[tuple[ir.Value, ...], ...] = ()
    sums: int = 0

    @property
    def _in_order(self) -> bool:
        """Whether an instruction takes consecutive blocks of the step."""
        return self.decoded is None and self.instruction.unit.family == "wmma"

    @property
    def k_steps(self) -> int:
        """K-steps of a step."""
        return self.instruction.k_steps if self.decoded is None else K_STEPS

    @property
    def _pieces(self) -> tuple[FragmentPiece, ...]:
        bits = self.kind.bits
        if self.decoded is None:
            return pieces(bits, self.instruction)
        return whole(bits) if self.sums < 2 else shared_pieces(bits, self._stride, self.sums)

    @property
    def _step_factors(self) -> StepFactors:
        return factors_of_step(self.kind.shared, self.instruction, self.sums)

    @property
    def _late(self) -> bool:
        return self.kind.multiplies_sums and self._step_factors.late

    def load(self, step: ir.Value, k_step: int, *, masked: bool) -> Loaded:
        """A k-step of a step, with the scales of the whole step where it is the first, but for
        those that are late. `masked`: blocks that a row does not have are zero."""
        kind, group, first = self.kind, self.lane.block, step * self.instruction.step
        blocks, found = k_step * self._stride, Loaded()
        for tile, row in enumerate(self.rows):
            start, place = start_of(kind, row, first), self._place(tile, k_step)
            for number, piece in enumerate(self._pieces):
                offset = self._block(piece) * kind.block_bytes
                offset = offset + (group % piece.share * piece.stride + piece.start)
                at = start + along(kind, offset) + blocks * kind.block_bytes * spread(kind)
                block = first + self._block(piece) + blocks
                inside = below(block, kind.blocks) if masked else None
                found.elements[place + number] = load_bytes(
                    self.buffers[0], at, piece.bytes, inside
                )
            if k_step == 0 and not self._late:
                found.scales[tile] = self._scales(tile, first, masked=masked)
        return found

    def load_late(self, step: ir.Value, *, masked: bool) -> Loaded:
        """The scales of a step that are too many to be in registers while another is multiplied."""
        first, tiles = step * self.instruction.step, range(len(self.rows) if self._late else 0)
        return Loaded(scales={tile: self._scales(tile, first, masked=masked) for tile in tiles})

    def _scales(self, tile: int, first: ir.Value, *, masked: bool) -> list[ir.Value]:
        """The scales of a tile for a step that begins at block `first`, in parts."""
        if self.kind.multiplies_sums:
            return [self._factors(tile, first, masked=masked)]
        row = self.rows[tile]
        if self.sums:
            first = first + self.lane.block // self.sums
            parts = [part * self._stride // self.sums for part in range(self.k_steps * self.sums)]
            return self._each_scale(row, first, parts, masked=masked)
        return self._parts_of_scales(row, first + self.lane.block * K_STEPS, masked=masked)

    def pin_scales(self, loaded: Loaded) -> Loaded:
        """The same, of which scales that vector instructions read are pinned, where they were
        loaded a step ahead. Else LLVM takes them apart, or multiplies them, where they are loaded,
        and waits for what has just been asked for."""
        if self._late or (self.decoded is None and not self.kind.multiplies_sums):
            return loaded
        kind = f32() if self.kind.multiplies_sums else i32()
        given = [self._concatenated(loaded.scales[tile]) for tile in range(len(self.rows))]
        own, size = ir.VectorType(given[0].type).element_type, lanes_of(given[0])
        count = size if self.kind.multiplies_sums else size // _WORD
        words = [word for each in given for word in elements(bitcast(each, kind, count))]
        found = vector.from_elements(of(kind, len(words)), pinned(words))
        whole = [bitcast(each, own, size) for each in parts_of(found, count)]
        return Loaded(loaded.elements, {tile: [each] for tile, each in enumerate(whole)})

    @property
    def _stride(self) -> int:
        """Blocks from one k-step to the next."""
        if self.sums:
            return self.instruction.groups
        return K_STEPS if self._in_order else 1

    def _block(self, piece: FragmentPiece) -> ir.Value:
        """The block of a step, for its first instruction, that a piece of this lane is of."""
        block = self.lane.block // piece.share + piece.first
        return block * (1 if self._in_order or self.sums else K_STEPS)

    def _factors(self, tile: int, first: ir.Value, *, masked: bool) -> ir.Value:
        """The f32 of a step, of all rows that the lane needs: f32 [rows x scales of a step]."""
        kind, scales = self.kind, self._step_factors
        size, count = kind.format.scale.bits // 8, 1 if masked else scales.together
        found = []
        for row in self.factors[tile]:
            start = row * (kind.blocks // kind.shared)
            for number in range(0, scales.count, count):
                block = first + number * scales.stride
                at = (start + block // kind.shared) * size
                inside = below(block, kind.blocks) if masked else None
                loaded = load_bytes(self.buffers[1], at, size * count, inside)
                found.append(bitcast(loaded, f32(), count))
        return concat(found)

    def factor(self, loaded: Loaded, tile: int, k_step: int, number: int) -> ir.Value:
        """The f32 scales of sum `number` of a k-step, of a tile: f32 [rows that the lane needs]."""
        found, rows = self._scale_bytes(loaded, tile), range(len(self.factors[tile]))
        scales = self._step_factors
        block = k_step * self._stride + number * self._stride // self.sums
        own = block // scales.stride
        return vector.shuffle(found, found, [row * scales.count + own for row in rows])

    def _each_scale(
        self, row: ir.Value, first: ir.Value, blocks: Iterable[int], *, masked: bool
    ) -> list[ir.Value]:
        """The scales of blocks of a row, counted from `first`, by a load for each."""
        kind, count = self.kind, self.kind.scales
        start, found = row * (kind.blocks // kind.shared), []
        for number in blocks:
            block = first + number
            at = (start + block // kind.shared) * count
            inside = below(block, kind.blocks) if masked else None
            found.append(load_bytes(self.buffers[1], at, count, inside))
        return found

    def scales_of(self, row: ir.Value, own: ir.Value, *, masked: bool) -> ir.Value:
        """The scales of blocks `own` and the next three of a row; zero where it has none.

        What they would scale is zero too; but the bytes there are another row's, and may be NaN.
        """
        return self._concatenated(self._parts_of_scales(row, own, masked=masked))

    def _concatenated(self, parts: list[ir.Value]) -> ir.Value:
        """Scales of all blocks of a step that a lane has."""
        whole = concat(parts)
        size = (self.k_steps * self.sums or K_STEPS) * self.kind.scales
        if self.kind.multiplies_sums or lanes_of(whole) == size:
            return whole
        shared = size // lanes_of(whole)
        return vector.shuffle(whole, whole, [k_step // shared for k_step in range(size)])

    def _parts_of_scales(self, row: ir.Value, own: ir.Value, *, masked: bool) -> list[ir.Value]:
        """The same in parts."""
        memory, blocks, count = self.buffers[1], self.kind.blocks, self.kind.scales
        if (shared := self.kind.shared) > 1 or (masked and blocks < K_STEPS):
            # Two blocks, or all four, may have one scale.
            return self._each_scale(row, own, range(0, K_STEPS, shared), masked=masked)
        at, size = (row * blocks + own) * count, K_STEPS * count
        left = blocks % K_STEPS
        if not masked:
            return [load_bytes(memory, at, size)]
        if not left:
            return [load_bytes(memory, at, size, below(own, blocks))]
        at = arith.select(below(own, blocks), at, index(BEYOND))
        # The row ends within these four: they are read with those before them, because a load
        # beyond the end of the buffer gives nothing at all.
        whole, more = signed_below(own + (K_STEPS - 1), blocks), (K_STEPS - left) * count
        at = arith.select(whole, at, at - more)
        kind = ir.IntegerType.get_signless(8 * size)
        word = vector.extract(bitcast(load_bytes(memory, at, size), kind, 1), [], [0])
        shift = arith.select(whole, constant(0, kind), constant(8 * more, kind))
        return [bitcast(vector.broadcast(of(kind, 1), word >> shift), i8(), size)]

    def _place(self, tile: int, k_step: int) -> int:
        """The place of the first piece of a tile in a k-step."""
        return (tile * self.k_steps + k_step) * len(self._pieces)

    def _bytes(self, loaded: Loaded, tile: int, k_step: int) -> ir.Value:
        """The bytes of a tile in a k-step of the step."""
        start = self._place(tile, k_step)
        pieces = [loaded.elements[start + number] for number in range(len(self._pieces))]
        if any(piece.bytes % _WORD for piece in self._pieces):
            return concat(pieces)
        # As words: else LLVM gives each byte that comes from an iteration before a register.
        words = concat([bitcast(piece, i32(), lanes_of(piece) // _WORD) for piece in pieces])
        return bitcast(words, i8(), lanes_of(words) * _WORD)

    def fragment(self, loaded: Loaded, tile: int, k_step: int) -> ir.Value:
        """The elements of a tile for one instruction of the step."""
        element, whole = self.kind.format.element, self._bytes(loaded, tile, k_step)
        count = lanes_of(whole) * 8 // element.bits
        return bitcast(whole, ir.Type.parse(element.mlir), count)

    def _scale_bytes(self, loaded: Loaded, tile: int) -> ir.Value:
        """The scales of a tile, of all k-steps of the step."""
        return self._concatenated(loaded.scales[tile])

    def scales(self, loaded: Loaded, tile: int) -> ir.Value:
        """The scales of a tile for the instructions of the step; 1 where they multiply sums."""
        if self.kind.multiplies_sums:
            return ones()
        return bitcast(self._scale_bytes(loaded, tile), ir.Float8E8M0FNUType.get(), K_STEPS)

    def floats(self, loaded: Loaded, tile: int, k_step: int) -> list[ir.Value]:
        """The elements of a tile in a k-step as floats: runs of 8 along K."""
        count = self.kind.scales * max(1, self.sums)
        block, scales = self._bytes(loaded, tile, k_step), self._scale_bytes(loaded, tile)
        if not self.kind.multiplies_sums:
            scales = part_of(scales, k_step * count, count)
        return self.decoded_block(block, scales)

    def decoded_block(self, block: ir.Value, scales: ir.Value | None) -> list[ir.Value]:
        """A block, i8, under its scales, i8 [n], as floats: runs of 8 along K. f32 scales multiply
        sums, and elements are decoded without them."""
        format = self.kind.format
        assert self.decoded is not None
        if self.kind.multiplies_sums and self._converts:
            return decode_unscaled(block, format.element, self.decoded)
        if self.kind.multiplies_sums:
            # The E8M0 under which nothing is multiplied: of integers a one is a fraction there.
            least = 1 if format.element.exponent else format.element.min_positive
            code = _ONE + int(log2(self.kind.decoded_one / least))
            format, scales = replace(format, scale=E8M0), splat(code, i8(), 1)
        assert scales is not None
        if self._converts:
            return decode(block, scales, format, self.decoded)
        if self.instruction.unit.extends_fnuz:
            return decode_fnuz(block, scales, format)
        return decode_bits(block, scales, format)

    @property
    def _converts(self) -> bool:
        """Whether conversions of the instruction set decode the elements."""
        return self.instruction.unit.converts and not self.kind.is_fnuz


def clamped(row: ir.Value, rows: int) -> ir.Value:
    """A row that exists: those beyond the end are computed for nothing, and not stored."""
    return at_most(row, rows - 1)


def ones() -> ir.Value:
    """Scales of 1 for the instructions of a step."""
    return bitcast(splat(_ONE, i8(), K_STEPS), ir.Float8E8M0FNUType.get(), K_STEPS)
