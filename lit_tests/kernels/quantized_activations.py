# RUN: %python %s | filecheck %s
"""Activations that the program quantizes are quantized by the kernel that prepares them."""

from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.parameters import Parameters
from mxc.dialects.quantize import quantize_int8, quantize_mx
from mxc.dialects.scaled import scaled_contraction
from mxc.passes.base import run
from mxc.passes.lower_to_cpu_kernels import LowerToCpuKernels

with new_context(), ir.Location.unknown():
    module = ir.Module.create()
    parameters = Parameters(module)
    i8, bf16 = ir.IntegerType.get_signless(8), ir.BF16Type.get()

    def product(name: str, x: ir.Value, scales: ir.Value) -> ir.Value:
        weight = parameters.load(f"{name}.w", (48, 2, 16), i8)
        factor = parameters.load(f"{name}.s", (48, 2), i8)
        return scaled_contraction(
            x,
            unpack(weight, ir.Float4E2M1FNType.get()),
            lhs_scale=scales,
            rhs_scale=unpack(factor, ir.Float8E8M0FNUType.get()),
            name=name,
        )

    floats, narrow = (ir.RankedTensorType.get([3, 64], t) for t in (ir.F32Type.get(), bf16))
    with ir.InsertionPoint(module.body):
        # Two products of one tensor, which is quantized once. Scales go with the operands.
        # CHECK: stream.executable private @mxc_prepare_f32_to_mxint8_rceil_quads12u2_
        # CHECK: vector.reduction <maxsi>
        # CHECK: scf.if {{.*}} -> (vector<32xi32>)
        # CHECK: vector.store {{.*}} : memref<3x3x10xi32>, vector<1xi32>
        # CHECK-LABEL: func.func @mxint8(
        # CHECK-NOT: linalg
        # CHECK: %[[BLOCKS:.*]] = tensor.expand_shape {{.*}} into tensor<3x2x32xf32>
        # CHECK: %[[X:.*]] = flow.dispatch @mxc_prepare_{{.*}}(%[[BLOCKS]]) {mxc.quantizes = {{.*}}} : (tensor<3x2x32xf32>) -> tensor<3x3x10xi32>
        # CHECK: flow.dispatch @mxc_mxfp4_mxint8_{{.*}}(%[[X]],
        # CHECK: flow.dispatch @mxc_mxfp4_mxint8_{{.*}}(%[[X]],
        # CHECK-NOT: linalg
        @func.FuncOp.from_py_func(floats)
        def mxint8(x: ir.Value) -> tuple[ir.Value, ir.Value]:
            blocks = quantize_mx(x, "mxint8", "rceil")
            return product("q", *blocks), product("k", *blocks)

        # CHECK-LABEL: func.func @int8(
        # CHECK-NOT: linalg
        # CHECK: flow.dispatch @mxc_prepare_f32_to_int8_quads12u2_
        # CHECK-NOT: linalg
        @func.FuncOp.from_py_func(floats)
        def int8(x: ir.Value) -> ir.Value:
            return product("o", *quantize_int8(x))

        # CHECK-LABEL: func.func @bf16(
        # CHECK-NOT: linalg
        # CHECK: flow.dispatch @mxc_prepare_bf16_to_mxfp8e4m3_even_pairs0_{{.*}}(%{{.*}}) {mxc.quantizes = {{.*}}} : (tensor<3x2x32xbf16>)
        # CHECK-NOT: linalg
        @func.FuncOp.from_py_func(narrow)
        def bf16(x: ir.Value) -> ir.Value:
            return product("up", *quantize_mx(x, "mxfp8e4m3", "even"))

        # What is a result too is quantized there, and prepared here.
        # CHECK-LABEL: func.func @kept(
        # CHECK: arith.maxsi
        # CHECK: flow.dispatch @mxc_prepare_f32_to_mxfp4_floor_
        @func.FuncOp.from_py_func(floats)
        def kept(x: ir.Value) -> tuple[ir.Value, ir.Value]:
            elements, scales = quantize_mx(x, "mxfp4", "floor")
            return product("down", elements, scales), scales

    run((LowerToCpuKernels(isa="avx512-bf16"),), module)
    print(module)
