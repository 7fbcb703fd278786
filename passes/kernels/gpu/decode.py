"""Elements with their scales as bf16 or f16 in registers: v_cvt_scalef32_*.

The scale of the instructions is the exponent of an f32, which is what E8M0 says. They round once,
from the exact value:

    bf16    holds all values, but those of 8-bit elements below 2^-133: multiples of that
    f16     holds those from 2^-24 to 65504: what was asked for where values are rounded to f16

An E4M3 scale (nvfp4) has 4 bits of significand, an element of 4 bits 2: 6 in all, from 2^-10 to
2688, which f16 holds too. There it is one product for two elements, in bf16 one of f32 for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, rocdl, vector

from mxc.dialects.generic import constant
from mxc.dialects.quantize_scalars import i32 as i32_of
from mxc.formats.formats import E8M0, BlockFormat, ElementFormat
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT
from mxc.passes.kernels.vectors import (
    bitcast,
    equal,
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

#: Six-bit elements -> the name of them in instructions for a whole block.
_SIXES = {"f6E2M3FN": "fp6", "f6E3M2FN": "bf6"}


def decode(
    block: ir.Value, scales: ir.Value, format: BlockFormat, register: Register
) -> list[ir.Value]:
    """A block of 32, i8, under its one or two scales, i8 [n], as fragments along K."""
    if format.scale != E8M0:
        return _by_floats(block, scales, format, register)
    name = format.element.mlir
    if name in _SIXES:
        return by_halves(scales, lambda scale: _sixes(block, scale, name, register))
    if not format.element.exponent:
        return by_halves(scales, lambda scale: _integers(block, scale, format.element, register))
    return by_halves(scales, lambda scale: _packed(block, scale, name, register))


def by_halves(scales: ir.Value, whole: Callable[[ir.Value], list[ir.Value]]) -> list[ir.Value]:
    """A block under one scale, or each half of it under its own; `whole`: all of it under one.

    What is made of the other half is used by nothing, and so is no instruction.
    """
    count, fragments = lanes_of(scales), BLOCK // FRAGMENT
    found = [whole(vector.extract(scales, [], [number])) for number in range(count)]
    return [found[at * count // fragments][at] for at in range(fragments)]


def _packed(block: ir.Value, scale: ir.Value, element: str, register: Register) -> list[ir.Value]:
    values = bitcast(block, ir.Type.parse(element), BLOCK)
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
    """Elements of 4 bits under two scales in E4M3."""
    assert (format.element.mlir, format.scale.mlir) == ("f4E2M1FN", "f8E4M3FN")
    pair = vector.extract(bitcast(vector.shuffle(scales, scales, [0, 1, 0, 1]), i32(), 1), [], [0])
    unit = constant(1.0, f32())
    product = f32()
    if register == "f16":
        product = ir.F16Type.get()
        factors = rocdl.cvt_scalef32_pk_f16_fp8(of(product, 2), pair, unit, False)
        convert = rocdl.cvt_scalef32_pk_f16_fp4
    else:
        factors = rocdl.cvt_pk_f32_fp8(of(product, 2), pair, False)
        convert = rocdl.cvt_scalef32_pk_f32_fp4
    words = bitcast(block, i32(), BLOCK * 4 // 32)
    found = []
    for number in range(BLOCK // FRAGMENT):
        # 8 elements are a word: four pairs.
        word = vector.extract(words, [], [number])
        pairs = [convert(of(product, 2), word, unit, select) for select in range(4)]
        halves = [vector.shuffle(*pairs[at : at + 2], [0, 1, 2, 3]) for at in (0, 2)]
        wide = vector.shuffle(*halves, list(range(FRAGMENT)))
        factor = vector.extract(factors, [], [number * FRAGMENT // format.block])
        found.append(_times(wide, factor, register))
    return found


def _sixes(block: ir.Value, scale: ir.Value, element: str, register: Register) -> list[ir.Value]:
    words = bitcast(block, i32(), BLOCK * 6 // 32)
    whole = ir.Operation.create(
        f"rocdl.cvt.scalef32.pk32.{register}.{_SIXES[element]}",
        results=[of(ir.Type.parse(register), BLOCK)],
        operands=[words, power(scale)],
    ).result
    return list(parts_of(whole, FRAGMENT))


def _integers(
    block: ir.Value, scale: ir.Value, element: ElementFormat, register: Register
) -> list[ir.Value]:
    """An integer of at most 8 bits is a bf16 as it is, and a power of two moves its exponent."""
    one = constant(element.min_positive, f32())
    unit = power(scale) * one
    return [_times(each, unit, register) for each in integers(block, element.bits)]


def integers(block: ir.Value, bits: int) -> list[ir.Value]:
    """A block of 32 integers of 8 or 4 bits, i8, as f32 [8] along K."""
    wide = of(f32(), FRAGMENT)
    if bits == 8:
        return [arith.sitofp(wide, part) for part in parts_of(block, FRAGMENT)]
    words, found = bitcast(block, i32(), BLOCK * bits // 32), []
    for number in range(BLOCK // FRAGMENT):
        # Eight are a word, of which each in turn is moved to the top, and down with its sign.
        word = vector.broadcast(of(i32(), FRAGMENT), vector.extract(words, [], [number]))
        top = word << table(np.arange(32 - bits, -1, -bits, dtype=np.int32), i32())
        down = arith.shrsi(top, splat(32 - bits, i32(), FRAGMENT))
        found.append(arith.sitofp(wide, down))
    return found


def _times(values: ir.Value, factor: ir.Value, register: Register) -> ir.Value:
    """f32 [8] times an f32, rounded to the type of the register; or f16 by f16, for f16."""
    scaled = values * vector.broadcast(of(factor.type, FRAGMENT), factor)
    if factor.type == ir.Type.parse(register):
        return scaled
    return arith.truncf(of(ir.Type.parse(register), FRAGMENT), scaled)


def power(scale: ir.Value) -> ir.Value:
    """The f32 of an E8M0 byte: 255 is NaN, and 0 is 2^-127, which is subnormal."""

    def chosen(code: int, special: int, found: ir.Value) -> ir.Value:
        same = equal(wide, code)
        return arith.select(same, i32_of(special), found)

    wide = arith.extui(i32(), scale)
    exponent = wide << 23
    return arith.bitcast(f32(), chosen(255, 0x7FC00000, chosen(0, 1 << 22, exponent)))
