"""Floats and packed weights as bf16, two elements at a time, for who places each instruction.

What is decoded is exact, as in decode.py: integers and elements of 8 bits and fewer, under a power
of two. What is split is the sum of its parts, as in floats.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, rocdl, vector

from mxc.dialects.generic import constant
from mxc.dialects.quantize_scalars import i32 as integer
from mxc.formats.recipes import MANTISSA, NAN_BYTE
from mxc.passes.kernels.gpu.floats import Floats
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT
from mxc.passes.kernels.vectors import bitcast, equal, f32, i32, lanes_of, of, part_of, parts_of

#: Fragments of a block, and pairs of a fragment.
FRAGMENTS, PAIRS = BLOCK // FRAGMENT, FRAGMENT // 2
#: Six-bit elements -> the instruction for a whole block of them.
_SIXES = {
    "f6E2M3FN": "rocdl.cvt.scalef32.pk32.bf16.fp6",
    "f6E3M2FN": "rocdl.cvt.scalef32.pk32.bf16.bf6",
}
#: The largest f32, and the bits of a NaN.
_LARGEST, _NAN = float(np.finfo(np.float32).max), 0x7FC00000
#: Bits of a float that are those of a bf16.
_HIGH = -0x10000
#: Elements of which two become two bf16 in an instruction -> it, and how many are in a word.
_PAIRS = {
    "f4E2M1FN": (rocdl.cvt_scalef32_pk_bf16_fp4, 8),
    "f8E4M3FN": (rocdl.cvt_scalef32_pk_bf16_fp8, 4),
    "f8E5M2": (rocdl.cvt_scalef32_pk_bf16_bf8, 4),
}


@dataclass(frozen=True)
class Decoder:
    """Blocks of one element type as bf16.

    `factor` of a block is the f32 whose exponent is its scale; nothing else of it counts.
    """

    element: str

    @property
    def whole(self) -> bool:
        """Whether an instruction decodes a whole block."""
        return self.element in _SIXES

    @property
    def instructions(self) -> int:
        """For a pair, or for a whole block."""
        return 5 if self.element == "i8" else 1

    def block(self, block: ir.Value, factor: ir.Value) -> list[ir.Value]:
        """The fragments of a whole block, i8."""
        if not self.whole:
            return [
                joined_pairs([self.pair(block, factor, number * PAIRS + at) for at in range(PAIRS)])
                for number in range(FRAGMENTS)
            ]
        words = bitcast(block, i32(), BLOCK * 6 // 32)
        kind = of(ir.BF16Type.get(), BLOCK)
        name = _SIXES[self.element]
        found = ir.Operation.create(name, results=[kind], operands=[words, factor]).result
        return list(parts_of(found, FRAGMENT))

    def pair(self, block: ir.Value, factor: ir.Value, number: int) -> ir.Value:
        """Elements 2 number and the next one of a block of i8, bf16 [2]."""
        kind = of(ir.BF16Type.get(), 2)
        if self.element not in _PAIRS:
            return _integers(part_of(block, 2 * number, 2), factor)
        convert, in_word = _PAIRS[self.element]
        word, place = divmod(number, in_word // 2)
        words = bitcast(block, i32(), BLOCK // in_word)
        return convert(kind, vector.extract(words, [], [word]), factor, place)


def _integers(part: ir.Value, factor: ir.Value) -> ir.Value:
    """mxint8: an integer of 8 bits is a bf16 as it is, and a power of two moves its exponent."""
    unit = _exact(factor) * (2.0**-6)
    count = lanes_of(part)
    wide = arith.sitofp(of(f32(), count), part)
    scaled = wide * vector.broadcast(of(f32(), count), unit)
    return arith.truncf(of(ir.BF16Type.get(), count), scaled)


def _exact(factor: ir.Value) -> ir.Value:
    """What an exponent stands for: 255 for NaN, and 0 for 2^-127, which is subnormal."""
    bits = arith.bitcast(i32(), factor)
    least = arith.maxsi(bits, integer(1 << (MANTISSA - 1)))
    none = equal(bits, NAN_BYTE << MANTISSA)
    return arith.bitcast(f32(), arith.select(none, integer(_NAN), least))


def steps_of(kind: Floats) -> tuple[int, ...]:
    """Number of instructions of each step of `splitting` a pair."""
    if kind.rounded:
        return (1,)
    return {"bf16": (), "f16": (7, 4), "f32": (6, 5, 4)}[kind.memory]


def split(kind: Floats, pieces: Sequence[ir.Value]) -> list[ir.Value]:
    """A fragment of floats, in one vector or two, as the bf16 [8] that add up to it."""
    if kind.memory == "bf16":
        return list(pieces)
    found: list[list[ir.Value]] = [[] for _ in range(PAIRS)]
    for at, parts in enumerate(found):
        for _ in splitting(kind, pair_of(pieces, at), parts):
            pass
    return [joined_pairs([parts[at] for parts in found]) for at in range(kind.parts("bf16"))]


def pair_of(pieces: Sequence[ir.Value], number: int) -> ir.Value:
    """Elements 2 number and the next one of a fragment."""
    each = FRAGMENT // len(pieces)
    piece, at = divmod(2 * number, each)
    return part_of(pieces[piece], at, 2)


def joined_pairs(pairs: Sequence[ir.Value]) -> ir.Value:
    """A fragment of its four pairs."""
    halves = [vector.shuffle(*pairs[at : at + 2], [0, 1, 2, 3]) for at in (0, 2)]
    return vector.shuffle(*halves, list(range(FRAGMENT)))


def splitting(kind: Floats, pair: ir.Value, parts: list[ir.Value]) -> Iterator[None]:
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
    parts.append(_upper(whole))
    for _ in range(kind.parts("bf16") - 2):
        left = left - high
        high = _high(left)
        parts.append(_upper(left))
        yield
    parts.append(_upper(left - high))


def _finite(pair: ir.Value) -> ir.Value:
    """What is infinite as the largest number; so is what is NaN, or the smallest."""
    low, high = (constant(x, f32()) for x in (-_LARGEST, _LARGEST))
    found = [rocdl.fmed3(f32(), vector.extract(pair, [], [at]), low, high) for at in range(2)]
    return vector.from_elements(of(f32(), 2), found)


def _quiet(pair: ir.Value) -> ir.Value:
    """Floats of which NaN are so by the first bit of their fraction, not by one that is cut off."""
    return ir.Operation.create(
        "llvm.call_intrinsic",
        results=[pair.type],
        operands=[pair],
        attributes={
            "intrin": ir.StringAttr.get("llvm.canonicalize"),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0]),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        },
    ).result


def _high(pair: ir.Value) -> ir.Value:
    """f32 without the bits that a bf16 has not."""
    return bitcast(bitcast(pair, i32(), 2) & _HIGH, f32(), 2)


def _upper(pair: ir.Value) -> ir.Value:
    """The upper halves of two f32: bf16."""
    halves = bitcast(pair, ir.BF16Type.get(), 4)
    return vector.shuffle(halves, halves, [1, 3])
