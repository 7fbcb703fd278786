"""Slices of a tensor that are read in place, `tensor.extract_slice`: built, matched, traced."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from iree.compiler import ir
from iree.compiler.dialects import tensor

from mxc.dialects.indexing import Indices, plus, times, trace
from mxc.dialects.sizes import constant, element_of, kept_axes, shape_of, size_of, value_of


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


def widened(x: ir.Value, width: int) -> ir.Value:
    """Pad x [.., N] with zeros to [.., width]; x itself where N is `width`."""
    *lead, size = shape_of(x)
    if size == width:
        return x
    none, index = [0] * len(lead), ir.IndexType.get()
    kind = ir.RankedTensorType.get([*lead, width], element_of(x))
    op = tensor.PadOp(kind, x, [], [], [*none, 0], [*none, width - size])
    with ir.InsertionPoint(op.regions[0].blocks.append(*[index] * len(shape_of(x)))):
        tensor.YieldOp(constant(0.0, element_of(x)))
    return op.result


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


def sliced_trace(
    value: ir.Value, indices: Sequence[ir.AffineExpr], ranges: Sequence[int | None]
) -> tuple[ir.Value, Indices, int | None]:
    """Like `trace`, but also through slices at static places. The third result is the number of
    elements of the slice that is nearest to `value`; None without a slice."""
    count: int | None = None
    value, at = trace(value, indices, ranges)
    while not isinstance(value, ir.BlockArgument):
        inside = _in_source(value, at)
        if inside is None:
            break
        count = prod(shape_of(value)) if count is None else count
        value, at = trace(value.owner.operands[0], inside, ranges)
    return value, at, count


def _in_source(value: ir.Value, at: Sequence[ir.AffineExpr]) -> Indices | None:
    """The indices in the source of a static slice that is read at `at`; None for other values."""
    op = value.owner
    if op.name != "tensor.extract_slice" or len(op.operands) > 1:
        return None
    offsets, sizes, strides = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"]))
        for name in ("offsets", "sizes", "strides")
    )
    found: Indices = [ir.AffineConstantExpr.get(offset) for offset in offsets]
    for axis, index in zip(kept_axes(sizes, shape_of(value)), at, strict=True):
        found[axis] = plus(times(index, strides[axis]), found[axis])
    return found
