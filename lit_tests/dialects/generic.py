# RUN: %python %s | filecheck %s
"""The builders of dialects/generic.py, linalg_ext.py and parameters.py, as the IR that they give."""

from iree.compiler import ir
from iree.compiler.dialects import arith, func

from mxc.dialects.context import new_context
from mxc.dialects.generic import generic, loop_index
from mxc.dialects.linalg_ext import gather, top_k
from mxc.dialects.parameters import Parameters

T = ir.RankedTensorType.get

with new_context(), ir.Location.unknown():
    f32, bf16, i32 = ir.F32Type.get(), ir.BF16Type.get(), ir.IntegerType.get_signless(32)
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        # Result loops first, then what only inputs have; sums start from zero.
        # CHECK: #[[X:.*]] = affine_map<(d0, d1, d2) -> (d0, d2)>
        # CHECK: #[[W:.*]] = affine_map<(d0, d1, d2) -> (d1, d2)>
        # CHECK: #[[Y:.*]] = affine_map<(d0, d1, d2) -> (d0, d1)>

        # A parameter is declared once, on top, and loaded where it is used.
        # CHECK: util.global private @table = #flow.parameter.named<"model"::"table"> : tensor<16x4xbf16>
        # CHECK-NOT: util.global private

        # CHECK-LABEL: func.func @product
        # CHECK: %[[M:.*]] = tensor.dim %arg0
        # CHECK: %[[E:.*]] = tensor.empty(%[[M]]) : tensor<?x4xf32>
        # CHECK: %[[ZERO:.*]] = linalg.fill {{.*}} outs(%[[E]]
        # CHECK: linalg.generic {indexing_maps = [#[[X]], #[[W]], #[[Y]]], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0, %arg1 : {{.*}}) outs(%[[ZERO]]
        # CHECK: arith.mulf
        # CHECK: arith.addf
        @func.FuncOp.from_py_func(T([ir.ShapedType.get_dynamic_size(), 8], f32), T([4, 8], f32))
        def product(x: ir.Value, w: ir.Value) -> ir.Value:
            return generic(
                [(x, "m k"), (w, "n k")],
                "m n",
                f32,
                lambda a, b, acc: arith.addf(acc, arith.mulf(a, b)),
            )

        # CHECK-LABEL: func.func @index
        # CHECK: linalg.index 1
        @func.FuncOp.from_py_func(name="index")
        def _index() -> ir.Value:
            return generic(
                [],
                "m n",
                i32,
                lambda: arith.index_cast(i32, loop_index("m n", "n")),
                sizes={"m": 2, "n": 3},
            )

        # CHECK-LABEL: func.func @choose
        # CHECK: iree_linalg_ext.topk_v2 dimension(1) is_sorted ins(%arg0 : tensor<2x16xf32>)
        # CHECK: arith.cmpf ogt
        # CHECK: %[[A:.*]] = util.global.load immutable @table
        # CHECK: %[[B:.*]] = util.global.load immutable @table
        # CHECK: iree_linalg_ext.gather dimension_map = [0] ins(%[[B]], %arg1 : tensor<16x4xbf16>, tensor<3xi32>)
        @func.FuncOp.from_py_func(T([2, 16], f32), T([3], i32))
        def choose(scores: ir.Value, rows: ir.Value) -> tuple[ir.Value, ...]:
            values, experts = top_k(scores, 4)
            parameters = Parameters(module)
            parameters.load("table", [16, 4], bf16)
            table = parameters.load("table", [16, 4], bf16)
            return values, experts, gather(table, rows)

    assert module.operation.verify()
    print(module)
