"""One side of a product in memory, and how a lane takes its part of it: bytes, then fragments.

Elements lie row after row, as the program has them, or in panels (panels.py); scales lie in rows.
`Side.load` reads what a lane needs for one step along K, `Side.fragments` makes registers of the
instructions of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import BEYOND, concat
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
    f32,
    i8,
    i32,
    index,
    lanes_of,
    of,
    part_of,
    signed_below,
    splat,
)

#: What was loaded for one step: vectors, in an order of the side's own.
Loaded = list[ir.Value]
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

    def late(self, step: ir.Value, *, masked: bool) -> Loaded:
        """What of a step `load` leaves for the time when it is multiplied, and goes behind it."""
        first = step * self.instruction.step
        tiles = range(len(self.rows) if self._late else 0)
        return [self._factors(tile, first, masked=masked) for tile in tiles]

    def load(self, step: ir.Value, *, masked: bool) -> Loaded:
        """One step, but for what is `late`. `masked`: blocks that a row does not have are zero."""
        kind, group = self.kind, self.lane.block
        first = step * self.instruction.step
        found: Loaded = []
        offsets = [
            self._block(piece) * kind.block_bytes
            + (group % piece.share * piece.stride + piece.start)
            for piece in self._pieces
        ]
        own = first + group * K_STEPS
        for tile, row in enumerate(self.rows):
            start = start_of(kind, row, first)
            for k_step in range(self.k_steps):
                blocks = k_step * self._stride
                for piece, offset in zip(self._pieces, offsets, strict=True):
                    at = start + along(kind, offset) + blocks * kind.block_bytes * spread(kind)
                    inside = None
                    if masked:
                        inside = below(first + self._block(piece) + blocks, kind.blocks)
                    found.append(load_bytes(self.buffers[0], at, piece.bytes, inside))
            if kind.multiplies_sums:
                if not self._late:
                    found.append(self._factors(tile, first, masked=masked))
            elif self.sums:
                found.append(self._interleaved_scales(row, first, masked=masked))
            else:
                found.append(self.scales_of(row, own, masked=masked))
        return found

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

    def _interleaved_scales(self, row: ir.Value, first: ir.Value, *, masked: bool) -> ir.Value:
        """The scales of a row, per sum and k-step, of a step that begins at block `first`."""
        kind, count, stride = self.kind, self.kind.scales, self._stride
        start, found = row * (kind.blocks // kind.shared), []
        own = first + self.lane.block // self.sums
        for part in range(self.k_steps * self.sums):
            block = own + part * stride // self.sums
            at = (start + block // kind.shared) * count
            inside = below(block, kind.blocks) if masked else None
            found.append(load_bytes(self.buffers[1], at, count, inside))
        return concat(found)

    def scales_of(self, row: ir.Value, own: ir.Value, *, masked: bool) -> ir.Value:
        """The scales of blocks `own` and the next three of a row; zero where it has none.

        What they would scale is zero too; but the bytes there are another row's, and may be NaN.
        """
        memory, blocks, count = self.buffers[1], self.kind.blocks, self.kind.scales
        if self.kind.shared > 1:
            return self._shared_scales(row, own, masked=masked)
        at, size = (row * blocks + own) * count, K_STEPS * count
        left = blocks % K_STEPS
        if not masked:
            return load_bytes(memory, at, size)
        if blocks < K_STEPS:
            scales = [
                load_bytes(memory, at + k_step * count, count, below(own + k_step, blocks))
                for k_step in range(K_STEPS)
            ]
            return concat(scales)
        if not left:
            return load_bytes(memory, at, size, below(own, blocks))
        at = arith.select(below(own, blocks), at, index(BEYOND))
        # The row ends within these four: they are read with those before them, because a load that
        # goes beyond the end of the buffer gives nothing at all.
        whole, more = signed_below(own + (K_STEPS - 1), blocks), (K_STEPS - left) * count
        at = arith.select(whole, at, at - more)
        kind = ir.IntegerType.get_signless(8 * size)
        word = vector.extract(bitcast(load_bytes(memory, at, size), kind, 1), [], [0])
        shift = arith.select(whole, constant(0, kind), constant(8 * more, kind))
        return bitcast(vector.broadcast(of(kind, 1), word >> shift), i8(), size)

    def _shared_scales(self, row: ir.Value, own: ir.Value, *, masked: bool) -> ir.Value:
        """The same where two blocks, or all four, have one scale."""
        kind, shared = self.kind, min(self.kind.shared, K_STEPS)
        start = row * (kind.blocks // kind.shared) + own // kind.shared
        found = []
        for number in range(K_STEPS // shared):
            at = start + number
            inside = below(own + number * shared, kind.blocks) if masked else None
            found.append(load_bytes(self.buffers[1], at, 1, inside))
        both = concat(found)
        return vector.shuffle(both, both, [k_step // shared for k_step in range(K_STEPS)])

    def _bytes(self, loaded: Loaded, tile: int, k_step: int) -> ir.Value:
        """The bytes of a tile in a k-step of the step."""
        count = len(self._pieces)
        start = tile * self._loads + k_step * count
        pieces, sizes = loaded[start : start + count], [piece.bytes for piece in self._pieces]
        if any(size % _WORD for size in sizes):
            return concat(pieces)
        # As words: else LLVM gives each byte that comes from an iteration before a register.
        words = [
            bitcast(piece, i32(), size // _WORD) for piece, size in zip(pieces, sizes, strict=True)
        ]
        return bitcast(concat(words), i8(), sum(sizes))

    def fragment(self, loaded: Loaded, tile: int, k_step: int) -> ir.Value:
        """The elements of a tile for one instruction of the step."""
        element, whole = self.kind.format.element, self._bytes(loaded, tile, k_step)
        count = lanes_of(whole) * 8 // element.bits
        return bitcast(whole, ir.Type.parse(element.mlir), count)

    def _scale_bytes(self, loaded: Loaded, tile: int) -> ir.Value:
        """The scale bytes of a tile, of all k-steps of the step."""
        if self._late:
            return loaded[len(self.rows) * self._loads + tile]
        return loaded[(tile + 1) * self._loads - 1]

    @property
    def _loads(self) -> int:
        """Vectors of a tile, without what is late."""
        return self.k_steps * len(self._pieces) + (not self._late)

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
