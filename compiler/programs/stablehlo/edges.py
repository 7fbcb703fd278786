"""Edges of tensors under windows, and how often a window has a place there.

Numbers are known, or index values where they come with the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.dialects.generic import element_of
from mxc.dialects.sizes import Size, shape_of, value_of

#: Elements that are added at an edge; a known number below zero takes elements away.
Edge: TypeAlias = Size


def padded(
    value: ir.Value,
    start: ir.Value,
    edges: Sequence[Edge],
    between: Sequence[int],
) -> ir.Value:
    """A tensor with copies of `start`, a tensor without dimensions, around it and in it.

    `edges`: how many before and after each dimension; `between`: how many after each element.
    """
    rank = len(shape_of(value))
    known = [each if isinstance(each, int) else 0 for each in edges]
    if any((*known, *between)):
        attributes = {
            "edge_padding_low": ir.DenseI64ArrayAttr.get(known[::2]),
            "edge_padding_high": ir.DenseI64ArrayAttr.get(known[1::2]),
            "interior_padding": ir.DenseI64ArrayAttr.get(between),
        }
        value = ir.Operation.create(
            "stablehlo.pad",
            results=None,
            operands=[value, start],
            attributes=attributes,
            infer_type=True,
        ).result
    given = [each for each in edges if not isinstance(each, int)]
    if not given:
        return value
    unknown = ir.ShapedType.get_dynamic_size()
    fixed = [0 if isinstance(each, int) else unknown for each in edges]
    shape = shape_of(value)
    for axis in range(rank):
        if unknown in fixed[2 * axis : 2 * axis + 2]:
            shape[axis] = unknown
    before, after = (
        [each for each in edges[side::2] if not isinstance(each, int)] for side in (0, 1)
    )
    kind = ir.RankedTensorType.get(shape, element_of(value))
    element = tensor.extract(start, [])
    found = tensor.PadOp(kind, value, before, after, fixed[::2], fixed[1::2])
    with ir.InsertionPoint(found.regions[0].blocks.append(*[ir.IndexType.get()] * rank)):
        tensor.YieldOp(element)
    return found.result


def window_count(size: Size, length: int, stride: int, spread: int) -> Size:
    """How many windows lie in so many elements. `spread`: the distance of two elements of one."""
    reach = (length - 1) * spread + 1
    if isinstance(size, int):
        return max(0, size - reach + stride) // stride
    begun = arith.addi(size, value_of(stride - reach))
    return arith.divsi(arith.maxsi(begun, value_of(0)), value_of(stride))
