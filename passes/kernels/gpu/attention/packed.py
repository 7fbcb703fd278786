"""Load keys and values in fp8 or an MX format, and decode them to bf16 in registers.

Elements that are loaded ahead stay packed, as words i32, because LLVM gives each i8 that a loop
carries a register of its own. Integers are converted to f32 and multiplied by the scale. e4m3
elements are converted by v_cvt_scalef32_pk_bf16_fp8; on GPUs without it, their bits are read as
those of an f16 with another bias. Results are exact if a bf16 can hold them. The scale of fp8 is
one.

In an MX format, the B positions of an entry are followed by its scales, [V, D / 32, B]: see
dialects/pages.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math, vector

from mxc.dialects.amdgpu_narrow import extended_pair
from mxc.dialects.quantize import BLOCK
from mxc.dialects.quantize_scalars import i32 as i32_of
from mxc.formats.formats import BlockFormat, ElementFormat
from mxc.passes.kernels.gpu.attention.softmax import number
from mxc.passes.kernels.gpu.decode import power
from mxc.passes.kernels.gpu.decode_bits import F16_BIAS, eights
from mxc.passes.kernels.vectors import (
    bitcast,
    elements,
    f32,
    i8,
    i16,
    i32,
    lanes_of,
    of,
    splat,
    upper_halves,
)


def first_scale(pool: ir.Value, position: ir.Value, head: ir.Value) -> ir.Value:
    """Return the place, in bytes of an entry, of the scale of the first block of a head of a
    position. `pool`: in an MX format, with the scales."""
    _, _, rows, heads, depth = ir.MemRefType(pool.type).shape
    positions = rows * BLOCK // (BLOCK + 1)
    before = head * (depth // BLOCK * positions)
    return before + position + positions * heads * depth


def load_words(memory: ir.Value, at: Sequence[ir.Value], count: int) -> ir.Value:
    """Load `count` bytes, an even number, as i32. If they end within a word, its upper half is
    zero."""
    codes, pairs = vector.load(of(i8(), count), memory, list(at)), count // 2
    if pairs % 2:
        zero = splat(0, i16(), 1)
        codes = vector.shuffle(bitcast(codes, i16(), pairs), zero, list(range(pairs + 1)))
    return bitcast(codes, i32(), (pairs + 1) // 2)


def byte_of(word: ir.Value, number: int) -> ir.Value:
    """A byte of an i32, as i8."""
    return arith.trunci(i8(), word >> 8 * number)


def decoded(
    format: BlockFormat, words: ir.Value, count: int, scale: ir.Value | None, *, converts: bool
) -> ir.Value:
    """Decode the first `count` elements in words i32 to bf16. `scale`: the E8M0 byte of all, i8;
    None for the scale one. `converts`: whether the GPU has the instruction for e4m3."""
    element = format.element
    factor = number(1.0) if scale is None else power(scale)
    each = elements(words)
    if converts and element.exponent:
        return _converted(each, count, element, factor)
    size = 4 * len(each)
    if element.exponent:
        halves = vector.from_elements(of(i32(), 2 * len(each)), eights(each, element))
        exact = arith.extf(of(f32(), size), bitcast(halves, ir.F16Type.get(), size))
        # NaN has the code after that of the largest number.
        largest = element.max * 2.0 ** (element.bias - F16_BIAS)
        none = arith.cmpf(arith.CmpFPredicate.OGT, math.absf(exact), splat(largest, f32(), size))
        exact = arith.select(none, splat(float("nan"), f32(), size), exact)
        unit = 2.0 ** (F16_BIAS - element.bias)
    else:
        bytes_ = [_signed_byte(word, place) for word in each for place in range(4)]
        exact, unit = vector.from_elements(of(f32(), size), bytes_), element.min_positive
    wide = exact * vector.broadcast(exact.type, factor * unit)
    # A bf16 holds these exactly: it is the upper half.
    return upper_halves(wide, count)


def _converted(
    words: Sequence[ir.Value], count: int, element: ElementFormat, factor: ir.Value
) -> ir.Value:
    """Decode e4m3 by v_cvt_scalef32_pk_bf16_fp8, two elements an instruction."""
    kind = ir.BF16Type.get()
    found = [
        extended_pair(words[pair // 2], factor, element, kind, pair % 2)
        for pair in range(count // 2)
    ]
    while len(found) > 1:
        pairs = [_concat(a, b) for a, b in zip(found[::2], found[1::2], strict=False)]
        found = [*pairs, *found[2 * len(pairs) :]]
    return found[0]


def _concat(*parts: ir.Value) -> ir.Value:
    """Two vectors as one."""
    size = sum(lanes_of(part) for part in parts)
    return vector.shuffle(*parts, list(range(size)))


def _signed_byte(word: ir.Value, place: int) -> ir.Value:
    """A signed byte of a word as f32."""
    high = word << 24 - 8 * place
    return arith.sitofp(f32(), arith.shrsi(high, i32_of(24)))
