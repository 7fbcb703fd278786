// RUN: mxc opt %s --split-input-file --passes mxc-round-to-bf16 | filecheck %s

// What is read again in the same body is rounded on its bits.
// CHECK-LABEL: func.func @round_trip(
// CHECK: ^bb0(%[[X:.*]]: f32, %{{.*}}: f32):
// CHECK: arith.bitcast %[[X]] : f32 to i32
// CHECK: arith.cmpf uno, %[[X]], %[[X]] : f32
// CHECK: %[[H:.*]] = arith.trunci %{{.*}} : i32 to i16
// CHECK: %[[Q:.*]] = arith.bitcast %[[H]] : i16 to bf16
// CHECK: arith.extf %[[Q]] : bf16 to f32
#map = affine_map<(i) -> (i)>
func.func @round_trip(%x: tensor<8xf32>) -> tensor<8xf32> {
  %e = tensor.empty() : tensor<8xf32>
  %y = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%e : tensor<8xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = arith.truncf %a : f32 to bf16
    %r = arith.extf %q : bf16 to f32
    linalg.yield %r : f32
  } -> tensor<8xf32>
  return %y : tensor<8xf32>
}

// -----

// So is what another operation reads, behind a reshape too, and each result of arithmetic on bf16.
// CHECK-LABEL: func.func @two_operations(
// CHECK-NOT: arith.truncf
// CHECK: arith.bitcast %{{.*}} : i16 to bf16
// CHECK: %[[W:.*]] = arith.extf %[[A:.*]] : bf16 to f32
// CHECK: %[[V:.*]] = arith.extf %[[A]] : bf16 to f32
// CHECK: %[[P:.*]] = arith.mulf %[[W]], %[[V]] : f32
// CHECK: arith.bitcast %[[P]] : f32 to i32
// CHECK: %[[Z:.*]] = arith.bitcast %{{.*}} : i16 to bf16
// CHECK: arith.negf %[[Z]] : bf16
#flat = affine_map<(i) -> (i)>
#map = affine_map<(i, j) -> (i, j)>
func.func @two_operations(%x: tensor<8xf32>) -> tensor<2x4xbf16> {
  %e = tensor.empty() : tensor<8xbf16>
  %f = tensor.empty() : tensor<2x4xbf16>
  %y = linalg.generic {indexing_maps = [#flat, #flat], iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%e : tensor<8xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %q = arith.truncf %a : f32 to bf16
    linalg.yield %q : bf16
  } -> tensor<8xbf16>
  %r = tensor.expand_shape %y [[0, 1]] output_shape [2, 4] : tensor<8xbf16> into tensor<2x4xbf16>
  %z = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%r : tensor<2x4xbf16>) outs(%f : tensor<2x4xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    %p = arith.mulf %a, %a : bf16
    %n = arith.negf %p : bf16
    linalg.yield %n : bf16
  } -> tensor<2x4xbf16>
  return %z : tensor<2x4xbf16>
}

// -----

// What is stored is left to the code generator, and so are products in a sum.
// CHECK-LABEL: func.func @left_alone(
// CHECK: arith.truncf
// CHECK: arith.mulf %{{.*}} : bf16
// CHECK-NOT: arith.bitcast
#map = affine_map<(i) -> (i)>
func.func @left_alone(%x: tensor<8xf32>, %u: tensor<8xbf16>, %zero: tensor<f32>) -> (tensor<8xbf16>, tensor<f32>) {
  %e = tensor.empty() : tensor<8xbf16>
  %y = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%x : tensor<8xf32>) outs(%e : tensor<8xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %q = arith.truncf %a : f32 to bf16
    linalg.yield %q : bf16
  } -> tensor<8xbf16>
  %z = linalg.generic {indexing_maps = [#map, affine_map<(i) -> ()>], iterator_types = ["reduction"]} ins(%u : tensor<8xbf16>) outs(%zero : tensor<f32>) {
  ^bb0(%a: bf16, %o: f32):
    %p = arith.mulf %a, %a : bf16
    %w = arith.extf %p : bf16 to f32
    %s = arith.addf %o, %w : f32
    linalg.yield %s : f32
  } -> tensor<f32>
  return %y, %z : tensor<8xbf16>, tensor<f32>
}
