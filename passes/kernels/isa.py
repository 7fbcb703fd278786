"""What a kernel asks of an instruction set: lanes, dot products, lookups.

A kernel is written once, over `lanes` columns a register. An instruction set says which kinds of
dot product it has, and how a packed code becomes an operand of one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.dialects import x86
from mxc.passes.kernels.vectors import bitcast, f32, i8, i16, i32, of, splat, table

#: How activations meet weights: as bf16 two a lane, as bytes four a lane, as f32 one a lane.
Kind = Literal["pairs", "quads", "floats"]


class Isa(Protocol):
    """An instruction set. `values` of a lookup are f32, one for each code."""

    @property
    def lanes(self) -> int:
        """f32 elements of a register."""
        ...

    @property
    def registers(self) -> int:
        """Registers that a kernel may hold."""
        ...

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of dot product that it has."""
        ...

    def decodes(self, format: str, kind: Kind) -> bool:
        """Whether it has the lookups that a format of weights needs for a kind."""
        ...

    def dot_pairs(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """total f32 [lanes] + the products of pairs of bf16 [2 * lanes]."""
        ...

    def dot_quads(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """total i32 [lanes] + the products of quads: weight u8, one i8 [4 * lanes]."""
        ...

    def pairs(self, values: NDArray[np.float32], words: ir.Value) -> ir.Value:
        """bf16 [2 * lanes] of 16 or 64 codes: the low 4 or 6 bits of each i16; others are any."""
        ...

    def quads(self, values: NDArray[np.uint8], codes: ir.Value) -> ir.Value:
        """u8 [4 * lanes] of 16 or 64 codes: the low 4 or 6 bits of each i8; others are any."""
        ...

    def pairs_of_bytes(
        self, values: NDArray[np.float32], codes: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Two bf16 [2 * lanes] of 256 codes, i8 [4 * lanes]: bytes 0, 2 of a lane, and 1, 3."""
        ...

    def floats(self, values: NDArray[np.float32], codes: ir.Value) -> ir.Value:
        """f32 [lanes] of 16 codes: the low 4 bits of each i32; others are any."""
        ...


#: Formats of 8 bits.
_BYTES = ("mxfp8e4m3", "mxfp8e5m2", "mxint8")


@dataclass(frozen=True)
class Avx512:
    """AVX-512 with BW; the features say which dot products it has."""

    bf16: bool
    vnni: bool
    vbmi: bool
    lanes: int = 16
    registers: int = 32

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Quads need VNNI and VBMI, pairs BF16 and VBMI (VBMI came before BF16)."""
        found: list[Kind] = []
        found += ["quads"] if self.vnni and self.vbmi else []
        found += ["pairs"] if self.bf16 and self.vbmi else []
        return (*found, "floats")

    def decodes(self, format: str, kind: Kind) -> bool:
        """Codes of 8 bits as floats go through a lookup of bytes."""
        return kind != "floats" or self.vbmi or format not in _BYTES

    def dot_pairs(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """vdpbf16ps."""
        return x86.dot_bf16(total, weight, one)

    def dot_quads(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """vpdpbusd."""
        return x86.dot_u8i8(total, weight, one)

    def pairs(self, values: NDArray[np.float32], words: ir.Value) -> ir.Value:
        """vpermw of a table that stands twice, or vpermi2w of one of 64."""
        bits = bfloat16_bits(values)
        if bits.size == 16:
            found = x86.permute_words(table(np.tile(bits, 2), i16()), words)
        else:
            low, high = (table(half, i16()) for half in np.split(bits, 2))
            found = x86.permute_words_of_two(low, words, high)
        return bitcast(found, ir.BF16Type.get(), 2 * self.lanes)

    def quads(self, values: NDArray[np.uint8], codes: ir.Value) -> ir.Value:
        """vpermb of a table that fills a register."""
        return x86.permute_bytes(table(np.resize(values.view(np.int8), 64), i8()), codes)

    def pairs_of_bytes(
        self, values: NDArray[np.float32], codes: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """vpermi2b gives the low and the high bytes by seven bits of the code; the eighth is the
        sign, or chooses between two tables."""
        bits = bfloat16_bits(values).view(np.uint16)
        low, high = (bits & 0xFF).astype(np.uint8), (bits >> 8).astype(np.uint8)
        half = 128
        signed = np.array_equal(bits[:half] | 0x8000, bits[half:])
        sign = arith.cmpi(arith.CmpIPredicate.slt, codes, splat(0, i8(), 4 * self.lanes))

        def look_up(part: NDArray[np.uint8]) -> ir.Value:
            first, second = (table(x.view(np.int8), i8()) for x in np.split(part, 2))
            return x86.permute_bytes_of_two(first, codes, second)

        lows, highs = look_up(low[:half]), look_up(high[:half])
        if signed:
            top = arith.andi(codes, splat(-128, i8(), 4 * self.lanes))
            highs = arith.ori(highs, top)
        else:
            lows = arith.select(sign, look_up(low[half:]), lows)
            highs = arith.select(sign, look_up(high[half:]), highs)
        lows, highs = (bitcast(x, i16(), 2 * self.lanes) for x in (lows, highs))
        eight, byte = splat(8, i16(), 2 * self.lanes), splat(0xFF, i16(), 2 * self.lanes)
        upper = splat(-256, i16(), 2 * self.lanes)
        even = arith.ori(arith.andi(lows, byte), arith.shli(highs, eight))
        odd = arith.ori(arith.shrui(lows, eight), arith.andi(highs, upper))
        kind = ir.BF16Type.get()
        return bitcast(even, kind, 2 * self.lanes), bitcast(odd, kind, 2 * self.lanes)

    def floats(self, values: NDArray[np.float32], codes: ir.Value) -> ir.Value:
        """vpermps."""
        return x86.permute_floats(table(values, f32()), codes)


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.int16]:
    """The bits of values that bf16 holds exactly (NaN keeps its upper half)."""
    bits = values.view(np.uint32)
    if (bits & 0xFFFF)[~np.isnan(values)].any():
        raise ValueError("bf16 does not hold every value of the format")
    return (bits >> 16).astype(np.uint16).view(np.int16)


def halves(pair: ir.Value, lanes: int) -> Sequence[ir.Value]:
    """The two f32 [lanes] of a register of pairs of bf16: element 0 and element 1 of each lane."""
    bits = bitcast(pair, i32(), lanes)
    first = arith.shli(bits, splat(16, i32(), lanes))
    second = arith.andi(bits, splat(-65536, i32(), lanes))
    return [bitcast(value, f32(), lanes) for value in (first, second)]


def vector_of_words(raw: ir.Value, lanes: int) -> ir.Value:
    """A unit of 16 dwords as i16 [2 * lanes]."""
    return bitcast(raw, i16(), 2 * lanes)


def zero(kind: Kind, lanes: int) -> ir.Value:
    """The sum of no products."""
    return splat(0, i32(), lanes) if kind == "quads" else splat(0.0, f32(), lanes)


def accumulator(kind: Kind, lanes: int) -> ir.Type:
    """The type of a sum."""
    return of(i32() if kind == "quads" else f32(), lanes)


#: The instruction sets by name, the best of each family first.
ISAS: dict[str, Isa] = {
    "avx512-bf16": Avx512(bf16=True, vnni=True, vbmi=True),
    "avx512-vnni": Avx512(bf16=False, vnni=True, vbmi=True),
    "avx512": Avx512(bf16=False, vnni=False, vbmi=False),
}

#: The LLVM features that each needs.
_FEATURES = {
    "avx512-bf16": {"avx512bw", "avx512bf16", "avx512vnni", "avx512vbmi"},
    "avx512-vnni": {"avx512bw", "avx512vnni", "avx512vbmi"},
    "avx512": {"avx512bw"},
}


def best_isa(features: Collection[str]) -> str | None:
    """The name of the best instruction set that a target with these LLVM features has."""
    return next((name for name in ISAS if _FEATURES[name] <= set(features)), None)
