"""Convolutions of StableHLO over sizes that come with the call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import linalg, tensor

from mxc.compiler.programs.stablehlo.edges import Edge, padded, places
from mxc.compiler.programs.stablehlo.products import (
    can_multiply,
    converted,
    multiply_add,
    wide_sums,
)
from mxc.compiler.programs.stablehlo.sizes import DimensionSizes
from mxc.dialects.generic import element_of, fill, generic
from mxc.dialects.sizes import Size, axes_of, shape_of, size_of, split_dimension

#: What each dimension is: [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f].
_DIMENSIONS = re.compile(r"\[([^]]*)\]x\[([^]]*)\]->\[([^]]*)\]")


def convolution(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """`stablehlo.convolution` and `stablehlo.dynamic_conv` with a kernel of known sizes, as one
    `linalg.generic` over the padded operand. bf16 and f16 are added up as f32.

    Its loops are the letters of the dimensions: b, f (the features of a group in the result), i
    (those in the operand), g (groups), 0, 1, .. (places of the result) and k0, k1, .. (places of
    the kernel).
    """
    value, kernel = op.operands[:2]
    element = element_of(op.results[0])
    text = _DIMENSIONS.search(str(op.attributes["dimension_numbers"]))
    assert text is not None
    given, taken, made = ([each.strip() for each in part.split(",")] for part in text.groups())
    features, groups = given.index("f"), _number(op, "feature_group_count")
    if (
        not can_multiply((value, kernel), element)
        or min(*shape_of(kernel), shape_of(value)[features]) < 1
        or _number(op, "batch_group_count") != 1
        or "true" in str(op.attributes.get("window_reversal", ""))
    ):
        return None
    spatial = [str(axis) for axis in range(len(given) - 2)]
    strides = dict(zip(spatial, _numbers(op, "window_strides", len(spatial)), strict=True))
    spread = dict(zip(spatial, _numbers(op, "rhs_dilation", len(spatial)), strict=True))
    whole = _padded(op, [given.index(each) for each in spatial], sizes)
    extents: dict[str, Size] = {"b": size_of(value, given.index("b")), "g": groups}
    extents["f"] = shape_of(kernel)[taken.index("o")] // groups
    for each in spatial:
        size, length = size_of(whole, given.index(each)), shape_of(kernel)[taken.index(each)]
        extents[each] = places(size, length, strides[each], spread[each])
    result = _with_groups(made, "f", "f")
    loops = [*result, *(f"k{each}" for each in spatial), "i"]
    at = {loop: ir.AffineDimExpr.get(number) for number, loop in enumerate(loops)}
    reads = [
        at[each] * strides[each] + at[f"k{each}"] * spread[each] if each in spatial else at[each]
        for each in _with_groups(given, "f", "i")
    ]
    weights = [
        at[f"k{each}" if each in spatial else each] for each in _with_groups(taken, "o", "f")
    ]
    maps = [
        ir.AffineMap.get(len(loops), 0, each) for each in (reads, weights, [at[r] for r in result])
    ]
    kinds = [linalg.IteratorType.parallel] * len(result)
    kinds += [linalg.IteratorType.reduction] * (len(loops) - len(result))
    parts = [
        split_dimension(whole, features, shape_of(whole)[features] // groups),
        split_dimension(kernel, taken.index("o"), extents["f"]),
    ]
    start = fill([extents[each] for each in result], wide_sums(element), 0)
    total = linalg.generic(parts, [start], maps, kinds)(multiply_add)
    axes = axes_of(total)
    if element_of(total) != element:
        total = generic([(total, axes)], axes, element, lambda each: converted(each, element))
    merged = [[at + (at > made.index("f"))] for at in range(len(made))]
    merged[made.index("f")] = [made.index("f"), made.index("f") + 1]
    return tensor.collapse_shape(op.results[0].type, total, merged)


def _with_groups(names: Sequence[str], split: str, inner: str) -> list[str]:
    """Dimensions of which one is split into groups and what a group has."""
    return [each for name in names for each in (("g", inner) if name == split else (name,))]


def _padded(op: ir.Operation, axes: Sequence[int], sizes: DimensionSizes) -> ir.Value:
    """The first operand with zeros around its places and between them."""
    value = op.operands[0]
    between = [0] * len(shape_of(value))
    edges: list[Edge] = [0] * (2 * len(between))
    for axis, each in zip(axes, _numbers(op, "lhs_dilation", len(axes)), strict=True):
        between[axis] = each - 1
    count = 2 * len(axes)
    added: list[Edge] = [0] * count
    if op.name == "stablehlo.dynamic_conv":
        added = [sizes.index(op.operands[2], number) for number in range(count)]
    elif "padding" in op.attributes:
        added = [int(each) for each in ir.DenseIntElementsAttr(op.attributes["padding"])]
    for number, axis in enumerate(axes):
        edges[2 * axis : 2 * axis + 2] = added[2 * number : 2 * number + 2]
    return padded(value, fill([], element_of(value), 0), edges, between)


def _number(op: ir.Operation, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)


def _numbers(op: ir.Operation, name: str, rank: int) -> list[int]:
    """A list of an attribute; ones where it is left out."""
    return list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else [1] * rank
