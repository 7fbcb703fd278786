"""Small questions about the values that a kernel takes the place of."""

from __future__ import annotations

from iree.compiler import ir


def producer(value: ir.Value) -> ir.Operation | None:
    """The operation that computes a value, None for an argument."""
    return None if isinstance(value, ir.BlockArgument) else value.owner


def is_zero(value: ir.Value) -> bool:
    """Whether a tensor is filled with the constant 0.0."""
    fill = producer(value)
    if fill is None or fill.name != "linalg.fill":
        return False
    constant = producer(fill.operands[0])
    if constant is None or constant.name != "arith.constant":
        return False
    number = constant.attributes["value"]
    return isinstance(number, ir.FloatAttr) and ir.FloatAttr(number).value == 0.0
