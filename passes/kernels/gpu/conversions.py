"""Converts blocks of floats in lanes to MX elements and scales, in all kernels that quantize.

    amax   = largest magnitude, as the integer of its bits     v_and, v_max3, then across lanes
    byte   = integer operations of the recipe on amax          some adds, shifts and clamps
    codes  = floats / 2^(byte - 127), to nearest even          v_cvt_scalef32_pk, 2xpk16

The bits are those that dialects/quantize.py computes with integers. The conversions round once,
from the exact quotient, and saturate as OCP MX 1.0 section 6.3 requires (fp8 and bf8 in the mode
that `saturate` sets). They differ in one case: the elements of a block with a NaN become NaN or the
largest number, where dialects/quantize.py has zeros. So those elements are set to zero afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu_narrow import narrowed, saturate
from mxc.dialects.generic import constant
from mxc.dialects.quantizations import Quantization
from mxc.dialects.quantize_scalars import MAGNITUDE, as_float, below, element_code, scale_byte
from mxc.dialects.quantize_scalars import i32 as number
from mxc.formats.formats import BlockFormat
from mxc.formats.recipes import MANTISSA, NAN_BYTE, ScaleRecipe
from mxc.passes.kernels.vectors import bitcast, f32, i32, lanes_of, splat

#: The bits of 2^-127, an f32 that is subnormal: the scale whose byte is 0.
_LEAST_SCALE = 1 << (MANTISSA - 1)


@dataclass(frozen=True)
class BlockConversion:
    """Conversion of blocks of f32 to `format`, with scales by `recipe`.

    `converts`: whether v_cvt_scalef32_* convert, else integer operations.
    """

    format: BlockFormat
    recipe: ScaleRecipe
    converts: bool = True

    @staticmethod
    def of(found: Quantization, converts: bool) -> BlockConversion:
        """Return the conversion of a quantization.

        `converts`: whether the GPU has v_cvt_scalef32_*, which convert to floats but not integers.
        """
        converts = converts and found.format.element.exponent > 0
        return BlockConversion(found.format, found.recipe, converts)

    @property
    def name(self) -> str:
        """The conversion as a part of symbols."""
        return f"{self.format.name}_{self.recipe}"

    def prepare(self) -> None:
        """Set the mode of the wave that conversions to 8 bits need.

        Call it before the first block, where all lanes are active.
        """
        if self.converts and self.format.element.bits == 8:
            saturate()

    def scale(self, values: ir.Value, across: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """Return the scale byte, i32, of a block of which this lane has `values`, f32.

        `across`: reduces the largest magnitude of a lane to that of all lanes that share the block.
        """
        return scale_byte(across(largest_in(values)), self.format.element, self.recipe)

    def elements(self, values: ir.Value, byte: ir.Value | None) -> ir.Value:
        """Convert values, f32 [n], under the scale `byte`, i32, or without a scale.

        Returns packed elements, i32 [n * bits / 32].
        """
        element = self.format.element
        if not self.converts:
            count = lanes_of(values)
            kind = ir.VectorType.get([count], i32())
            bytes_of = None if byte is None else vector.broadcast(kind, byte)
            codes = element_code(bitcast(values, i32(), count), bytes_of, element)
            if not element.exponent:
                # The code of a negative integer has ones above its lowest `bits` bits.
                codes = codes & (1 << element.bits) - 1
            return _packed(codes, element.bits)
        if byte is None:
            return narrowed(values, constant(1.0, f32()), element)
        packed = narrowed(values, power_of(byte), element)
        words = lanes_of(packed)
        ordinary = below(byte, NAN_BYTE)
        return arith.select(ordinary, packed, splat(0, i32(), words))


def _packed(codes: ir.Value, width: int) -> ir.Value:
    """Pack codes of `width` bits, i32 [n], one after the other: i32 [n * width / 32]."""
    count = lanes_of(codes)
    words: list[ir.Value | None] = [None] * (count * width // 32)

    def put(word: int, value: ir.Value) -> None:
        known = words[word]
        words[word] = value if known is None else known | value

    for place in range(count):
        word, bit = divmod(place * width, 32)
        code = vector.extract(codes, [], [place])
        put(word, code << bit if bit else code)
        if bit + width > 32:
            put(word + 1, code >> 32 - bit)
    return vector.from_elements(ir.VectorType.get([len(words)], i32()), words)


def power_of(byte: ir.Value) -> ir.Value:
    """Return the f32 2^(byte - 127) of a scale byte, i32, as the scale of a conversion.

    For 255 it is Inf, which conversions take for NaN.
    """
    return as_float(arith.maxsi(byte << MANTISSA, number(_LEAST_SCALE)))


def largest_in(values: ir.Value) -> ir.Value:
    """Return the bits, i32, of the largest magnitude among the f32 that a lane has."""
    count = lanes_of(values)
    bits = bitcast(values, i32(), count)
    sizes = bits & MAGNITUDE
    largest = vector.extract(sizes, [], [0])
    for place in range(1, count):
        largest = arith.maxsi(largest, vector.extract(sizes, [], [place]))
    return largest


def largest_of(*exchanges: Callable[[ir.Value], ir.Value]) -> Callable[[ir.Value], ir.Value]:
    """Return a function that reduces an i32 to its maximum over several lanes.

    `exchanges`: each returns the i32 of another lane; they are applied one after the other.
    """

    def across(value: ir.Value) -> ir.Value:
        for exchange in exchanges:
            value = arith.maxsi(value, exchange(value))
        return value

    return across
