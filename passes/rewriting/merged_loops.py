"""Rebuild a linalg.generic without loops of one iteration, and with adjacent loops merged.

IREE does this later, and drops schedules on the way. So a pass that sets a schedule does it first.

    (b, m, n, k): x[b, m, k], w[n, k], y[b, m, n]   with b and m as one loop is
    (m, n, k):    x[m, k],    w[n, k], y[m, n]      with reshapes of x and y
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import prod

from iree.compiler import ir
from iree.compiler.dialects import linalg, tensor

from mxc.dialects.dequantize import iterators
from mxc.dialects.indexing import dims, indexing_maps
from mxc.dialects.sizes import size_of
from mxc.passes.rewriting.rebuild import discardable, replace

#: Loops that are merged into one, the outermost first.
Group = Sequence[int]


def merged(
    reads: Sequence[Sequence[int | None]], loops: Sequence[int], known: Collection[int]
) -> list[list[int]]:
    """Divide `loops` into groups that can be merged: each operand has all loops of a group, in
    adjacent dimensions in this order, or none of them.

    `reads`: for each operand, the loop that indexes each dimension. `known`: the loops that have
    several iterations; dimensions of others are ignored.
    """
    own = [[loop for loop in read if loop in known] for read in reads]
    after = [dict(pairwise(read)) for read in own]
    groups: list[list[int]] = []
    for loop in loops:
        for group in groups:
            places = zip(own, after, strict=True)
            if all(
                next.get(group[-1]) == loop if loop in read else group[-1] not in read
                for read, next in places
            ):
                group.append(loop)
                break
        else:
            groups.append([loop])
    return groups


def with_loops(
    op: ir.Operation,
    groups: Sequence[Group],
    reads: Sequence[Sequence[int | None]] | None = None,
) -> ir.Operation:
    """Rebuild `op` with one loop for each group, in this order, and return the new operation.

    All other loops must have one iteration, operands must have the groups as `merged` finds them,
    and the body must read no index. `reads`: for each operand, the loop that indexes each
    dimension; by default from the indexing maps, in which each index must then be a single loop.
    """
    places = {loop: place for place, group in enumerate(groups) for loop in group}
    reads = [dims(affine) for affine in indexing_maps(op)] if reads is None else reads
    maps, values, last = [], [], None
    with ir.InsertionPoint(op), op.location:
        for value, read in zip(op.operands, reads, strict=True):
            last = _Axes([places.get(-1 if loop is None else loop) for loop in read])
            values.append(last.merged(value))
            expressions = [ir.AffineExpr.get_dim(place) for place in last.kept]
            maps.append(ir.AffineMapAttr.get(ir.AffineMap.get(len(groups), 0, expressions)))
        new = linalg.GenericOp(
            [values[-1].type],
            values[:-1],
            values[-1:],
            ir.ArrayAttr.get(maps),
            ir.ArrayAttr.get([iterators(op)[group[0]] for group in groups]),
        )
        for name in discardable(op):
            new.attributes[name] = op.attributes[name]
        op.regions[0].blocks[0].append_to(new.regions[0])
        assert last is not None
        result = last.split(new.results[0], op.operands[len(values) - 1])
    replace(op, result)
    return new.operation


class _Axes:
    """The dimensions of an operand, in groups by new loop. `places`: the new loop of each
    dimension, None for dimensions of size 1 without one."""

    def __init__(self, places: Sequence[int | None]) -> None:
        #: New loops of the merged tensor.
        self.kept: list[int] = []
        self._groups: list[list[int]] = []
        ones: list[int] = []
        for axis, place in enumerate(places):
            if place is None:
                # A dimension of size 1 joins the group before it, or the first one.
                (self._groups[-1] if self._groups else ones).append(axis)
            elif self.kept[-1:] == [place]:
                self._groups[-1].append(axis)
            else:
                self.kept.append(place)
                self._groups.append([*ones, axis])
                ones = []
        self._rank = len(places)

    def merged(self, value: ir.Value) -> ir.Value:
        """Collapse the dimensions of `value` to one for each new loop."""
        if len(self.kept) == self._rank:
            return value
        whole = ir.RankedTensorType(value.type)
        sizes = [[whole.shape[axis] for axis in group] for group in self._groups]
        dynamic = ir.ShapedType.get_dynamic_size()
        shape = [dynamic if min(each) < 0 else prod(each) for each in sizes]
        kind = ir.RankedTensorType.get(shape, whole.element_type)
        return tensor.CollapseShapeOp(kind, value, self._attribute()).result

    def split(self, value: ir.Value, like: ir.Value) -> ir.Value:
        """Expand `value` to the dimensions of `like`, the argument of `merged`."""
        if len(self.kept) == self._rank:
            return value
        whole = ir.RankedTensorType(like.type)
        given = [size_of(like, axis) for axis, size in enumerate(whole.shape) if size < 0]
        return tensor.ExpandShapeOp(
            whole,
            value,
            self._attribute(),
            output_shape=given,
            static_output_shape=whole.shape,
        ).result

    def _attribute(self) -> ir.ArrayAttr:
        i64 = ir.IntegerType.get_signless(64)
        return ir.ArrayAttr.get(
            [
                ir.ArrayAttr.get([ir.IntegerAttr.get(i64, axis) for axis in group])
                for group in self._groups
            ]
        )
