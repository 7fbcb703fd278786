// RUN: mxc opt %s --split-input-file --passes mxc-unpack-before-gather | filecheck %s

// CHECK-LABEL: @elements_and_scales
// CHECK: %[[W:.*]] = flow.tensor.bitcast %arg0 : tensor<5x8x3x16xi8> -> tensor<5x8x3x32xf4E2M1FN>
// CHECK: %[[G:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%[[W]], %arg2 : tensor<5x8x3x32xf4E2M1FN>, tensor<?xi32>)
// CHECK: %[[S:.*]] = flow.tensor.bitcast %arg1 : tensor<5x8x3xi8> -> tensor<5x8x3xf8E8M0FNU>
// CHECK: %[[H:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%[[S]], %arg2 : tensor<5x8x3xf8E8M0FNU>, tensor<?xi32>)
// CHECK: return %[[G]], %[[H]]
func.func @elements_and_scales(%bytes: tensor<5x8x3x16xi8>, %scales: tensor<5x8x3xi8>, %ids: tensor<?xi32>, %e: tensor<?x8x3x16xi8>, %f: tensor<?x8x3xi8>, %t: index) -> (tensor<?x8x3x32xf4E2M1FN>, tensor<?x8x3xf8E8M0FNU>) {
  %g = iree_linalg_ext.gather dimension_map = [0] ins(%bytes, %ids : tensor<5x8x3x16xi8>, tensor<?xi32>) outs(%e : tensor<?x8x3x16xi8>) -> tensor<?x8x3x16xi8>
  %h = iree_linalg_ext.gather dimension_map = [0] ins(%scales, %ids : tensor<5x8x3xi8>, tensor<?xi32>) outs(%f : tensor<?x8x3xi8>) -> tensor<?x8x3xi8>
  %w = flow.tensor.bitcast %g : tensor<?x8x3x16xi8>{%t} -> tensor<?x8x3x32xf4E2M1FN>{%t}
  %s = flow.tensor.bitcast %h : tensor<?x8x3xi8>{%t} -> tensor<?x8x3xf8E8M0FNU>{%t}
  func.return %w, %s : tensor<?x8x3x32xf4E2M1FN>, tensor<?x8x3xf8E8M0FNU>
}

// -----

// The rows are bytes of several blocks each: only the whole says how they are cut.
// CHECK-LABEL: @leaves_other_shapes_alone
// CHECK: %[[G:.*]] = iree_linalg_ext.gather dimension_map = [0] ins(%arg0, %arg1 : tensor<5x48xi8>
// CHECK: flow.tensor.bitcast %[[G]]
func.func @leaves_other_shapes_alone(%bytes: tensor<5x48xi8>, %ids: tensor<2xi32>, %e: tensor<2x48xi8>) -> tensor<2x3x32xf4E2M1FN> {
  %g = iree_linalg_ext.gather dimension_map = [0] ins(%bytes, %ids : tensor<5x48xi8>, tensor<2xi32>) outs(%e : tensor<2x48xi8>) -> tensor<2x48xi8>
  %w = flow.tensor.bitcast %g : tensor<2x48xi8> -> tensor<2x3x32xf4E2M1FN>
  func.return %w : tensor<2x3x32xf4E2M1FN>
}
