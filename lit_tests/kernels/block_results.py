# RUN: %python %s | filecheck %s
"""A product whose result is read as MX blocks alone: one kernel, and no f32 in memory."""

from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.parameters import Parameters
from mxc.dialects.scaled_matmul import scaled_matmul
from mxc.passes.base import run
from mxc.passes.lower_to_cpu_kernels import LowerToCpuKernels

with new_context(), ir.Location.unknown():
    module = ir.Module.create()
    parameters = Parameters(module)
    i8 = ir.IntegerType.get_signless(8)
    x = ir.RankedTensorType.get([3, 2, 32], ir.BF16Type.get())
    with ir.InsertionPoint(module.body):
        # CHECK: stream.executable private @mxc_mxfp4_bf16_1x3x64x64_as_mxfp8e4m3_even attributes
        # The two registers of a block of each row wait; then each row is a block.
        # CHECK: memref.alloca() {{.*}} : memref<3x32xf32>
        # CHECK-COUNT-96: "llvm.x86.avx512bf16.dpbf16ps.512"
        # CHECK-COUNT-6: vector.store {{.*}} : memref<3x32xf32>, vector<16xf32>
        # CHECK: vector.reduction <maxsi>
        # CHECK: scf.if {{.*}} -> (vector<16xi32>, vector<16xi32>)
        # CHECK: vector.store {{.*}} : memref<3x2x32xi8>, vector<32xi8>
        # CHECK: memref.store {{.*}} : memref<3x2xi8>
        # CHECK-LABEL: func.func @product(
        # CHECK-NOT: linalg
        # CHECK: flow.dispatch @mxc_prepare_
        # CHECK: %[[Y:.*]]:2 = flow.dispatch @mxc_mxfp4_bf16_1x3x64x64_as_mxfp8e4m3_even::{{.*}} {mxc.contraction = {{{.*}}out = {block = 32 : i64, element = f8E4M3FN, scale = f8E8M0FNU}{{.*}}}} : {{.*}} -> (tensor<3x2x32xi8>, tensor<3x2xi8>)
        # CHECK-NOT: linalg
        @func.FuncOp.from_py_func(x)
        def product(x: ir.Value) -> tuple[ir.Value, ir.Value]:
            weight = parameters.load("w", (64, 2, 16), i8)
            scales = parameters.load("s", (64, 2), i8)
            return scaled_matmul(
                x,
                unpack(weight, ir.Float4E2M1FNType.get()),
                rhs_scale=unpack(scales, ir.Float8E8M0FNUType.get()),
                out="mxfp8e4m3",
                recipe="even",
            )

    run((LowerToCpuKernels(isa="avx512-bf16"),), module)
    print(module)
