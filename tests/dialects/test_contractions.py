"""Contractions in forms that no builder of scaled contractions gives."""

from collections.abc import Callable

import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func, math

from mxc.dialects.context import new_context
from mxc.dialects.contractions import contractions
from mxc.dialects.generic import constant, generic
from mxc.dialects.scaled import scaled_contraction


def _masked(a: ir.Value, b: ir.Value, acc: ir.Value) -> ir.Value:
    """What a query does not see is selected away."""
    zero = constant(0.0, ir.F32Type.get())
    unseen = arith.cmpf(arith.CmpFPredicate.OEQ, a, zero)
    return arith.addf(acc, arith.select(unseen, zero, arith.mulf(a, b)))


BODIES: dict[str, Callable[[ir.Value, ir.Value, ir.Value], ir.Value]] = {
    "masked": _masked,
    "fused": math.fma,
    "subtracted": lambda a, b, acc: arith.subf(acc, arith.mulf(a, b)),
    "negated": lambda a, b, acc: arith.addf(acc, arith.negf(arith.mulf(a, b))),
}


@pytest.mark.parametrize("name", BODIES)
def test_forms_of_a_product(name: str) -> None:
    """The report must list them all."""
    kind, body = ir.RankedTensorType.get, BODIES[name]
    with new_context(), ir.Location.unknown():
        f32 = ir.F32Type.get()
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):

            @func.FuncOp.from_py_func(kind([4, 8], f32), kind([6, 8], f32))
            def main(x: ir.Value, y: ir.Value) -> ir.Value:
                return generic([(x, "m k"), (y, "n k")], "m n", f32, body)

        found = contractions(module.operation)
        assert [(one.m, one.n, one.k) for one in found] == [(4, 6, 8)]
        assert [str(side.element) for side in (found[0].lhs, found[0].rhs)] == ["f32", "f32"]


def test_bytes_have_the_name_of_what_their_scale_makes_of_them() -> None:
    """mxint8, int8 a block of 32, and what is neither."""
    kind = ir.RankedTensorType.get
    with new_context(), ir.Location.unknown():
        i8, f32 = ir.IntegerType.get_signless(8), ir.F32Type.get()
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for block in (32, 16):
                shapes = [kind([4, 3, block], i8), kind([8, 3, block], i8)]
                scales = [kind([4, 3], f32), kind([8, 3], ir.Float8E8M0FNUType.get())]

                @func.FuncOp.from_py_func(*shapes, *scales, name=f"of{block}")
                def _(x: ir.Value, w: ir.Value, xs: ir.Value, ws: ir.Value) -> ir.Value:
                    return scaled_contraction(x, w, lhs_scale=xs, rhs_scale=ws)

        names = [
            (one.lhs.format(one.block).name, one.rhs.format(one.block).name)
            for one in contractions(module.operation)
        ]
    assert names == [
        ("int8", "mxint8"),
        ("i8 with f32 per 16", "i8 with f8E8M0FNU per 16"),
    ]
