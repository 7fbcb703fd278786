"""Reshapes of static tensors, for what goes into a kernel and comes out of it."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import tensor

from mxc.dialects.generic import element_of, shape_of


def split_last(value: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """[.., K] as [.., *sizes], whose product is K."""
    lead = shape_of(value)[:-1]
    groups = [*([i] for i in range(len(lead))), [len(lead) + i for i in range(len(sizes))]]
    shape = [*lead, *sizes]
    kind = ir.RankedTensorType.get(shape, element_of(value))
    return tensor.expand_shape(kind, value, groups, [], shape)


def add_leading(value: ir.Value) -> ir.Value:
    """[M, ..] as [1, M, ..]."""
    shape = shape_of(value)
    groups = [[0, 1], *([i + 1] for i in range(1, len(shape)))]
    kind = ir.RankedTensorType.get([1, *shape], element_of(value))
    return tensor.expand_shape(kind, value, groups, [], [1, *shape])


def collapse_leading(value: ir.Value) -> ir.Value:
    """[1, M, ..] as [M, ..]."""
    shape = shape_of(value)
    groups = [[0, 1], *([i] for i in range(2, len(shape)))]
    kind = ir.RankedTensorType.get([shape[0] * shape[1], *shape[2:]], element_of(value))
    return tensor.collapse_shape(kind, value, groups)
