"""Decodes a block of a scaled operand by the instructions that the GPU has for its elements."""

from __future__ import annotations

from dataclasses import replace
from math import log2

from iree.compiler import ir

from mxc.formats.formats import E8M0
from mxc.passes.kernels.gpu.decode import Register, decode, decode_unscaled
from mxc.passes.kernels.gpu.decode_bits import decode_bits
from mxc.passes.kernels.gpu.decode_fnuz import decode_fnuz
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.vectors import i8, splat
from mxc.targets.matrix_unit import MatrixUnit

#: The E8M0 code of the scale 1.
ONE = 127


def decoded_block(
    kind: ScaledBlocks,
    unit: MatrixUnit,
    register: Register,
    block: ir.Value,
    scales: ir.Value | None,
) -> list[ir.Value]:
    """Decode a block, i8, under its scales, i8 [n], to floats: runs of 8 along K.

    If the scales are f32, elements are decoded without them, because they multiply sums.
    """
    format = kind.format
    # Whether v_cvt_scalef32_* decode the elements.
    converts = unit.converts and not kind.is_fnuz
    if kind.has_f32_scales and converts:
        return decode_unscaled(block, format.element, register)
    if kind.has_f32_scales:
        # A constant E8M0 scale: 1 for floats. Under 1 an integer of 1 would be `min_positive`, so
        # integers get the scale that makes it `value_of_one`.
        least = 1 if format.element.exponent else format.element.min_positive
        code = ONE + int(log2(kind.value_of_one / least))
        format, scales = replace(format, scale=E8M0), splat(code, i8(), 1)
    assert scales is not None
    if converts:
        return decode(block, scales, format, register)
    if unit.extends_fnuz:
        return decode_fnuz(block, scales, format)
    return decode_bits(block, scales, format)
