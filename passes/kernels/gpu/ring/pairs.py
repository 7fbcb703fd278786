"""Packed elements decoded to bf16 or f16, and floats split into bf16, two elements at a time.

A main loop can then place each instruction among its products. Decoding gives the same values as
decode.py: integers and elements of 8 bits and fewer under a power of two, elements of 4 bits
under E4M3. The parts of a split float add up to it, as in floats.py.
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

#: Pairs of elements in a fragment.
PAIRS = FRAGMENT // 2
#: The largest f32, and the bits of a NaN.
_LARGEST, _NAN = float(np.finfo(np.float32).max), 0x7FC00000
#: Mask of the bits of an f32 that a bf16 has.
_HIGH = -0x10000


@dataclass(frozen=True)
class PairDecoder:
    """Decodes blocks of a format to floats of the type `register`.

    The `factor` of a block is an f32 of which only the exponent counts, which is its E8M0 scale; of
    nvfp4, its two scales as f32 [2]. f32 scales multiply sums instead, so the factor is one.
    """

    format: BlockFormat
    register: Register

    @property
    def element(self) -> ElementFormat:
        """The format of the elements that are decoded."""
        return self.format.element

    @property
    def whole(self) -> bool:
        """Whether one instruction decodes a whole block, not a pair: elements of 6 bits."""
        return self.element.bits == 6

    @property
    def instructions(self) -> int:
        """Vector instructions that decode a pair, or a whole block (`whole`)."""
        if self.format.scale == E4M3:
            # There are four, but the order of instructions that counts three is better: by the
            # issue model, bf16 by nvfp4 keeps the matrix cores busy for 0.863 of the time, not
            # 0.846.
            return 3
        if self.element.exponent:
            return 1
        # Two conversions and a rounding of both; a product of each with its scale.
        return 5 if self.format.scale == E8M0 else 3

    @property
    def instructions_of_word(self) -> int:
        """Further vector instructions for each i32 of packed elements: 4-bit integers at odd places
        are shifted to even ones, all at once."""
        return int(not self.element.exponent and self.element.bits == 4)

    def factor(self, scales: ir.Value) -> ir.Value:
        """Return the factor of a block from its `scales`, as `RowScales.factor` returns them."""
        return float_factors(scales) if self.format.scale == E4M3 else scales

    def block(self, block: ir.Value, factor: ir.Value) -> list[ir.Value]:
        """Decode a whole block, i8 [n], to its fragments."""
        if self.whole:
            words = bitcast(block, i32(), BLOCK * 6 // 32)
            return sixes(words, factor, self.element, self.register)
        return [
            concat([self.pair(block, factor, number * PAIRS + at) for at in range(PAIRS)])
            for number in range(BLOCK // FRAGMENT)
        ]

    def pair(self, block: ir.Value, factor: ir.Value, number: int) -> ir.Value:
        """Decode elements 2 * `number` and the next one of a block, i8 [n], to floats [2]."""
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
        # Without the pin LLVM would do the products of all pairs at the end of a fragment.
        (found,) = pinned([pair_by_float(word, own, place, self.register)])
        return found


@dataclass
class DecodedTile:
    """A lane's elements of a tile in a stage, while they are decoded.

    `block`, `factor`: packed elements, i8 [n], and their factor, None after one instruction has
    decoded all; `known`: decoded fragments, by their number; `pairs`: decoded pairs of the fragment
    that is being decoded.
    """

    block: ir.Value | None
    factor: ir.Value | None
    known: dict[int, ir.Value] = field(default_factory=dict)
    pairs: list[ir.Value] = field(default_factory=list)


@dataclass(frozen=True)
class PackedSide:
    """A side that is read from LDS and decoded: its elements, its scales, and its decoder."""

    side: StagedSide
    scales: RowScales
    decoder: PairDecoder

    @property
    def reads(self) -> int:
        """Reads of LDS for a lane's block."""
        return len(self.side.layout.new_pieces(0))

    def read(self, tile: int, slot: ir.Value, words: list[ir.Value], k_step: int) -> DecodedTile:
        """Read a lane's packed elements of a tile, and make their factor.

        `slot`: LDS offset of the stage, i32; `words`: scales of the tile for four k-steps, from
        `RowScales.words`; `k_step`: which of the four it is.
        """
        found = {
            (tile, piece): self.side.read(tile, piece, long(slot))
            for piece in self.side.layout.new_pieces(0)
        }
        factor = self.decoder.factor(self.scales.factor(words, k_step))
        return DecodedTile(packed(self.side.layout, found, tile, 0), factor)

    def decode(self, own: DecodedTile) -> None:
        """Decode the whole block if one instruction does that, else its first fragment."""
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
        """Return the work that decodes a fragment of some tiles: for each pair, or each block.

        `known`: has the tiles when the work is issued; `keys`: of the tiles in it; `part`: number
        of the fragment. Whole blocks are decoded with part 0.
        """

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
    """Decode 8-bit integers of mxint8, i8 [n]: each is exact in bf16, and the scale, a power of
    two, moves its exponent."""
    unit = _exact(factor) * (2.0**-6)
    count = lanes_of(part)
    wide = arith.sitofp(of(f32(), count), part)
    scaled = wide * vector.broadcast(of(f32(), count), unit)
    return arith.truncf(of(kind, count), scaled)


def _exact(factor: ir.Value) -> ir.Value:
    """Return the exact f32 of a factor's exponent: 255 is NaN, 0 is 2^-127, which is subnormal."""
    bits = arith.bitcast(i32(), factor)
    least = arith.maxsi(bits, i32_of(1 << (MANTISSA - 1)))
    none = equal(bits, NAN_BYTE << MANTISSA)
    return arith.bitcast(f32(), arith.select(none, i32_of(_NAN), least))


def steps_of(kind: FloatBlocks | ScaledBlocks, register: Register) -> tuple[int, ...]:
    """Return the number of instructions in each step of `splitting`; empty if nothing is split."""
    if isinstance(kind, ScaledBlocks) or kind.memory == register:
        return ()
    return (1,) if kind.rounded else {"f16": (7, 4), "f32": (6, 5, 4)}[kind.memory]


def split(kind: FloatBlocks, pieces: Sequence[ir.Value]) -> list[ir.Value]:
    """Split a fragment of floats, in one vector or two, into the bf16 [8] that add up to it."""
    if kind.memory == "bf16":
        return list(pieces)
    found: list[list[ir.Value]] = [[] for _ in range(PAIRS)]
    for at, parts in enumerate(found):
        for _ in splitting(kind, pair_of(pieces, at), parts):
            pass
    return [concat([parts[at] for parts in found]) for at in range(kind.parts("bf16"))]


def pair_of(pieces: Sequence[ir.Value], number: int) -> ir.Value:
    """Return elements 2 * `number` and the next one of a fragment in one vector or two."""
    each = FRAGMENT // len(pieces)
    piece, at = divmod(2 * number, each)
    return part_of(pieces[piece], at, 2)


def splitting(kind: FloatBlocks, pair: ir.Value, parts: list[ir.Value]) -> Iterator[None]:
    """Split a pair of f16 or f32 into bf16 [2] that add up to it, which are appended to `parts`.

    The generator builds a step of few instructions at a time: see `steps_of`. Each part is cut off,
    not rounded, so the rest is exact. An infinity is its own first part. Its other parts are those
    of the largest number, which have the same sign, so the sum stays infinite. If `kind` is
    rounded, there is one part, which is rounded.
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
    """Replace infinities by the largest number of their sign, and NaN by one of these: f32 [2]."""
    low, high = (constant(x, f32()) for x in (-_LARGEST, _LARGEST))
    found = [rocdl.fmed3(f32(), vector.extract(pair, [], [at]), low, high) for at in range(2)]
    return vector.from_elements(of(f32(), 2), found)


def _quiet(pair: ir.Value) -> ir.Value:
    """Make NaN quiet, so that they remain NaN if lower bits of their fraction are cut off."""
    return intrinsic("llvm.canonicalize", [pair], pair.type).result


def _high(pair: ir.Value) -> ir.Value:
    """Return f32 [2] with the bits cleared that a bf16 does not have."""
    return bitcast(bitcast(pair, i32(), 2) & _HIGH, f32(), 2)
