"""Quantize activations to blocks at run time: amax of a block, its scale, its elements, in linalg.

    amax      = largest magnitude of a block, as the integer of its bits: NaN orders above Inf
    scales    = f(amax), one per block
    elements  = g(x, scales)

Without a kernel of mxc for all three, the first two become one dispatch and the third another;
quantizations.py finds the operations for a kernel. 6-bit elements are made as bytes, four elements
in three, because IREE stores them wrongly on CPUs.

All roundings are written as integer operations and additions: `arith.scaling_truncf` rounds wrongly
on CPUs, and IREE's workers flush subnormal numbers. The result is, bit for bit, what reference.py
computes for MX formats, including subnormal inputs; for int8 see `quantize_int8`.

A block with a NaN gets a NaN scale, which makes every product with it NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, flow, linalg, tensor

from mxc.dialects.boundary import unpack
from mxc.dialects.generic import constant, element_of, extended, generic, shape_of
from mxc.dialects.quantize_scalars import (
    MAGNITUDE,
    as_bits,
    block_scale,
    element_code,
    i32,
    int8_element,
    int8_scale,
    row_scale,
    scale_byte,
)
from mxc.dialects.sizes import axes_of, dynamic_sizes
from mxc.errors import FormatError
from mxc.formats.formats import E8M0, FORMATS, BlockFormat, block_format
from mxc.formats.recipes import ScaleRecipe, scale_recipe

#: Elements per block of int8 and of every MX format.
BLOCK = 32

#: The formats that `quantize_mx` writes.
MX_FORMATS = tuple(name for name, format in FORMATS.items() if format.scale == E8M0)

#: The name of the operations of `quantize_nvfp4`, for which there is no CPU kernel.
QUANTIZING = "mxc.quantize"

#: Float types that are extended, exactly, to f32 before they are quantized.
NARROW = ("bf16", "f16")


def quantize_int8(x: ir.Value, block: int = BLOCK) -> tuple[ir.Value, ir.Value]:
    """x f32 [.., K] -> elements i8 [.., K / block, block] and scales f32 [.., K / block].

    scale = amax / 127 and element = x * (1 / scale), rounded to nearest, ties to even, within
    +-127; both quotients and the product are f32. Where amax / 127 is below 2^-125, the block is
    zeros with the scale 0. Where amax is Inf or NaN, the scale is NaN and the elements are zeros.

    Raises ValueError where x is not f32 or K not a static multiple of the block.
    """
    blocks = _blocks(x, [block])
    amax = _amax(blocks)
    lead = axes_of(amax)
    f32 = ir.F32Type.get()
    scales = generic([(amax, lead)], lead, f32, int8_scale)
    inner, byte = f"{lead} kb", _integer(8)

    def element(value: ir.Value, scale: ir.Value) -> ir.Value:
        return arith.trunci(byte, int8_element(value, scale))

    return generic([(blocks, inner), (scales, lead)], inner, byte, element), scales


def quantize_mx(
    x: ir.Value, format: BlockFormat | str, recipe: ScaleRecipe | str
) -> tuple[ir.Value, ir.Value]:
    """x [.., K] -> elements [.., K / 32, 32] of the MX `format` and f8E8M0FNU [.., K / 32].

    x is f32, or bf16 or f16, which are extended. The result equals `reference.quantize` in every
    bit. Raises ValueError for another type of x, or where K is not a static multiple of 32;
    FormatError for an unknown format or recipe, or a format that is not in `MX_FORMATS`.
    """
    format, recipe = block_format(format), scale_recipe(recipe)
    if format.name not in MX_FORMATS:
        raise FormatError(
            f"activations cannot be quantized to {format}; choose {', '.join(MX_FORMATS)}"
        )
    codes, scales = mx_integers(x, format, recipe)
    if format.element.bits == 6:
        rank = len(shape_of(codes))
        groups = [*([axis] for axis in range(rank - 2)), [rank - 2, rank - 1]]
        *lead, words, size = shape_of(codes)
        packed = ir.RankedTensorType.get([*lead, words * size], _integer(8))
        packed = tensor.collapse_shape(packed, codes, groups)
        return unpack(packed, ir.Type.parse(format.element.mlir)), _renamed(scales, E8M0.mlir)
    return _renamed(codes, format.element.mlir), _renamed(scales, E8M0.mlir)


def mx_integers(x: ir.Value, format: BlockFormat, recipe: ScaleRecipe) -> tuple[ir.Value, ir.Value]:
    """The result of `quantize_mx` as integers: elements i8 [.., K / 32, 32], i4 for 4-bit elements,
    bytes i8 [.., K / 32, 8, 3] for 6-bit ones; and scales i8 [.., K / 32]."""
    wide = extended(x) if str(element_of(x)) in NARROW else x
    return _codes(wide, format, recipe)


def quantize_nvfp4(
    x: ir.Value, whole: ir.Value | None = None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """x f32 [.., K] -> f4E2M1FN [.., K / 16, 16], f8E4M3FN [.., K / 16] and f32 [..].

    The second level of scales is `whole` f32 [], or by default a scale per row rather than per
    tensor, so that a row does not depend on other rows. Each row equals, bit for bit, what nvfp4.py
    makes of the row as a tensor; the scale of a row with a NaN or an Inf is NaN. Raises ValueError
    where x is not f32 or K not a static multiple of 16.
    """
    format, f32, byte = FORMATS["nvfp4"], ir.F32Type.get(), _integer(8)
    blocks = _blocks(x, [format.block])
    with ir.Location.name(QUANTIZING):
        amax = _amax(blocks)
        lead = axes_of(amax)
        rows = lead.rpartition(" ")[0]
        if whole is None:
            most = generic([(amax, lead)], rows, _integer(32), arith.maxsi)
            wholes = generic([(most, rows)], rows, f32, lambda bits: row_scale(bits, format))
        else:
            wholes, rows = whole, ""
        codes = generic(
            [(amax, lead), (wholes, rows)], lead, byte,
            lambda bits, whole: arith.trunci(byte, block_scale(bits, whole, format)),
        )  # fmt: skip
        scales = _renamed(codes, format.scale.mlir)

        def element(value: ir.Value, scale: ir.Value, whole: ir.Value) -> ir.Value:
            unit = constant(1.0, f32) / whole
            unit = unit / arith.extf(f32, scale)
            steps = as_bits(value * unit)
            return arith.trunci(_integer(4), element_code(steps, None, format.element))

        inner = f"{lead} kb"
        reads = [(blocks, inner), (scales, lead), (wholes, rows)]
        elements = generic(reads, inner, _integer(4), element)
    return _renamed(elements, format.element.mlir), scales, wholes


def _codes(x: ir.Value, format: BlockFormat, recipe: ScaleRecipe) -> tuple[ir.Value, ir.Value]:
    """Codes and scale bytes of x f32: integers [.., KO, 32]; for 6 bits i8 [.., KO, 8, 3]."""
    element, byte = format.element, _integer(8)
    blocks = _blocks(x, [format.block])
    amax = _amax(blocks)
    lead = axes_of(amax)

    def scale(largest: ir.Value) -> ir.Value:
        return arith.trunci(byte, scale_byte(largest, element, recipe))

    def code(value: ir.Value, scale: ir.Value) -> ir.Value:
        return element_code(as_bits(value), arith.extui(_integer(32), scale), element)

    def word(value: ir.Value, scale: ir.Value, others: ir.Value) -> ir.Value:
        place = arith.index_cast(_integer(32), linalg.IndexOp(len(shape_of(amax)) + 1).result)
        shift = place * i32(element.bits)
        return others | code(value, scale) << shift

    def part(word: ir.Value) -> ir.Value:
        place = arith.index_cast(_integer(32), linalg.IndexOp(len(shape_of(amax)) + 1).result)
        return arith.trunci(byte, word >> place * i32(8))

    scales = generic([(amax, lead)], lead, byte, scale)
    if element.bits == 6:
        inner = f"{lead} kw"
        fours = (_blocks(x, [format.block // 4, 4]), f"{inner} kb")
        words = generic([fours, (scales, lead)], inner, _integer(32), word)
        return generic([(words, inner)], f"{inner} kn", byte, part, sizes={"kn": 3}), scales
    inner, kind = f"{lead} kb", _integer(element.bits)
    pair = [(blocks, inner), (scales, lead)]
    return generic(pair, inner, kind, lambda x, s: arith.trunci(kind, code(x, s))), scales


def _blocks(x: ir.Value, inner: Sequence[int]) -> ir.Value:
    """Reshape x f32 [.., K] to [.., KO, inner..]."""
    *lead, depth = shape_of(x)
    block = int(np.prod(inner))
    if element_of(x) != ir.F32Type.get() or depth < 0 or depth % block:
        raise ValueError(f"wanted f32 [.., K] with K a multiple of {block}, got {x.type}")
    sizes = [*lead, depth // block, *inner]
    dynamic = dynamic_sizes(x)
    groups = [*([axis] for axis in range(len(lead))), list(range(len(lead), len(sizes)))]
    kind = ir.RankedTensorType.get(sizes, ir.F32Type.get())
    return tensor.expand_shape(kind, x, groups, dynamic, sizes)


def _amax(blocks: ir.Value) -> ir.Value:
    """The bits of the largest magnitudes of blocks f32 [.., KO, block]: i32 [.., KO]."""
    loops = axes_of(blocks)

    def largest(value: ir.Value, acc: ir.Value) -> ir.Value:
        magnitude = arith.bitcast(_integer(32), value) & i32(MAGNITUDE)
        return arith.maxsi(magnitude, acc)

    return generic([(blocks, loops)], loops.rpartition(" ")[0], _integer(32), largest)


def _renamed(value: ir.Value, element: str) -> ir.Value:
    """Bitcast a tensor of integers to another type of the same width."""
    kind = ir.Type.parse(element)
    if kind == element_of(value):
        return value
    target = ir.RankedTensorType.get(shape_of(value), kind)
    sizes = dynamic_sizes(value)
    return flow.TensorBitCastOp(target, value, sizes, sizes).result


def _integer(width: int) -> ir.Type:
    return ir.IntegerType.get_signless(width)
