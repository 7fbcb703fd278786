// RUN: mxc opt %s --split-input-file --passes mxc-check-operations | filecheck %s

// What moves, decodes and contracts elements is as it was.
// CHECK-LABEL: util.func public @known
// CHECK: linalg.transpose
// CHECK: tensor.extract_slice
// CHECK: arith.scaling_extf
// CHECK: linalg.matmul
util.func @known(%x: tensor<4x32xf32>, %w: tensor<32x32xf4E2M1FN>, %s: tensor<32x32xf8E8M0FNU>, %t: tensor<32x32xf4E2M1FN>, %acc: tensor<4x32xf32>) -> (tensor<16x32xf32>, tensor<4x32xf32>) {
  %turned = linalg.transpose ins(%w : tensor<32x32xf4E2M1FN>) outs(%t : tensor<32x32xf4E2M1FN>) permutation = [1, 0]
  %part = tensor.extract_slice %turned[0, 0] [16, 32] [1, 1] : tensor<32x32xf4E2M1FN> to tensor<16x32xf4E2M1FN>
  %scales = tensor.extract_slice %s[0, 0] [16, 32] [1, 1] : tensor<32x32xf8E8M0FNU> to tensor<16x32xf8E8M0FNU>
  %y = arith.scaling_extf %part, %scales : tensor<16x32xf4E2M1FN>, tensor<16x32xf8E8M0FNU> to tensor<16x32xf32>
  %z = linalg.matmul ins(%x, %w : tensor<4x32xf32>, tensor<32x32xf4E2M1FN>) outs(%acc : tensor<4x32xf32>) -> tensor<4x32xf32>
  util.return %y, %z : tensor<16x32xf32>, tensor<4x32xf32>
}

// -----

// Floats of 8 bits are numbers without scales too.
// CHECK-LABEL: util.func public @numbers
// CHECK: arith.addf
util.func @numbers(%x: tensor<4x32xf8E4M3FN>) -> tensor<4x32xf8E4M3FN> {
  %y = arith.addf %x, %x : tensor<4x32xf8E4M3FN>
  util.return %y : tensor<4x32xf8E4M3FN>
}
