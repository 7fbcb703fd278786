"""Operators on values: `start + group * 4` instead of nested calls of the builders of `arith`.

    a + b   a - b   a * b        integers, index values, floats, and vectors of them
    a // b  a % b  a >> b        unsigned
    a & b   a | b  a ^ b  a << b
    a / b                        floats

The operation is built at the insertion point. A Python number becomes a constant of the type of
the other side; it may stand on the left of + and * only. An operation with an integer that changes
nothing is not built: a + 0, a - 0, a * 1, a // 1; a % 1 is 0.
"""

from __future__ import annotations

from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.sizes import constant

_Build = Callable[[ir.Value, ir.Value], ir.Value]


def _is_float(value: ir.Value) -> bool:
    kind = value.type
    return isinstance(kind.element_type if isinstance(kind, ir.VectorType) else kind, ir.FloatType)


def _operator(
    integers: _Build | None,
    floats: _Build | None = None,
    neutral: int | None = None,
    *,
    reflected: bool = False,
) -> Callable[[ir.Value, ir.Value | float], ir.Value]:
    """Make a method of ir.Value from the builders for integers and for floats. `neutral`: the
    integer that changes nothing. `reflected`: the Python number is on the left."""

    def build(left: ir.Value, right: ir.Value | float) -> ir.Value:
        builder = floats if _is_float(left) else integers
        if builder is None:
            return NotImplemented
        if not isinstance(right, ir.Value):
            if builder is integers and right == neutral:
                return constant(0, left.type) if builder is arith.remui else left
            right = constant(right, left.type)
        return builder(right, left) if reflected else builder(left, right)

    return build


ir.Value.__add__ = _operator(arith.addi, arith.addf, 0)
ir.Value.__sub__ = _operator(arith.subi, arith.subf, 0)
ir.Value.__mul__ = _operator(arith.muli, arith.mulf, 1)
ir.Value.__radd__ = _operator(arith.addi, arith.addf, 0, reflected=True)
ir.Value.__rmul__ = _operator(arith.muli, arith.mulf, 1, reflected=True)
ir.Value.__floordiv__ = _operator(arith.divui, neutral=1)
ir.Value.__mod__ = _operator(arith.remui, neutral=1)
ir.Value.__truediv__ = _operator(None, arith.divf)
ir.Value.__and__ = _operator(arith.andi)
ir.Value.__or__ = _operator(arith.ori)
ir.Value.__xor__ = _operator(arith.xori)
ir.Value.__lshift__ = _operator(arith.shli)
ir.Value.__rshift__ = _operator(arith.shrui)
