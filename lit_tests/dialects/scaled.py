# RUN: %python %s | filecheck %s
"""The canonical scaled contraction and the boundary, as the IR that their builders give."""

from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.boundary import pack, unpack
from mxc.dialects.context import new_context
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import match_scaled_contraction, scaled_contraction

T = ir.RankedTensorType.get

with new_context(), ir.Location.unknown():
    i8 = ir.IntegerType.get_signless(8)
    f4, e8m0, bf16 = ir.Float4E2M1FNType.get(), ir.Float8E8M0FNUType.get(), ir.BF16Type.get()
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        # Bytes outside, elements inside.
        # CHECK-LABEL: func.func @both
        # CHECK: flow.tensor.bitcast %arg0 : tensor<4x2x16xi8> -> tensor<4x2x32xf4E2M1FN>
        # CHECK: linalg.generic {indexing_maps = [#{{.*}}, #{{.*}}, #{{.*}}, #{{.*}}, #{{.*}}], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
        # CHECK-SAME: ins(%{{.*}}, %{{.*}}, %arg2, %arg3 : tensor<4x2x32xf4E2M1FN>, tensor<8x2x32xf4E2M1FN>, tensor<4x2xf8E8M0FNU>, tensor<8x2xf8E8M0FNU>)
        # CHECK: %[[L:.*]] = arith.scaling_extf
        # CHECK: %[[R:.*]] = arith.scaling_extf
        # CHECK: %[[P:.*]] = arith.mulf %[[L]], %[[R]]
        # CHECK: arith.addf %{{.*}}, %[[P]]
        @func.FuncOp.from_py_func(
            T([4, 2, 16], i8), T([8, 2, 16], i8), T([4, 2], e8m0), T([8, 2], e8m0)
        )
        def both(a: ir.Value, b: ir.Value, a_scale: ir.Value, b_scale: ir.Value) -> ir.Value:
            result = scaled_contraction(
                unpack(a, f4), unpack(b, f4), lhs_scale=a_scale, rhs_scale=b_scale
            )
            found = match_scaled_contraction(result.owner)
            assert not isinstance(found, Reason)
            assert (found.m, found.n, found.k, found.block) == (4, 8, 64, 32)
            return result

        # Weight-only in a batch: the unscaled side is extended, no scale is multiplied for it.
        # CHECK-LABEL: func.func @weight_only
        # CHECK: linalg.generic {{.*}} ins(%arg0, %arg1, %arg2 : tensor<3x4x2x32xbf16>, tensor<3x8x2x32xf4E2M1FN>, tensor<3x8x2xf8E8M0FNU>)
        # CHECK: arith.extf {{.*}} : bf16 to f32
        # CHECK-COUNT-1: arith.scaling_extf
        # CHECK: flow.tensor.bitcast {{.*}} : tensor<3x8x2x32xf4E2M1FN> -> tensor<3x8x2x16xi8>
        @func.FuncOp.from_py_func(T([3, 4, 2, 32], bf16), T([3, 8, 2, 32], f4), T([3, 8, 2], e8m0))
        def weight_only(x: ir.Value, w: ir.Value, scale: ir.Value) -> tuple[ir.Value, ir.Value]:
            return scaled_contraction(x, w, rhs_scale=scale, batch=1), pack(w)

        # Bytes under scales: mxint8 steps by 2^-6 before its scale; int8 a block has a float scale.
        # CHECK-LABEL: func.func @bytes
        # CHECK: linalg.generic {{.*}} ins(%arg0, %arg1, %arg2, %arg3 : tensor<4x2x32xi8>, tensor<8x2x32xi8>, tensor<4x2xf32>, tensor<8x2xf8E8M0FNU>)
        # CHECK: %[[A:.*]] = arith.sitofp
        # CHECK: %[[L:.*]] = arith.mulf %[[A]], %{{.*}} : f32
        # CHECK: %[[W:.*]] = arith.sitofp
        # CHECK: %[[STEP:.*]] = arith.constant 1.562500e-02 : f32
        # CHECK: %[[E:.*]] = arith.mulf %[[W]], %[[STEP]]
        # CHECK: %[[S:.*]] = arith.extf %{{.*}} : f8E8M0FNU to f32
        # CHECK: %[[R:.*]] = arith.mulf %[[E]], %[[S]]
        # CHECK: %[[P:.*]] = arith.mulf %[[L]], %[[R]]
        # CHECK: arith.addf %{{.*}}, %[[P]]
        @func.FuncOp.from_py_func(
            T([4, 2, 32], i8), T([8, 2, 32], i8), T([4, 2], ir.F32Type.get()), T([8, 2], e8m0)
        )
        def bytes(x: ir.Value, w: ir.Value, x_scale: ir.Value, w_scale: ir.Value) -> ir.Value:
            return scaled_contraction(x, w, lhs_scale=x_scale, rhs_scale=w_scale)

    assert module.operation.verify()
    print(module)
