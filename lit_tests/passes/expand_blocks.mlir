// RUN: mxc opt %s --split-input-file --passes mxc-expand-blocks | filecheck %s

// CHECK-DAG: #[[X:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
// CHECK-DAG: #[[W:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)>
// CHECK-DAG: #[[S:.*]] = affine_map<(d0, d1, d2, d3) -> (d1, d2)>
// CHECK-LABEL: @rank_two
// CHECK: %[[X4:.*]] = tensor.expand_shape %arg0 {{\[\[}}0], [1, 2]] output_shape [%{{.*}}, 2, 32] : tensor<?x64xf32> into tensor<?x2x32xf32>
// CHECK: %[[W4:.*]] = tensor.expand_shape %arg1 {{.*}} into tensor<8x2x32xf4E2M1FN>
// CHECK: linalg.generic {indexing_maps = [#[[X]], #[[W]], #[[S]], {{.*}}], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
// CHECK-SAME: ins(%[[X4]], %[[W4]], %arg2 :
func.func @rank_two(%x: tensor<?x64xf32>, %w: tensor<8x64xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %s : tensor<?x64xf32>, tensor<8x64xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<?x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x8xf32>
  func.return %r : tensor<?x8xf32>
}

// -----

// A parallel loop over the rows of several experts: the result is collapsed again.
// CHECK-LABEL: @rows_of_experts
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]
// CHECK-SAME: outs({{.*}} : tensor<4x3x8xf32>)
// CHECK: tensor.collapse_shape {{.*}} : tensor<4x3x8xf32> into tensor<4x24xf32>
func.func @rows_of_experts(%x: tensor<4x2x32xf32>, %w: tensor<3x8x2x32xf4E2M1FN>, %s: tensor<3x8x2xf8E8M0FNU>, %acc: tensor<4x24xf32>) -> tensor<4x24xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (n floordiv 8, n mod 8, ko, kb)>, affine_map<(m, n, ko, kb) -> (n floordiv 8, n mod 8, ko)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<3x8x2x32xf4E2M1FN>, tensor<3x8x2xf8E8M0FNU>) outs(%acc : tensor<4x24xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x24xf32>
  func.return %r : tensor<4x24xf32>
}

// -----

// The index of a tensor that was expanded: the reshape moves to the packed operand.
// CHECK-LABEL: @whole_index_of_blocks
// CHECK: %[[W4:.*]] = tensor.expand_shape %arg1 {{.*}} into tensor<8x2x32xf4E2M1FN>
// CHECK: linalg.generic {{.*}} ins(%arg0, %[[W4]], %arg2 :
func.func @whole_index_of_blocks(%x: tensor<4x2x32xf32>, %w: tensor<8x64xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko * 32 + kb)>, affine_map<(m, n, ko, kb) -> (n, ko)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<8x64xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Scales for 16 on one side and for 32 on the other: blocks of 32, of two blocks of 16 each.
// CHECK-LABEL: @two_block_sizes
// CHECK-DAG: tensor.expand_shape %arg0 {{.*}} into tensor<4x2x2x16xf8E4M3FN>
// CHECK-DAG: tensor.expand_shape %arg1 {{.*}} into tensor<4x2x2xf8E8M0FNU>
// CHECK-DAG: tensor.expand_shape %arg2 {{.*}} into tensor<8x2x2x16xf4E2M1FN>
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction", "reduction", "reduction"]
func.func @two_block_sizes(%x: tensor<4x64xf8E4M3FN>, %xs: tensor<4x4xf8E8M0FNU>, %w: tensor<8x64xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, k floordiv 16)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x64xf8E4M3FN>, tensor<8x64xf4E2M1FN>, tensor<4x4xf8E8M0FNU>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f8E4M3FN, f8E8M0FNU to f32
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// The number of an iteration of the loop that is split is one of the whole loop.
// CHECK-DAG: #[[WHOLE:.*]] = affine_map<(d0, d1, d2, d3) -> (d2 * 32 + d3)>
// CHECK-LABEL: @masked
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction", "reduction"]
// CHECK: %[[KO:.*]] = linalg.index 2 : index
// CHECK: %[[KB:.*]] = linalg.index 3 : index
// CHECK: %[[K:.*]] = affine.apply #[[WHOLE]](%{{.*}}, %{{.*}}, %[[KO]], %[[KB]])
// CHECK: arith.cmpi slt, %[[K]], %
func.func @masked(%x: tensor<4x64xf32>, %w: tensor<8x64xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %s : tensor<4x64xf32>, tensor<8x64xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %k = linalg.index 2 : index
    %most = arith.constant 40 : index
    %kept = arith.cmpi slt, %k, %most : index
    %p = arith.mulf %a, %y : f32
    %zero = arith.constant 0.0 : f32
    %t = arith.select %kept, %p, %zero : f32
    %q = arith.addf %o, %t : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Scales with padding are cut to what the loops read.
// CHECK-LABEL: @padded_scales
// CHECK: %[[S:.*]] = tensor.extract_slice %arg2[0, 0] [8, 2] [1, 1] : tensor<8x5xf8E8M0FNU> to tensor<8x2xf8E8M0FNU>
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction", "reduction"]
// CHECK-SAME: %[[S]]
func.func @padded_scales(%x: tensor<4x64xf32>, %w: tensor<8x64xf4E2M1FN>, %s: tensor<8x5xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %s : tensor<4x64xf32>, tensor<8x64xf4E2M1FN>, tensor<8x5xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// A part of packed elements is not: the operation stays as it is.
// CHECK-DAG: #[[ROWS:.*]] = affine_map<(d0, d1, d2) -> (d1 floordiv 4, d2)>
// CHECK-LABEL: @rows_of_elements
// CHECK-NOT: tensor.extract_slice
// CHECK: linalg.generic {indexing_maps = [#{{.*}}, #[[ROWS]], #{{.*}}], iterator_types = ["parallel", "parallel", "reduction"]}
func.func @rows_of_elements(%x: tensor<4x64xf32>, %w: tensor<8x64xf4E2M1FN>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n floordiv 4, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4x64xf32>, tensor<8x64xf4E2M1FN>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %o: f32):
    %y = arith.extf %b : f4E2M1FN to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}
