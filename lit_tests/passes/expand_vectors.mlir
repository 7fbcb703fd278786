// RUN: mxc opt %s --split-input-file --passes mxc-expand-vectors | filecheck %s

// CHECK-DAG: #[[X:.*]] = affine_map<(d0, d1, d2, d3) -> (d3, d1, d2)>
// CHECK-DAG: #[[O:.*]] = affine_map<(d0, d1, d2, d3) -> (d3, d0)>
// CHECK-LABEL: @vector
// CHECK: %[[X3:.*]] = tensor.expand_shape %arg0 {{\[\[}}0, 1], [2]] output_shape [1, 2, 32]
// CHECK: %[[A2:.*]] = tensor.expand_shape %arg3 {{\[\[}}0, 1]] output_shape [1, 8]
// CHECK: %[[R:.*]] = linalg.generic {indexing_maps = [#[[X]], {{.*}}, #[[O]]], iterator_types = ["parallel", "reduction", "reduction", "parallel"]}
// CHECK-SAME: ins(%[[X3]], %arg1, %arg2 :
// CHECK-SAME: outs(%[[A2]] :
// CHECK: tensor.collapse_shape %[[R]]
func.func @vector(%x: tensor<2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<8xf32>) -> tensor<8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(n, ko, kb) -> (ko, kb)>, affine_map<(n, ko, kb) -> (n, ko, kb)>, affine_map<(n, ko, kb) -> (n, ko)>, affine_map<(n, ko, kb) -> (n)>],
      iterator_types = ["parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<8xf32>
  func.return %r : tensor<8xf32>
}

// -----

// One vector for each of a dynamic number of experts: the row stands behind the batch.
// CHECK-LABEL: @batch_of_vectors
// CHECK: tensor.expand_shape %arg0 {{\[\[}}0, 1], [2], [3]] output_shape [%{{.*}}, 1, 2, 32] : tensor<?x2x32xf8E4M3FN> into tensor<?x1x2x32xf8E4M3FN>
// CHECK: tensor.expand_shape %arg1 {{\[\[}}0, 1], [2]] output_shape [%{{.*}}, 1, 2]
// CHECK: linalg.generic {{.*}} outs({{.*}} : tensor<?x1x8xf32>)
// CHECK: tensor.collapse_shape {{.*}} : tensor<?x1x8xf32> into tensor<?x8xf32>
func.func @batch_of_vectors(%x: tensor<?x2x32xf8E4M3FN>, %xs: tensor<?x2xf8E8M0FNU>, %w: tensor<?x8x2x32xf4E2M1FN>, %s: tensor<?x8x2xf8E8M0FNU>, %acc: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(b, n, ko, kb) -> (b, ko, kb)>, affine_map<(b, n, ko, kb) -> (b, ko)>, affine_map<(b, n, ko, kb) -> (b, n, ko, kb)>, affine_map<(b, n, ko, kb) -> (b, n, ko)>, affine_map<(b, n, ko, kb) -> (b, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %xs, %w, %s : tensor<?x2x32xf8E4M3FN>, tensor<?x2xf8E8M0FNU>, tensor<?x8x2x32xf4E2M1FN>, tensor<?x8x2xf8E8M0FNU>) outs(%acc : tensor<?x8xf32>) {
  ^bb0(%a: f8E4M3FN, %as: f8E8M0FNU, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f8E4M3FN, f8E8M0FNU to f32
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x8xf32>
  func.return %r : tensor<?x8xf32>
}
