// RUN: mxc opt %s --target cpu:znver5 --to normalize | filecheck %s

// A weight that is decoded by an operation on the whole tensor is decoded inside the product too.
// CHECK-LABEL: util.func public @decoded_as_a_whole
// CHECK-NOT: tensor<16x2x32xf32>
// CHECK: linalg.generic
// CHECK-SAME: tensor<16x2x32xf4E2M1FN>
// CHECK: arith.scaling_extf
// CHECK: arith.addf
util.func public @decoded_as_a_whole(%x: tensor<4x64xf32>, %w_bytes: tensor<16x2x16xi8>, %s: tensor<16x2x32xf8E8M0FNU>) -> tensor<4x16xf32> {
  %w = flow.tensor.bitcast %w_bytes : tensor<16x2x16xi8> -> tensor<16x2x32xf4E2M1FN>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x16xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<4x16xf32>) -> tensor<4x16xf32>
  %d = arith.scaling_extf %w, %s : tensor<16x2x32xf4E2M1FN>, tensor<16x2x32xf8E8M0FNU> to tensor<16x2x32xf32>
  %c = tensor.collapse_shape %d [[0], [1, 2]] : tensor<16x2x32xf32> into tensor<16x64xf32>
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %c : tensor<4x64xf32>, tensor<16x64xf32>) outs(%i : tensor<4x16xf32>) -> tensor<4x16xf32>
  util.return %r : tensor<4x16xf32>
}
