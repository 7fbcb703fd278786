// RUN: mxc opt %s --split-input-file --passes mxc-lower-named-operations-to-cpu-kernels | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-named-operations-to-cpu-kernels{lanes=8}' | filecheck %s --check-prefix=EIGHT

// A tile of the state in scratch: read, gone over by every row, written. The pool is updated where
// it lies.
// CHECK: stream.executable private @mxc_delta_rule_2x4x16x32_of_3 {
// CHECK: stream.return %c1, %c4, %{{.*}} : index, index, index
// CHECK: memref.alloca() alignment = 64 : memref<16x32xf32>
// CHECK: scf.for
// CHECK: arith.select %{{.*}} : vector<16xf32>
// CHECK: scf.for
// CHECK: scf.for %{{.*}} iter_args(
// CHECK-COUNT-16: math.fma {{.*}} : vector<16xf32>
// CHECK: scf.for %{{.*}} iter_args(
// CHECK-COUNT-32: math.fma {{.*}} : vector<16xf32>
// CHECK: scf.for
// CHECK: vector.store %{{.*}} : memref<?x3x4x16x32xf32>, vector<16xf32>
// CHECK-LABEL: util.func public @rule(
// CHECK-NOT: util.call
// CHECK: %[[MADE:.*]]:2 = flow.dispatch @mxc_delta_rule_2x4x16x32_of_3::@mxc_delta_rule_2x4x16x32_of_3[%{{.*}}](%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %{{.*}}) {{.*}}: ({{.*}}) -> (tensor<?x4x32xf32>{%{{.*}}}, %arg5{%{{.*}}})
// CHECK: util.return %[[MADE]]#0, %[[MADE]]#1
// EIGHT: memref.alloca() alignment = 64 : memref<16x32xf32>
// EIGHT: math.fma {{.*}} : vector<8xf32>
util.func private @mxc.delta_rule(%arg0: tensor<?x2x16xf32>, %arg1: tensor<?x2x16xf32>, %arg2: tensor<?x4x32xf32>, %arg3: tensor<?x4xf32>, %arg4: tensor<?x4xf32>, %arg5: tensor<?x3x4x16x32xf32>, %arg6: index, %arg7: tensor<?x3xi32>, %arg8: tensor<?xi32>) -> (tensor<?x4x32xf32>, tensor<?x3x4x16x32xf32>) attributes {mxc.operation = "delta_rule", mxc.options = {}, mxc.sizes = array<i64: 2, 0, 5, 0>} {
  util.return %arg2, %arg5 : tensor<?x4x32xf32>, tensor<?x3x4x16x32xf32>
}
util.func public @rule(%arg0: tensor<?x2x16xf32>, %arg1: tensor<?x2x16xf32>, %arg2: tensor<?x4x32xf32>, %arg3: tensor<?x4xf32>, %arg4: tensor<?x4xf32>, %arg5: tensor<?x3x4x16x32xf32>, %arg6: tensor<?x3xi32>, %arg7: tensor<?xi32>) -> (tensor<?x4x32xf32>, tensor<?x3x4x16x32xf32>) {
  %c2 = arith.constant 2 : index
  %0:2 = util.call @mxc.delta_rule(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %c2, %arg6, %arg7) : (tensor<?x2x16xf32>, tensor<?x2x16xf32>, tensor<?x4x32xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x3x4x16x32xf32>, index, tensor<?x3xi32>, tensor<?xi32>) -> (tensor<?x4x32xf32>, tensor<?x3x4x16x32xf32>)
  util.return %0#0, %0#1 : tensor<?x4x32xf32>, tensor<?x3x4x16x32xf32>
}

// -----

// Every row of a state has a decay of its own: one multiplication for each of its elements.
// CHECK: stream.executable private @mxc_delta_rule_1x1x8x16_of_1_each {
// CHECK: scf.for %{{.*}} iter_args(
// CHECK: memref.load %{{.*}} : memref<?x1x8xf32>
// CHECK: memref.load %{{.*}} : memref<?x1x8xf32>
// CHECK: arith.mulf {{.*}} : f32
// CHECK: math.fma
util.func private @mxc.delta_rule(%arg0: tensor<?x1x8xf32>, %arg1: tensor<?x1x8xf32>, %arg2: tensor<?x1x16xf32>, %arg3: tensor<?x1x8xf32>, %arg4: tensor<?x1xf32>, %arg5: tensor<?x1x1x8x16xf32>, %arg6: index, %arg7: tensor<?x3xi32>, %arg8: tensor<?xi32>) -> (tensor<?x1x16xf32>, tensor<?x1x1x8x16xf32>) attributes {mxc.operation = "delta_rule", mxc.options = {}, mxc.sizes = array<i64: 2, 0, 5, 0>} {
  util.return %arg2, %arg5 : tensor<?x1x16xf32>, tensor<?x1x1x8x16xf32>
}
util.func public @each(%arg0: tensor<?x1x8xf32>, %arg1: tensor<?x1x8xf32>, %arg2: tensor<?x1x16xf32>, %arg3: tensor<?x1x8xf32>, %arg4: tensor<?x1xf32>, %arg5: tensor<?x1x1x8x16xf32>, %arg6: tensor<?x3xi32>, %arg7: tensor<?xi32>) -> (tensor<?x1x16xf32>, tensor<?x1x1x8x16xf32>) {
  %c0 = arith.constant 0 : index
  %0:2 = util.call @mxc.delta_rule(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %c0, %arg6, %arg7) : (tensor<?x1x8xf32>, tensor<?x1x8xf32>, tensor<?x1x16xf32>, tensor<?x1x8xf32>, tensor<?x1xf32>, tensor<?x1x1x8x16xf32>, index, tensor<?x3xi32>, tensor<?xi32>) -> (tensor<?x1x16xf32>, tensor<?x1x1x8x16xf32>)
  util.return %0#0, %0#1 : tensor<?x1x16xf32>, tensor<?x1x1x8x16xf32>
}

// -----

// The last rows are carried from row to row; weights are extended and transposed once.
// CHECK: stream.executable private @mxc_convolution_64x4_bf16_of_2 {
// CHECK: stream.return %c1, %{{.*}}, %c1{{.*}} : index, index, index
// CHECK: memref.alloca() alignment = 64 : memref<4x64xf32>
// CHECK: vector.load %{{.*}} : memref<256xbf16>, vector<64xbf16>
// CHECK: arith.extf
// CHECK: vector.shuffle
// CHECK: scf.for %{{.*}} iter_args(
// CHECK-COUNT-16: math.fma {{.*}} : vector<16xf32>
// CHECK: vector.store %{{.*}} : memref<?x2x3x64xf32>, vector<16xf32>
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

// Two layers: the second one gets the pool behind the first one.
// CHECK-LABEL: util.func public @layers(
// CHECK: %[[FIRST:.*]]:2 = flow.dispatch @mxc_convolution_16x2_f32_of_2::@mxc_convolution_16x2_f32_of_2[%{{.*}}](%arg0, {{.*}}) {{.*}}: ({{.*}}) -> (tensor<?x16xf32>{%{{.*}}}, %arg2{%{{.*}}})
// CHECK: %[[SECOND:.*]]:2 = flow.dispatch @mxc_convolution_16x2_f32_of_2::@mxc_convolution_16x2_f32_of_2[%{{.*}}](%[[FIRST]]#0, %{{.*}}, %[[FIRST]]#1, {{.*}}) {{.*}}: ({{.*}}) -> (tensor<?x16xf32>{%{{.*}}}, %[[FIRST]]#1{%{{.*}}})
// CHECK: util.return %[[SECOND]]#0, %[[SECOND]]#1
util.func private @mxc.short_convolution(%arg0: tensor<?x16xf32>, %arg1: tensor<16x2xf32>, %arg2: tensor<?x2x1x16xf32>, %arg3: index, %arg4: tensor<?x3xi32>, %arg5: tensor<?xi32>) -> (tensor<?x16xf32>, tensor<?x2x1x16xf32>) attributes {mxc.operation = "short_convolution", mxc.options = {}, mxc.sizes = array<i64: 0, 0, 2, 0>} {
  util.return %arg0, %arg2 : tensor<?x16xf32>, tensor<?x2x1x16xf32>
}
util.func public @layers(%arg0: tensor<?x16xf32>, %arg1: tensor<16x2xf32>, %arg2: tensor<?x2x1x16xf32>, %arg3: tensor<?x3xi32>, %arg4: tensor<?xi32>) -> (tensor<?x16xf32>, tensor<?x2x1x16xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %0:2 = util.call @mxc.short_convolution(%arg0, %arg1, %arg2, %c0, %arg3, %arg4) : (tensor<?x16xf32>, tensor<16x2xf32>, tensor<?x2x1x16xf32>, index, tensor<?x3xi32>, tensor<?xi32>) -> (tensor<?x16xf32>, tensor<?x2x1x16xf32>)
  %1:2 = util.call @mxc.short_convolution(%0#0, %arg1, %0#1, %c1, %arg3, %arg4) : (tensor<?x16xf32>, tensor<16x2xf32>, tensor<?x2x1x16xf32>, index, tensor<?x3xi32>, tensor<?xi32>) -> (tensor<?x16xf32>, tensor<?x2x1x16xf32>)
  util.return %1#0, %1#1 : tensor<?x16xf32>, tensor<?x2x1x16xf32>
}

// -----

// Columns that fill no register: the call stays, and says why.
// CHECK-NOT: flow.dispatch
// CHECK: util.call @mxc.short_convolution({{.*}}) {mxc.contraction = {reason = "x has 12 columns; kernels take multiples of 16"}}
// EIGHT: util.call @mxc.short_convolution({{.*}}) {mxc.contraction = {reason = "x has 12 columns; kernels take multiples of 8"}}
util.func private @mxc.short_convolution(%arg0: tensor<?x12xf32>, %arg1: tensor<12x4xf32>, %arg2: tensor<?x2x3x12xf32>, %arg3: index, %arg4: tensor<?x3xi32>, %arg5: tensor<?xi32>) -> (tensor<?x12xf32>, tensor<?x2x3x12xf32>) attributes {mxc.operation = "short_convolution", mxc.options = {}, mxc.sizes = array<i64: 0, 0, 2, 0>} {
  util.return %arg0, %arg2 : tensor<?x12xf32>, tensor<?x2x3x12xf32>
}
util.func public @ragged(%arg0: tensor<?x12xf32>, %arg1: tensor<12x4xf32>, %arg2: tensor<?x2x3x12xf32>, %arg3: tensor<?x3xi32>, %arg4: tensor<?xi32>) -> (tensor<?x12xf32>, tensor<?x2x3x12xf32>) {
  %c1 = arith.constant 1 : index
  %0:2 = util.call @mxc.short_convolution(%arg0, %arg1, %arg2, %c1, %arg3, %arg4) : (tensor<?x12xf32>, tensor<12x4xf32>, tensor<?x2x3x12xf32>, index, tensor<?x3xi32>, tensor<?xi32>) -> (tensor<?x12xf32>, tensor<?x2x3x12xf32>)
  util.return %0#0, %0#1 : tensor<?x12xf32>, tensor<?x2x3x12xf32>
}

// -----

// A state whose rows fill no register: so say the contractions of the reference too, for the report.
// CHECK: util.func private @mxc.delta_rule(
// CHECK: linalg.generic {{.*}} attrs = {mxc.contraction = {reason = "a state is 8x24; kernels take multiples of 8x16"}, mxc.product}
// CHECK-NOT: flow.dispatch
// CHECK: util.call @mxc.delta_rule({{.*}}) {mxc.contraction = {reason = "a state is 8x24; kernels take multiples of 8x16"}}
// EIGHT: stream.executable private @mxc_delta_rule_1x1x8x24_of_1 {
// EIGHT: flow.dispatch @mxc_delta_rule_1x1x8x24_of_1::
#map = affine_map<(d0, d1, d2) -> (d0, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d2, d1)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1)>
util.func private @mxc.delta_rule(%arg0: tensor<?x1x8xf32>, %arg1: tensor<?x1x8xf32>, %arg2: tensor<?x1x24xf32>, %arg3: tensor<?x1xf32>, %arg4: tensor<?x1xf32>, %arg5: tensor<?x1x1x8x24xf32>, %arg6: index, %arg7: tensor<?x3xi32>, %arg8: tensor<?xi32>) -> (tensor<?x1x24xf32>, tensor<?x1x1x8x24xf32>) attributes {mxc.operation = "delta_rule", mxc.options = {}, mxc.sizes = array<i64: 2, 0, 5, 0>} {
  %cst = arith.constant 0.000000e+00 : f32
  %k = tensor.extract_slice %arg1[0, 0, 0] [1, 1, 8] [1, 1, 1] : tensor<?x1x8xf32> to tensor<1x8xf32>
  %s = tensor.extract_slice %arg5[0, 0, 0, 0, 0] [1, 1, 1, 8, 24] [1, 1, 1, 1, 1] : tensor<?x1x1x8x24xf32> to tensor<1x8x24xf32>
  %0 = tensor.empty() : tensor<1x24xf32>
  %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x24xf32>) -> tensor<1x24xf32>
  %2 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "reduction"]} ins(%k, %s : tensor<1x8xf32>, tensor<1x8x24xf32>) outs(%1 : tensor<1x24xf32>) attrs = {mxc.product} {
  ^bb0(%in: f32, %in_0: f32, %out: f32):
    %4 = arith.mulf %in, %in_0 : f32
    %5 = arith.addf %out, %4 : f32
    linalg.yield %5 : f32
  } -> tensor<1x24xf32>
  %3 = tensor.insert_slice %2 into %arg2[0, 0, 0] [1, 1, 24] [1, 1, 1] : tensor<1x24xf32> into tensor<?x1x24xf32>
  util.return %3, %arg5 : tensor<?x1x24xf32>, tensor<?x1x1x8x24xf32>
}
util.func public @narrow(%arg0: tensor<?x1x8xf32>, %arg1: tensor<?x1x8xf32>, %arg2: tensor<?x1x24xf32>, %arg3: tensor<?x1xf32>, %arg4: tensor<?x1xf32>, %arg5: tensor<?x1x1x8x24xf32>, %arg6: tensor<?x3xi32>, %arg7: tensor<?xi32>) -> (tensor<?x1x24xf32>, tensor<?x1x1x8x24xf32>) {
  %c0 = arith.constant 0 : index
  %0:2 = util.call @mxc.delta_rule(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %c0, %arg6, %arg7) : (tensor<?x1x8xf32>, tensor<?x1x8xf32>, tensor<?x1x24xf32>, tensor<?x1xf32>, tensor<?x1xf32>, tensor<?x1x1x8x24xf32>, index, tensor<?x3xi32>, tensor<?xi32>) -> (tensor<?x1x24xf32>, tensor<?x1x1x8x24xf32>)
  util.return %0#0, %0#1 : tensor<?x1x24xf32>, tensor<?x1x1x8x24xf32>
}
