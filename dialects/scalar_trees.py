"""Express one element of a tensor by the elements that it is computed from.

`tree_of` follows a tensor upwards, through operations that move elements (reshapes, transposes,
broadcasts, slices, concatenations) and operations that compute each element from others (linalg
over parallel loops, lookups in constant tables). The result is a tree over
`TensorElement`s, which are elements of tensors at affine indices:

    %lo = linalg.generic(%bytes) { andi %b, 15 }                 [N, K / 2]
    %w = linalg.generic(%lo) { extract %values[%lo] }
    %w at (n, k)    is    TableElement(values,
                              Apply(andi, TensorElement(%bytes, (n, k)), Literal(15)))

Arithmetic on indices stays affine where possible: `remui (linalg.index 1), 2` is
AffineIndex(d1 mod 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from iree.compiler import ir

from mxc.dialects.dequantize import is_elementwise
from mxc.dialects.indexing import (
    Indices,
    bound,
    dims,
    indexing_maps,
    moved,
    plus,
    quotient,
    remainder,
    resolve,
    times,
)
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.scalar_nodes import (
    AffineIndex,
    Apply,
    Cast,
    Literal,
    Select,
    TableElement,
    TensorElement,
    Tree,
)
from mxc.dialects.scalar_operations import Array, bits_of
from mxc.dialects.tensor_constants import constant_of, splat_number

#: Most bits of codes of elements and scales.
_CODE_BITS = 8

#: Whether to follow the elements of a tensor upwards; otherwise they are leaves (TensorElement).
Enter = Callable[[ir.Value], bool]


def tree_of(
    value: ir.Value, at: Sequence[ir.AffineExpr], ranges: Sequence[int | None], enter: Enter
) -> Tree:
    """The tree of the element of the tensor `value` at indices over loops of `ranges`."""
    return _Walk(ranges, enter).element(value, list(at))


def body_tree(
    op: ir.Operation, value: ir.Value, ranges: Sequence[int | None], enter: Enter
) -> Tree | None:
    """The tree of a scalar in the body of a linalg operation, over its loops; else None."""
    loops = [ir.AffineDimExpr.get(i) for i in range(len(ranges))]
    return _Walk(ranges, enter).body(op, value, loops)


def inputs_of(op: ir.Operation) -> list[ir.Value] | None:
    """The tensors from which the elements of the result of `op` are computed or moved.

    None for an operation that does anything else.
    """
    if op.name in _MOVES:
        return [op.operands[0]]
    if op.name in ("tensor.concat", "tensor.insert_slice"):
        return [v for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    if op.name in (GATHER, "tensor.gather"):
        return list(op.operands)[:2]
    if op.name in ("linalg.fill", "tensor.empty"):
        return []
    if op.name.startswith("linalg.") and len(op.results) == 1 and len(op.regions) == 1:
        if not is_elementwise(op) or not op.regions[0].blocks:
            return None
        block = op.regions[0].blocks[0]
        if list(block.arguments[len(block.arguments) - 1].uses):
            return None
        tables = [
            view.operation.operands[0]
            for view in block.operations
            if view.operation.name == "tensor.extract"
        ]
        return [*list(op.operands)[:-1], *tables]
    return None


_MOVES = frozenset((
    "tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice", "tensor.cast",
    "tensor.bitcast",
))  # fmt: skip


class _Walk:
    def __init__(self, ranges: Sequence[int | None], enter: Enter) -> None:
        self._ranges, self._enter = ranges, enter

    def element(self, value: ir.Value, at: Indices) -> Tree:
        """The tree of the element of a tensor at affine indices."""
        here = TensorElement(value, tuple(at))
        table = constant_of(value)
        if table is not None and not self._is_weight(here):
            return _constant(table, here.type, [AffineIndex(e, ir.IndexType.get()) for e in at])
        if isinstance(value, ir.BlockArgument) or not self._enter(value):
            return here
        found = self._made(value.owner, at, here.type)
        return here if found is None else found

    def _is_weight(self, read: TensorElement) -> bool:
        """Whether a constant is read as codes over many places, not as a table of two entries."""
        narrow = bits_of(read.type) <= _CODE_BITS
        return narrow and any(bound(index, self._ranges) > 1 for index in read.at)

    def _made(self, op: ir.Operation, at: Indices, kind: ir.Type) -> Tree | None:
        step = moved(op, at, self._ranges)
        if step is not None:
            return self.element(*step)
        if op.name == "tensor.empty":
            # The content of an unwritten tensor: not a number of any format.
            return Literal(math.nan if isinstance(kind, ir.FloatType) else 0, kind)
        if op.name == "tensor.bitcast":
            return Cast(self.element(op.operands[0], at), kind)
        if op.name == "tensor.cast":
            return self.element(op.operands[0], at)
        if op.name == "tensor.concat":
            return self._concatenated(op, at)
        if op.name == "tensor.insert_slice":
            return self._inserted(op, at)
        if op.name == GATHER:
            return self._gathered(op, at)
        if op.name.startswith("linalg.") and inputs_of(op) is not None:
            written = dims(indexing_maps(op)[-1])
            if sorted(-1 if loop is None else loop for loop in written) != list(range(len(at))):
                return None
            places = dict(zip(written, at, strict=True))
            end = list(op.regions[0].blocks[0].operations)[-1].operation
            return self.body(op, end.operands[0], [places[i] for i in range(len(at))])
        return None

    def body(self, op: ir.Operation, value: ir.Value, loops: Indices) -> Tree | None:
        """The tree of a scalar in the body of `op` at these loops; None where it is unknown."""
        block = op.regions[0].blocks[0]
        known: dict[ir.Value, Tree | None] = {}

        def scalar(value: ir.Value) -> Tree | None:
            if value not in known:
                known[value] = made(value)
            return known[value]

        def made(value: ir.Value) -> Tree | None:
            if isinstance(value, ir.BlockArgument):
                if value.owner != block:
                    return None
                operand = op.operands[value.arg_number]
                if not isinstance(operand.type, ir.RankedTensorType):
                    return scalar(operand)
                affine = indexing_maps(op)[value.arg_number]
                at = [resolve(e, loops, self._ranges) for e in affine.results]
                return self.element(operand, at)
            inner = value.owner
            if inner.name == "arith.constant":
                number = splat_number(inner.attributes["value"])
                return None if number is None else Literal(number, value.type)
            if inner.name == "linalg.index":
                return AffineIndex(loops[ir.IntegerAttr(inner.attributes["dim"]).value], value.type)
            extracts = inner.name == "tensor.extract"
            inputs = [scalar(v) for v in list(inner.operands)[extracts:]]
            whole = tuple(each for each in inputs if each is not None)
            if len(whole) != len(inputs) or len(inner.results) != 1 or len(inner.regions):
                return None
            if extracts:
                return self._extracted(inner, whole)
            return self._affine(inner, whole) or Apply(inner, whole)

        return scalar(value)

    def _extracted(self, op: ir.Operation, at: Sequence[Tree]) -> Tree | None:
        """An element of a constant table, or of any tensor at affine indices."""
        table = constant_of(op.operands[0])
        if table is not None:
            return _constant(table, op.results[0].type, at)
        places = [_affine_of(index) for index in at]
        known = [place for place in places if place is not None]
        return self.element(op.operands[0], known) if len(known) == len(places) else None

    def _gathered(self, op: ir.Operation, at: Indices) -> Tree | None:
        """An element of a constant table at an index that is read."""
        source, numbers = op.operands[0], op.operands[1]
        table, rank = constant_of(source), ir.RankedTensorType(numbers.type).rank
        along = ir.DenseI64ArrayAttr(op.attributes["dimension_map"])
        if table is None or list(along) != [0] or len(at) != rank + table.ndim - 1:
            return None
        rest = [AffineIndex(e, ir.IndexType.get()) for e in at[rank:]]
        kind = ir.RankedTensorType(source.type).element_type
        return _constant(table, kind, [self.element(numbers, at[:rank]), *rest])

    def _concatenated(self, op: ir.Operation, at: Indices) -> Tree | None:
        """An element of a concatenation of tensors of equal size, as a choice among them."""
        axis = ir.IntegerAttr(op.attributes["dim"]).value
        sizes = {int(ir.RankedTensorType(value.type).shape[axis]) for value in op.operands}
        if len(sizes) != 1 or min(sizes) < 1:
            return None
        size = sizes.pop()
        inside = [*at]
        inside[axis] = remainder(at[axis], size, self._ranges)
        cases = [self.element(value, inside) for value in op.operands]
        number = quotient(at[axis], size, self._ranges)
        return Select(number, tuple(enumerate(cases[:-1])), cases[-1])

    def _inserted(self, op: ir.Operation, at: Indices) -> Tree | None:
        """An element after a slice was inserted along one axis: strided, or one of equal parts."""
        whole = list(ir.RankedTensorType(op.operands[1].type).shape)
        offsets, sizes, strides = (
            list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"]))
            for name in ("offsets", "sizes", "strides")
        )
        axes = [i for i, size in enumerate(whole) if (offsets[i], sizes[i]) != (0, size)]
        if len(axes) != 1 or whole[axes[0]] < 1:
            return None
        (axis,) = axes
        offset, size, stride, extent = offsets[axis], sizes[axis], strides[axis], whole[axis]
        inside = [*at]
        if stride > 1 and size * stride == extent and offset < stride:
            number, case, count = remainder(at[axis], stride, self._ranges), offset, stride
            inside[axis] = quotient(at[axis], stride, self._ranges)
        elif stride == 1 and size > 0 and offset % size == 0 and extent % size == 0:
            number, case = quotient(at[axis], size, self._ranges), offset // size
            count = extent // size
            inside[axis] = remainder(at[axis], size, self._ranges)
        else:
            return None
        source = ir.RankedTensorType(op.operands[0].type)
        if source.rank != len(whole):
            kept = [i for i, each in enumerate(sizes) if each != 1]
            if len(kept) != source.rank:
                return None
            inside = [inside[i] for i in kept]
        before = self.element(op.operands[1], at)
        cases = {case: self.element(op.operands[0], inside)}
        if isinstance(before, Select) and before.at == number:
            # Merge with earlier insertions; a later one replaces an earlier one at its place.
            cases, before = dict(before.cases) | cases, before.otherwise
        if len(cases) == count:
            before = cases.pop(max(cases))
        return Select(number, tuple(sorted(cases.items())), before)

    def _affine(self, op: ir.Operation, inputs: Sequence[Tree]) -> Tree | None:
        """Arithmetic of an index with constants that are not negative, as an affine expression."""
        if not inputs or not isinstance(inputs[0], AffineIndex):
            return None
        kind, left = op.results[0].type, inputs[0].at
        if op.name in _CASTS:
            width = getattr(kind, "width", 64) - 1
            return AffineIndex(left, kind) if bound(left, self._ranges) < 1 << width else None
        if len(inputs) != 2 or isinstance(kind, ir.FloatType):
            return None
        if isinstance(inputs[1], AffineIndex) and op.name == "arith.addi":
            return AffineIndex(plus(left, inputs[1].at), kind)
        by = inputs[1].number if isinstance(inputs[1], Literal) else -1
        if not isinstance(by, int) or not 0 < by < 1 << 31:
            return None
        if op.name in ("arith.divui", "arith.divsi", "arith.floordivsi"):
            return AffineIndex(quotient(left, by, self._ranges), kind)
        if op.name in ("arith.remui", "arith.remsi"):
            return AffineIndex(remainder(left, by, self._ranges), kind)
        if op.name == "arith.andi" and by & (by + 1) == 0:
            return AffineIndex(remainder(left, by + 1, self._ranges), kind)
        if op.name == "arith.muli":
            return AffineIndex(times(left, by), kind)
        if op.name == "arith.shrui":
            return AffineIndex(quotient(left, 1 << by, self._ranges), kind)
        if op.name == "arith.shli":
            return AffineIndex(times(left, 1 << by), kind)
        return None


_CASTS = frozenset((
    "arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci",
))  # fmt: skip


def _constant(table: Array, kind: ir.Type, at: Sequence[Tree]) -> Tree:
    """An element of a table; a number where all elements are equal."""
    if table.size and not any(table.strides):
        first = table.reshape(-1)[0]
        return Literal(float(first) if isinstance(kind, ir.FloatType) else int(first), kind)
    return TableElement(table, kind, tuple(at))


def _affine_of(tree: Tree) -> ir.AffineExpr | None:
    if isinstance(tree, AffineIndex):
        return tree.at
    if isinstance(tree, Literal) and isinstance(tree.number, int):
        return ir.AffineConstantExpr.get(tree.number)
    return None
