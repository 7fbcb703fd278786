# RUN: %python %s | filecheck %s
"""Activations in blocks: magnitudes as integers, one scale a block, elements of x and the scales."""

from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.boundary import pack
from mxc.dialects.context import new_context
from mxc.dialects.quantize import quantize_int8, quantize_mx

with new_context(), ir.Location.unknown():
    module = ir.Module.create()
    x = ir.RankedTensorType.get([4, 64], ir.F32Type.get())
    with ir.InsertionPoint(module.body):
        # CHECK-LABEL: func.func @int8
        # CHECK: tensor.expand_shape %arg0 {{.*}} : tensor<4x64xf32> into tensor<4x2x32xf32>
        # CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction"]
        # CHECK: arith.maxsi
        # CHECK: linalg.generic {{.*}} ins(%{{.*}} : tensor<4x2xi32>) outs(%{{.*}} : tensor<4x2xf32>)
        # CHECK: arith.divf
        # CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<4x2x32xf32>, tensor<4x2xf32>) outs(%{{.*}} : tensor<4x2x32xi8>)
        # CHECK: arith.divf
        # No float is converted: a sum rounds, and its low bits are the element.
        # CHECK-NOT: fptosi
        # CHECK: arith.trunci {{.*}} : i32 to i8
        @func.FuncOp.from_py_func(x)
        def int8(value: ir.Value) -> tuple[ir.Value, ir.Value]:
            return quantize_int8(value)

        # Scales are bytes by integer operations, and elements codes; both are renamed at the end.
        # CHECK-LABEL: func.func @mxfp4
        # CHECK-NOT: scaling_truncf
        # CHECK-NOT: truncf
        # CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<4x2xi8>)
        # CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<4x2x32xf32>, tensor<4x2xi8>) outs(%{{.*}} : tensor<4x2x32xi4>)
        # CHECK: flow.tensor.bitcast %{{.*}} : tensor<4x2x32xi4> -> tensor<4x2x32xf4E2M1FN>
        # CHECK: flow.tensor.bitcast %{{.*}} : tensor<4x2xi8> -> tensor<4x2xf8E8M0FNU>
        @func.FuncOp.from_py_func(x)
        def mxfp4(value: ir.Value) -> tuple[ir.Value, ir.Value]:
            elements, scales = quantize_mx(value, "mxfp4", "even")
            return pack(elements), pack(scales)

    assert module.operation.verify()
    print(module)
