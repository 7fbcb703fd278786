"""Predicates on values and operations of a program, for passes that replace them by kernels."""

from __future__ import annotations

import math

from iree.compiler import ir

from mxc.dialects.dequantize import is_elementwise
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.sizes import RESHAPES


def producer(value: ir.Value) -> ir.Operation | None:
    """The operation that defines a value; None for an argument."""
    return None if isinstance(value, ir.BlockArgument) else value.owner


def is_zero(value: ir.Value) -> bool:
    """Whether a tensor is filled with the constant 0.0, and not -0.0.

    passes/canonical_accumulators.py turns other forms of zero into a fill.
    """
    return is_filled(value, 0.0)


def is_filled(value: ir.Value, wanted: float) -> bool:
    """Whether a tensor is a fill, or a gather from one, of the constant `wanted`, also in sign."""
    fill = producer(value)
    if fill is not None and fill.name == GATHER:
        fill = producer(fill.operands[0])
    if fill is None or fill.name != "linalg.fill":
        return False
    constant = producer(fill.operands[0])
    if constant is None or constant.name != "arith.constant":
        return False
    number = constant.attributes["value"]
    if not isinstance(number, ir.FloatAttr | ir.IntegerAttr):
        return False
    found = float(number.value)
    return found == wanted and math.copysign(1.0, found) == math.copysign(1.0, wanted)


def is_constant(value: ir.Value) -> bool:
    """Whether the operation that defines a value is a constant."""
    return bool(value.owner.name == "arith.constant")


def is_argument(value: ir.Value) -> bool:
    """Whether a value is an argument of a block."""
    return isinstance(value, ir.BlockArgument)


def is_before(first: ir.Operation, second: ir.Operation) -> bool:
    """Whether both operations are in the same block, in this order."""
    return first.block == second.block and bool(first.is_before_in_block(second))


def readers(value: ir.Value) -> list[ir.Operation]:
    """The operations that read `value`, each once, without those whose results nothing reads.

    A stage of an epilogue that a kernel has taken over has no readers until it is erased.
    """
    users = dict.fromkeys(use.owner.operation for use in value.uses)
    return [user for user in users if not _is_unread(user)]


def _is_unread(op: ir.Operation) -> bool:
    """Whether nothing reads the results of an elementwise operation or a reshape."""
    plain = op.name in RESHAPES or (op.name == "linalg.generic" and is_elementwise(op))
    return plain and not any(readers(result) for result in op.results)
