"""Weights with float scales: the format in which a kernel reads them, or why none does.

    fp8, a scale per tensor or row      elements, and a factor per row of the result
    int8, a scale per tensor or row     the same; the factor includes the 1/64 of mxint8 elements
    fp8, int8 and int4 in groups,       elements, and an f32 per row and group, which multiplies
    fp8 in square blocks, Q8_0          the partial sum of the group; on GPUs one per square

A weight takes the bytes of its elements, and 4 bytes per row, per row and group, or per square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.dialects.contraction import OperandFormat
from mxc.dialects.reasons import Reason
from mxc.formats.formats import E4M3, E5M2, F32, INT4, INT8, BlockFormat
from mxc.passes.kernels.cpu.scales import fits
from mxc.passes.kernels.gpu.float_scales import blocks_of_scale
from mxc.passes.kernels.sources import BLOCK
from mxc.targets.matrix_unit import MatrixUnit

#: Formats of canonical tensors that may have float scales -> element format.
_ELEMENTS = {"f8_e4m3": E4M3, "f8_e5m2": E5M2, "i8": INT8, "q8_0": INT8, "int4": INT4}


def packed_format(tensor: CanonicalTensor, unit: MatrixUnit | None) -> BlockFormat | Reason:
    """Return the format in which a kernel reads a matrix with float scales, or why none does.

    unit: the matrix unit of the GPU whose kernels read it; None for CPUs.
    """
    element, depth = _ELEMENTS.get(tensor.format), tensor.shape[-1]
    if element is None:
        return Reason(f"kernels take {', '.join(_ELEMENTS)} under float scales")
    if depth % BLOCK:
        return Reason(f"rows have {depth} elements; kernels take multiples of {BLOCK}")
    width = depth if tensor.block is None else min(tensor.block[1], depth)
    if width == depth and element is not INT4:
        return BlockFormat(element.mlir, element, tensor_scale=True, unit_scales=True)
    # Where the last block of a row is cut short, the row is read in smaller blocks.
    block = gcd(width, depth)
    if unit is not None and isinstance(why := blocks_of_scale(element, block, unit), Reason):
        return why
    if unit is None and not fits(block):
        return Reason(
            f"a scale is for {width} of {depth} elements; kernels take 16 and multiples of {BLOCK}"
        )
    return BlockFormat(OperandFormat(element.mlir, F32.mlir, block).name, element, block, F32)


def sharing_rows(
    format: BlockFormat, tensors: Sequence[CanonicalTensor], shape: tuple[int, ...]
) -> BlockFormat:
    """The format of a weight [.., N, K] of these tensors, one behind the other, where rows share
    scales as in the checkpoint, if they do and no tensor or matrix begins within such rows."""
    heights = {1 if tensor.block is None else tensor.block[0] for tensor in tensors}
    if format.scale != F32 or len(heights) > 1:
        return format
    (height,) = heights
    ends = [tensor.shape[-2] for tensor in tensors]
    # Of one matrix the last rows may be fewer.
    ends = ends[:-1] if len(shape) == 2 else [shape[-2], *ends]
    if any(rows % height for rows in ends):
        return format
    name = OperandFormat(format.element.mlir, F32.mlir, format.block, rows=height).name
    return replace(format, name=name, rows=height)
