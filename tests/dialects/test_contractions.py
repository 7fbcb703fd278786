"""Contractions in forms that no builder of scaled contractions gives."""

from iree.compiler import ir
from iree.compiler.dialects import arith, func

from mxc.dialects.context import new_context
from mxc.dialects.contractions import contractions
from mxc.dialects.generic import constant, generic


def test_a_masked_product_is_a_product() -> None:
    """What a query does not see is selected away; the report must list that product too."""
    kind = ir.RankedTensorType.get
    with new_context(), ir.Location.unknown():
        f32 = ir.F32Type.get()
        module = ir.Module.create()

        def body(a: ir.Value, b: ir.Value, acc: ir.Value) -> ir.Value:
            zero = constant(0.0, f32)
            unseen = arith.cmpf(arith.CmpFPredicate.OEQ, a, zero)
            return arith.addf(acc, arith.select(unseen, zero, arith.mulf(a, b)))

        with ir.InsertionPoint(module.body):

            @func.FuncOp.from_py_func(kind([4, 8], f32), kind([6, 8], f32))
            def main(x: ir.Value, y: ir.Value) -> ir.Value:
                return generic([(x, "m k"), (y, "n k")], "m n", f32, body)

        found = contractions(module.operation)
        assert [(one.m, one.n, one.k) for one in found] == [(4, 6, 8)]
        assert [str(side.element) for side in (found[0].lhs, found[0].rhs)] == ["f32", "f32"]
