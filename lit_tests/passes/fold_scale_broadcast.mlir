// RUN: mxc opt %s --split-input-file --passes mxc-fold-scale-broadcast | filecheck %s

// CHECK: #[[ROWS:.*]] = affine_map<(d0, d1, d2) -> (d0, d1)>
// CHECK-LABEL: @linalg_broadcast
// CHECK-SAME: %[[W:.*]]: tensor<8x2x32xf4E2M1FN>, %[[S:.*]]: tensor<8x2xf8E8M0FNU>
// CHECK-NOT: linalg.broadcast
// CHECK: linalg.generic {indexing_maps = [{{.*}}, #[[ROWS]], {{.*}}]
// CHECK-SAME: ins(%[[W]], %[[S]] :
func.func @linalg_broadcast(%w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>) -> tensor<8x2x32xf32> {
  %e = tensor.empty() : tensor<8x2x32xf8E8M0FNU>
  %big = linalg.broadcast ins(%s : tensor<8x2xf8E8M0FNU>) outs(%e : tensor<8x2x32xf8E8M0FNU>) dimensions = [2]
  %o = tensor.empty() : tensor<8x2x32xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(n, ko, kb) -> (n, ko, kb)>, affine_map<(n, ko, kb) -> (n, ko, kb)>, affine_map<(n, ko, kb) -> (n, ko, kb)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %big : tensor<8x2x32xf4E2M1FN>, tensor<8x2x32xf8E8M0FNU>) outs(%o : tensor<8x2x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x2x32xf32>
  func.return %r : tensor<8x2x32xf32>
}

// -----

// A unit dimension, a generic copy and a collapse: the scale is found by a division.
// CHECK: #[[DIVIDED:.*]] = affine_map<(d0, d1) -> (d0, d1 floordiv 32)>
// CHECK-LABEL: @copy_and_collapse
// CHECK-SAME: %[[W:.*]]: tensor<8x64xf4E2M1FN>, %[[S:.*]]: tensor<8x2xf8E8M0FNU>
// CHECK: linalg.generic {indexing_maps = [{{.*}}, #[[DIVIDED]], {{.*}}]
// CHECK-SAME: ins(%[[W]], %[[S]] :
func.func @copy_and_collapse(%w: tensor<8x64xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>) -> tensor<8x64xf32> {
  %unit = tensor.expand_shape %s [[0], [1, 2]] output_shape [8, 2, 1] : tensor<8x2xf8E8M0FNU> into tensor<8x2x1xf8E8M0FNU>
  %e = tensor.empty() : tensor<8x2x32xf8E8M0FNU>
  %copy = linalg.generic {
      indexing_maps = [affine_map<(n, ko, kb) -> (n, ko, 0)>, affine_map<(n, ko, kb) -> (n, ko, kb)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%unit : tensor<8x2x1xf8E8M0FNU>) outs(%e : tensor<8x2x32xf8E8M0FNU>) {
  ^bb0(%a: f8E8M0FNU, %b: f8E8M0FNU):
    linalg.yield %a : f8E8M0FNU
  } -> tensor<8x2x32xf8E8M0FNU>
  %big = tensor.collapse_shape %copy [[0], [1, 2]] : tensor<8x2x32xf8E8M0FNU> into tensor<8x64xf8E8M0FNU>
  %o = tensor.empty() : tensor<8x64xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%w, %big : tensor<8x64xf4E2M1FN>, tensor<8x64xf8E8M0FNU>) outs(%o : tensor<8x64xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  func.return %r : tensor<8x64xf32>
}

// -----

// Rows of unknown number: the bias is broadcast as before, it is no scale.
// CHECK-LABEL: @leaves_floats_alone
// CHECK: %[[BIG:.*]] = linalg.broadcast
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %[[BIG]] :
func.func @leaves_floats_alone(%x: tensor<?x8xf32>, %bias: tensor<8xf32>, %e: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %big = linalg.broadcast ins(%bias : tensor<8xf32>) outs(%e : tensor<?x8xf32>) dimensions = [0]
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%x, %big : tensor<?x8xf32>, tensor<?x8xf32>) outs(%e : tensor<?x8xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %y = arith.addf %a, %b : f32
    linalg.yield %y : f32
  } -> tensor<?x8xf32>
  func.return %r : tensor<?x8xf32>
}

// -----

// A float that differs with each step of the sum is no scale: rows of activations, each repeated.

// CHECK-LABEL: @repeated_rows
// CHECK: %[[ROWS:.*]] = linalg.generic
// CHECK: linalg.generic
// CHECK-SAME: ins(%[[ROWS]],
func.func @repeated_rows(%x: tensor<4x64xbf16>, %w: tensor<8x64xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x2x8xf32>) -> tensor<4x2x8xf32> {
  %e = tensor.empty() : tensor<4x2x64xbf16>
  %big = linalg.generic {
      indexing_maps = [affine_map<(m, j, k) -> (m, k)>, affine_map<(m, j, k) -> (m, j, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x : tensor<4x64xbf16>) outs(%e : tensor<4x2x64xbf16>) {
  ^bb0(%a: bf16, %o: bf16):
    linalg.yield %a : bf16
  } -> tensor<4x2x64xbf16>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, j, n, k) -> (m, j, k)>, affine_map<(m, j, n, k) -> (n, k)>,
                       affine_map<(m, j, n, k) -> (n, k floordiv 32)>, affine_map<(m, j, n, k) -> (m, j, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%big, %w, %s : tensor<4x2x64xbf16>, tensor<8x64xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x2x8xf32>) {
  ^bb0(%a: bf16, %b: f4E2M1FN, %c: f8E8M0FNU, %sum: f32):
    %v = arith.extf %a : bf16 to f32
    %d = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %v, %d : f32
    %t = arith.addf %sum, %p : f32
    linalg.yield %t : f32
  } -> tensor<4x2x8xf32>
  func.return %y : tensor<4x2x8xf32>
}
