"""Activations to blocks of 32 at run time: amax of a block, its scale, its elements, in linalg.

    amax      = largest magnitude of a block, as the integer of its bits: NaN orders above Inf
    scales    = f(amax), one a block
    elements  = g(x, scales)

The first two become one dispatch, the third another.

All roundings are spelled out in integer operations and additions: `arith.scaling_truncf` rounds
wrongly on CPUs, and IREE's workers read subnormal numbers as zero. So what is computed is, bit for
bit, what reference.py says for MX formats, subnormal inputs included; for int8 see `quantise_int8`.

What a block with a NaN becomes has a NaN scale, and makes every product with it NaN.
"""

from __future__ import annotations

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, flow, tensor

from mxc.dialects.errors import FormatError
from mxc.dialects.formats import E8M0, BlockFormat, ElementFormat, block_format
from mxc.dialects.generic import constant, element_of, generic, shape_of
from mxc.dialects.recipes import MANTISSA, NAN_BYTE, ScaleRecipe, addend, scale_recipe

#: Elements of a block of int8, as of every MX format.
BLOCK = 32

#: What `quantise_mx` writes. IREE stores elements of 6 bits wrongly on CPUs.
MX_FORMATS = ("mxfp4", "mxfp8e4m3", "mxfp8e5m2", "mxint8")

#: The largest int8 element; -128 is not used.
INT8_MAX = 127

_INFINITY = 0xFF << MANTISSA
_MAGNITUDE = 0x7FFFFFFF
_NAN = _INFINITY | 1 << (MANTISSA - 1)
_BIAS = 127
#: The smallest scale of int8. A subnormal number is less than half of it, and rounds to zero where
#: targets read it as one and where they do not.
INT8_LEAST_SCALE = 2.0**-125
_LEAST_INT8 = int(np.float32(INT8_MAX * INT8_LEAST_SCALE).view(np.int32))


def quantise_int8(x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x f32 [.., K] -> elements i8 [.., K / 32, 32] and scales f32 [.., K / 32].

    scale = amax / 127 and element = x * (1 / scale), to nearest, ties to even, within +-127; both
    quotients and the product are f32. Where amax / 127 is below 2^-125, the block is zeros under
    the scale 0. Where amax is Inf or NaN, the scale is NaN and the elements are zeros.

    Raises ValueError where x is not f32 or K not a static multiple of 32.
    """
    blocks, amax = _amax(x, BLOCK)
    lead = _loops(amax)
    f32 = ir.F32Type.get()
    scales = generic([(amax, lead)], lead, f32, _int8_scale)
    inner = f"{lead} kb"
    elements = generic([(blocks, inner), (scales, lead)], inner, _integer(8), _int8_element)
    return elements, scales


def quantise_mx(
    x: ir.Value, format: BlockFormat | str, recipe: ScaleRecipe | str
) -> tuple[ir.Value, ir.Value]:
    """x f32 [.., K] -> elements [.., K / 32, 32] of the MX `format` and f8E8M0FNU [.., K / 32].

    Equal to `reference.quantize` in every bit. Raises ValueError as `quantise_int8`, FormatError
    for an unknown format or recipe, or a format that is not in `MX_FORMATS`.
    """
    format, recipe = block_format(format), scale_recipe(recipe)
    if format.name not in MX_FORMATS:
        raise FormatError(
            f"activations cannot be quantised to {format}; choose {', '.join(MX_FORMATS)}"
        )
    element = format.element
    blocks, amax = _amax(x, format.block)
    lead = _loops(amax)
    byte = _integer(8)

    def scale(largest: ir.Value) -> ir.Value:
        return arith.trunci(byte, _scale_byte(largest, element, recipe))

    def code(value: ir.Value, scale: ir.Value) -> ir.Value:
        wide = _code(_bits(value), arith.extui(_integer(32), scale), element)
        return arith.trunci(_integer(element.bits), wide)

    scales = generic([(amax, lead)], lead, byte, scale)
    inner = f"{lead} kb"
    codes = generic([(blocks, inner), (scales, lead)], inner, _integer(element.bits), code)
    return _renamed(codes, element.mlir), _renamed(scales, E8M0.mlir)


def _amax(x: ir.Value, block: int) -> tuple[ir.Value, ir.Value]:
    """x as blocks, f32 [.., KO, block], and the bits of their largest magnitudes, i32 [.., KO]."""
    *lead, depth = shape_of(x)
    if element_of(x) != ir.F32Type.get() or depth < 0 or depth % block:
        raise ValueError(f"wanted f32 [.., K] with K a multiple of {block}, got {x.type}")
    sizes = [*lead, depth // block, block]
    dynamic = [
        tensor.dim(x, constant(axis, ir.IndexType.get()))
        for axis, size in enumerate(lead)
        if size < 0
    ]
    groups = [*([axis] for axis in range(len(lead))), [len(lead), len(lead) + 1]]
    kind = ir.RankedTensorType.get(sizes, ir.F32Type.get())
    blocks = tensor.expand_shape(kind, x, groups, dynamic, sizes)
    loops = _loops(blocks)

    def largest(value: ir.Value, acc: ir.Value) -> ir.Value:
        magnitude = arith.andi(arith.bitcast(_integer(32), value), _i32(_MAGNITUDE))
        return arith.maxsi(magnitude, acc)

    return blocks, generic([(blocks, loops)], loops.rpartition(" ")[0], _integer(32), largest)


def _int8_scale(amax: ir.Value) -> ir.Value:
    f32 = ir.F32Type.get()
    scale = arith.divf(_float(amax), constant(INT8_MAX, f32))
    scale = arith.select(_below(amax, _LEAST_INT8), constant(0.0, f32), scale)
    return arith.select(_below(amax, _INFINITY), scale, _float(_i32(_NAN)))


def _int8_element(value: ir.Value, scale: ir.Value) -> ir.Value:
    f32 = ir.F32Type.get()
    zero = constant(0.0, f32)
    steps = arith.mulf(value, arith.divf(constant(1.0, f32), scale))
    # False for a NaN too.
    ordinary = arith.cmpf(arith.CmpFPredicate.OGT, scale, zero)
    bits = _bits(arith.select(ordinary, steps, zero))
    # As integers, so that no compiler makes one fused operation of the product and the sum in
    # `_steps`: a product that is rounded first may be a tie that it was not.
    magnitude = arith.minsi(arith.andi(bits, _i32(_MAGNITUDE)), _i32(_bits_of(INT8_MAX)))
    return arith.trunci(_integer(8), _signed(_steps(magnitude, 1.0), bits))


def _scale_byte(amax: ir.Value, element: ElementFormat, recipe: ScaleRecipe) -> ir.Value:
    """recipes.scale_bytes of the bits of one magnitude, i32."""
    twice = arith.subi(arith.addi(amax, amax), _i32(1 << MANTISSA))
    ordered = arith.select(_below(amax, 1 << MANTISSA), twice, amax)
    raised = arith.addi(ordered, _i32(addend(element, recipe)))
    byte = arith.subi(arith.shrsi(raised, _i32(MANTISSA)), _i32(element.emax))
    byte = arith.minsi(arith.maxsi(byte, _i32(0)), _i32(E8M0.max_code))
    if recipe is ScaleRecipe.RCEIL:
        byte = arith.select(_below(amax, _INFINITY), byte, _i32(E8M0.max_code))
    return arith.select(_above(amax, _INFINITY), _i32(NAN_BYTE), byte)


def _code(bits: ir.Value, byte: ir.Value, element: ElementFormat) -> ir.Value:
    """rounding.encode of a float32 (its bits) over the scale `byte`: i32, as both are."""
    magnitude = arith.andi(bits, _i32(_MAGNITUDE))
    # The bits of a subnormal as if exponents below 1 were ordinary ones: bits(m) of m * 2^-149. No
    # element is smaller than 2^-22 of it, so that zero may be any number far below.
    small = arith.sitofp(ir.F32Type.get(), magnitude)
    small = arith.maxsi(arith.subi(_bits(small), _i32(149 << MANTISSA)), _i32(-(23 << MANTISSA)))
    wide = arith.select(_below(magnitude, 1 << MANTISSA), small, magnitude)
    # Divided by the scale in the exponent. Below 1 << MANTISSA it rounds to zero everywhere.
    shift = arith.shli(arith.subi(_i32(_BIAS), byte), _i32(MANTISSA))
    scaled = arith.maxsi(arith.addi(wide, shift), _i32(0))
    scaled = arith.select(_below(magnitude, _INFINITY), scaled, _i32(_INFINITY))
    code = arith.minsi(_nearest(scaled, element), _i32(element.max_code))
    if element.exponent:
        sign = arith.shrui(bits, _i32(32 - element.bits))
        code = arith.ori(code, arith.andi(sign, _i32(element.sign_bit)))
    else:
        code = _signed(code, bits)
    return arith.select(_below(byte, NAN_BYTE), code, _i32(0))


def _nearest(magnitude: ir.Value, element: ElementFormat) -> ir.Value:
    """The code nearest to a float32 >= 0 (its bits), ties to even; beyond the largest, above it."""
    least = _steps(magnitude, element.min_positive)
    if not element.exponent:
        return least
    dropped = MANTISSA - element.mantissa
    odd = arith.andi(arith.shrui(magnitude, _i32(dropped)), _i32(1))
    raised = arith.addi(arith.addi(magnitude, _i32((1 << dropped - 1) - 1)), odd)
    rebias = (_BIAS - element.bias) << element.mantissa
    normal = arith.subi(arith.shrui(raised, _i32(dropped)), _i32(rebias))
    return arith.select(_below(magnitude, _bits_of(element.min_normal)), least, normal)


def _steps(magnitude: ir.Value, step: float) -> ir.Value:
    """A float32 >= 0 (its bits) in multiples of a power of two, to nearest, ties to even: i32."""
    # A sum whose last place is the step: the addition rounds.
    magic = step * (1 << MANTISSA)
    rounded = arith.addf(_float(magnitude), constant(magic, ir.F32Type.get()))
    return arith.subi(_bits(rounded), _i32(_bits_of(magic)))


def _signed(magnitude: ir.Value, bits: ir.Value) -> ir.Value:
    """An i32 with the sign of the float32 whose bits these are."""
    return arith.select(_below(bits, 0), arith.subi(_i32(0), magnitude), magnitude)


def _bits_of(value: float) -> int:
    return int(np.float32(value).view(np.int32))


def _renamed(value: ir.Value, element: str) -> ir.Value:
    """The tensor with integers read as another type of their width."""
    kind = ir.Type.parse(element)
    if kind == element_of(value):
        return value
    target = ir.RankedTensorType.get(shape_of(value), kind)
    sizes = [
        tensor.dim(value, constant(axis, ir.IndexType.get()))
        for axis, size in enumerate(shape_of(value))
        if size < 0
    ]
    return flow.TensorBitCastOp(target, value, sizes, sizes).result


def _loops(value: ir.Value) -> str:
    return " ".join(f"d{axis}" for axis in range(len(shape_of(value))))


def _integer(width: int) -> ir.Type:
    return ir.IntegerType.get_signless(width)


def _i32(value: int) -> ir.Value:
    return constant(value, _integer(32))


def _float(bits: ir.Value) -> ir.Value:
    return arith.bitcast(ir.F32Type.get(), bits)


def _bits(value: ir.Value) -> ir.Value:
    return arith.bitcast(_integer(32), value)


def _above(left: ir.Value, right: int) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.sgt, left, _i32(right))


def _below(left: ir.Value, right: int) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.slt, left, _i32(right))
