"""Elements with their scales as bf16 in registers: v_cvt_scalef32_*. Exact but for overflow.

The scale of the instructions is the exponent of an f32, which is what E8M0 says.
"""

from __future__ import annotations

from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import arith, rocdl, vector

from mxc.passes.kernels.gpu.floats import FRAGMENT
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.vectors import bitcast, f32, i32, of

#: Elements of a block of nvfp4.
_NVFP4 = 16
#: Six-bit elements -> the instruction for a whole block of them.
_SIXES = {
    "f6E2M3FN": "rocdl.cvt.scalef32.pk32.bf16.fp6",
    "f6E3M2FN": "rocdl.cvt.scalef32.pk32.bf16.bf6",
}


def decode(block: ir.Value, scale: ir.Value, element: str) -> list[ir.Value]:
    """A block of i8 with its scale (i8) as fragments of bf16, along K."""
    if element in _SIXES:
        return _sixes(block, scale, element)
    if element == "i8":
        return _integers(block, scale)
    kind = ir.Type.parse(element)
    values = bitcast(block, kind, BLOCK)
    factor = vector.broadcast(
        of(ir.Float8E8M0FNUType.get(), FRAGMENT), arith.bitcast(ir.Float8E8M0FNUType.get(), scale)
    )
    return _slices(
        values,
        lambda part: (
            ir.Operation.create(
                "arith.scaling_extf",
                results=[of(ir.BF16Type.get(), FRAGMENT)],
                operands=[part, factor],
            ).result
        ),
    )


def decode_nvfp4(block: ir.Value, scales: ir.Value) -> list[ir.Value]:
    """32 elements of e2m1 under two scales, i8 [2] in E4M3, as fragments of bf16, along K.

    2 bits of significand times 4 are 6, in a range that bf16 has by far: exact.
    """
    pair = vector.extract(bitcast(vector.shuffle(scales, scales, [0, 1, 0, 1]), i32(), 1), [], [0])
    factors = rocdl.cvt_pk_f32_fp8(of(f32(), 2), pair, False)
    unit = arith.ConstantOp(f32(), ir.FloatAttr.get(f32(), 1.0)).result
    words = bitcast(block, i32(), BLOCK * 4 // 32)
    found = []
    for number in range(BLOCK // FRAGMENT):
        # 8 elements are a word: four pairs.
        word = vector.extract(words, [], [number])
        pairs = [
            rocdl.cvt_scalef32_pk_f32_fp4(of(f32(), 2), word, unit, select) for select in range(4)
        ]
        halves = [vector.shuffle(*pairs[at : at + 2], [0, 1, 2, 3]) for at in (0, 2)]
        wide = vector.shuffle(*halves, list(range(FRAGMENT)))
        factor = vector.extract(factors, [], [number * FRAGMENT // _NVFP4])
        scaled = arith.mulf(wide, vector.broadcast(of(f32(), FRAGMENT), factor))
        found.append(arith.truncf(of(ir.BF16Type.get(), FRAGMENT), scaled))
    return found


def _sixes(block: ir.Value, scale: ir.Value, element: str) -> list[ir.Value]:
    words = bitcast(block, i32(), BLOCK * 6 // 32)
    whole = ir.Operation.create(
        _SIXES[element],
        results=[of(ir.BF16Type.get(), BLOCK)],
        operands=[words, power(scale)],
    ).result
    return _slices(whole, lambda part: part)


def _integers(block: ir.Value, scale: ir.Value) -> list[ir.Value]:
    """mxint8: an integer of 8 bits is a bf16 as it is, and a power of two moves its exponent."""
    unit = arith.mulf(power(scale), arith.ConstantOp(f32(), ir.FloatAttr.get(f32(), 2.0**-6)))

    def values(part: ir.Value) -> ir.Value:
        wide = arith.sitofp(of(f32(), FRAGMENT), part)
        factor = vector.broadcast(of(f32(), FRAGMENT), unit)
        return arith.truncf(of(ir.BF16Type.get(), FRAGMENT), arith.mulf(wide, factor))

    return _slices(block, values)


def power(scale: ir.Value) -> ir.Value:
    """The f32 of an E8M0 byte: 255 is NaN, and 0 is 2^-127, which is subnormal."""

    def bits(value: int) -> ir.Value:
        return arith.ConstantOp(i32(), ir.IntegerAttr.get(i32(), value)).result

    def chosen(code: int, special: int, found: ir.Value) -> ir.Value:
        same = arith.cmpi(arith.CmpIPredicate.eq, wide, bits(code))
        return arith.select(same, bits(special), found)

    wide = arith.extui(i32(), scale)
    exponent = arith.shli(wide, bits(23))
    return arith.bitcast(f32(), chosen(255, 0x7FC00000, chosen(0, 1 << 22, exponent)))


def _slices(block: ir.Value, each: Callable[[ir.Value], ir.Value]) -> list[ir.Value]:
    kind = of(ir.VectorType(block.type).element_type, FRAGMENT)
    return [
        each(vector.extract_strided_slice(kind, block, [at], [FRAGMENT], [1]))
        for at in range(0, BLOCK, FRAGMENT)
    ]
