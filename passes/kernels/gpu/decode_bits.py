"""Decodes elements with their scales to bf16 in registers, by integer and f32 operations only.

For GPUs without v_cvt_scalef32_* (decode.py). Results are exact except where no bf16 is: bits below
2^-133 of values below 2^-126 are cut off, and values beyond f32 become infinite.

    f4        a table of the eight magnitudes times the scale, made once per block, as bytes in four
              registers; v_perm looks up the high or the low bytes of four elements at once
    f6, f8    the fields of an element, in the place of those of an f16, are the element with a
              smaller exponent, also if it is subnormal: f32 = f16 x 2^(15 - bias) x scale, and bf16
              is the upper half of this f32
    integers  f32 = integer x 2^-6 x scale with 8 bits, integer x 2^-2 x scale with 4 bits
    FNUZ      like f8, but in the place of the fields of an f32: f16 has too few exponents for the
              largest numbers of e5m2

If a block has an e4m3 or FNUZ element that is NaN, its scale becomes NaN: every result that the
element is a part of is NaN either way. So four elements are tested for NaN at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import permuted_bytes
from mxc.dialects.generic import constant
from mxc.dialects.quantize_scalars import i32 as number
from mxc.formats.formats import E2M1, E4M3, E8M0, BlockFormat, ElementFormat, Specials
from mxc.passes.kernels.gpu.decode import by_halves, integers, power, value_of_one
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT
from mxc.passes.kernels.vectors import (
    bitcast,
    elements,
    f32,
    i32,
    lanes_of,
    of,
    splat,
    table,
    unequal,
    upper_halves,
)

F16_BIAS, _F16_MANTISSA = 15, 10
_NAN = 0x7FC00000

# Selectors of v_perm: byte n of the result is byte s[n] of the low register, or s[n] - 4 of the
# high one; 12 is zero.
_FIRST_TWO, _LAST_TWO = 0x05010400, 0x07030602  # of each register in turn
_LOW_HALVES, _HIGH_HALVES = 0x05040100, 0x07060302
_HALVES_OF_BOTH = 0x07060100
_BYTES_ABOVE = (0x010C000C, 0x030C020C)  # two bytes, each above a zero


def decode_bits(block: ir.Value, scales: ir.Value, format: BlockFormat) -> list[ir.Value]:
    """Decode a block of 32, i8, under its one or two scales, i8 [n].

    Returns fragments of bf16 [8] along K.
    """
    if format.scale != E8M0:
        return _by_floats(block, scales)
    return by_halves(scales, lambda scale: _decoded(block, scale, format.element))


def _decoded(block: ir.Value, scale: ir.Value, kind: ElementFormat) -> list[ir.Value]:
    factor = power(scale)
    if not kind.exponent:
        return _integers(block, factor, kind)
    words = elements(bitcast(block, i32(), lanes_of(block) // 4))
    if kind == E2M1:
        return looked_up(words, factor)
    if kind.specials is Specials.NAN:
        factor = arith.select(any_nan(words), nan(), factor)
    if kind.specials is Specials.FNUZ:
        return _fnuz(words, kind, factor)
    halves = _sixes(words, kind) if kind.bits == 6 else eights(words, kind)
    return _products(halves, F16_BIAS - kind.bias, factor)


def _by_floats(block: ir.Value, scales: ir.Value) -> list[ir.Value]:
    """Decode 32 elements of e2m1 under two E4M3 scales."""
    words, found = elements(bitcast(block, i32(), lanes_of(block) // 4)), []
    for half in range(2):
        own = words[2 * half : 2 * half + 2]
        found += looked_up(own, _e4m3(vector.extract(scales, [], [half])))
    return found


def nan() -> ir.Value:
    """Return an f32 NaN."""
    return arith.bitcast(f32(), number(_NAN))


def _e4m3(code: ir.Value) -> ir.Value:
    """Return the f32 of an E4M3 scale, i8."""
    word = arith.extui(i32(), code)
    (half,) = _aligned([word << 8], E4M3)
    low = vector.extract(bitcast(_concat([half]), ir.F16Type.get(), 2), [], [0])
    unit = constant(2.0 ** (F16_BIAS - E4M3.bias), f32())
    value = arith.extf(f32(), low) * unit
    return arith.select(any_nan([word]), nan(), value)


def looked_up(words: Sequence[ir.Value], factor: ir.Value) -> list[ir.Value]:
    """Decode f4 elements times `factor`, f32, to a fragment for each word, i32.

    A word holds eight elements, the first in its lowest bits.
    """
    count = 1 << (E2M1.bits - 1)
    values = table(E2M1.values[:count], f32())
    bits = bitcast(values * vector.broadcast(values.type, factor), i32(), count)
    each = elements(bits)
    # The third bytes of two registers, then the fourth ones: the low and high bytes of bf16.
    pairs = [permuted_bytes(b, a, _LAST_TWO) for a, b in zip(each[::2], each[1::2], strict=True)]
    low = [permuted_bytes(pairs[at + 1], pairs[at], _LOW_HALVES) for at in (0, 2)]
    high = [permuted_bytes(pairs[at + 1], pairs[at], _HIGH_HALVES) for at in (0, 2)]
    found = []
    for word in words:
        odd = word >> 4
        pairs = []
        for order in (_FIRST_TWO, _LAST_TWO):
            codes = permuted_bytes(odd, word, order)
            chosen = codes & 0x07070707
            sign = codes << 4 & -0x7F7F7F80
            upper = permuted_bytes(high[1], high[0], chosen) | sign
            lower = permuted_bytes(low[1], low[0], chosen)
            pairs += [permuted_bytes(upper, lower, two) for two in (_FIRST_TWO, _LAST_TWO)]
        found.append(bitcast(_concat(pairs), ir.BF16Type.get(), FRAGMENT))
    return found


def any_nan(words: Sequence[ir.Value]) -> ir.Value:
    """Return whether any byte of the words is a NaN of e4m3: 0x7F without its sign bit.

    Adding 1 to such a byte sets its highest bit, which no other byte does.
    """
    carried = None
    for word in words:
        more = (word & 0x7F7F7F7F) + 0x01010101
        carried = more if carried is None else carried | more
    assert carried is not None
    signs = carried & -0x7F7F7F80
    return unequal(signs, 0)


def eights(words: Sequence[ir.Value], kind: ElementFormat) -> list[ir.Value]:
    """Return 8-bit elements as pairs of f16, i32, with the bias of `_aligned`."""
    return _aligned([permuted_bytes(word, word, o) for word in words for o in _BYTES_ABOVE], kind)


def _fnuz(words: Sequence[ir.Value], kind: ElementFormat, factor: ir.Value) -> list[ir.Value]:
    """Decode FNUZ elements, whose only NaN has the code of the negative zero."""
    factor = arith.select(_any_code(words, kind.sign_bit), nan(), factor)
    wide, found = of(f32(), FRAGMENT), []
    unit = splat(2.0 ** (E8M0.bias - kind.bias), f32(), FRAGMENT)
    for at in range(0, len(words), FRAGMENT // 4):
        parts = []
        for word in words[at : at + FRAGMENT // 4]:
            for byte in range(4):
                top = word << 24 - 8 * byte if byte < 3 else word
                sign = top & -0x80000000
                size = top & kind.magnitude_mask << 24
                parts.append(sign | size >> 8 - kind.exponent)
        values = bitcast(_concat(parts), f32(), FRAGMENT) * unit
        found.append(upper_halves(values * vector.broadcast(wide, factor)))
    return found


def _any_code(words: Sequence[ir.Value], code: int) -> ir.Value:
    """Return whether any byte of the words is `code`: XOR with `code` makes it zero."""
    found = None
    for word in words:
        differs = word ^ _signed(code * 0x01010101)
        # Subtracting 1 from a zero byte sets its highest bit, which was not set before.
        borrowed = differs - 0x01010101 & (differs ^ -1)
        found = borrowed if found is None else found | borrowed
    assert found is not None
    signs = found & -0x7F7F7F80
    return unequal(signs, 0)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def _sixes(words: Sequence[ir.Value], kind: ElementFormat) -> list[ir.Value]:
    """Return 6-bit elements as pairs of f16, i32, with the bias of `_aligned`.

    A block is a stream of bits. Its first bit is the lowest bit of the first element.
    """
    pairs = []
    for first in range(0, BLOCK * kind.bits, 2 * kind.bits):
        low = _moved(words, first, 16 - kind.bits)
        high = _moved(words, first + kind.bits, 32 - kind.bits)
        pairs.append(permuted_bytes(high, low, _HALVES_OF_BOTH))
    return _aligned(pairs, kind)


def _moved(words: Sequence[ir.Value], first: int, to: int) -> ir.Value:
    """Return a word whose six bits from bit `to` on are those from bit `first` of all words on.

    Its other bits are arbitrary.
    """
    number_of, bit = divmod(first, 32)
    word, shift = words[number_of], bit - to
    if bit + 6 > 32:
        word = word >> shift
        return word | words[number_of + 1] << 32 - shift
    if shift == 0:
        return word
    return word >> shift if shift > 0 else word << -shift


def _aligned(pairs: Sequence[ir.Value], kind: ElementFormat) -> list[ir.Value]:
    """Move the fields of pairs of codes, i32, to where those of f16 are.

    A code is at the upper end of a half of the i32, so that its sign is in place. The value of the
    f16 is that of the element times 2^(bias - 15).
    """
    shift = F16_BIAS - _F16_MANTISSA - kind.exponent
    if shift == 0 and kind.bits == 8:
        return list(pairs)
    mask = kind.magnitude_mask << (_F16_MANTISSA - kind.mantissa)
    both, signs = number(mask | mask << 16), number(-0x7FFF8000)
    return [pair & signs | pair >> shift & both for pair in pairs]


def _products(pairs: Sequence[ir.Value], exponent: int, factor: ir.Value) -> list[ir.Value]:
    """Return pairs of f16 times 2^exponent, then times the scale, as fragments of bf16.

    These are two multiplications, because the product of both factors may be beyond f32.
    """
    wide, found = of(f32(), FRAGMENT), []
    for at in range(0, len(pairs), FRAGMENT // 2):
        halves = bitcast(_concat(pairs[at : at + FRAGMENT // 2]), ir.F16Type.get(), FRAGMENT)
        values = arith.extf(wide, halves)
        if exponent:
            values = values * (2.0**exponent)
        found.append(upper_halves(values * vector.broadcast(wide, factor)))
    return found


def _integers(block: ir.Value, factor: ir.Value, kind: ElementFormat) -> list[ir.Value]:
    """Decode integers. bf16 holds those of at most 8 bits exactly."""
    one = constant(kind.min_positive / value_of_one(kind), f32())
    unit = vector.broadcast(of(f32(), FRAGMENT), factor * one)
    return [upper_halves(each * unit) for each in integers(block, kind)]


def _concat(words: Sequence[ir.Value]) -> ir.Value:
    return vector.from_elements(of(i32(), len(words)), list(words))
