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

// -----

// A scalar from outside of the body is read as a tensor; what is computed of it is computed inside.
// CHECK-LABEL: @captured
// CHECK: %[[S:.*]] = tensor.extract_slice %arg4[%{{.*}}] [1] [1] : tensor<3xf32> to tensor<f32>
// CHECK: %[[F:.*]] = tensor.from_elements %arg5 : tensor<f32>
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %arg3, %[[S]], %[[F]] : tensor<4x6xf32>, tensor<f32>, tensor<f32>, tensor<f32>)
// CHECK-NEXT: ^bb0(%[[A:.*]]: f32, %[[T:.*]]: f32, %[[E:.*]]: f32, %[[G:.*]]: f32, %{{.*}}: f32):
// CHECK: math.sqrt %[[T]]
func.func @captured(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %acc: tensor<4x6xf32>, %t: tensor<f32>, %three: tensor<3xf32>, %f: f32) -> tensor<4x6xf32> {
  %y = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%acc : tensor<4x6xf32>) -> tensor<4x6xf32>
  %whole = tensor.extract %t[] : tensor<f32>
  %root = math.sqrt %whole : f32
  %c2 = arith.constant 2 : index
  %last = tensor.extract %three[%c2] : tensor<3xf32>
  %e = tensor.empty() : tensor<4x6xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<4x6xf32>) outs(%e : tensor<4x6xf32>) {
  ^bb0(%a: f32, %o: f32):
    %p = arith.mulf %a, %root : f32
    %q = arith.addf %p, %last : f32
    %r = arith.maximumf %q, %f : f32
    linalg.yield %r : f32
  } -> tensor<4x6xf32>
  func.return %z : tensor<4x6xf32>
}

// -----

// What follows a transpose of a product: it is computed before, a bias of rows is one of columns.
// CHECK: #[[COLUMN:.*]] = affine_map<(d0, d1) -> (d1)>
// CHECK-LABEL: @transposed
// CHECK: %[[Y:.*]] = linalg.matmul
// CHECK: %[[R:.*]] = linalg.generic {indexing_maps = [{{.*}}, #[[COLUMN]], {{.*}}]{{.*}} ins(%[[Y]], %arg3 : tensor<4x6xf32>, tensor<6xf32>)
// CHECK: arith.addf
// CHECK: %[[Q:.*]] = linalg.generic {{.*}} ins(%[[R]] :
// CHECK: arith.maximumf
// CHECK: %[[T:.*]] = linalg.transpose ins(%[[Q]] : tensor<4x6xf32>) outs(%{{.*}} : tensor<6x4xf32>) permutation = [1, 0]
// CHECK: return %[[T]]
func.func @transposed(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %acc: tensor<4x6xf32>, %b: tensor<6xf32>) -> tensor<6x4xf32> {
  %y = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%acc : tensor<4x6xf32>) -> tensor<4x6xf32>
  %e = tensor.empty() : tensor<6x4xf32>
  %t = linalg.transpose ins(%y : tensor<4x6xf32>) outs(%e : tensor<6x4xf32>) permutation = [1, 0]
  %i = tensor.empty() : tensor<6x4xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(n, m) -> (n, m)>, affine_map<(n, m) -> (n)>, affine_map<(n, m) -> (n, m)>], iterator_types = ["parallel", "parallel"]}
      ins(%t, %b : tensor<6x4xf32>, tensor<6xf32>) outs(%i : tensor<6x4xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %p = arith.addf %a, %c : f32
    linalg.yield %p : f32
  } -> tensor<6x4xf32>
  %zero = arith.constant dense<0.0> : tensor<6x4xf32>
  %r = arith.maximumf %z, %zero : tensor<6x4xf32>
  func.return %r : tensor<6x4xf32>
}

// -----

// linalg.map has no maps of its operands, and stays as it is.
// CHECK-LABEL: @mapped
// CHECK: linalg.matmul
// CHECK: linalg.map { math.tanh }
// CHECK: linalg.map { arith.negf }
// CHECK-NOT: linalg.generic
func.func @mapped(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %acc: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %y = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%acc : tensor<4x6xf32>) -> tensor<4x6xf32>
  %e = tensor.empty() : tensor<4x6xf32>
  %t = linalg.map { math.tanh } ins(%y : tensor<4x6xf32>) outs(%e : tensor<4x6xf32>)
  %z = linalg.map { arith.negf } ins(%t : tensor<4x6xf32>) outs(%e : tensor<4x6xf32>)
  func.return %z : tensor<4x6xf32>
}
