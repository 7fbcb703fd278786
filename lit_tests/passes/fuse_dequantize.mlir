// RUN: mxc opt %s --split-input-file --passes mxc-fuse-dequantize | filecheck %s

// The collapse becomes two loops, and nothing of the size of %d is left.
// CHECK: #[[W:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)>
// CHECK: #[[S:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2)>
// CHECK-LABEL: @matmul_of_collapsed
// CHECK-NOT: tensor<8x2x32xf32>
// CHECK: %[[X:.*]] = tensor.expand_shape %arg0 {{.*}} into tensor<?x2x32xf32>
// CHECK: linalg.generic {indexing_maps = [{{.*}}, #[[W]], #[[S]], {{.*}}]
// CHECK-SAME: ins(%[[X]], %arg1, %arg2 : tensor<?x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>)
// CHECK: arith.scaling_extf
// CHECK-NEXT: arith.mulf
// CHECK-NEXT: arith.addf
func.func @matmul_of_collapsed(%x: tensor<?x64xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %e = tensor.empty() : tensor<8x2x32xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, ko, kb) -> (n, ko, kb)>, affine_map<(n, ko, kb) -> (n, ko)>, affine_map<(n, ko, kb) -> (n, ko, kb)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%e : tensor<8x2x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x2x32xf32>
  %c = tensor.collapse_shape %d [[0], [1, 2]] : tensor<8x2x32xf32> into tensor<8x64xf32>
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %c : tensor<?x64xf32>, tensor<8x64xf32>) outs(%acc : tensor<?x8xf32>) -> tensor<?x8xf32>
  func.return %r : tensor<?x8xf32>
}

// -----

// Extended apart and multiplied, through a transpose, for two users: each has its own copy.
// CHECK-LABEL: @used_twice
// CHECK-NOT: tensor<{{.*}}64x8xf32>
// CHECK: %[[X:.*]] = tensor.expand_shape %arg0
// CHECK: linalg.generic {{.*}} ins(%[[X]], %{{.*}}, %arg3 :
// CHECK: arith.extf
// CHECK: %[[Z:.*]] = tensor.expand_shape %arg1
// CHECK: linalg.generic {{.*}} ins(%[[Z]], %{{.*}}, %arg3 :
// CHECK: arith.extf
func.func @used_twice(%x: tensor<4x64xf32>, %z: tensor<4x64xf32>, %w: tensor<8x64xf8E4M3FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %se = tensor.empty() : tensor<8x2xf32>
  %sf = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%s : tensor<8x2xf8E8M0FNU>) outs(%se : tensor<8x2xf32>) {
  ^bb0(%a: f8E8M0FNU, %c: f32):
    %y = arith.extf %a : f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x2xf32>
  %e = tensor.empty() : tensor<8x64xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k floordiv 32)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%w, %sf : tensor<8x64xf8E4M3FN>, tensor<8x2xf32>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f32, %c: f32):
    %x1 = arith.extf %a : f8E4M3FN to f32
    %y = arith.mulf %x1, %b : f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  %te = tensor.empty() : tensor<64x8xf32>
  %t = linalg.transpose ins(%d : tensor<8x64xf32>) outs(%te : tensor<64x8xf32>) permutation = [1, 0]
  %r = linalg.matmul ins(%x, %t : tensor<4x64xf32>, tensor<64x8xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  %q = linalg.matmul ins(%z, %t : tensor<4x64xf32>, tensor<64x8xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r, %q : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// No reduction reads it: the dequantised tensor is what the program is asked for.
// CHECK-LABEL: @leaves_results_alone
// CHECK: %[[D:.*]] = linalg.generic
// CHECK: return %[[D]]
func.func @leaves_results_alone(%w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %e: tensor<8x2x32xf32>) -> tensor<8x2x32xf32> {
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, ko, kb) -> (n, ko, kb)>, affine_map<(n, ko, kb) -> (n, ko)>, affine_map<(n, ko, kb) -> (n, ko, kb)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%e : tensor<8x2x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x2x32xf32>
  func.return %d : tensor<8x2x32xf32>
}

// -----

// A weight that is no elements and scales: fusing it would be another pass's decision.
// CHECK-LABEL: @leaves_activations_alone
// CHECK: linalg.generic
// CHECK: math.exp
// CHECK: linalg.matmul
func.func @leaves_activations_alone(%x: tensor<4x64xf32>, %w: tensor<64x8xf32>, %e: tensor<4x64xf32>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %d = linalg.generic {
      indexing_maps = [affine_map<(m, k) -> (m, k)>, affine_map<(m, k) -> (m, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<4x64xf32>) outs(%e : tensor<4x64xf32>) {
  ^bb0(%a: f32, %c: f32):
    %y = math.exp %a : f32
    linalg.yield %y : f32
  } -> tensor<4x64xf32>
  %r = linalg.matmul ins(%d, %w : tensor<4x64xf32>, tensor<64x8xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}
