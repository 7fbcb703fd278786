// RUN: mxc opt %s --split-input-file --passes mxc-gather-packed | filecheck %s

// CHECK-LABEL: @dequantized_experts
// CHECK-NOT: tensor<5x8x3x32xf32>
// CHECK: %[[W:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%arg0, %arg2 : tensor<5x8x3x32xf4E2M1FN>, tensor<?xi32>)
// CHECK: %[[S:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%arg1, %arg2 : tensor<5x8x3xf8E8M0FNU>, tensor<?xi32>)
// CHECK: linalg.generic {{.*}} ins(%[[W]], %[[S]] :
// CHECK: tensor.collapse_shape {{.*}} : tensor<?x8x3x32xf32> into tensor<?x8x96xf32>
func.func @dequantized_experts(%w: tensor<5x8x3x32xf4E2M1FN>, %s: tensor<5x8x3xf8E8M0FNU>, %ids: tensor<?xi32>, %out: tensor<?x8x96xf32>) -> tensor<?x8x96xf32> {
  %e = tensor.empty() : tensor<5x8x3x32xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(e, n, ko, kb) -> (e, n, ko, kb)>, affine_map<(e, n, ko, kb) -> (e, n, ko)>, affine_map<(e, n, ko, kb) -> (e, n, ko, kb)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<5x8x3x32xf4E2M1FN>, tensor<5x8x3xf8E8M0FNU>) outs(%e : tensor<5x8x3x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<5x8x3x32xf32>
  %c = tensor.collapse_shape %d [[0], [1], [2, 3]] : tensor<5x8x3x32xf32> into tensor<5x8x96xf32>
  %g = iree_linalg_ext.gather dimension_map = [0] ins(%c, %ids : tensor<5x8x96xf32>, tensor<?xi32>) outs(%out : tensor<?x8x96xf32>) -> tensor<?x8x96xf32>
  func.return %g : tensor<?x8x96xf32>
}

// -----

// A transpose between: it is done again over the chosen experts.
// CHECK-LABEL: @through_a_transpose
// CHECK-COUNT-2: iree_linalg_ext.gather
// CHECK: arith.scaling_extf
// CHECK: linalg.generic {{.*}} outs({{.*}} : tensor<2x32x8xf32>)
// CHECK-NOT: iree_linalg_ext.gather
func.func @through_a_transpose(%w: tensor<5x8x32xf4E2M1FN>, %s: tensor<5x8xf8E8M0FNU>, %ids: tensor<2xi32>, %out: tensor<2x32x8xf32>) -> tensor<2x32x8xf32> {
  %e = tensor.empty() : tensor<5x8x32xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(e, n, k) -> (e, n, k)>, affine_map<(e, n, k) -> (e, n)>, affine_map<(e, n, k) -> (e, n, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<5x8x32xf4E2M1FN>, tensor<5x8xf8E8M0FNU>) outs(%e : tensor<5x8x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<5x8x32xf32>
  %te = tensor.empty() : tensor<5x32x8xf32>
  %t = linalg.transpose ins(%d : tensor<5x8x32xf32>) outs(%te : tensor<5x32x8xf32>) permutation = [0, 2, 1]
  %g = iree_linalg_ext.gather dimension_map = [0] ins(%t, %ids : tensor<5x32x8xf32>, tensor<2xi32>) outs(%out : tensor<2x32x8xf32>) -> tensor<2x32x8xf32>
  func.return %g : tensor<2x32x8xf32>
}

// -----

// Experts by numbers of i64, through shapes that are merged and split again.
// CHECK-LABEL: @experts_of_i64
// CHECK: %[[N:.*]] = linalg.generic {{.*}} ins(%arg2 : tensor<2xi64>) outs(%{{.*}} : tensor<2xi32>)
// CHECK: %[[W:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%arg0, %[[N]] : tensor<5x8x32xf4E2M1FN>, tensor<2xi32>)
// CHECK: %[[S:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%arg1, %[[N]] : tensor<5x8xf8E8M0FNU>, tensor<2xi32>)
// CHECK: %[[D:.*]] = linalg.generic {{.*}} ins(%[[W]], %[[S]] :
// CHECK: return %[[D]] : tensor<2x8x32xf32>
func.func @experts_of_i64(%w: tensor<5x8x32xf4E2M1FN>, %s: tensor<5x8xf8E8M0FNU>, %ids: tensor<2xi64>, %out: tensor<2x8x32xf32>) -> tensor<2x8x32xf32> {
  %e = tensor.empty() : tensor<5x8x32xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(e, n, k) -> (e, n, k)>, affine_map<(e, n, k) -> (e, n)>, affine_map<(e, n, k) -> (e, n, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<5x8x32xf4E2M1FN>, tensor<5x8xf8E8M0FNU>) outs(%e : tensor<5x8x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<5x8x32xf32>
  %merged = tensor.collapse_shape %d [[0, 1], [2]] : tensor<5x8x32xf32> into tensor<40x32xf32>
  %split = tensor.expand_shape %merged [[0, 1], [2]] output_shape [5, 8, 32] : tensor<40x32xf32> into tensor<5x8x32xf32>
  %g = iree_linalg_ext.gather dimension_map = [0] ins(%split, %ids : tensor<5x8x32xf32>, tensor<2xi64>) outs(%out : tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  func.return %g : tensor<2x8x32xf32>
}

// -----

// An embedding of plain floats.
// CHECK-LABEL: @leaves_floats_alone
// CHECK: iree_linalg_ext.gather dimension_map = [0] ins(%arg0, %arg1 : tensor<5x8xf32>, tensor<2xi32>)
func.func @leaves_floats_alone(%x: tensor<5x8xf32>, %ids: tensor<2xi32>, %out: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %g = iree_linalg_ext.gather dimension_map = [0] ins(%x, %ids : tensor<5x8xf32>, tensor<2xi32>) outs(%out : tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %g : tensor<2x8xf32>
}

// -----

// An embedding written as an element of the table for each element of the result, by clamped ids;
// scales are found by a division.
// CHECK-LABEL: @lookup
// CHECK: %[[I:.*]] = linalg.generic {{.*}} ins(%arg2 : tensor<2x3xi64>) outs(%{{.*}} : tensor<2x3xi64>)
// CHECK: arith.maxsi
// CHECK: %[[F:.*]] = tensor.collapse_shape %[[I]] {{.*}} into tensor<6xi64>
// CHECK: %[[N:.*]] = linalg.generic {{.*}} ins(%[[F]] : tensor<6xi64>) outs(%{{.*}} : tensor<6xi32>)
// CHECK: arith.trunci
// CHECK: %[[W:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%arg0, %[[N]] : tensor<16x64xf4E2M1FN>, tensor<6xi32>)
// CHECK: %[[S:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%arg1, %[[N]] : tensor<16x2xf8E8M0FNU>, tensor<6xi32>)
// CHECK: %[[D:.*]] = linalg.generic {{.*}} ins(%[[W]], %[[S]] :
// CHECK-NEXT: ^bb0
// CHECK-NEXT: arith.scaling_extf
// CHECK: tensor.expand_shape %[[D]] {{.*}} into tensor<2x3x64xf32>
// CHECK-NOT: tensor.extract
func.func @lookup(%w: tensor<16x64xf4E2M1FN>, %s: tensor<16x2xf8E8M0FNU>, %ids: tensor<2x3xi64>) -> tensor<2x3x64xf32> {
  %e = tensor.empty() : tensor<16x64xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k floordiv 32)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%w, %s : tensor<16x64xf4E2M1FN>, tensor<16x2xf8E8M0FNU>) outs(%e : tensor<16x64xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<16x64xf32>
  %o = tensor.empty() : tensor<2x3x64xf32>
  %l = linalg.generic {
      indexing_maps = [affine_map<(b, t, k) -> (b, t)>, affine_map<(b, t, k) -> (b, t, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%ids : tensor<2x3xi64>) outs(%o : tensor<2x3x64xf32>) {
  ^bb0(%i: i64, %c: f32):
    %zero = arith.constant 0 : i64
    %n = arith.maxsi %i, %zero : i64
    %at = arith.index_cast %n : i64 to index
    %k = linalg.index 2 : index
    %v = tensor.extract %d[%at, %k] : tensor<16x64xf32>
    linalg.yield %v : f32
  } -> tensor<2x3x64xf32>
  func.return %l : tensor<2x3x64xf32>
}

// -----

// Rows of packed elements that are read one by one, as JAX reads the weights of experts.
// CHECK-LABEL: @packed_lookup
// CHECK: iree_linalg_ext.gather dimension_map = [0] ins(%arg0, %arg1 : tensor<5x8x64xf4E2M1FN>, tensor<2xi32>)
// CHECK-NOT: tensor.extract
func.func @packed_lookup(%w: tensor<5x8x64xf4E2M1FN>, %ids: tensor<2xi32>) -> tensor<2x8x64xf4E2M1FN> {
  %e = tensor.empty() : tensor<2x8x64xf4E2M1FN>
  %l = linalg.generic {
      indexing_maps = [affine_map<(t, n, k) -> (t)>, affine_map<(t, n, k) -> (t, n, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%ids : tensor<2xi32>) outs(%e : tensor<2x8x64xf4E2M1FN>) {
  ^bb0(%i: i32, %c: f4E2M1FN):
    %at = arith.index_cast %i : i32 to index
    %n = linalg.index 1 : index
    %k = linalg.index 2 : index
    %v = tensor.extract %w[%at, %n, %k] : tensor<5x8x64xf4E2M1FN>
    linalg.yield %v : f4E2M1FN
  } -> tensor<2x8x64xf4E2M1FN>
  func.return %l : tensor<2x8x64xf4E2M1FN>
}
