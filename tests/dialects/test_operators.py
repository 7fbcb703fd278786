"""Operators on values build what they say, and nothing where an integer changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.context import new_context

#: An expression of two values, and what it builds of integers and of floats.
EXPRESSIONS: list[tuple[Callable[[Any, Any], Any], str, str]] = [
    (lambda a, b: a + b, "arith.addi", "arith.addf"),
    (lambda a, b: a - b, "arith.subi", "arith.subf"),
    (lambda a, b: a * b, "arith.muli", "arith.mulf"),
    (lambda a, b: b + a, "arith.addi", "arith.addf"),
    (lambda a, b: b * a, "arith.muli", "arith.mulf"),
    (lambda a, b: a // b, "arith.divui", ""),
    (lambda a, b: a % b, "arith.remui", ""),
    (lambda a, b: a >> b, "arith.shrui", ""),
    (lambda a, b: a << b, "arith.shli", ""),
    (lambda a, b: a & b, "arith.andi", ""),
    (lambda a, b: a | b, "arith.ori", ""),
    (lambda a, b: a ^ b, "arith.xori", ""),
    (lambda a, b: a / b, "", "arith.divf"),
]
INTEGERS, FLOATS = ("index", "i32", "vector<4xi32>"), ("f32", "bf16", "vector<4xf32>")


def built(kind: str, expression: Callable[[Any, Any], Any]) -> list[str]:
    """Names of the operations, of two arguments of a type."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        element = ir.Type.parse(kind)
        with ir.InsertionPoint(module.body):
            func.FuncOp.from_py_func(element, element)(expression)
        assert module.operation.verify()
        (function,) = module.body.operations
        return [op.operation.name for op in function.regions[0].blocks[0].operations][:-1]


@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS])
@pytest.mark.parametrize(("expression", "integers", "floats"), EXPRESSIONS)
def test_an_operator_is_one_operation(
    kind: str, expression: Callable[[Any, Any], Any], integers: str, floats: str
) -> None:
    wanted = integers if kind in INTEGERS else floats
    if wanted:
        assert built(kind, expression) == [wanted]
        assert built(kind, lambda a, _: expression(a, 3)) == ["arith.constant", wanted]
    else:
        with pytest.raises(TypeError, match="unsupported operand"):
            built(kind, expression)


def test_what_changes_nothing_is_not_built() -> None:
    assert built("index", lambda a, b: (a + 0 - 0) * 1 // 1) == []
    assert built("index", lambda a, b: a % 1) == ["arith.constant"]
    assert built("index", lambda a, b: 0 + 1 * a) == []
    # -0.0 + 0 is 0.0.
    assert built("f32", lambda a, b: a + 0) == ["arith.constant", "arith.addf"]
