"""Decode packed keys and values, in fp8 or an MX format, to f32.

    value = element                           fp8: the scales of a layer are applied outside
    value = 2 ** (scale - 127) * element      MX

An element is exact in f32 and in bf16, and so is its product with a scale, except that results
below the smallest normal f32 become zero. The 7 bits of the magnitude of an e4m3 are those of an
f16 whose value is 256 times smaller, and, with another exponent, those of an f32, unless it is
subnormal. An fp8 element may be NaN. MX elements are not: a block with a NaN has a NaN scale.

In an MX format, the B positions of an entry are followed by its scales, [V, D / 32, B]: see
dialects/pages.py.
"""

from __future__ import annotations

import math

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.quantize import BLOCK
from mxc.formats.formats import BlockFormat
from mxc.passes.kernels.attention.memory import AttentionBuffers, KeyPlace
from mxc.passes.kernels.attention.shape import CpuAttention
from mxc.passes.kernels.vectors import bitcast, equal, f32, i8, i16, i32, load, of, shifted, splat

#: Value of an e4m3 divided by the value of the f16 with the same bits.
_E4M3 = 256.0
#: The exponent offset that turns the magnitude bits of an e4m3 into those of the f32 of equal
#: value.
_EXPONENT = 120
#: The magnitude of a NaN of e4m3 in `of_bytes` and in `of_dwords`, each with a NaN of the result
#: type.
_NAN_OF_F16, _NAN_OF_F32 = (0x3F80, 0x7E00), (0x07F00000, 0x7FC00000)


def place_of_scale(
    shape: CpuAttention, entry: ir.Value, place: KeyPlace, block: ir.Value
) -> list[ir.Value]:
    """Indices in `AttentionBuffers.packed` of the scale of a block for the first key of `place`."""
    positions = shape.page
    row = place.page * shape.entries + entry
    before = place.head * (shape.depth // BLOCK) + block
    at = before * positions + place.first
    return [row, at + positions * shape.heads * shape.depth]


def scales_of(
    shape: CpuAttention, memory: AttentionBuffers, place: list[ir.Value], keys: ir.Value
) -> ir.Value:
    """f32 [lanes]: the scales of keys from number `keys` on, times `unit_of` the format."""
    assert shape.packed is not None
    lanes, (row, at) = shape.lanes, place
    codes = load(memory.packed, [row, at + keys], i8(), lanes)
    bits = arith.extui(of(i32(), lanes), codes) << 23
    unit = splat(unit_of(shape.packed), f32(), lanes)
    found = bitcast(bits, f32(), lanes) * unit
    none = equal(codes, splat(-1, i8(), lanes))
    return arith.select(none, splat(float("nan"), f32(), lanes), found)


def unit_of(format: BlockFormat) -> float:
    """The factor from `of_bytes` and `of_dwords` to element values; 1 for unscaled formats."""
    if format.unit_scales:
        return 1.0
    return _E4M3 if format.element.exponent else format.element.min_positive


def of_bytes(format: BlockFormat, codes: ir.Value) -> ir.Value:
    """f32 of the elements i8 [lanes], divided by `unit_of`."""
    (lanes,) = ir.VectorType(codes.type).shape
    wide = of(f32(), lanes)
    if not format.element.exponent:
        return arith.sitofp(wide, arith.extsi(of(i32(), lanes), codes))
    # The sign is at bits 15 and 14; the mask clears bit 14, which no e4m3 needs.
    both = shifted(arith.extsi(of(i16(), lanes), codes), -7)
    bits = both & 0xBF80 - (1 << 16)
    if not format.unit_scales:
        return arith.extf(wide, bitcast(bits, ir.F16Type.get(), lanes))
    bits = _with_nan(bits, bits & _NAN_OF_F16[0], _NAN_OF_F16)
    found = arith.extf(wide, bitcast(bits, ir.F16Type.get(), lanes))
    return found * _E4M3


def of_dwords(format: BlockFormat, dwords: ir.Value, byte: int) -> ir.Value:
    """f32 of the elements in byte `byte` of i32 [lanes], divided by `unit_of`."""
    (lanes,) = ir.VectorType(dwords.type).shape
    high = shifted(dwords, 8 * byte - 24)
    if not format.element.exponent:
        signed = arith.shrsi(high, splat(24, i32(), lanes))
        return arith.sitofp(of(f32(), lanes), signed)
    magnitude = shifted(high, 4) & 0x07F00000
    exponent = _EXPONENT if format.unit_scales else _EXPONENT - int(math.log2(_E4M3))
    normal = magnitude + (exponent << 23)
    more = magnitude + ((exponent + 1) << 23)
    # A subnormal m / 8 is (1 + m / 8) - 1. It is the smaller one there; elsewhere the other is.
    one = math.ldexp(1.0, exponent + 1 - 127)
    less = bitcast(more, f32(), lanes) - one
    found = arith.minui(normal, bitcast(less, i32(), lanes))
    if format.unit_scales:
        found = _with_nan(found, magnitude, _NAN_OF_F32)
    sign = high & -(1 << 31)
    return bitcast(found | sign, f32(), lanes)


def _with_nan(bits: ir.Value, magnitude: ir.Value, nan: tuple[int, int]) -> ir.Value:
    """The bits of floats, replaced by the second of `nan` where `magnitude` equals the first."""
    kind = ir.VectorType(bits.type)
    code, special = (splat(each, kind.element_type, kind.shape[0]) for each in nan)
    same = equal(magnitude, code)
    return arith.select(same, special, bits)


def as_bf16(values: ir.Value) -> ir.Value:
    """f32 values that bf16 holds exactly, as bf16: their upper halves."""
    (lanes,) = ir.VectorType(values.type).shape
    bits = bitcast(values, i32(), lanes) >> 16
    return bitcast(arith.trunci(of(i16(), lanes), bits), ir.BF16Type.get(), lanes)
