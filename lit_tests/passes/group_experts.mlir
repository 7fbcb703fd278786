// RUN: mxc opt %s --split-input-file --passes mxc-group-experts | filecheck %s

// Rows are copied to groups; the rounded product of each group is looked up by the slots of pairs.
// CHECK-LABEL: util.func private @mxc.group_by_expert
// CHECK-LABEL: @a_row_a_group
// The rows of a group by the pairs of 8 experts: from 20 of each on, and from 88.
// CHECK: arith.constant 160 : index
// CHECK: %[[SOME:.*]] = arith.select %{{.*}}, %c32, %c16 : index
// CHECK: arith.constant 704 : index
// CHECK: arith.select %{{.*}}, %c64, %[[SOME]] : index
// CHECK: %[[G:.*]]:4 = util.call @mxc.group_by_expert{{.*}}(%arg2, {{.*}}) : (tensor<?xi32>, tensor<?xi32>, tensor<?xi32>, index, tensor<?x64xbf16>)
// CHECK: %[[X:.*]] = tensor.expand_shape %{{.*}} : tensor<?xbf16> into tensor<?x?x64xbf16>
// CHECK: %[[E:.*]] = linalg.generic {{.*}} ins(%[[G]]#0 : tensor<?xi32>)
// CHECK: arith.minsi
// CHECK: %[[W:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%arg1, %[[E]] : tensor<8x32x64xbf16>, tensor<?xi32>)
// CHECK: %[[Y:.*]] = linalg.generic {{.*}} ins(%[[X]], %[[W]] : tensor<?x?x64xbf16>, tensor<?x32x64xbf16>) outs(%{{.*}} : tensor<?x?x32xf32>)
// CHECK: linalg.generic {{.*}} ins(%[[Y]] : tensor<?x?x32xf32>)
// CHECK: arith.truncf
// CHECK: linalg.generic {{.*}} ins(%[[G]]#2 : tensor<?xi32>)
// CHECK: tensor.extract
func.func @a_row_a_group(%x: tensor<?x1x64xbf16>, %w: tensor<8x32x64xbf16>, %ids: tensor<?xi32>) -> tensor<?x1x32xbf16> {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %p = tensor.dim %ids, %c0 : tensor<?xi32>
  %ge = tensor.empty(%p) : tensor<?x32x64xbf16>
  %g = iree_linalg_ext.gather dimension_map = [0] ins(%w, %ids : tensor<8x32x64xbf16>, tensor<?xi32>) outs(%ge : tensor<?x32x64xbf16>) -> tensor<?x32x64xbf16>
  %ye = tensor.empty(%p) : tensor<?x1x32xf32>
  %start = linalg.fill ins(%zero : f32) outs(%ye : tensor<?x1x32xf32>) -> tensor<?x1x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(g, m, n, k) -> (g, m, k)>, affine_map<(g, m, n, k) -> (g, n, k)>, affine_map<(g, m, n, k) -> (g, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %g : tensor<?x1x64xbf16>, tensor<?x32x64xbf16>) outs(%start : tensor<?x1x32xf32>) {
  ^bb0(%a: bf16, %b: bf16, %acc: f32):
    %a32 = arith.extf %a : bf16 to f32
    %b32 = arith.extf %b : bf16 to f32
    %m = arith.mulf %a32, %b32 : f32
    %s = arith.addf %acc, %m : f32
    linalg.yield %s : f32
  } -> tensor<?x1x32xf32>
  %re = tensor.empty(%p) : tensor<?x1x32xbf16>
  %r = linalg.generic {
      indexing_maps = [affine_map<(g, m, n) -> (g, m, n)>, affine_map<(g, m, n) -> (g, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%y : tensor<?x1x32xf32>) outs(%re : tensor<?x1x32xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %b = arith.truncf %a : f32 to bf16
    linalg.yield %b : bf16
  } -> tensor<?x1x32xbf16>
  func.return %r : tensor<?x1x32xbf16>
}

// -----

// Sixteen rows read at most sixteen matrices.
// CHECK-LABEL: @few_rows
// CHECK-NOT: group_by_expert
func.func @few_rows(%x: tensor<16x1x64xbf16>, %w: tensor<8x32x64xbf16>, %ids: tensor<16xi32>) -> tensor<16x1x32xf32> {
  %zero = arith.constant 0.0 : f32
  %ge = tensor.empty() : tensor<16x32x64xbf16>
  %g = iree_linalg_ext.gather dimension_map = [0] ins(%w, %ids : tensor<8x32x64xbf16>, tensor<16xi32>) outs(%ge : tensor<16x32x64xbf16>) -> tensor<16x32x64xbf16>
  %ye = tensor.empty() : tensor<16x1x32xf32>
  %start = linalg.fill ins(%zero : f32) outs(%ye : tensor<16x1x32xf32>) -> tensor<16x1x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(g, m, n, k) -> (g, m, k)>, affine_map<(g, m, n, k) -> (g, n, k)>, affine_map<(g, m, n, k) -> (g, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %g : tensor<16x1x64xbf16>, tensor<16x32x64xbf16>) outs(%start : tensor<16x1x32xf32>) {
  ^bb0(%a: bf16, %b: bf16, %acc: f32):
    %a32 = arith.extf %a : bf16 to f32
    %b32 = arith.extf %b : bf16 to f32
    %m = arith.mulf %a32, %b32 : f32
    %s = arith.addf %acc, %m : f32
    linalg.yield %s : f32
  } -> tensor<16x1x32xf32>
  func.return %y : tensor<16x1x32xf32>
}
