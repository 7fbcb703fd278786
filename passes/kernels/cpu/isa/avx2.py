"""AVX2 with FMA, and AVX-VNNI in addition: 8 lanes, 16 registers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.dialects import x86
from mxc.formats.formats import ElementFormat, Specials
from mxc.kernels.layout import Kind
from mxc.passes.kernels.cpu.isa.protocol import Grain
from mxc.passes.kernels.cpu.isa.registers import bfloat16_bits, pairs_of_halves
from mxc.passes.kernels.cpu.isa.x86_bytes import X86, look_up
from mxc.passes.kernels.vectors import bitcast, equal, i8, i16, of, splat, table

#: Number of mantissa bits of a bf16, and its exponent bias.
_MANTISSA, _BIAS = 7, 127
#: Index in the table of vpshufb at which the high bytes of subnormal numbers begin; the low bytes
#: come before them.
_HIGH = 8
#: Bits that are set in special values: without infinities, those of a NaN; with infinities, the
#: exponent alone, so that the mantissa of the code tells an infinity from a NaN.
_SPECIAL = (0x7FC0, 0x7F80)


@dataclass(frozen=True, kw_only=True)
class Avx2(X86):
    """AVX2 and FMA, with AVX-VNNI if `vnni`."""

    lanes: int = 8
    registers: int = 16
    kinds: tuple[Kind, ...] = ("quads", "floats")

    def costly(self, bits: int, kind: Kind) -> bool:
        """True but for quads of 8 bits, and quads of 4 bits with vpdpbusd. Its replacement takes
        registers too, so that decoding in between would spill activations."""
        return kind != "quads" or bits == 6 or (bits == 4 and not self.vnni)

    def grain(self, kind: Kind, element: ElementFormat) -> Grain:
        """4-bit and 6-bit codes are looked up as bytes, 8-bit floats as words; int8 is computed."""
        if element.bits < 8:
            return "bytes"
        return "words" if element.exponent else "dwords"

    def quads(self, values: NDArray[np.int8], codes: ir.Value) -> ir.Value:
        """Look up bytes: vpshufb."""
        return look_up(values, codes)

    def pairs_of_bytes(self, element: ElementFormat, codes: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Look up the low and the high bytes: vpshufb."""
        bits = bfloat16_bits(element.values).view(np.uint16)
        lows, highs = (
            look_up(half.astype(np.uint8).view(np.int8), codes) for half in (bits & 0xFF, bits >> 8)
        )
        return pairs_of_halves(lows, highs, self.lanes)

    def pairs_of_words(self, element: ElementFormat, codes: ir.Value) -> ir.Value:
        """Compute bf16 of codes in 16 words at once, where dwords would be 8. vpshufb looks up
        subnormal numbers.

        A magnitude, shifted to the exponent and mantissa of a bf16, is the value after the
        difference of the biases is added, unless its exponent is 0. The table for subnormal numbers
        has their low bytes, followed by their high bytes.
        """
        count = 2 * self.lanes

        def number(value: int) -> ir.Value:
            return splat(np.array(value, np.uint16).view(np.int16).item(), i16(), count)

        def at_least(first: int) -> ir.Value:
            return arith.cmpi(arith.CmpIPredicate.sge, magnitude, number(first))

        magnitude = codes & number(element.magnitude_mask)
        placed = magnitude << number(_MANTISSA - element.mantissa)
        normal = placed + number((_BIAS - element.bias) << _MANTISSA)
        subnormal = 1 << element.mantissa
        bits = bfloat16_bits(element.values[:subnormal]).view(np.uint8).reshape(-1, 2)
        tables = np.zeros((2, _HIGH), np.uint8)
        tables[:, :subnormal] = bits.T
        lookup = table(np.tile(tables.reshape(-1), count // _HIGH).view(np.int8), i8())
        both = magnitude * number(0x0101)
        places = both | number(_HIGH << 8)
        small = x86.shuffle_bytes(lookup, bitcast(places, i8(), 2 * count))
        found = arith.select(at_least(subnormal), normal, bitcast(small, i16(), count))
        sign = codes << number(8) & number(0x8000)
        if element.specials is Specials.FNUZ:
            # The only NaN is the code of the negative zero.
            code = codes & number(0xFF)
            is_special = equal(code, number(element.sign_bit))
        else:
            is_special = at_least(min(element.inf_codes or element.nan_codes))
        special = arith.extsi(of(i16(), count), is_special) & number(
            _SPECIAL[bool(element.inf_codes)]
        )
        found = found | special | sign
        return bitcast(found, ir.BF16Type.get(), count)
