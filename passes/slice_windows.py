"""mxc-slice-windows: cut off what no window of a convolution or a pooling reaches.

IREE 3.13 removes the loop of a result that is one element wide, and with it the stride by which it
moves: a window of 3 then reads a tensor of width 3, where there is one of width 4. With known sizes
it refuses the program; with a dynamic batch it reads the wrong elements.

before:
    %y = linalg.conv_2d_nchw_fchw {strides = dense<2>} ins(%x, %w : tensor<?x4x7x4xf32>,
        tensor<8x4x3x3xf32>) outs(%zero : tensor<?x8x3x1xf32>)
after:
    %part = tensor.extract_slice %x[0, 0, 0, 0] [%n, 4, 7, 3] [1, 1, 1, 1]
    %y = linalg.conv_2d_nchw_fchw {strides = dense<2>} ins(%part, %w) outs(%zero)

Leaves alone: dimensions that are read to their end, of unknown size, or by loops that all have
several iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import tensor

from mxc.dialects.generic import shape_of
from mxc.dialects.indexing import dim_of, indexing_maps, loop_ranges
from mxc.dialects.scalar_nodes import loops_of
from mxc.dialects.sizes import size_of
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import linalg_operations


@dataclass(frozen=True)
class SliceWindows(Pass):
    """Slice operands that windows read in part."""

    name = "mxc-slice-windows"

    def run(self, module: ir.Operation) -> None:
        """Rewrite each operand of a linalg operation that has such a dimension."""
        for op in linalg_operations(module):
            ranges = loop_ranges(op)
            for number, affine in enumerate(indexing_maps(op)[:-1]):
                value = op.operands[number]
                if not isinstance(value.type, ir.RankedTensorType):
                    continue
                shape = shape_of(value)
                read = [
                    _read(expression, ranges, size)
                    for expression, size in zip(affine.results, shape, strict=True)
                ]
                if read != shape:
                    with ir.InsertionPoint(op), op.location:
                        op.operands[number] = _first(value, read)


def _read(expression: ir.AffineExpr, ranges: Sequence[int | None], size: int) -> int:
    """The number of elements of a dimension to keep; `size` where it is not sliced. `expression`:
    the index at which it is read."""
    if size < 0 or dim_of(expression) is not None:
        return size
    steps = [ranges[loop] for loop in loops_of([expression])]
    last = _last(expression, ranges)
    return size if last is None or 1 not in steps else min(size, last + 1)


def _last(expression: ir.AffineExpr, ranges: Sequence[int | None]) -> int | None:
    """The largest value of an expression of additions and multiplications of loops and constants;
    None for other expressions, and where a loop is dynamic."""
    found = expression.maybe_downcast()
    if isinstance(found, ir.AffineDimExpr):
        count = ranges[found.position]
        return None if count is None else count - 1
    if isinstance(found, ir.AffineConstantExpr):
        return int(found.value)
    if not isinstance(found, ir.AffineAddExpr | ir.AffineMulExpr):
        return None
    left, right = _last(found.lhs, ranges), _last(found.rhs, ranges)
    if left is None or right is None:
        return None
    return left + right if isinstance(found, ir.AffineAddExpr) else left * right


def _first(value: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """Slice a tensor to the first `sizes` elements along each dimension; dynamic dimensions
    (negative sizes) are kept."""
    kind = ir.RankedTensorType(value.type)
    return tensor.ExtractSliceOp(
        ir.RankedTensorType.get(sizes, kind.element_type),
        value,
        [],
        [size_of(value, axis) for axis, size in enumerate(sizes) if size < 0],
        [],
        static_offsets=[0] * kind.rank,
        static_sizes=sizes,
        static_strides=[1] * kind.rank,
    ).result
