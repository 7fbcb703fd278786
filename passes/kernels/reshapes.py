"""Reshape and bitcast tensors on their way into a kernel and out of it.

In a shape, dynamic sizes are negative, as in tensor types; their values are in `dynamic`, in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import flow, tensor

from mxc.dialects.generic import constant, element_of, shape_of
from mxc.dialects.sizes import dynamic_sizes
from mxc.passes.kernels.extents import Buffer, Size, dynamic_of, product, value_of


def scalars_of(value: ir.Value, groups: int | None, rows: int | None) -> list[ir.Value]:
    """The index values of those of the sizes `groups` and `rows` of a product that are None.

    `value`: the result, [rows, columns] or [groups, rows, columns]. If `groups` is 1, rows are all
    rows of the result.
    """
    sizes = iter(dynamic_sizes(value))
    *given, own, _ = [next(sizes) if size < 0 else size for size in shape_of(value)]
    count: Size = given[0] if given else 1
    if groups == 1:
        count, own = 1, product(count, own)
    pairs = ((groups, count), (rows, own))
    return [value_of(found) for known, found in pairs if known is None]


def reshape(value: ir.Value, sizes: Sequence[int], dynamic: Sequence[ir.Value] = ()) -> ir.Value:
    """Reshape `value` to a tensor of `sizes`, with the same elements in the same order. Nothing is
    moved in memory."""
    if list(sizes) == shape_of(value):
        return value
    element, rank = element_of(value), len(shape_of(value))
    pairs = zip(sizes, shape_of(value), strict=False)
    if rank == len(sizes) and [min(one) for one in pairs if one[0] != one[1] or one[0] < 0] == [
        ir.ShapedType.get_dynamic_size()
    ]:
        # Only one dimension differs, and is dynamic on one side: the size of the other side holds.
        return tensor.CastOp(ir.RankedTensorType.get(list(sizes), element), value).result
    flat = value
    if rank == 0:
        flat = tensor.expand_shape(ir.RankedTensorType.get([1], element), value, [], [], [1])
    if rank > 1:
        kind = ir.RankedTensorType.get([flat_size(shape_of(value))], element)
        flat = tensor.collapse_shape(kind, value, [list(range(rank))])
    if len(sizes) == 1:
        return flat
    kind = ir.RankedTensorType.get(list(sizes), element)
    static = [size if size >= 0 else ir.ShapedType.get_dynamic_size() for size in sizes]
    return tensor.expand_shape(kind, flat, [list(range(len(sizes)))], list(dynamic), static)


def flat_size(shape: Sequence[int]) -> int:
    """Number of elements of a shape; dynamic if a size is dynamic."""
    return math.prod(shape) if min(shape, default=1) >= 0 else ir.ShapedType.get_dynamic_size()


def as_bytes(value: ir.Value) -> ir.Value:
    """Bitcast a tensor to i8, with the last dimension counted in bytes."""
    element = element_of(value)
    width: int = element.width
    if isinstance(element, ir.IntegerType) and width == 8:
        return value
    sizes = dynamic_sizes(value)
    shape, made = _byte_sizes(shape_of(value), sizes, width)
    kind = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(8))
    return flow.TensorBitCastOp(kind, value, sizes, made).result


def _byte_sizes(
    shape: Sequence[int], dynamic: Sequence[ir.Value], width: int
) -> tuple[list[int], list[ir.Value]]:
    """Shape and dynamic sizes of a tensor whose last dimension is counted in bytes instead of
    elements of `width` bits."""
    *lead, last = shape
    if last >= 0:
        return [*lead, last * width // 8], list(dynamic)
    *others, count = dynamic
    each = constant(width // 8, ir.IndexType.get())
    return [*lead, last], [*others, count * each]


def as_memref(value: ir.Value, memref: ir.Type, dynamic: Sequence[ir.Value] = ()) -> ir.Value:
    """Reinterpret a tensor as the tensor with the shape and element type of a memref type."""
    return packed_as(value, as_tensor(memref), dynamic)


def as_buffer(value: ir.Value, buffer: Buffer) -> ir.Value:
    """Reinterpret a tensor as the tensor that is passed to a kernel for `buffer`."""
    return as_memref(value, buffer.memref, dynamic_of([buffer]))


def packed_as(
    value: ir.Value, wanted: ir.RankedTensorType, dynamic: Sequence[ir.Value] = ()
) -> ir.Value:
    """Reinterpret a tensor as one of another shape, and if its element type differs, the bytes as
    elements of that type. `dynamic`: the dynamic sizes of `wanted`."""
    element = wanted.element_type
    if element == element_of(value):
        return reshape(value, list(wanted.shape), dynamic)
    shape, sizes = _byte_sizes(wanted.shape, dynamic, element.width)
    packed = reshape(as_bytes(value), shape, sizes)
    if element == element_of(packed):
        return packed
    return flow.TensorBitCastOp(wanted, packed, sizes, list(dynamic)).result


def as_tensor(memref: ir.Type) -> ir.Type:
    """The tensor type with the shape and element type of a memref type."""
    kind = ir.MemRefType(memref)
    return ir.RankedTensorType.get(kind.shape, kind.element_type)
