// RUN: mxc opt %s --split-input-file --passes mxc-raise-experts | filecheck %s

// One row for each of a list of numbers.
// CHECK-LABEL: @matrices_of_a_list
// CHECK: %[[N:.*]] = linalg.generic {{.*}} ins(%arg2 : tensor<?xi64>)
// CHECK: arith.select
// CHECK: %[[W:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%arg1, %[[N]] : tensor<8x16x64xf32>, tensor<?xi64>) {{.*}} -> tensor<?x16x64xf32>
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%{{.*}}, %[[W]] : tensor<?x1x64xf32>, tensor<?x16x64xf32>) outs(%{{.*}} : tensor<?x1x16xf32>)
// CHECK-NOT: tensor.extract
func.func @matrices_of_a_list(%x: tensor<?x64xf32>, %table: tensor<8x16x64xf32>, %ids: tensor<?xi64>) -> tensor<?x16x1xf32> {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %none = arith.constant 0 : i64
  %eight = arith.constant 8 : i64
  %p = tensor.dim %ids, %c0 : tensor<?xi64>
  %e = tensor.empty(%p) : tensor<?x16x64xf32>
  %w = linalg.generic {
      indexing_maps = [affine_map<(p, n, k) -> (p)>, affine_map<(p, n, k) -> (p, n, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%ids : tensor<?xi64>) outs(%e : tensor<?x16x64xf32>) {
  ^bb0(%id: i64, %o: f32):
    %negative = arith.cmpi slt, %id, %none : i64
    %from_end = arith.addi %id, %eight : i64
    %number = arith.select %negative, %from_end, %id : i64
    %at = arith.index_cast %number : i64 to index
    %n = linalg.index 1 : index
    %k = linalg.index 2 : index
    %v = tensor.extract %table[%at, %n, %k] : tensor<8x16x64xf32>
    linalg.yield %v : f32
  } -> tensor<?x16x64xf32>
  %column = tensor.expand_shape %x [[0], [1, 2]] output_shape [%p, 64, 1] : tensor<?x64xf32> into tensor<?x64x1xf32>
  %ye = tensor.empty(%p) : tensor<?x16x1xf32>
  %start = linalg.fill ins(%zero : f32) outs(%ye : tensor<?x16x1xf32>) -> tensor<?x16x1xf32>
  %y = linalg.batch_matmul ins(%w, %column : tensor<?x16x64xf32>, tensor<?x64x1xf32>) outs(%start : tensor<?x16x1xf32>) -> tensor<?x16x1xf32>
  func.return %y : tensor<?x16x1xf32>
}

// -----

// Two experts a token: its row is repeated. The table is [E, K, N].
// CHECK-LABEL: @a_row_for_two_experts
// CHECK: %[[T:.*]] = linalg.transpose ins(%arg1 : tensor<8x64x16xbf16>) {{.*}} permutation = [0, 2, 1]
// CHECK: linalg.generic {{.*}} ins(%{{.*}} : tensor<3x1x64xbf16>) outs(%{{.*}} : tensor<3x2x1x64xbf16>)
// CHECK: %[[N:.*]] = tensor.collapse_shape %arg2 {{\[\[}}0, 1]] : tensor<3x2xi32> into tensor<6xi32>
// CHECK: iree_linalg_ext.gather dimension_map = [0] ins(%[[T]], %[[N]] : tensor<8x16x64xbf16>, tensor<6xi32>)
// CHECK: ins({{.*}} : tensor<6x1x64xbf16>, tensor<6x16x64xbf16>) outs({{.*}} : tensor<6x1x16xf32>)
// CHECK: return {{.*}} : tensor<3x2x16xf32>
func.func @a_row_for_two_experts(%x: tensor<3x64xbf16>, %table: tensor<8x64x16xbf16>, %ids: tensor<3x2xi32>) -> tensor<3x2x16xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x2x64x16xbf16>
  %w = linalg.generic {
      indexing_maps = [affine_map<(t, j, k, n) -> (t, j)>, affine_map<(t, j, k, n) -> (t, j, k, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%ids : tensor<3x2xi32>) outs(%e : tensor<3x2x64x16xbf16>) {
  ^bb0(%id: i32, %o: bf16):
    %at = arith.index_cast %id : i32 to index
    %k = linalg.index 2 : index
    %n = linalg.index 3 : index
    %v = tensor.extract %table[%at, %k, %n] : tensor<8x64x16xbf16>
    linalg.yield %v : bf16
  } -> tensor<3x2x64x16xbf16>
  %ye = tensor.empty() : tensor<3x2x16xf32>
  %start = linalg.fill ins(%zero : f32) outs(%ye : tensor<3x2x16xf32>) -> tensor<3x2x16xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(t, j, n, k) -> (t, k)>, affine_map<(t, j, n, k) -> (t, j, k, n)>, affine_map<(t, j, n, k) -> (t, j, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<3x64xbf16>, tensor<3x2x64x16xbf16>) outs(%start : tensor<3x2x16xf32>) {
  ^bb0(%a: bf16, %b: bf16, %acc: f32):
    %a32 = arith.extf %a : bf16 to f32
    %b32 = arith.extf %b : bf16 to f32
    %p = arith.mulf %a32, %b32 : f32
    %s = arith.addf %acc, %p : f32
    linalg.yield %s : f32
  } -> tensor<3x2x16xf32>
  func.return %y : tensor<3x2x16xf32>
}

// -----

// The table has rows, not matrices: what is looked up is one matrix.
// CHECK-LABEL: @rows_of_a_matrix
// CHECK-NOT: gather
func.func @rows_of_a_matrix(%x: tensor<3x64xf32>, %table: tensor<8x64xf32>, %ids: tensor<16xi32>) -> tensor<3x16xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16x64xf32>
  %w = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%ids : tensor<16xi32>) outs(%e : tensor<16x64xf32>) {
  ^bb0(%id: i32, %o: f32):
    %at = arith.index_cast %id : i32 to index
    %k = linalg.index 1 : index
    %v = tensor.extract %table[%at, %k] : tensor<8x64xf32>
    linalg.yield %v : f32
  } -> tensor<16x64xf32>
  %ye = tensor.empty() : tensor<3x16xf32>
  %start = linalg.fill ins(%zero : f32) outs(%ye : tensor<3x16xf32>) -> tensor<3x16xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<3x64xf32>, tensor<16x64xf32>) outs(%start : tensor<3x16xf32>) {
  ^bb0(%a: f32, %b: f32, %acc: f32):
    %p = arith.mulf %a, %b : f32
    %s = arith.addf %acc, %p : f32
    linalg.yield %s : f32
  } -> tensor<3x16xf32>
  func.return %y : tensor<3x16xf32>
}
