// RUN: mxc opt %s --split-input-file --passes mxc-lower-named-operations-to-gpu-kernels | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-named-operations-to-gpu-kernels{target=gfx1201}' | filecheck %s --check-prefix=NARROW

// Eight lanes share a column and have two of its elements each, from the first row to the last. The
// next two rows are loaded ahead. The pool is updated where it lies.
// CHECK: workgroup_size = [256, 1, 1] subgroup_size = 64
// CHECK: stream.executable private @mxc_delta_rule_2x4x16x32_of_3 {
// CHECK: stream.return %c1, %c4, %{{.*}} : index, index, index
// CHECK: memref.load %{{.*}} : memref<?x3x4x16x32xf32,
// CHECK: arith.select %{{.*}} : vector<2xf32>
// CHECK: scf.for %{{.*}} iter_args(
// CHECK: arith.minui
// CHECK: amdgpu.dpp %{{.*}} quad_perm([1 : i32, 0 : i32, 3 : i32, 2 : i32]) bound_ctrl(true) : i32
// CHECK: amdgpu.dpp %{{.*}} quad_perm([2 : i32, 3 : i32, 0 : i32, 1 : i32]) bound_ctrl(true) : i32
// CHECK: amdgpu.dpp %{{.*}} row_half_mirror(unit) bound_ctrl(true) : i32
// CHECK: math.fma {{.*}} : vector<2xf32>
// CHECK: amdgpu.dpp %{{.*}} row_half_mirror
// CHECK: memref.store %{{.*}} : memref<?x4x32xf32,
// CHECK: memref.store %{{.*}} : memref<?x3x4x16x32xf32,
// CHECK-LABEL: util.func public @rule(
// CHECK-NOT: util.call
// CHECK: %[[MADE:.*]]:2 = flow.dispatch @mxc_delta_rule_2x4x16x32_of_3::@mxc_delta_rule_2x4x16x32_of_3[%{{.*}}](%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %{{.*}}) {{.*}}: ({{.*}}) -> (tensor<?x4x32xf32>{%{{.*}}}, %arg5{%{{.*}}})
// CHECK: util.return %[[MADE]]#0, %[[MADE]]#1
// NARROW: workgroup_size = [256, 1, 1] subgroup_size = 32
// NARROW: amdgpu.dpp
util.func private @mxc.delta_rule(%arg0: tensor<?x2x16xf32>, %arg1: tensor<?x2x16xf32>, %arg2: tensor<?x4x32xf32>, %arg3: tensor<?x4xf32>, %arg4: tensor<?x4xf32>, %arg5: tensor<?x3x4x16x32xf32>, %arg6: index, %arg7: tensor<?x3xi32>, %arg8: tensor<?xi32>) -> (tensor<?x4x32xf32>, tensor<?x3x4x16x32xf32>) attributes {mxc.operation = "delta_rule", mxc.options = {}, mxc.sizes = array<i64: 2, 0, 5, 0>} {
  util.return %arg2, %arg5 : tensor<?x4x32xf32>, tensor<?x3x4x16x32xf32>
}
util.func public @rule(%arg0: tensor<?x2x16xf32>, %arg1: tensor<?x2x16xf32>, %arg2: tensor<?x4x32xf32>, %arg3: tensor<?x4xf32>, %arg4: tensor<?x4xf32>, %arg5: tensor<?x3x4x16x32xf32>, %arg6: tensor<?x3xi32>, %arg7: tensor<?xi32>) -> (tensor<?x4x32xf32>, tensor<?x3x4x16x32xf32>) {
  %c2 = arith.constant 2 : index
  %0:2 = util.call @mxc.delta_rule(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %c2, %arg6, %arg7) : (tensor<?x2x16xf32>, tensor<?x2x16xf32>, tensor<?x4x32xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x3x4x16x32xf32>, index, tensor<?x3xi32>, tensor<?xi32>) -> (tensor<?x4x32xf32>, tensor<?x3x4x16x32xf32>)
  util.return %0#0, %0#1 : tensor<?x4x32xf32>, tensor<?x3x4x16x32xf32>
}

// -----

// Every row of a state has a decay of its own: keys are multiplied by it in the first sum. Columns
// of half a workgroup.
// CHECK: workgroup_size = [128, 1, 1] subgroup_size = 64
// CHECK: stream.executable private @mxc_delta_rule_1x1x8x16_of_1_each {
// CHECK: scf.for %{{.*}} iter_args(
// CHECK: vector.load %{{.*}} : memref<?x1x8xf32,{{.*}}>, vector<1xf32>
// CHECK: arith.mulf {{.*}} : vector<1xf32>
// CHECK: amdgpu.dpp
util.func private @mxc.delta_rule(%arg0: tensor<?x1x8xf32>, %arg1: tensor<?x1x8xf32>, %arg2: tensor<?x1x16xf32>, %arg3: tensor<?x1x8xf32>, %arg4: tensor<?x1xf32>, %arg5: tensor<?x1x1x8x16xf32>, %arg6: index, %arg7: tensor<?x3xi32>, %arg8: tensor<?xi32>) -> (tensor<?x1x16xf32>, tensor<?x1x1x8x16xf32>) attributes {mxc.operation = "delta_rule", mxc.options = {}, mxc.sizes = array<i64: 2, 0, 5, 0>} {
  util.return %arg2, %arg5 : tensor<?x1x16xf32>, tensor<?x1x1x8x16xf32>
}
util.func public @each(%arg0: tensor<?x1x8xf32>, %arg1: tensor<?x1x8xf32>, %arg2: tensor<?x1x16xf32>, %arg3: tensor<?x1x8xf32>, %arg4: tensor<?x1xf32>, %arg5: tensor<?x1x1x8x16xf32>, %arg6: tensor<?x3xi32>, %arg7: tensor<?xi32>) -> (tensor<?x1x16xf32>, tensor<?x1x1x8x16xf32>) {
  %c0 = arith.constant 0 : index
  %0:2 = util.call @mxc.delta_rule(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %c0, %arg6, %arg7) : (tensor<?x1x8xf32>, tensor<?x1x8xf32>, tensor<?x1x16xf32>, tensor<?x1x8xf32>, tensor<?x1xf32>, tensor<?x1x1x8x16xf32>, index, tensor<?x3xi32>, tensor<?xi32>) -> (tensor<?x1x16xf32>, tensor<?x1x1x8x16xf32>)
  util.return %0#0, %0#1 : tensor<?x1x16xf32>, tensor<?x1x1x8x16xf32>
}

// -----

// A lane a column: eight rows at once, then one at a time.
// CHECK: stream.executable private @mxc_convolution_64x4_bf16_of_2 {
// CHECK: stream.return %c1, %{{.*}}, %c1{{.*}} : index, index, index
// CHECK: scf.if
// CHECK-COUNT-4: arith.extf
// CHECK: scf.for %{{.*}} iter_args(
// CHECK-COUNT-8: memref.load %{{.*}} : memref<?x64xf32,
// CHECK-COUNT-32: math.fma
// CHECK: scf.for %{{.*}} iter_args(
// CHECK-COUNT-4: math.fma
// CHECK-NOT: math.fma
// CHECK: memref.store %{{.*}} : memref<?x2x3x64xf32,
// CHECK-LABEL: util.func public @convolution(
// CHECK: flow.dispatch @mxc_convolution_64x4_bf16_of_2::@mxc_convolution_64x4_bf16_of_2[%{{.*}}](%arg0, %collapsed, %arg2, %arg3, %arg4, %{{.*}}) {{.*}}: ({{.*}}) -> (tensor<?x64xf32>{%{{.*}}}, %arg2{%{{.*}}})
util.func private @mxc.short_convolution(%arg0: tensor<?x64xf32>, %arg1: tensor<64x4xbf16>, %arg2: tensor<?x2x3x64xf32>, %arg3: index, %arg4: tensor<?x3xi32>, %arg5: tensor<?xi32>) -> (tensor<?x64xf32>, tensor<?x2x3x64xf32>) attributes {mxc.operation = "short_convolution", mxc.options = {}, mxc.sizes = array<i64: 0, 0, 2, 0>} {
  util.return %arg0, %arg2 : tensor<?x64xf32>, tensor<?x2x3x64xf32>
}
util.func public @convolution(%arg0: tensor<?x64xf32>, %arg1: tensor<64x4xbf16>, %arg2: tensor<?x2x3x64xf32>, %arg3: tensor<?x3xi32>, %arg4: tensor<?xi32>) -> (tensor<?x64xf32>, tensor<?x2x3x64xf32>) {
  %c1 = arith.constant 1 : index
  %0:2 = util.call @mxc.short_convolution(%arg0, %arg1, %arg2, %c1, %arg3, %arg4) : (tensor<?x64xf32>, tensor<64x4xbf16>, tensor<?x2x3x64xf32>, index, tensor<?x3xi32>, tensor<?xi32>) -> (tensor<?x64xf32>, tensor<?x2x3x64xf32>)
  util.return %0#0, %0#1 : tensor<?x64xf32>, tensor<?x2x3x64xf32>
}

// -----

// Columns that fill no wave of 64, and fill one of 32.
// CHECK-NOT: flow.dispatch
// CHECK: util.call @mxc.delta_rule({{.*}}) {mxc.contraction = {reason = "a state is 8x4; kernels take multiples of 8x8, and 256 rows at most"}}
// NARROW: workgroup_size = [32, 1, 1] subgroup_size = 32
// NARROW: flow.dispatch @mxc_delta_rule_1x1x8x4_of_1::
util.func private @mxc.delta_rule(%arg0: tensor<?x1x8xf32>, %arg1: tensor<?x1x8xf32>, %arg2: tensor<?x1x4xf32>, %arg3: tensor<?x1xf32>, %arg4: tensor<?x1xf32>, %arg5: tensor<?x1x1x8x4xf32>, %arg6: index, %arg7: tensor<?x3xi32>, %arg8: tensor<?xi32>) -> (tensor<?x1x4xf32>, tensor<?x1x1x8x4xf32>) attributes {mxc.operation = "delta_rule", mxc.options = {}, mxc.sizes = array<i64: 2, 0, 5, 0>} {
  util.return %arg2, %arg5 : tensor<?x1x4xf32>, tensor<?x1x1x8x4xf32>
}
util.func public @few(%arg0: tensor<?x1x8xf32>, %arg1: tensor<?x1x8xf32>, %arg2: tensor<?x1x4xf32>, %arg3: tensor<?x1xf32>, %arg4: tensor<?x1xf32>, %arg5: tensor<?x1x1x8x4xf32>, %arg6: tensor<?x3xi32>, %arg7: tensor<?xi32>) -> (tensor<?x1x4xf32>, tensor<?x1x1x8x4xf32>) {
  %c0 = arith.constant 0 : index
  %0:2 = util.call @mxc.delta_rule(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %c0, %arg6, %arg7) : (tensor<?x1x8xf32>, tensor<?x1x8xf32>, tensor<?x1x4xf32>, tensor<?x1xf32>, tensor<?x1xf32>, tensor<?x1x1x8x4xf32>, index, tensor<?x3xi32>, tensor<?xi32>) -> (tensor<?x1x4xf32>, tensor<?x1x1x8x4xf32>)
  util.return %0#0, %0#1 : tensor<?x1x4xf32>, tensor<?x1x1x8x4xf32>
}
