// RUN: mxc opt %s --split-input-file --passes convert-elementwise-to-linalg,mxc-fuse-epilogues | filecheck %s

// GELU by tanh, a whole tensor at a time, then a residual in bf16: one operation.
// CHECK-LABEL: @gelu
// CHECK: %[[Y:.*]] = linalg.matmul
// CHECK-NEXT: tensor.empty
// CHECK-NEXT: %[[R:.*]] = linalg.generic {{.*}} ins(%[[Y]]
// CHECK-SAME: %arg3 : {{.*}}tensor<4x6xbf16>
// CHECK: math.tanh
// CHECK-NOT: linalg.generic
// CHECK: return
func.func @gelu(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %acc: tensor<4x6xf32>, %r: tensor<4x6xbf16>) -> tensor<4x6xf32> {
  %half = arith.constant dense<0.5> : tensor<4x6xf32>
  %one = arith.constant dense<1.0> : tensor<4x6xf32>
  %c = arith.constant dense<0.044715> : tensor<4x6xf32>
  %s = arith.constant dense<0.7978845608> : tensor<4x6xf32>
  %y = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%acc : tensor<4x6xf32>) -> tensor<4x6xf32>
  %y2 = arith.mulf %y, %y : tensor<4x6xf32>
  %y3 = arith.mulf %y2, %y : tensor<4x6xf32>
  %a = arith.mulf %y3, %c : tensor<4x6xf32>
  %b = arith.addf %y, %a : tensor<4x6xf32>
  %d = arith.mulf %b, %s : tensor<4x6xf32>
  %t = math.tanh %d : tensor<4x6xf32>
  %u = arith.addf %t, %one : tensor<4x6xf32>
  %h = arith.mulf %y, %half : tensor<4x6xf32>
  %g = arith.mulf %h, %u : tensor<4x6xf32>
  %wide = arith.extf %r : tensor<4x6xbf16> to tensor<4x6xf32>
  %z = arith.addf %g, %wide : tensor<4x6xf32>
  func.return %z : tensor<4x6xf32>
}

// -----

// The bias is read where it is before it is broadcast.
// CHECK: #[[COLUMN:.*]] = affine_map<(d0, d1) -> (d1)>
// CHECK-LABEL: @bias(
// CHECK-NOT: linalg.broadcast
// CHECK: linalg.generic {indexing_maps = [{{.*}}, #[[COLUMN]], {{.*}}]{{.*}} ins(%{{.*}}, %arg3 : tensor<4x6xf32>, tensor<6xf16>)
func.func @bias(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %acc: tensor<4x6xf32>, %b: tensor<6xf16>) -> tensor<4x6xf32> {
  %y = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%acc : tensor<4x6xf32>) -> tensor<4x6xf32>
  %wide = arith.extf %b : tensor<6xf16> to tensor<6xf32>
  %e = tensor.empty() : tensor<4x6xf32>
  %big = linalg.broadcast ins(%wide : tensor<6xf32>) outs(%e : tensor<4x6xf32>) dimensions = [0]
  %z = arith.addf %y, %big : tensor<4x6xf32>
  func.return %z : tensor<4x6xf32>
}

// -----

// So is one that was broadcast before it was widened.
// CHECK: #[[COLUMN:.*]] = affine_map<(d0, d1) -> (d1)>
// CHECK-LABEL: @bias_widened_late
// CHECK: linalg.generic {indexing_maps = [{{.*}}, #[[COLUMN]], {{.*}}]{{.*}} ins(%{{.*}}, %arg3 : tensor<4x6xf32>, tensor<6xbf16>)
func.func @bias_widened_late(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %acc: tensor<4x6xf32>, %b: tensor<6xbf16>) -> tensor<4x6xf32> {
  %y = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%acc : tensor<4x6xf32>) -> tensor<4x6xf32>
  %e = tensor.empty() : tensor<4x6xbf16>
  %big = linalg.broadcast ins(%b : tensor<6xbf16>) outs(%e : tensor<4x6xbf16>) dimensions = [0]
  %wide = arith.extf %big : tensor<4x6xbf16> to tensor<4x6xf32>
  %z = arith.addf %y, %wide : tensor<4x6xf32>
  func.return %z : tensor<4x6xf32>
}

// -----

// What is returned too is stored: the operation behind it stays by itself.
// CHECK-LABEL: @returned
// CHECK: %[[Y:.*]] = linalg.matmul
// CHECK: %[[Z:.*]] = linalg.generic
// CHECK: return %[[Y]], %[[Z]]
func.func @returned(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %acc: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %y = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%acc : tensor<4x6xf32>) -> tensor<4x6xf32>
  %z = math.absf %y : tensor<4x6xf32>
  func.return %y, %z : tensor<4x6xf32>, tensor<4x6xf32>
}
