"""Slices of a tensor that are read in place: a `tensor.extract_slice`, built and matched."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import tensor

from mxc.dialects.sizes import element_of, shape_of, size_of, value_of


def slice_of(
    x: ir.Value, offsets: Sequence[int], sizes: Sequence[int], kept: Sequence[int]
) -> ir.Value:
    """The slice of x at `offsets`; a size may be dynamic where the slice covers the whole axis.
    `kept`: the axes of the result."""
    kind = ir.RankedTensorType.get([sizes[axis] for axis in kept], element_of(x))
    dynamic = [value_of(size_of(x, axis)) for axis, size in enumerate(sizes) if size < 0]
    ones = [1] * len(sizes)
    return tensor.extract_slice(kind, x, [], dynamic, [], list(offsets), list(sizes), ones)


def columns_of(x: ir.Value, start: int, width: int) -> ir.Value:
    """x[.., start : start + width] of x [.., N]; x itself if that is all of it."""
    *lead, whole = shape_of(x)
    if width == whole:
        return x
    return slice_of(x, [*[0] * len(lead), start], [*lead, width], range(len(lead) + 1))


def columns_in(x: ir.Value) -> tuple[ir.Value, int]:
    """The tensor [T, N] of which x [T, W] is a slice of columns, and its first column; x itself and
    0 where x is no such slice."""
    if isinstance(x, ir.BlockArgument) or x.owner.name != "tensor.extract_slice":
        return x, 0
    op, source = x.owner, x.owner.operands[0]
    first = list(ir.DenseI64ArrayAttr(op.attributes["static_offsets"]))
    strides = list(ir.DenseI64ArrayAttr(op.attributes["static_strides"]))
    with ir.InsertionPoint(op):
        rows = [size_of(each, 0) for each in (x, source)]
    whole = len(shape_of(x)) == 2 and rows[0] == rows[1] and first[0] == 0
    return (source, first[1]) if whole and strides == [1, 1] and first[1] >= 0 else (x, 0)
