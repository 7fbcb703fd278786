"""Elements with their scales as bf16 or f16 in registers: v_cvt_scalef32_*.

The scale of the instructions is the exponent of an f32, which is what E8M0 says. They round once,
from the exact value:

    bf16    holds all values, but those of 8-bit elements below 2^-133: multiples of that
    f16     holds those from 2^-24 to 65504: what was asked for where values are rounded to f16

An E4M3 scale (nvfp4) has 4 bits of significand, an element of 4 bits 2: 6 in all, from 2^-10 to
2688, which both hold. Elements are multiplied by such scales as f32, although f16 would be one
product for two of them: no matrix core works beside an instruction for two f16 (issue_steps.py).
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

#: The type of decoded elements.
Register = Literal["bf16", "f16"]


def decode(
    block: ir.Value, scales: ir.Value, format: BlockFormat, register: Register
) -> list[ir.Value]:
    """A block of 32, or a part of it, i8, under its one or two scales, i8 [n], as fragments along
    K."""
    if format.scale != E8M0:
        return _by_floats(block, scales, format, register)
    element = format.element
    if element.bits == 6:

        def whole(scale: ir.Value) -> list[ir.Value]:
            words = elements(bitcast(block, i32(), lanes_of(block) // 4))
            # The instruction is for a whole block.
            padded = words + [i32_of(0)] * (BLOCK * 6 // 32 - len(words))
            given = vector.from_elements(of(i32(), len(padded)), padded)
            count = lanes_of(block) * 8 // 6 // FRAGMENT
            return sixes(given, power(scale), element, register)[:count]

        return by_halves(scales, whole)
    if not element.exponent:
        return by_halves(scales, lambda scale: _integers(block, scale, element, register))
    return by_halves(scales, lambda scale: _packed(block, scale, element, register))


def decode_unscaled(block: ir.Value, element: ElementFormat, register: Register) -> list[ir.Value]:
    """A block of 32, or a part of it, i8, that no scale multiplies, as fragments along K: elements
    of 8 or 4 bits. Integers are multiples of `decoded_one`."""
    kind, one = ir.Type.parse(register), constant(1.0, f32())
    if not element.exponent:
        return [arith.truncf(of(kind, FRAGMENT), each) for each in integers(block, element)]
    # arith.scaling_extf under a constant scale becomes a conversion for each element, not for two.
    pairs = [
        extended_pair(word, one, element, kind, at)
        for word in elements(bitcast(block, i32(), lanes_of(block) // 4))
        for at in range(16 // element.bits)
    ]
    return list(parts_of(concat(pairs), FRAGMENT))


def by_halves(scales: ir.Value, whole: Callable[[ir.Value], list[ir.Value]]) -> list[ir.Value]:
    """A block, or a part of one, under one scale, or each half of it under its own; `whole`: all of
    it under one.

    What is made of the other half is used by nothing, and so is no instruction.
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
    """Elements of 4 bits under one or two scales in E4M3."""
    assert (format.element, format.scale) == (E2M1, E4M3)
    count = lanes_of(scales)
    twice = vector.shuffle(scales, scales, [at % count for at in range(4)])
    factors = float_factors(vector.extract(bitcast(twice, i32(), 1), [], [0]))
    found = []
    # 8 elements are a word: four pairs.
    for number, word in enumerate(elements(bitcast(block, i32(), lanes_of(block) // 4))):
        factor = vector.extract(factors, [], [number * FRAGMENT // format.block])
        found.append(concat([pair_by_float(word, factor, at, register) for at in range(4)]))
    return found


def float_factors(pair: ir.Value) -> ir.Value:
    """The two E4M3 scales in the lower half of an i32, as f32 [2]."""
    return rocdl.cvt_pk_f32_fp8(of(f32(), 2), pair, False)


def pair_by_float(word: ir.Value, factor: ir.Value, number: int, register: Register) -> ir.Value:
    """Pair `number` of the eight elements of 4 bits in an i32, times one of these factors."""
    wide = extended_pair(word, constant(1.0, f32()), E2M1, f32(), number)
    return _times(wide, factor, register)


def sixes(
    words: ir.Value, factor: ir.Value, element: ElementFormat, register: Register
) -> list[ir.Value]:
    """A block of 32 elements of 6 bits, i32 [6], times the power of two `factor`, f32."""
    return list(parts_of(extended_block(words, factor, element, ir.Type.parse(register)), FRAGMENT))


def _integers(
    block: ir.Value, scale: ir.Value, element: ElementFormat, register: Register
) -> list[ir.Value]:
    """An integer of at most 8 bits is a bf16 as it is, and a power of two moves its exponent."""
    one = constant(element.min_positive / decoded_one(element), f32())
    unit = power(scale) * one
    return [_times(each, unit, register) for each in integers(block, element)]


def integers(block: ir.Value, element: ElementFormat) -> list[ir.Value]:
    """Integers of 8 or 4 bits, i8, as multiples of `decoded_one`: f32 [8] along K."""
    words = elements(bitcast(block, i32(), lanes_of(block) // 4))
    return list(parts_of(concat([_of_word(word, element) for word in words]), FRAGMENT))


def _of_word(word: ir.Value, element: ElementFormat) -> ir.Value:
    count = 32 // element.bits
    if element.bits == 4:
        found = [integer(word, element, number) for number in range(count)]
        return vector.from_elements(of(f32(), count), found)
    # Each is moved to the top, and down with its sign. As vectors: one by one, LLVM orders them so
    # that rings that decode mxint8 once keep the matrix cores busy for 0.75 of the time, not 0.79.
    up = table(np.arange(24, -1, -8, dtype=np.int32), i32())
    top = vector.broadcast(of(i32(), count), word) << up
    return arith.sitofp(of(f32(), count), arith.shrsi(top, splat(24, i32(), count)))


def integer(word: ir.Value, element: ElementFormat, number: int) -> ir.Value:
    """Integer `number` of those in an i32 as a multiple of `decoded_one`: f32.

    In forms that LLVM makes one instruction of, with the byte of the word as its operand (SDWA).
    """
    if element.bits == 8:
        top = word << i32_of(24 - 8 * number)
        return arith.sitofp(f32(), arith.shrsi(top, i32_of(24)))
    byte, odd = divmod(number, 2)
    own = opaque(word >> 4) if odd else word
    return sixteenths(own >> 8 * byte & 0xFF if byte else own)


def decoded_one(element: ElementFormat) -> float:
    """The float that an integer of 1 becomes where it is decoded without a scale."""
    return 1 / 16 if element.bits == 4 else 1.0


def _times(values: ir.Value, factor: ir.Value, register: Register) -> ir.Value:
    """f32 [n] times an f32, rounded to the type of the register."""
    count = lanes_of(values)
    scaled = values * vector.broadcast(of(f32(), count), factor)
    return arith.truncf(of(ir.Type.parse(register), count), scaled)


def power(scale: ir.Value) -> ir.Value:
    """The f32 of an E8M0 byte: 255 is NaN, and 0 is 2^-127, which is subnormal.

    Without comparisons, each of which would take two scalar registers.
    """
    wide = arith.extui(i32(), scale)
    high = i32_of(1 << 22)
    is_nan = (wide + 1) >> 8
    return arith.bitcast(f32(), arith.maxui(wide << 23, high) | is_nan << 22)
