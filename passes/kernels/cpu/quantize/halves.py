"""The 32 floats of a block as two halves, and their codes as packed bytes.

The first half has the even elements, the second the odd ones, as bits i32 [16] each. Two codes that
are adjacent in memory are then in the same lane of both halves, and are packed without moves
between lanes. In bf16, a dword of memory holds one element of each half.
"""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.quantize_scalars import like
from mxc.formats.formats import ElementFormat
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import bitcast, i8, i16, i32, of

#: Elements of a half.
HALF = BLOCK // 2

#: The even elements and the odd elements of a block, i32 [16] each.
Halves = tuple[ir.Value, ir.Value]


def of_floats(block: ir.Value) -> Halves:
    """Split a block f32 [32] into its halves."""
    bits = bitcast(block, i32(), BLOCK)
    even, odd = (vector.shuffle(bits, bits, list(range(p, BLOCK, 2))) for p in range(2))
    return even, odd


def packed(codes: Halves, signs: Halves | None, element: ElementFormat) -> ir.Value:
    """Pack codes to bytes i8 [32 * bits / 8]. The bits above a code, up to bit 22, must be zero;
    fixed-point codes may have any bits above them.

    `signs`: the floats, if the codes do not have their signs yet.
    """
    bits = element.bits
    first, second = codes
    if not element.exponent:
        first = first & like(first, (1 << bits) - 1)
    pair = first | second << like(second, bits)
    for half, floats in enumerate(signs or ()):
        place = (half + 1) * bits
        sign = floats >> like(floats, 32 - place)
        pair = pair | sign & like(sign, 1 << place - 1)
    if bits == 4:
        return arith.trunci(of(i8(), HALF), pair)
    if bits == 8:
        return bitcast(arith.trunci(of(i16(), HALF), pair), i8(), BLOCK)
    return _three_bytes(pair & like(pair, (1 << 2 * bits) - 1))


def _three_bytes(pairs: ir.Value) -> ir.Value:
    """Pack lanes of 12 bits, i32 [16], to contiguous bytes i8 [24]."""
    first, second = (vector.shuffle(pairs, pairs, list(range(p, HALF, 2))) for p in range(2))
    words = first | second << like(second, 12)
    kept = [4 * word + byte for word in range(HALF // 2) for byte in range(3)]
    raw = bitcast(words, i8(), BLOCK)
    return vector.shuffle(raw, raw, kept)
