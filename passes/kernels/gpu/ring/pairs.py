"""Floats and packed sides as bf16 or f16, two elements at a time, for who places each instruction.

What is decoded is what decode.py makes: integers and elements of 8 bits and fewer under a power of
two, elements of 4 bits under E4M3. What is split is the sum of its parts, as in floats.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, rocdl, vector

from mxc.dialects.amdgpu import intrinsic, pinned
from mxc.dialects.amdgpu_narrow import extended_pair
from mxc.dialects.generic import constant
from mxc.dialects.quantize_scalars import i32 as i32_of
from mxc.formats.formats import E4M3, E8M0, BlockFormat, ElementFormat
from mxc.formats.recipes import MANTISSA, NAN_BYTE
from mxc.passes.kernels.gpu.decode import (
    Register,
    float_factors,
    integer,
    pair_by_float,
    sixes,
)
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT
from mxc.passes.kernels.gpu.lanes import long
from mxc.passes.kernels.gpu.ring.scales import RowScales
from mxc.passes.kernels.gpu.ring.staging import StagedSide, packed
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import (
    bitcast,
    concat,
    equal,
    f32,
    i32,
    lanes_of,
    of,
    part_of,
    upper_halves,
)

#: Pairs of a fragment.
PAIRS = FRAGMENT // 2
#: The largest f32, and the bits of a NaN.
_LARGEST, _NAN = float(np.finfo(np.float32).max), 0x7FC00000
#: Bits of a float that are those of a bf16.
_HIGH = -0x10000


@dataclass(frozen=True)
class PairDecoder:
    """Blocks of a format as floats of a type.

    `factor` of a block is the f32 whose exponent is its scale, nothing else of which counts; of
    nvfp4 its two scales as floats. f32 scales multiply sums: here it is one.
    """

    format: BlockFormat
    register: Register

    @property
    def element(self) -> ElementFormat:
        """What is decoded."""
        return self.format.element

    @property
    def whole(self) -> bool:
        """Whether an instruction decodes a whole block."""
        return self.element.bits == 6

    @property
    def instructions(self) -> int:
        """For a pair, or for a whole block."""
        if self.format.scale == E4M3:
            return 3
        if self.element.exponent:
            return 1
        # Two conversions and a rounding of both; a product of each with its scale.
        return 5 if self.format.scale == E8M0 else 3

    @property
    def instructions_of_word(self) -> int:
        """For all pairs of a word: integers of 4 bits at odd places are moved to even ones."""
        return int(not self.element.exponent and self.element.bits == 4)

    def factor(self, scales: ir.Value) -> ir.Value:
        """That of a block, from what RowScales has of it."""
        return float_factors(scales) if self.format.scale == E4M3 else scales

    def block(self, block: ir.Value, factor: ir.Value) -> list[ir.Value]:
        """The fragments of a whole block, i8."""
        if self.whole:
            words = bitcast(block, i32(), BLOCK * 6 // 32)
            return sixes(words, factor, self.element, self.register)
        return [
            concat([self.pair(block, factor, number * PAIRS + at) for at in range(PAIRS)])
            for number in range(BLOCK // FRAGMENT)
        ]

    def pair(self, block: ir.Value, factor: ir.Value, number: int) -> ir.Value:
        """Elements 2 number and the next one of a block of i8, floats [2]."""
        kind = ir.Type.parse(self.register)
        bits = self.element.bits
        if not self.element.exponent and self.format.scale == E8M0:
            return _integers(part_of(block, 2 * number, 2), factor, kind)
        at, place = divmod(number, 16 // bits)
        word = vector.extract(bitcast(block, i32(), lanes_of(block) // 4), [], [at])
        if not self.element.exponent:
            both = [integer(word, self.element, 2 * place + at) for at in range(2)]
            return arith.truncf(of(kind, 2), vector.from_elements(of(f32(), 2), both))
        if self.format.scale != E4M3:
            return extended_pair(word, factor, self.element, kind, place)
        own = vector.extract(factor, [], [2 * number // self.format.block])
        # Else LLVM would multiply all pairs of a fragment at the end.
        (found,) = pinned([pair_by_float(word, own, place, self.register)])
        return found


@dataclass
class DecodedTile:
    """Elements of a tile in a stage: i8 as they are packed and their factor until all is decoded;
    fragments by number; pairs of the one that is being decoded."""

    block: ir.Value | None
    factor: ir.Value | None
    known: dict[int, ir.Value] = field(default_factory=dict)
    pairs: list[ir.Value] = field(default_factory=list)


@dataclass(frozen=True)
class PackedSide:
    """A side that is decoded: elements in LDS, scales, and what decodes them."""

    side: StagedSide
    scales: RowScales
    decoder: PairDecoder

    @property
    def reads(self) -> int:
        """Reads of LDS for a block."""
        return len(self.side.layout.new_pieces(0))

    def read(self, tile: int, slot: ir.Value, words: list[ir.Value], k_step: int) -> DecodedTile:
        """A lane's elements of a tile in the slot of a stage, an i32, and their factor.

        `words`: the scales of the tile; `k_step`: which of four it is.
        """
        found = {
            (tile, piece): self.side.read(tile, piece, long(slot))
            for piece in self.side.layout.new_pieces(0)
        }
        factor = self.decoder.factor(self.scales.factor(words, k_step))
        return DecodedTile(packed(self.side.layout, found, tile, 0), factor)

    def decode(self, own: DecodedTile) -> None:
        """Decode the whole block, where an instruction does that; else the first fragment."""
        assert own.block is not None
        assert own.factor is not None
        fragments = self.decoder.block(self.side.block(own.block), own.factor)
        if self.decoder.whole:
            own.known = dict(enumerate(fragments))
            own.block = own.factor = None
        else:
            own.known = {0: fragments[0]}

    def decodes(
        self, known: dict[int, DecodedTile], keys: Sequence[int], part: int
    ) -> list[Callable[[], None]]:
        """What makes a part of the tiles of these keys, which are read before any of it."""

        def whole(key: int) -> None:
            self.decode(known[key])

        def pair(key: int, at: int) -> None:
            own = known[key]
            assert own.block is not None
            assert own.factor is not None
            own.pairs.append(self.decoder.pair(own.block, own.factor, part * PAIRS + at))
            if len(own.pairs) == PAIRS:
                own.known[part] = concat(own.pairs)
                own.pairs = []

        if self.decoder.whole:
            return [] if part else [partial(whole, key) for key in keys]
        return [partial(pair, *each) for each in product(keys, range(PAIRS))]


def _integers(part: ir.Value, factor: ir.Value, kind: ir.Type) -> ir.Value:
    """mxint8: an integer of 8 bits is a bf16 as it is, and a power of two moves its exponent."""
    unit = _exact(factor) * (2.0**-6)
    count = lanes_of(part)
    wide = arith.sitofp(of(f32(), count), part)
    scaled = wide * vector.broadcast(of(f32(), count), unit)
    return arith.truncf(of(kind, count), scaled)


def _exact(factor: ir.Value) -> ir.Value:
    """What an exponent stands for: 255 for NaN, and 0 for 2^-127, which is subnormal."""
    bits = arith.bitcast(i32(), factor)
    least = arith.maxsi(bits, i32_of(1 << (MANTISSA - 1)))
    none = equal(bits, NAN_BYTE << MANTISSA)
    return arith.bitcast(f32(), arith.select(none, i32_of(_NAN), least))


def steps_of(kind: FloatBlocks | ScaledBlocks, register: Register) -> tuple[int, ...]:
    """Number of instructions of each step of `splitting` a pair; none where nothing is split."""
    if isinstance(kind, ScaledBlocks) or kind.memory == register:
        return ()
    return (1,) if kind.rounded else {"f16": (7, 4), "f32": (6, 5, 4)}[kind.memory]


def split(kind: FloatBlocks, pieces: Sequence[ir.Value]) -> list[ir.Value]:
    """A fragment of floats, in one vector or two, as the bf16 [8] that add up to it."""
    if kind.memory == "bf16":
        return list(pieces)
    found: list[list[ir.Value]] = [[] for _ in range(PAIRS)]
    for at, parts in enumerate(found):
        for _ in splitting(kind, pair_of(pieces, at), parts):
            pass
    return [concat([parts[at] for parts in found]) for at in range(kind.parts("bf16"))]


def pair_of(pieces: Sequence[ir.Value], number: int) -> ir.Value:
    """Elements 2 number and the next one of a fragment."""
    each = FRAGMENT // len(pieces)
    piece, at = divmod(2 * number, each)
    return part_of(pieces[piece], at, 2)


def splitting(kind: FloatBlocks, pair: ir.Value, parts: list[ir.Value]) -> Iterator[None]:
    """Split a pair of f16 or f32 into `parts`, bf16 [2], in steps of few instructions.

    Each part is cut off, and what is left of it is exact. Infinities are their own first part; of
    them what the largest number leaves is the next one, which has the same sign: so they stay.
    """
    if kind.rounded:
        parts.append(arith.truncf(of(ir.BF16Type.get(), 2), pair))
        return
    whole = _quiet(pair)
    if kind.memory != "f32":
        whole = arith.extf(of(f32(), 2), whole)
    left = _finite(whole)
    high = _high(left)
    yield
    parts.append(upper_halves(whole))
    for _ in range(kind.parts("bf16") - 2):
        left = left - high
        high = _high(left)
        parts.append(upper_halves(left))
        yield
    parts.append(upper_halves(left - high))


def _finite(pair: ir.Value) -> ir.Value:
    """What is infinite as the largest number; so is what is NaN, or the smallest."""
    low, high = (constant(x, f32()) for x in (-_LARGEST, _LARGEST))
    found = [rocdl.fmed3(f32(), vector.extract(pair, [], [at]), low, high) for at in range(2)]
    return vector.from_elements(of(f32(), 2), found)


def _quiet(pair: ir.Value) -> ir.Value:
    """Floats of which NaN are so by the first bit of their fraction, not by one that is cut off."""
    return intrinsic("llvm.canonicalize", [pair], pair.type).result


def _high(pair: ir.Value) -> ir.Value:
    """f32 without the bits that a bf16 has not."""
    return bitcast(bitcast(pair, i32(), 2) & _HIGH, f32(), 2)
