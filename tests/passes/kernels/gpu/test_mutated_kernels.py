"""Faults in kernels for waves of 32: tests by the interpreter fail if a kernel is changed.

Each fault is a change in one place of a kernel's MLIR. It shows that the tests of other files would
find such a fault.
"""

import re

import pytest
from iree.compiler import ir

from tests.passes.attention_cases import Case, check, draw
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu import test_attention_of_32 as attention
from tests.passes.kernels.gpu import test_waves_of_32 as products
from tests.passes.kernels.gpu.test_stream import E2M3, E4M3, F4

MASK = (r"arith.cmpi ult, ", "arith.cmpi ule, ")
#: Target, format of the weights, and the change: a mask that is an element too long, so that memory
#: is read past its end; scales of the other half of a wave; columns of other lanes.
PRODUCTS = [
    ("gfx1250", E4M3, *MASK),
    ("gfx1250", E4M3, "first_scale_lane = 16", "first_scale_lane = 0"),
    ("gfx1151", E2M3, *MASK),
    ("gfx1151", E2M3, r"arith.remui %6, %c2 ", "arith.divui %6, %c2 "),
]


def changed(module: ir.Module, was: str, becomes: str) -> ir.Module:
    text, count = re.subn(was, becomes, str(module))
    assert count
    with module.context:
        return ir.Module.parse(text)


@pytest.mark.parametrize(("target", "rhs", "was", "becomes"), PRODUCTS)
def test_products(
    target: str, rhs: str, was: str, becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = lane_interpreter.run
    monkeypatch.setattr(
        lane_interpreter,
        "run",
        lambda module, *given: run(changed(module, was, becomes), *given),
    )
    with pytest.raises(AssertionError):
        products.test_products(target, 5, 20, 544, F4, rhs)


@pytest.mark.parametrize("target", ["gfx1250", "gfx1151"])
@pytest.mark.parametrize(
    ("was", "becomes"), [("cmpi sge,", "cmpi sgt,"), ("cmpi slt,", "cmpi sle,")]
)
def test_attention(target: str, was: str, becomes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first key of a window, and the one behind the last."""
    case, lengths = Case(2, 8, 64, reach=50), [(3, 70)]
    given = draw(case, lengths)
    check(attention.attend(target, case, given, 1), case, given)
    lowered = attention.lowered
    monkeypatch.setattr(attention, "lowered", lambda *of: changed(lowered(*of), was, becomes))
    with pytest.raises(AssertionError):
        check(attention.attend(target, case, given, 1), case, given)
