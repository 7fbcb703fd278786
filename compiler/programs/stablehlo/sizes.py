"""Sizes that come with the call, in StableHLO: as numbers, and as products of names.

JAX computes sizes in tensors of integers: the sizes of an argument, their products, and lists of
them as operands of reshapes and broadcasts. Here such a number is an operation on scalars of the
host program, which IREE need not compute on the device. Two sizes are known to be equal if they are
the same product of the same sizes of arguments.

    %a = stablehlo.get_dimension_size %x, dim = 0        %d = tensor.dim %x, %c0
    %n = stablehlo.multiply %a, %c4                      %n = arith.muli %d, %c4
    %s = stablehlo.concatenate %n, %c64          ->      (element 0 of %s: 4 times size 0 of %x)
    stablehlo.dynamic_reshape %x, %s                     tensor.collapse_shape %x
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.compiler.programs.reshape_groups import Size
from mxc.dialects.sizes import constant, value_of

#: Operations on integers -> the same on scalars of the host program.
_SCALARS: dict[str, Callable[[ir.Value, ir.Value], ir.Value]] = {
    "add": arith.addi,
    "subtract": arith.subi,
    "multiply": arith.muli,
    "divide": arith.divsi,
    "remainder": arith.remsi,
    "maximum": arith.maxsi,
    "minimum": arith.minsi,
}
#: Operations whose result has the element of the operand at the same place; of one element.
_COPIES = ("convert", "reshape", "broadcast_in_dim")
_ELEMENTWISE_NAMES = """
    abs add and atan2 bitcast_convert cbrt ceil clamp compare convert cosine divide exponential
    exponential_minus_one floor is_finite log log_plus_one logistic maximum minimum multiply negate
    not optimization_barrier or popcnt power remainder round_nearest_afz round_nearest_even rsqrt
    select shift_left shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh
    xor
"""
#: Operations whose result has the sizes of each operand that has dimensions.
_ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())


class DimensionSizes:
    """The sizes of the tensors of a module whose functions are inlined."""

    def __init__(self) -> None:
        """Nothing is known of what this module has made."""
        self._made: dict[ir.Value, list[Size | None]] = {}

    def record(self, value: ir.Value, sizes: Sequence[Size | None]) -> None:
        """Remember the sizes of a tensor that is the result of no operation of StableHLO; None for
        one that is like no other."""
        self._made[value] = list(sizes)

    def of(self, value: ir.Value) -> list[Size]:
        """The sizes of a tensor."""
        return [self._size(value, axis) for axis in range(ir.RankedTensorType(value.type).rank)]

    def element(self, value: ir.Value, at: int) -> Size:
        """An element of a tensor of integers, counted in row-major order."""
        op = _stablehlo(value)
        if op is None:
            return Size(names=((value, at),))
        name, operands = _name(op), list(op.operands)
        if name == "constant":
            return Size(_constant(op, at))
        if name == "get_dimension_size":
            return self._size(operands[0], _dimension(op))
        if name in _COPIES and _count(operands[0]) in (1, _count(value)):
            return self.element(operands[0], at % _count(operands[0]))
        if name == "concatenate":
            return self.element(*_part(operands, at))
        if name == "multiply":
            return self.element(operands[0], at) * self.element(operands[1], at)
        if name in _SCALARS:
            return Size(names=((name, *(self.element(each, at) for each in operands)),))
        return Size(names=((value, at),))

    def number(self, value: ir.Value, at: int) -> ir.Value:
        """An element of a tensor of one dimension or none as a scalar, at the insertion point."""
        op, kind = _stablehlo(value), ir.RankedTensorType(value.type)
        name, operands = ("", []) if op is None else (_name(op), list(op.operands))
        if op is not None and name == "constant":
            return constant(_constant(op, at), kind.element_type)
        if op is not None and name == "get_dimension_size":
            size = tensor.dim(operands[0], value_of(_dimension(op)))
            return arith.index_cast(kind.element_type, size)
        if name in _COPIES and _count(operands[0]) == 1:
            found = self.number(operands[0], 0)
            if found.type == kind.element_type:
                return found
        if name == "concatenate":
            return self.number(*_part(operands, at))
        if name in _SCALARS:
            return _SCALARS[name](*(self.number(each, at) for each in operands))
        places = [value_of(at)] * kind.rank
        return tensor.extract(value, places)

    def index(self, value: ir.Value, at: int) -> ir.Value:
        """The same as an index."""
        return arith.index_cast(ir.IndexType.get(), self.number(value, at))

    def _size(self, value: ir.Value, axis: int) -> Size:
        kind = ir.RankedTensorType(value.type)
        if not kind.is_dynamic_dim(axis):
            return Size(kind.shape[axis])
        made = self._made.get(value)
        if made is not None:
            return made[axis] or Size(names=((value, axis),))
        op = _stablehlo(value)
        name, operands = ("", []) if op is None else (_name(op), list(op.operands))
        if op is None:
            return Size(names=((value, axis),))
        if name in ("dynamic_reshape", "dynamic_broadcast_in_dim", "dynamic_iota"):
            return self.element(operands[-1], axis)
        if name in _ELEMENTWISE:
            # A truth value that chooses, or a bound, may have no dimension.
            whole = next(each for each in operands if _rank(each) == kind.rank)
            return self._size(whole, axis)
        if name == "transpose":
            return self._size(operands[0], _list(op, "permutation")[axis])
        if name == "reduce" and len(operands) == 2:
            left = [i for i in range(_rank(operands[0])) if i not in _list(op, "dimensions")]
            return self._size(operands[0], left[axis])
        return Size(names=((value, axis),))


def numbers_of(text: str) -> list[int]:
    """The numbers of a list in the text of an attribute: "0, 2"."""
    return [int(each) for each in text.split(",") if each.strip()]


def has_no_sign(value: ir.Value) -> bool:
    """Whether a tensor has unsigned numbers, of which only StableHLO knows."""
    kind = ir.RankedTensorType(value.type).element_type
    return isinstance(kind, ir.IntegerType) and bool(kind.is_unsigned)


def _stablehlo(value: ir.Value) -> ir.Operation | None:
    if isinstance(value, ir.BlockArgument):
        return None
    op: ir.Operation = value.owner.operation
    return op if op.name.startswith("stablehlo.") else None


def _name(op: ir.Operation) -> str:
    return str(op.name).removeprefix("stablehlo.")


def _constant(op: ir.Operation, at: int) -> int:
    attribute = ir.DenseElementsAttr(op.attributes["value"])
    if attribute.is_splat:
        return int(ir.IntegerAttr(attribute.get_splat_value()).value)
    return int(np.array(attribute).reshape(-1)[at])


def _dimension(op: ir.Operation) -> int:
    return int(ir.IntegerAttr(op.attributes["dimension"]).value)


def _list(op: ir.Operation, name: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def _rank(value: ir.Value) -> int:
    return int(ir.RankedTensorType(value.type).rank)


def _count(value: ir.Value) -> int:
    """Elements of a tensor; a dynamic number is -1."""
    kind = ir.RankedTensorType(value.type)
    return int(np.prod(kind.shape)) if kind.has_static_shape else -1


def _part(operands: Sequence[ir.Value], at: int) -> tuple[ir.Value, int]:
    """The operand of a concatenation that has its element `at`, and the number of it there."""
    for value in operands:
        if at < _count(value):
            return value, at
        at -= _count(value)
    raise AssertionError("a concatenation has fewer elements than its result")
