// RUN: mxc opt %s --split-input-file --passes mxc-merge-loops | filecheck %s

// The rows of the weights have two loops, which index every operand together.
// CHECK: #[[W:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)>
// CHECK: #[[S:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2)>
// CHECK-LABEL: @rows_of_weights
// CHECK: %[[E:.*]] = tensor.collapse_shape %arg1 {{\[}}[0, 1], [2], [3]] : tensor<2x128x2x128xf8E4M3FN> into tensor<256x2x128xf8E4M3FN>
// CHECK: %[[F:.*]] = tensor.collapse_shape %arg2 {{\[}}[0, 1], [2]]
// CHECK: %[[A:.*]] = tensor.collapse_shape %arg3 {{\[}}[0], [1, 2]]
// CHECK: %[[R:.*]] = linalg.generic {indexing_maps = [{{.*}}, #[[W]], #[[S]], {{.*}}], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
// CHECK-SAME: ins(%arg0, %[[E]], %[[F]] : {{.*}}) outs(%[[A]] : tensor<?x256xf32>)
// CHECK: tensor.expand_shape %[[R]] {{\[}}[0], [1, 2]] {{.*}} into tensor<?x2x128xf32>
func.func @rows_of_weights(%x: tensor<?x2x128xf32>, %w: tensor<2x128x2x128xf8E4M3FN>, %s: tensor<2x128x2xf32>, %acc: tensor<?x2x128xf32>) -> tensor<?x2x128xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, p, q, o, k) -> (m, o, k)>, affine_map<(m, p, q, o, k) -> (p, q, o, k)>, affine_map<(m, p, q, o, k) -> (p, q, o)>, affine_map<(m, p, q, o, k) -> (m, p, q)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<?x2x128xf32>, tensor<2x128x2x128xf8E4M3FN>, tensor<2x128x2xf32>) outs(%acc : tensor<?x2x128xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %bs: f32, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to f32
    %2 = arith.mulf %bs, %0 : f32
    %3 = arith.mulf %2, %a : f32
    %4 = arith.addf %c, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<?x2x128xf32>
  return %y : tensor<?x2x128xf32>
}

// -----

// A batch of experts and their rows: the activations have the batch alone.
// CHECK-LABEL: @left_alone
// CHECK-NOT: tensor.collapse_shape
func.func @left_alone(%x: tensor<2x4x64xf32>, %w: tensor<2x8x64xf8E4M3FN>, %acc: tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(e, m, n, k) -> (e, m, k)>, affine_map<(e, m, n, k) -> (e, n, k)>, affine_map<(e, m, n, k) -> (e, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<2x4x64xf32>, tensor<2x8x64xf8E4M3FN>) outs(%acc : tensor<2x4x8xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to f32
    %1 = arith.mulf %a, %0 : f32
    %2 = arith.addf %c, %1 : f32
    linalg.yield %2 : f32
  } -> tensor<2x4x8xf32>
  return %y : tensor<2x4x8xf32>
}

// -----

// A vector that was a matrix of one row: the reduction over that row is none.
// CHECK-LABEL: @vector
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction", "reduction"]
func.func @vector(%x: tensor<1x2x32xf4E2M1FN>, %xs: tensor<1x2xf8E8M0FNU>, %w: tensor<8x1x2x32xf4E2M1FN>, %s: tensor<8x1x2xf8E8M0FNU>, %acc: tensor<8xf32>) -> tensor<8xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(n, r, o, b) -> (r, o, b)>, affine_map<(n, r, o, b) -> (r, o)>, affine_map<(n, r, o, b) -> (n, r, o, b)>, affine_map<(n, r, o, b) -> (n, r, o)>, affine_map<(n, r, o, b) -> (n)>],
      iterator_types = ["parallel", "reduction", "reduction", "reduction"]}
      ins(%x, %xs, %w, %s : tensor<1x2x32xf4E2M1FN>, tensor<1x2xf8E8M0FNU>, tensor<8x1x2x32xf4E2M1FN>, tensor<8x1x2xf8E8M0FNU>) outs(%acc : tensor<8xf32>) {
  ^bb0(%a: f4E2M1FN, %as: f8E8M0FNU, %b: f4E2M1FN, %bs: f8E8M0FNU, %c: f32):
    %0 = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %1 = arith.scaling_extf %b, %bs : f4E2M1FN, f8E8M0FNU to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %c, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<8xf32>
  return %y : tensor<8xf32>
}

// -----

// The body reads the number of an iteration, which would be another one.
// CHECK-LABEL: @indexed
// CHECK-NOT: tensor.collapse_shape
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction", "reduction", "reduction"]
// CHECK: linalg.index 3
func.func @indexed(%x: tensor<1x2x32xf4E2M1FN>, %xs: tensor<1x2xf8E8M0FNU>, %w: tensor<8x1x2x32xf4E2M1FN>, %s: tensor<8x1x2xf8E8M0FNU>, %acc: tensor<8xf32>) -> tensor<8xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(n, r, o, b) -> (r, o, b)>, affine_map<(n, r, o, b) -> (r, o)>, affine_map<(n, r, o, b) -> (n, r, o, b)>, affine_map<(n, r, o, b) -> (n, r, o)>, affine_map<(n, r, o, b) -> (n)>],
      iterator_types = ["parallel", "reduction", "reduction", "reduction"]}
      ins(%x, %xs, %w, %s : tensor<1x2x32xf4E2M1FN>, tensor<1x2xf8E8M0FNU>, tensor<8x1x2x32xf4E2M1FN>, tensor<8x1x2xf8E8M0FNU>) outs(%acc : tensor<8xf32>) {
  ^bb0(%a: f4E2M1FN, %as: f8E8M0FNU, %b: f4E2M1FN, %bs: f8E8M0FNU, %c: f32):
    %0 = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %1 = arith.scaling_extf %b, %bs : f4E2M1FN, f8E8M0FNU to f32
    %2 = arith.mulf %0, %1 : f32
    %i = linalg.index 3 : index
    %most = arith.constant 7 : index
    %kept = arith.cmpi slt, %i, %most : index
    %zero = arith.constant 0.0 : f32
    %t = arith.select %kept, %2, %zero : f32
    %3 = arith.addf %c, %t : f32
    linalg.yield %3 : f32
  } -> tensor<8xf32>
  return %y : tensor<8xf32>
}
