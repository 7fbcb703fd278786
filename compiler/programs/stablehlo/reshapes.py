"""Reshapes and broadcasts of StableHLO whose sizes come with the call."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from iree.compiler import ir
from iree.compiler.dialects import arith, cf, tensor

from mxc.compiler.programs.reshape_groups import same_elements
from mxc.compiler.programs.stablehlo.sizes import DimensionSizes
from mxc.dialects.generic import generic
from mxc.dialects.sizes import value_of
from mxc.passes.rewriting.split_loops import reassociation, reshape


def reshaped(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """`stablehlo.dynamic_reshape`."""
    value, wanted = op.operands
    kind = ir.RankedTensorType(op.results[0].type)
    if 0 in (kind.rank, ir.RankedTensorType(value.type).rank):
        return None
    after = [sizes.element(wanted, axis) for axis in range(kind.rank)]
    groups = same_elements(sizes.of(value), after)
    merged = value
    if any(len(left) != 1 for left, _ in groups):
        # Groups of which both sides have several dimensions go through one of all their elements.
        merged = tensor.CollapseShapeOp(
            _merged(ir.RankedTensorType(value.type), [left for left, _ in groups]),
            value,
            reassociation([left for left, _ in groups]),
        ).result
    whole = _merged(kind, [right for _, right in groups])
    if merged.type != whole:
        merged = tensor.cast(whole, merged)
    found = merged
    if any(len(right) != 1 for _, right in groups):
        dynamic = [
            sizes.index(wanted, axis) for axis in range(kind.rank) if kind.is_dynamic_dim(axis)
        ]
        found = tensor.ExpandShapeOp(
            kind,
            merged,
            reassociation([right for _, right in groups]),
            output_shape=dynamic,
            static_output_shape=kind.shape,
        ).result
    sizes.record(found, after)
    return found


def _merged(kind: ir.RankedTensorType, groups: Sequence[Sequence[int]]) -> ir.Type:
    """The type with one dimension for each group of those of `kind`."""
    sizes = [[kind.shape[axis] for axis in group] for group in groups]
    unknown = ir.ShapedType.get_dynamic_size()
    shape = [unknown if min(each, default=1) < 0 else prod(each) for each in sizes]
    return ir.RankedTensorType.get(shape, kind.element_type)


def broadcast(op: ir.Operation, sizes: DimensionSizes) -> ir.Value:
    """`stablehlo.dynamic_broadcast_in_dim`.

    A dimension whose size comes with the call is not repeated: where it is not known to have that
    of the result, an assertion says so when the program runs.
    """
    value, wanted = op.operands
    source, kind = (ir.RankedTensorType(each.type) for each in (value, op.results[0]))
    places = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    after = [sizes.element(wanted, axis) for axis in range(kind.rank)]
    kept = []
    for axis, (size, place) in enumerate(zip(sizes.of(value), places, strict=True)):
        if size == after[place]:
            kept.append(axis)
        elif source.shape[axis] != 1:
            kept.append(axis)
            dimension = tensor.dim(value, value_of(axis))
            equal = arith.cmpi(arith.CmpIPredicate.eq, dimension, sizes.index(wanted, place))
            cf.AssertOp(equal, f"a broadcast repeats dimension {axis}, whose size is not 1")
    letters = [f"d{axis}" for axis in range(kind.rank)]
    counts: dict[str, int | ir.Value] = {
        letter: sizes.index(wanted, axis) if kind.is_dynamic_dim(axis) else kind.shape[axis]
        for axis, letter in enumerate(letters)
    }
    read = " ".join(letters[places[axis]] for axis in kept)
    whole = reshape(value, [[axis] if axis in kept else [] for axis in range(source.rank)], [])
    found = generic(
        [(whole, read)],
        " ".join(letters),
        kind.element_type,
        lambda each: each,
        sizes=counts,
    )
    sizes.record(found, after)
    return found
