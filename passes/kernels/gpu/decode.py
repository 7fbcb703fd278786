"""Decodes elements with their scales to bf16 or f16 in registers, by v_cvt_scalef32_*.

The scale of these instructions is the exponent of an f32, which is what an E8M0 scale says. They
round once, from the exact value:

    bf16    exact, except values of 8-bit elements below 2^-133, which become multiples of 2^-133
    f16     holds values from 2^-24 to 65504; used where the program rounds values to f16

An E4M3 scale (nvfp4) has 4 significant bits and a 4-bit element has 2. Their product has 6, and is
between 2^-10 and 2688: bf16 and f16 both hold it. Elements are multiplied by such scales in f32. In
f16 one instruction would multiply two of them, but no matrix core works beside an instruction for
two f16 (compiler/report/issue_steps.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, rocdl, vector

from mxc.dialects.amdgpu import opaque, sixteenths
from mxc.dialects.amdgpu_narrow import extended_block, extended_pair
from mxc.dialects.generic import constant
from mxc.dialects.quantize_scalars import i32 as i32_of
from mxc.formats.formats import E2M1, E4M3, E8M0, BlockFormat, ElementFormat
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT
from mxc.passes.kernels.vectors import (
    bitcast,
    concat,
    elements,
    f32,
    i32,
    lanes_of,
    of,
    parts_of,
    splat,
    table,
)

#: The type of decoded elements in registers.
Register = Literal["bf16", "f16"]


def decode(
    block: ir.Value, scales: ir.Value, format: BlockFormat, register: Register
) -> list[ir.Value]:
    """Decode a block of 32, or a part of it, i8, under its one or two scales, i8 [n].

    Returns fragments of 8 along K.
    """
    if format.scale != E8M0:
        return _by_floats(block, scales, format, register)
    element = format.element
    if element.bits == 6:

        def whole(scale: ir.Value) -> list[ir.Value]:
            words = elements(bitcast(block, i32(), lanes_of(block) // 4))
            # The instruction decodes a whole block, so a part is padded.
            padded = words + [i32_of(0)] * (BLOCK * 6 // 32 - len(words))
            given = vector.from_elements(of(i32(), len(padded)), padded)
            count = lanes_of(block) * 8 // 6 // FRAGMENT
            return sixes(given, power(scale), element, register)[:count]

        return by_halves(scales, whole)
    if not element.exponent:
        return by_halves(scales, lambda scale: _integers(block, scale, element, register))
    return by_halves(scales, lambda scale: _packed(block, scale, element, register))


def decode_unscaled(block: ir.Value, element: ElementFormat, register: Register) -> list[ir.Value]:
    """Decode a block of 32 elements of 8 or 4 bits, or a part of it, i8, without a scale.

    Returns fragments of 8 along K. An integer of 1 becomes `value_of_one`.
    """
    kind, one = ir.Type.parse(register), constant(1.0, f32())
    if not element.exponent:
        return [arith.truncf(of(kind, FRAGMENT), each) for each in integers(block, element)]
    # arith.scaling_extf under a constant scale would become a conversion for each element.
    pairs = [
        extended_pair(word, one, element, kind, at)
        for word in elements(bitcast(block, i32(), lanes_of(block) // 4))
        for at in range(16 // element.bits)
    ]
    return list(parts_of(concat(pairs), FRAGMENT))


def by_halves(scales: ir.Value, whole: Callable[[ir.Value], list[ir.Value]]) -> list[ir.Value]:
    """Decode a block, or a part of one, under one scale or with a scale for each half.

    `whole`: decodes all of it under one scale. With two scales it is called for each, and half of
    each result is taken; LLVM removes the instructions of the unused halves.
    """
    count = lanes_of(scales)
    found = [whole(vector.extract(scales, [], [number])) for number in range(count)]
    fragments = len(found[0])
    return [found[at * count // fragments][at] for at in range(fragments)]


def _packed(
    block: ir.Value, scale: ir.Value, element: ElementFormat, register: Register
) -> list[ir.Value]:
    values = bitcast(block, ir.Type.parse(element.mlir), lanes_of(block) * 8 // element.bits)
    factor = vector.broadcast(
        of(ir.Float8E8M0FNUType.get(), FRAGMENT), arith.bitcast(ir.Float8E8M0FNUType.get(), scale)
    )
    kind = of(ir.Type.parse(register), FRAGMENT)
    return [
        ir.Operation.create("arith.scaling_extf", results=[kind], operands=[part, factor]).result
        for part in parts_of(values, FRAGMENT)
    ]


def _by_floats(
    block: ir.Value, scales: ir.Value, format: BlockFormat, register: Register
) -> list[ir.Value]:
    """Decode elements of 4 bits under one or two E4M3 scales."""
    assert (format.element, format.scale) == (E2M1, E4M3)
    count = lanes_of(scales)
    twice = vector.shuffle(scales, scales, [at % count for at in range(4)])
    factors = float_factors(vector.extract(bitcast(twice, i32(), 1), [], [0]))
    found = []
    # A word has eight elements, which are four pairs.
    for number, word in enumerate(elements(bitcast(block, i32(), lanes_of(block) // 4))):
        factor = vector.extract(factors, [], [number * FRAGMENT // format.block])
        found.append(concat([pair_by_float(word, factor, at, register) for at in range(4)]))
    return found


def float_factors(pair: ir.Value) -> ir.Value:
    """The two E4M3 scales in the lower half of an i32, as f32 [2]."""
    return rocdl.cvt_pk_f32_fp8(of(f32(), 2), pair, False)


def pair_by_float(word: ir.Value, factor: ir.Value, number: int, register: Register) -> ir.Value:
    """Decode pair `number` of the eight 4-bit elements in an i32.

    `factor`: their scale, one of the f32 of `float_factors`.
    """
    wide = extended_pair(word, constant(1.0, f32()), E2M1, f32(), number)
    return _times(wide, factor, register)


def sixes(
    words: ir.Value, factor: ir.Value, element: ElementFormat, register: Register
) -> list[ir.Value]:
    """Decode 32 elements of 6 bits, i32 [6], times `factor`, an f32 that is a power of two."""
    return list(parts_of(extended_block(words, factor, element, ir.Type.parse(register)), FRAGMENT))


def _integers(
    block: ir.Value, scale: ir.Value, element: ElementFormat, register: Register
) -> list[ir.Value]:
    """Decode integers under an E8M0 scale.

    bf16 holds an integer of at most 8 bits, and a power of two changes only its exponent.
    """
    one = constant(element.min_positive / value_of_one(element), f32())
    unit = power(scale) * one
    return [_times(each, unit, register) for each in integers(block, element)]


def integers(block: ir.Value, element: ElementFormat) -> list[ir.Value]:
    """Convert integers of 8 or 4 bits, packed in i8, to vectors f32 [8] along K.

    An integer of 1 becomes `value_of_one`.
    """
    words = elements(bitcast(block, i32(), lanes_of(block) // 4))
    return list(parts_of(concat([_of_word(word, element) for word in words]), FRAGMENT))


def _of_word(word: ir.Value, element: ElementFormat) -> ir.Value:
    count = 32 // element.bits
    if element.bits == 4:
        found = [integer(word, element, number) for number in range(count)]
        return vector.from_elements(of(f32(), count), found)
    # Each byte is shifted to the top, and down with its sign. These are operations on vectors: with
    # scalars, LLVM finds an order in which rings that decode mxint8 once keep the matrix cores busy
    # for 0.75 of the time instead of 0.79.
    up = table(np.arange(24, -1, -8, dtype=np.int32), i32())
    top = vector.broadcast(of(i32(), count), word) << up
    return arith.sitofp(of(f32(), count), arith.shrsi(top, splat(24, i32(), count)))


def integer(word: ir.Value, element: ElementFormat, number: int) -> ir.Value:
    """Return integer `number` of those packed in an i32 as f32. A 1 becomes `value_of_one`.

    LLVM makes one instruction of these operations, whose operand is a byte of the word (SDWA).
    """
    if element.bits == 8:
        top = word << i32_of(24 - 8 * number)
        return arith.sitofp(f32(), arith.shrsi(top, i32_of(24)))
    byte, odd = divmod(number, 2)
    own = opaque(word >> 4) if odd else word
    return sixteenths(own >> 8 * byte & 0xFF if byte else own)


def value_of_one(element: ElementFormat) -> float:
    """Return the float that an integer of 1 becomes without a scale.

    It is 1/16 for 4 bits, because v_cvt_off_f32_i4 divides by 16.
    """
    return 1 / 16 if element.bits == 4 else 1.0


def _times(values: ir.Value, factor: ir.Value, register: Register) -> ir.Value:
    """Return f32 [n] times an f32, rounded to the type `register`."""
    count = lanes_of(values)
    scaled = values * vector.broadcast(of(f32(), count), factor)
    return arith.truncf(of(ir.Type.parse(register), count), scaled)


def power(scale: ir.Value) -> ir.Value:
    """Return the f32 of an E8M0 byte, i8: 255 is NaN, and 0 is 2^-127, which is subnormal.

    It is computed without comparisons, each of which would take two scalar registers.
    """
    wide = arith.extui(i32(), scale)
    high = i32_of(1 << 22)
    is_nan = (wide + 1) >> 8
    return arith.bitcast(f32(), arith.maxui(wide << 23, high) | is_nan << 22)
