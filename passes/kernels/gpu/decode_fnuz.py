"""Decodes elements with their scales to bf16, by conversions that read FNUZ numbers (gfx942).

    v_cvt_pk_f32_fp8, v_cvt_pk_f32_bf8      two bytes -> f32, of e4m3 and of e5m2 FNUZ

Read as a FNUZ number, the code of an element has another bias, also if it is subnormal. So the
element is the FNUZ number times 2^n:

    e4m3          n = 1; an element that is NaN makes its block NaN (decode_bits.py)
    e2m3, e3m2    n = 7 and n = 13, as e4m3 and e5m2 FNUZ with zeros in the upper exponent bits
    FNUZ          n = 0

The code of the negative zero is the NaN of FNUZ, so it is replaced by zero. If the scale of a block
is NaN, all its bytes are replaced by this NaN. Then f32 = number x 2^(n + exponent of the scale),
by v_ldexp_f32, and bf16 is its upper half.
e2m1, e5m2 and integers are decoded as in decode_bits.py.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

from iree.compiler import ir
from iree.compiler.dialects import arith, rocdl, vector

from mxc.dialects.amdgpu import ldexp, permuted_bytes
from mxc.dialects.quantize_scalars import i32 as number
from mxc.formats.formats import E4M3, E8M0, BlockFormat, ElementFormat, Specials
from mxc.formats.recipes import NAN_BYTE
from mxc.passes.kernels.gpu.decode import by_halves
from mxc.passes.kernels.gpu.decode_bits import any_nan, decode_bits, looked_up, nan
from mxc.passes.kernels.vectors import (
    bitcast,
    concat,
    elements,
    equal,
    f32,
    i32,
    lanes_of,
    of,
    splat,
    upper_halves,
)

#: Exponent bias of FNUZ numbers, by the bits of their mantissa.
_BIAS = {3: 8, 2: 16}
#: Masks of four bytes: all bits but the signs, and the signs.
_SIZES, _SIGNS = 0x7F7F7F7F, -0x7F7F7F80
#: Four FNUZ numbers that are NaN.
_NANS = -0x7F7F7F80
#: Four 6-bit elements in bytes: mask of their bits but the signs, and how many bits a sign is below
#: the highest bit of its byte. `_FIRST`: mask of the first 6-bit element of each half of an i32.
_SIX, _TO_SIGN, _FIRST = 0x1F1F1F1F, 2, 0x003F003F
#: Mask of the lower half of an i32.
_LOWER = 0xFFFF


def decode_fnuz(block: ir.Value, scales: ir.Value, format: BlockFormat) -> list[ir.Value]:
    """Decode a block of 32, or a part of it, i8, under its one or two scales, i8 [n].

    Returns fragments of bf16 [8] along K.
    """
    kind = format.element
    words = elements(bitcast(block, i32(), lanes_of(block) // 4))
    if format.scale == E4M3:
        factors = _scales(scales)
        each = len(words) // len(factors)
        return [
            fragment
            for number, factor in enumerate(factors)
            for fragment in looked_up(words[number * each : (number + 1) * each], factor)
        ]
    if kind.bits == 6 or kind == E4M3 or kind.specials is Specials.FNUZ:
        return by_halves(scales, lambda scale: _decoded(words, kind, scale))
    return decode_bits(block, scales, format)


def _decoded(words: Sequence[ir.Value], kind: ElementFormat, scale: ir.Value) -> list[ir.Value]:
    byte, found = arith.extui(i32(), scale), []
    exponent = byte + (_BIAS[kind.mantissa] - kind.bias - E8M0.bias)
    is_nan = equal(byte, NAN_BYTE)
    if kind == E4M3:
        is_nan = is_nan | any_nan(words)
    for at in range(0, 8 * len(words) // kind.bits, 2):
        pairs = []
        for place in (at, at + 1):
            word = _sixes(words, place) if kind.bits == 6 else words[place]
            if kind == E4M3:
                word = _signed(word & _SIZES, word)
            word = arith.select(is_nan, number(_NANS), word)
            for high in (False, True):
                values = elements(_extended(word, high, kind))
                moved = [ldexp(each, exponent) for each in values]
                pairs.append(upper_halves(vector.from_elements(of(f32(), 2), moved)))
        found.append(concat(pairs))
    return found


def _extended(word: ir.Value, high: bool, kind: ElementFormat) -> ir.Value:
    """Convert the lower two or the upper two (`high`) of four FNUZ numbers, i32, to f32 [2]."""
    convert = rocdl.cvt_pk_f32_fp8 if kind.mantissa == 3 else rocdl.cvt_pk_f32_bf8
    return convert(of(f32(), 2), word, high)


def _signed(sizes: ir.Value, signs: ir.Value) -> ir.Value:
    """Return the four bytes of `sizes` with the highest bits of `signs`; zeros get no sign."""
    return (sizes + _SIZES & signs) & _SIGNS | sizes


def _sixes(words: Sequence[ir.Value], number_of: int) -> ir.Value:
    """Return four 6-bit elements of a block as four bytes that are FNUZ numbers.

    They are those from element `4 * number_of` on.
    """
    first, byte = divmod(3 * number_of, 4)
    later = words[min(first + 1, len(words) - 1)]
    # The elements are three bytes. One half gets the first two of them, the other the last two; 12
    # bits of each half are two elements.
    bytes_of = (byte, byte + 1, byte + 1, byte + 2)
    halves = permuted_bytes(later, words[first], sum(at << 8 * n for n, at in enumerate(bytes_of)))
    # Shifts of i32, not of two i16: no matrix core works beside a packed shift.
    word = halves & _LOWER | halves >> 4 & ~_LOWER
    word = word & _FIRST | word << 2 & ~_FIRST
    return _signed(word & _SIX, word << _TO_SIGN)


def _scales(codes: ir.Value) -> list[ir.Value]:
    """Return the f32 of one or two E4M3 scales, i8 [n]."""
    codes = [arith.extui(i32(), each) for each in elements(codes)]
    word = reduce(operator.or_, [code << 8 * at for at, code in enumerate(codes)])
    halves = _extended(_signed(word & _SIZES, word), False, E4M3)
    values = elements(halves * splat(2.0, f32(), 2))
    return [
        arith.select(any_nan([code]), nan(), value)
        for code, value in zip(codes, values, strict=False)
    ]
