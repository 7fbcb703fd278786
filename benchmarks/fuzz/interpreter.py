"""An interpreter of tensor programs in numpy, operation by operation.

It runs a program after mxc's passes, before code generation, with the semantics of MLIR's
documentation: linalg over loops and indexing maps, arith and math elementwise, reshapes of
row-major tensors. Sums are computed in the order of the loops, each in its own type.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from iree.compiler import ir

from fuzz.scalars import computed, regrouped
from mxc.dialects.dequantize import iterators
from mxc.dialects.indexing import indexing_maps
from mxc.dialects.scalar_operations import FLOATS, Array, bits_of
from mxc.dialects.tensor_constants import constant_of, splat_number

_Known = dict[ir.Value, Array]


def call(function: ir.Operation, arguments: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Run a function of tensors, and return its results.

    Floats are returned in their type of numpy or ml_dtypes, integers as unsigned ones. Raises
    NotImplementedError at an operation that the interpreter does not know.
    """
    block = function.regions[0].blocks[0]
    known: _Known = {}
    for value, given in zip(block.arguments, arguments, strict=True):
        whole = given.dtype.kind in "iu"
        bits = given.view(f"u{given.dtype.itemsize}") if whole else given
        known[value] = bits.astype(np.uint64 if whole else np.float64)
    for view in block.operations:
        op = view.operation
        if op.name in ("func.return", "util.return"):
            return [_native(known[value], value.type.element_type) for value in op.operands]
        known[op.results[0]] = _result(op, known)
    raise NotImplementedError("a function without a return")


def _native(values: Array, kind: ir.Type) -> npt.NDArray[Any]:
    if isinstance(kind, ir.FloatType):
        return np.asarray(values.astype(FLOATS[str(kind)]))
    return np.asarray(values.astype(f"u{max(8, bits_of(kind)) // 8}"))


def _result(op: ir.Operation, known: _Known) -> Array:
    kind = op.results[0].type
    inputs = [known[value] for value in op.operands]
    if op.name == "arith.constant":
        return _constant(op)
    if op.name == "tensor.dim":
        return np.asarray(inputs[0].shape[int(inputs[1])], np.uint64)
    if op.name == "tensor.empty":
        return _unwritten(kind, inputs)
    if op.name.startswith("linalg."):
        return _Loops(op, known).result()
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"):
        return inputs[0].reshape([size if size >= 0 else -1 for size in kind.shape])
    if op.name == "tensor.concat":
        return np.concatenate(inputs, ir.IntegerAttr(op.attributes["dim"]).value)
    if op.name in ("flow.tensor.bitcast", "tensor.bitcast"):
        source = ir.RankedTensorType(op.operands[0].type).element_type
        return regrouped(inputs[0], source, kind.element_type)
    if op.name == "tensor.extract":
        return np.asarray(inputs[0][tuple(each.astype(np.intp) for each in inputs[1:])])
    if isinstance(kind, ir.ShapedType):
        raise NotImplementedError(f"no numpy for {op.name}")
    return computed(op, inputs)


def _constant(op: ir.Operation) -> Array:
    kind = op.results[0].type
    if isinstance(kind, ir.RankedTensorType):
        found = constant_of(op.results[0])
        if found is None:
            raise NotImplementedError(f"no numpy for a constant of {kind}")
        return found
    number = splat_number(op.attributes["value"])
    return np.asarray(number, np.float64 if isinstance(kind, ir.FloatType) else np.uint64)


def _unwritten(kind: ir.RankedTensorType, sizes: Sequence[Array]) -> Array:
    """Return a value for tensor.empty that a right program does not use: NaN, or 0xA5."""
    given = iter(sizes)
    shape = [size if size >= 0 else int(next(given)) for size in kind.shape]
    if isinstance(kind.element_type, ir.FloatType):
        return np.full(shape, np.nan)
    return np.full(shape, 0xA5, np.uint64)


class _Loops:
    """Evaluates a linalg operation. Its arrays have an axis for each loop, reductions first."""

    def __init__(self, op: ir.Operation, known: _Known) -> None:
        self._op, self._outer = op, known
        self._maps = indexing_maps(op)
        summed = ["reduction" in str(kind) for kind in iterators(op)]
        sizes = self._sizes()
        order = sorted(range(len(sizes)), key=lambda loop: not summed[loop])
        self._shape = tuple(sizes[loop] for loop in order)
        self._summed = sum(summed)
        #: The index of each loop, as an array that extends along the axis of the loop only.
        self._grid: list[Array] = [np.zeros(0)] * len(sizes)
        for axis, loop in enumerate(order):
            along = [1] * len(sizes)
            along[axis] = sizes[loop]
            self._grid[loop] = np.arange(sizes[loop]).reshape(along)

    def _sizes(self) -> list[int]:
        """Return the size of each loop, from the shapes of the operands."""
        sizes = [1] * self._maps[-1].n_dims
        for value, affine in zip(self._op.operands, self._maps, strict=True):
            shape = self._outer[value].shape
            for size, index in zip(shape, affine.results, strict=bool(shape)):
                if isinstance(index, ir.AffineDimExpr):
                    sizes[index.position] = size
        return sizes

    def result(self) -> Array:
        """Return the tensor that the operation gives."""
        block = self._op.regions[0].blocks[0]
        *inputs, init = block.arguments
        known: _Known = {
            argument: self._read(argument.arg_number) for argument in inputs if list(argument.uses)
        }
        before = self._read(init.arg_number)
        operations = [view.operation for view in block.operations]
        # Operations that depend on the accumulator are computed for one step of the reduction after
        # the other, all others for all steps at once.
        late: list[ir.Operation] = []
        behind = {init}
        for op in operations[:-1]:
            if any(value in behind for value in op.operands):
                late.append(op)
                behind.update(op.results)
            else:
                known[op.results[0]] = self._scalar(op, known)
        (yielded,) = operations[-1].operands
        total = before.reshape(before.shape[self._summed :])
        steps = math.prod(self._shape[: self._summed])
        if late or not self._summed:
            needed = {value for op in late for value in op.operands} | {yielded}
            rows = {value: self._steps(known[value]) for value in needed if value in known}
            for step in range(steps):
                at = {value: row[step] for value, row in rows.items()} | {init: total}
                for op in late:
                    at[op.results[0]] = self._scalar(op, at)
                total = at[yielded] if yielded in at else self._lookup(yielded, at)
        return self._written(total)

    def _read(self, number: int) -> Array:
        """Return what an operand has for each iteration, with the axes of the loops."""
        value = self._outer[self._op.operands[number]]
        if not value.shape:
            return value.reshape([1] * len(self._shape))
        return np.asarray(value[self._places(number)])

    def _places(self, number: int) -> tuple[Array, ...]:
        """Return the index of each dimension of an operand, for each iteration."""
        return tuple(_index(each, self._grid) for each in self._maps[number].results)

    def _steps(self, values: Array) -> Array:
        """Join the axes of all reduction loops to one leading axis."""
        shape = self._shape[: self._summed] + values.shape[self._summed :]
        return np.broadcast_to(values, shape).reshape(-1, *values.shape[self._summed :])

    def _scalar(self, op: ir.Operation, known: _Known) -> Array:
        if op.name == "linalg.index":
            return np.asarray(self._grid[ir.IntegerAttr(op.attributes["dim"]).value], np.uint64)
        if op.name == "arith.constant":
            return _constant(op)
        if op.name == "tensor.extract":
            table, *at = op.operands
            places = tuple(self._lookup(value, known).astype(np.intp) for value in at)
            return np.asarray(self._outer[table][places])
        return computed(op, [self._lookup(value, known) for value in op.operands])

    def _lookup(self, value: ir.Value, known: _Known) -> Array:
        return known[value] if value in known else self._outer[value]

    def _written(self, values: Array) -> Array:
        """Return the initial tensor with `values` at the places that the operation writes."""
        last = len(self._maps) - 1
        whole = np.array(self._outer[self._op.operands[last]])
        places = self._places(last)
        parallel = tuple(place.reshape(place.shape[self._summed :]) for place in places)
        whole[parallel] = values
        return whole


def _index(expression: ir.AffineExpr, loops: Sequence[Array]) -> Array:
    """Evaluate an affine expression on the index arrays of the loops."""
    expression = expression.maybe_downcast()
    if isinstance(expression, ir.AffineDimExpr):
        return loops[int(expression.position)]
    if isinstance(expression, ir.AffineConstantExpr):
        return np.full([1] * loops[0].ndim, expression.value)
    left, right = (_index(each, loops) for each in (expression.lhs, expression.rhs))
    if isinstance(expression, ir.AffineAddExpr):
        return left + right
    if isinstance(expression, ir.AffineMulExpr):
        return left * right
    if isinstance(expression, ir.AffineModExpr):
        return left % right
    if isinstance(expression, ir.AffineFloorDivExpr):
        return left // right
    raise NotImplementedError(f"no numpy for {expression}")
