"""Reshapes of static tensors, for what goes into a kernel and comes out of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import flow, tensor

from mxc.dialects.generic import element_of, shape_of


def reshape(value: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """The elements of `value`, in their order, as a tensor of `sizes`. Moves nothing."""
    if list(sizes) == shape_of(value):
        return value
    element, rank = element_of(value), len(shape_of(value))
    flat = value
    if rank > 1:
        kind = ir.RankedTensorType.get([math.prod(sizes)], element)
        flat = tensor.collapse_shape(kind, value, [list(range(rank))])
    if len(sizes) == 1:
        return flat
    kind = ir.RankedTensorType.get(list(sizes), element)
    return tensor.expand_shape(kind, flat, [list(range(len(sizes)))], [], list(sizes))


def as_bytes(value: ir.Value) -> ir.Value:
    """The same memory as i8, the last dimension counted in bytes."""
    element = element_of(value)
    width: int = element.width
    if isinstance(element, ir.IntegerType) and width == 8:
        return value
    *lead, last = shape_of(value)
    kind = ir.RankedTensorType.get([*lead, last * width // 8], ir.IntegerType.get_signless(8))
    return flow.TensorBitCastOp(kind, value, [], []).result


def as_memref(value: ir.Value, memref: ir.Type) -> ir.Value:
    """A tensor as the one that a memref of this type is."""
    kind = ir.MemRefType(memref)
    if element_of(value) != kind.element_type:
        value = as_bytes(value)
    return reshape(value, list(kind.shape))


def packed_as(value: ir.Value, wanted: ir.RankedTensorType) -> ir.Value:
    """The same memory as a static tensor of another shape, and elements of another width."""
    element = wanted.element_type
    if element == element_of(value):
        return reshape(value, list(wanted.shape))
    width: int = element.width
    *lead, last = wanted.shape
    packed = reshape(as_bytes(value), [*lead, last * width // 8])
    if element == element_of(packed):
        return packed
    return flow.TensorBitCastOp(wanted, packed, [], []).result


def as_tensor(memref: ir.Type) -> ir.Type:
    """The type of the tensor that a memref of this type is."""
    kind = ir.MemRefType(memref)
    return ir.RankedTensorType.get(kind.shape, kind.element_type)
