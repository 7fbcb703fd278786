"""The 32 floats of a block as two halves, and their codes as packed bytes.

The first half has the even elements, the second the odd ones, as bits i32 [16] each: two codes side
by side in memory are then one lane of both, and pack without moving between lanes. Of bf16, a dword
of memory holds one element of each half.
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

#: The even elements and the odd ones of a block, i32 [16] each.
Halves = tuple[ir.Value, ir.Value]


def of_floats(block: ir.Value) -> Halves:
    """The halves of a block f32 [32]."""
    bits = bitcast(block, i32(), BLOCK)
    even, odd = (vector.shuffle(bits, bits, list(range(p, BLOCK, 2))) for p in range(2))
    return even, odd


def packed(codes: Halves, signs: Halves | None, element: ElementFormat) -> ir.Value:
    """The bytes i8 [32 * bits / 8] of codes. Above them are zeros up to bit 22; above those of a
    fixed point number anything.

    `signs`: the floats, where their signs are not in the codes yet.
    """
    bits = element.bits
    first, second = codes
    if not element.exponent:
        first = arith.andi(first, like(first, (1 << bits) - 1))
    pair = arith.ori(first, arith.shli(second, like(second, bits)))
    for half, floats in enumerate(signs or ()):
        place = (half + 1) * bits
        sign = arith.shrui(floats, like(floats, 32 - place))
        pair = arith.ori(pair, arith.andi(sign, like(sign, 1 << place - 1)))
    if bits == 4:
        return arith.trunci(of(i8(), HALF), pair)
    if bits == 8:
        return bitcast(arith.trunci(of(i16(), HALF), pair), i8(), BLOCK)
    return _three_bytes(arith.andi(pair, like(pair, (1 << 2 * bits) - 1)))


def _three_bytes(pairs: ir.Value) -> ir.Value:
    """Lanes of 12 bits, i32 [16], one after the other: i8 [24]."""
    first, second = (vector.shuffle(pairs, pairs, list(range(p, HALF, 2))) for p in range(2))
    words = arith.ori(first, arith.shli(second, like(second, 12)))
    kept = [4 * word + byte for word in range(HALF // 2) for byte in range(3)]
    raw = bitcast(words, i8(), BLOCK)
    return vector.shuffle(raw, raw, kept)
