"""Convolutions of StableHLO over sizes that come with the call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import linalg, tensor

from mxc.compiler.programs.stablehlo.edges import Edge, padded, window_count
from mxc.compiler.programs.stablehlo.products import (
    can_multiply,
    converted,
    multiply_add,
    wide_sums,
)
from mxc.compiler.programs.stablehlo.sizes import DimensionSizes
from mxc.dialects.generic import element_of, fill, generic
from mxc.dialects.sizes import axes_of, shape_of, size_of, split_dimension

#: What each dimension is: [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f].
_DIMENSIONS = re.compile(r"\[([^]]*)\]x\[([^]]*)\]->\[([^]]*)\]")
#: Convolutions of one group by the number of dimensions that have places. IREE would move the order
#: of the dimensions into a `linalg.generic`.
_NAMED = {1: linalg.conv_1d_nwc_wcf, 2: linalg.conv_2d_nhwc_hwcf, 3: linalg.conv_3d_ndhwc_dhwcf}


def convolution(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """`stablehlo.convolution` and `stablehlo.dynamic_conv` with a kernel of known sizes. bf16 and
    f16 are added up as f32.

    Features come last, as IREE's importer orders them too: its loops are twice as fast so.
    """
    value, kernel = op.operands[:2]
    element = element_of(op.results[0])
    text = _DIMENSIONS.search(str(op.attributes["dimension_numbers"]))
    assert text is not None
    given, taken, made = ([each.strip() for each in part.split(",")] for part in text.groups())
    groups = _number(op, "feature_group_count")
    if (
        not can_multiply((value, kernel), element)
        or min(*shape_of(kernel), shape_of(value)[given.index("f")]) < 1
        or _number(op, "batch_group_count") != 1
        or "true" in str(op.attributes.get("window_reversal", ""))
    ):
        return None
    spatial = [str(axis) for axis in range(len(given) - 2)]
    strides = _numbers(op, "window_strides", len(spatial))
    spread = _numbers(op, "rhs_dilation", len(spatial))
    whole = _padded(op, _transposed(value, given, ["b", *spatial, "f"]), sizes)
    kernel = _transposed(kernel, taken, [*spatial, "i", "o"])
    total = _summed(whole, kernel, groups, (strides, spread), wide_sums(element))
    if element_of(total) != element:
        axes = axes_of(total)
        total = generic([(total, axes)], axes, element, lambda each: converted(each, element))
    found = _transposed(total, ["b", *spatial, "f"], made)
    kind = op.results[0].type
    return found if found.type == kind else tensor.cast(kind, found)


def _summed(
    whole: ir.Value,
    kernel: ir.Value,
    groups: int,
    steps: tuple[Sequence[int], Sequence[int]],
    wide: ir.Type,
) -> ir.Value:
    """The sums, in type `wide`, of an operand [b, 0, .., f] and a kernel [0, .., i, o].

    `steps`: strides and dilations. The loops of groups are b, 0, .. (places of the result), g
    (groups), f (features of a group in the result), k0, .. (places of the kernel) and i (features
    of a group in the operand).
    """
    strides, spread = steps
    lengths = shape_of(kernel)[: len(strides)]
    rows = [size_of(whole, 0)]
    for number, length in enumerate(lengths):
        size = size_of(whole, 1 + number)
        rows.append(window_count(size, length, strides[number], spread[number]))
    if groups == 1 and len(strides) in _NAMED:
        start = fill([*rows, shape_of(kernel)[-1]], wide, 0)
        attributes = {"strides": strides, "dilations": spread}
        return _NAMED[len(strides)](whole, kernel, outs=[start], **attributes)
    whole = split_dimension(whole, -1, shape_of(whole)[-1] // groups)
    kernel = split_dimension(kernel, -1, shape_of(kernel)[-1] // groups)
    parallel = len(rows) + 2
    loops = [ir.AffineDimExpr.get(number) for number in range(parallel + len(lengths) + 1)]
    b, *out, g, f = loops[:parallel]
    *inner, i = loops[parallel:]
    reads = [
        each * stride + place * distance
        for each, place, stride, distance in zip(out, inner, strides, spread, strict=True)
    ]
    accesses = ([b, *reads, g, i], [*inner, i, g, f], loops[:parallel])
    maps = [ir.AffineMap.get(len(loops), 0, each) for each in accesses]
    kinds = [linalg.IteratorType.parallel] * parallel
    kinds += [linalg.IteratorType.reduction] * (len(loops) - parallel)
    start = fill([*rows, groups, shape_of(kernel)[-1]], wide, 0)
    total = linalg.generic([whole, kernel], [start], maps, kinds)(multiply_add)
    shape = [*shape_of(total)[:-2], groups * shape_of(kernel)[-1]]
    merged = [*([axis] for axis in range(parallel - 2)), [parallel - 2, parallel - 1]]
    return tensor.collapse_shape(ir.RankedTensorType.get(shape, wide), total, merged)


def _transposed(value: ir.Value, names: Sequence[str], wanted: Sequence[str]) -> ir.Value:
    """A tensor with its dimensions in another order, by their names."""
    if list(names) == list(wanted):
        return value
    order = [list(names).index(each) for each in wanted]
    shape = [shape_of(value)[axis] for axis in order]
    return ir.Operation.create(
        "stablehlo.transpose",
        results=[ir.RankedTensorType.get(shape, element_of(value))],
        operands=[value],
        attributes={"permutation": ir.DenseI64ArrayAttr.get(order)},
    ).result


def _padded(op: ir.Operation, value: ir.Value, sizes: DimensionSizes) -> ir.Value:
    """The first operand, [b, 0, .., f], with zeros around its places and between them."""
    count = len(shape_of(value)) - 2
    if op.name == "stablehlo.dynamic_conv":
        edges: list[Edge] = [sizes.index(op.operands[2], number) for number in range(2 * count)]
    elif "padding" in op.attributes:
        edges = [int(each) for each in ir.DenseIntElementsAttr(op.attributes["padding"])]
    else:
        edges = [0] * (2 * count)
    between = [each - 1 for each in _numbers(op, "lhs_dilation", count)]
    zero = fill([], element_of(value), 0)
    return padded(value, zero, [0, 0, *edges, 0, 0], [0, *between, 0])


def _number(op: ir.Operation, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)


def _numbers(op: ir.Operation, name: str, rank: int) -> list[int]:
    """A list of an attribute; ones where it is left out."""
    return list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else [1] * rank
