"""Atoms that decode weights to scaled bf16, in numpy, with the arithmetic that AVX-512 code uses.

A tile of weights is a block of 32 elements of 16 columns. A scale that is a power of two (E8M0) is
applied by subtracting from the exponent. The lookup table holds the bits of value * 2^top as bf16,
and 0x8000 for both zeros. A saturating i16 subtraction of (most - scale byte) << 7 then gives

    positive   a smaller exponent
    negative   a smaller exponent too: the bits are 0x8000 + magnitude
    zero       0x8000, the least integer, saturates and stays -0, which adds nothing

The subtraction is exact while no exponent leaves its range (`ExponentTable`). Blocks with a scale
byte outside the range, weights with NaN codes, and other types of scales are multiplied as f32, and
the upper half is the bf16. This is exact too: the product of such a code and scale has at most 8
significant bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from mxc.formats.formats import ElementFormat
from mxc.kernels.language import Atom, Element, Numbers
from mxc.kernels.layout import Layout, layout

#: Elements along K of a tile of weights.
STEP = 32

#: Number of mantissa bits of bf16; largest biased exponent of finite numbers; exponent bias.
_MANTISSA = 7
_LARGEST = 254
_BIAS = 127

_F8E8M0, _F8E4M3 = "f8E8M0FNU", "f8E4M3FN"

BF16 = Element("bf16", 16, ml_dtypes.bfloat16)
F32 = Element("f32", 32, np.float32)
I32 = Element("i32", 32, np.int32)


@dataclass(frozen=True)
class ExponentTable:
    """A lookup table for codes whose scale is subtracted from the exponent. `bits`: the bf16 bits
    of each code, as i16, for the scale byte `most`, at which nothing is subtracted. `least`: the
    least scale byte for which the subtraction is exact."""

    bits: Numbers
    least: int
    most: int

    @staticmethod
    def of(values: Numbers) -> ExponentTable | None:
        """The table for the values of codes; None if a value is infinite or NaN."""
        if not np.isfinite(values).all():
            return None
        magnitudes = np.abs(values[values != 0]).astype(np.float64)
        low, high = (int(np.floor(np.log2(f(magnitudes)))) for f in (np.min, np.max))
        top = _LARGEST - _BIAS - high
        bits = np.ldexp(values.astype(np.float64), top).astype(ml_dtypes.bfloat16).view(np.int16)
        bits = np.where(values == 0, np.int16(-(2**15)), bits)
        most = top + _BIAS
        return ExponentTable(bits, most - (low + top + _BIAS) + 1, most)


def takes_exponents(scales: str, block: int) -> bool:
    """Whether scales of this type, each for `block` elements, can be subtracted from exponents:
    they must be powers of two, and one scale must cover a whole step."""
    return scales == _F8E8M0 and block % STEP == 0


def panel_layout(bits: int) -> Layout:
    """Layout in memory of the codes of 32 elements of 16 columns ("panel16x4"; 6-bit codes in
    planes): dwords hold codes of one column, and the dwords of 16 columns are adjacent."""
    inside = {4: 3, 6: 3, 8: 2, 16: 1, 32: 0}[bits]
    low = " ".join(f"k{bit}" for bit in range(inside))
    high = " ".join(f"k{bit}" for bit in range(inside, 5))
    return layout(f"{low} | n0 n1 n2 n3 | {high}")


def element_of(format: ElementFormat | None, unit: float = 1.0) -> Element:
    """The `Element` of a format of weights, whose codes stand for their values / `unit`. Without a
    format: bf16."""
    if format is None:
        return BF16
    return Element(format.mlir, format.bits, np.uint8, format.values / np.float32(unit))


def scale_element(type: str) -> Element:
    """The `Element` of a type of scales, by its MLIR name. Raises ValueError for other types."""
    if type == "f32":
        return F32
    every = np.arange(256, dtype=np.uint8)
    if type == _F8E8M0:
        # 2^-127 is subnormal, and the machine flushes it to zero.
        values = (every.astype(np.uint32) << 23).view(np.float32)
        values[255] = np.nan
    elif type == _F8E4M3:
        values = every.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    else:
        raise ValueError(f"{type} is no type of scales; wanted f32, {_F8E8M0} or {_F8E4M3}")
    return Element(type, 8, np.uint8, values)


def decoder(codes: Element, scales: Element | None, block: int = STEP) -> Atom:
    """The atom that decodes a step of weights to bf16 [16, 16, 2], from codes [dwords, 16, items]
    and one scale for each block of the step [blocks, 16, 1]."""
    raw = panel_layout(codes.bits)
    table, parts = None, max(1, STEP // block)
    if codes.values is not None and scales is not None and takes_exponents(scales.name, block):
        table = ExponentTable.of(codes.values)

    def run(out: Numbers, given: Numbers, *by: Numbers) -> Numbers:
        ordered = paired(given)
        if codes.values is None:
            return ordered
        if table is not None and table.least <= by[0].min() and by[0].max() <= table.most:
            less = (table.most - by[0].astype(np.int32)) << _MANTISSA
            wide = table.bits[ordered].astype(np.int32) - less
            return np.clip(wide, -(2**15), 2**15 - 1).astype(np.int16).view(ml_dtypes.bfloat16)
        values = codes.values[ordered].astype(np.float32)
        if scales is not None:
            assert scales.values is not None
            with np.errstate(over="ignore", invalid="ignore"):
                factors = scales.values[by[0]].astype(np.float32)
                values = values * np.repeat(factors, len(values) // parts, axis=0)
        return _upper_half(values)

    name = "look up"
    if scales is not None:
        name += ", subtract from the exponent" if table is not None else ", multiply"
    if codes.values is None:
        name = "move"
    found = layout(f"| n0 n1 n2 n3 | {'k0' if parts > 1 else ''}")
    operands = (raw, found) if scales is not None else (raw,)
    return Atom(name, (raw.paired(), *operands), run)


def paired(raw: Numbers) -> Numbers:
    """Reorder [dwords, 16, elements per dword] to [registers, 16, 2], by `Layout.paired`."""
    dwords, lanes, items = raw.shape
    shifts = items // 2
    bits = shifts.bit_length() - 1
    order = [int(f"{t:0{bits}b}"[::-1], 2) if bits else 0 for t in range(shifts)]
    halves = raw.reshape(dwords, lanes, 2, shifts)[..., order]
    return np.ascontiguousarray(halves.transpose(0, 3, 1, 2)).reshape(-1, lanes, 2)


def _upper_half(values: Numbers) -> Numbers:
    """Convert f32 with at most 8 significant bits to bf16. Subnormal numbers become zero."""
    tiny = np.abs(values) < np.finfo(np.float32).tiny
    values = np.where(tiny, np.copysign(np.float32(0), values), values)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
