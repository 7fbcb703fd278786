"""AVX-512 with BW, and later extensions: 16 lanes, 32 registers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.dialects import x86
from mxc.formats.formats import ElementFormat
from mxc.kernels.layout import Kind
from mxc.passes.kernels.cpu.codes import floats_of_codes
from mxc.passes.kernels.cpu.isa.protocol import Grain
from mxc.passes.kernels.cpu.isa.registers import bfloat16_bits, pairs_of_halves
from mxc.passes.kernels.cpu.isa.x86_bytes import X86, look_up
from mxc.passes.kernels.vectors import bitcast, f32, i8, i16, signed_below, splat, table

#: The bits of infinity as bf16; the magnitude bits of a NaN are a larger number.
_INFINITY = 0x7F80


@dataclass(frozen=True, kw_only=True)
class Avx512(X86):
    """AVX-512 with BW. `bf16`, `vnni`: whether it has the dot products of bf16 pairs and of quads.
    `vbmi`: whether it has lookups of bytes in tables of 64 and 128."""

    bf16: bool
    vbmi: bool
    lanes: int = 16
    registers: int = 32

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of dot product; pairs need BF16."""
        return ("quads", "pairs", "floats") if self.bf16 else ("quads", "floats")

    def costly(self, bits: int, kind: Kind) -> bool:
        """True for 8-bit elements as pairs or floats, and for quads of 6 bits without vpermb."""
        return bits == 6 and not self.vbmi if kind == "quads" else bits == 8

    def grain(self, kind: Kind, element: ElementFormat) -> Grain:
        """4-bit and 6-bit codes are looked up as words or dwords; 8-bit as bytes, with VBMI."""
        if element.bits == 8:
            return "bytes" if self.vbmi else "dwords"
        return "dwords" if kind == "floats" and element.bits == 4 else "words"

    def dot_pairs(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """vdpbf16ps."""
        return x86.dot_bf16(total, weight, one)

    def quads(self, values: NDArray[np.int8], codes: ir.Value) -> ir.Value:
        """Look up bytes: vpermb with a table that fills a register, or vpshufb."""
        if not self.vbmi:
            return look_up(values, codes)
        return x86.permute_bytes(table(np.resize(values, 64), i8()), codes)

    def pair_bits(self, element: ElementFormat) -> NDArray[np.int16]:
        """The bf16 bits of each code, for lookups."""
        return bfloat16_bits(element.values)

    def pairs_of_words(self, element: ElementFormat, codes: ir.Value) -> ir.Value:
        """Look up words: vpermw with a table stored twice, or vpermi2w with a table of 64."""
        bits = self.pair_bits(element)
        if bits.size == 16:
            found = x86.permute_words(table(np.tile(bits, 2), i16()), codes)
        else:
            low, high = (table(half, i16()) for half in np.split(bits, 2))
            found = x86.permute_words_of_two(low, codes, high)
        return bitcast(found, ir.BF16Type.get(), 2 * self.lanes)

    def pairs_of_bytes(self, element: ElementFormat, codes: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Look up the low and the high bytes of bf16 by seven bits of the code: vpermi2b. The
        eighth bit is the sign, or selects one of two tables."""
        bits, half = self.pair_bits(element).view(np.uint16), 128
        # The sign of a NaN does not matter: it gets the sign of its code, like the other values.
        upper = bits[half:]
        bits = np.append(bits[:half], np.where(upper & 0x7FFF > _INFINITY, upper | 0x8000, upper))
        low, high = (bits & 0xFF).astype(np.uint8), (bits >> 8).astype(np.uint8)
        signed = np.array_equal(bits[:half] | 0x8000, bits[half:])

        def of_both(part: NDArray[np.uint8]) -> ir.Value:
            first, second = (table(x.view(np.int8), i8()) for x in np.split(part, 2))
            return x86.permute_bytes_of_two(first, codes, second)

        lows, highs = of_both(low[:half]), of_both(high[:half])
        if signed:
            top = codes & -128
            highs = highs | top
        else:
            sign = signed_below(codes, splat(0, i8(), 4 * self.lanes))
            lows = arith.select(sign, of_both(low[half:]), lows)
            highs = arith.select(sign, of_both(high[half:]), highs)
        return pairs_of_halves(lows, highs, self.lanes)

    def floats_of_dwords(self, element: ElementFormat, codes: ir.Value) -> ir.Value:
        """Look up 16 codes: vpermps; decode codes of more bits by arithmetic."""
        if element.bits != 4:
            return floats_of_codes(codes, element, self.lanes)
        return x86.permute_floats(table(element.values, f32()), codes)
