// RUN: mxc opt %s --split-input-file --passes mxc-canonical-accumulators | filecheck %s

// A constant, one behind a reshape, one behind a bitcast, and a fill: all become a fill.
// CHECK-LABEL: @zeros
// CHECK: linalg.fill ins(%{{.*}} : f32)
// CHECK: linalg.matmul
// CHECK: linalg.fill ins(%{{.*}} : f32)
// CHECK: linalg.matmul
// CHECK: linalg.fill ins(%{{.*}} : f32)
// CHECK: linalg.matmul
// CHECK: return
func.func @zeros(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) {
  %a = arith.constant dense<0.0> : tensor<4x6xf32>
  %0 = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%a : tensor<4x6xf32>) -> tensor<4x6xf32>
  %b = arith.constant dense<0.0> : tensor<24xf32>
  %b2 = tensor.expand_shape %b [[0, 1]] output_shape [4, 6] : tensor<24xf32> into tensor<4x6xf32>
  %1 = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%b2 : tensor<4x6xf32>) -> tensor<4x6xf32>
  %c = arith.constant dense<0> : tensor<4x6xi32>
  %c2 = tensor.bitcast %c : tensor<4x6xi32> to tensor<4x6xf32>
  %2 = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%c2 : tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return %0, %1, %2 : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// A bias that was broadcast is added to the product, as it is.
// CHECK: #[[COLUMN:.*]] = affine_map<(d0, d1) -> (d1)>
// CHECK-LABEL: @bias
// CHECK-NOT: linalg.broadcast
// CHECK: %[[Z:.*]] = linalg.fill
// CHECK: %[[P:.*]] = linalg.generic {{.*}}"reduction"]} ins(%arg0, %arg1, %arg2 : {{.*}}) outs(%[[Z]] :
// CHECK: %[[Y:.*]] = linalg.generic {indexing_maps = [{{.*}}, #[[COLUMN]], {{.*}}]{{.*}} ins(%[[P]], %arg3 :
// CHECK: return %[[Y]]
func.func @bias(%x: tensor<4x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
  %e = tensor.empty() : tensor<4x8xf32>
  %acc = linalg.broadcast ins(%b : tensor<8xf32>) outs(%e : tensor<4x8xf32>) dimensions = [0]
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (n, o, b)>, affine_map<(m, n, o, b) -> (n, o)>, affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %c: f4E2M1FN, %d: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %c, %d : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// -0.0 is the sum of negative zeros alone: a kernel's is 0.0 then, and a note says so.
// CHECK-LABEL: @negative
// CHECK: %[[ZERO:.*]] = arith.constant 0.000000e+00
// CHECK: %[[Z:.*]] = linalg.fill ins(%[[ZERO]] : f32)
// CHECK: linalg.generic {{.*}} outs(%[[Z]] : {{.*}})
func.func @negative(%x: tensor<4x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>) -> tensor<4x8xf32> {
  %acc = arith.constant dense<-0.0> : tensor<4x8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (n, o, b)>, affine_map<(m, n, o, b) -> (n, o)>, affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %c: f4E2M1FN, %d: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %c, %d : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Of plain tensors, what is accumulated stays where it is.
// CHECK-LABEL: @plain
// CHECK-NOT: linalg.fill
// CHECK: linalg.matmul {{.*}} outs(%arg2 :
func.func @plain(%x: tensor<4x8xf32>, %w: tensor<8x6xf32>, %acc: tensor<4x6xf32>) -> tensor<4x6xf32> {
  %0 = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x6xf32>) outs(%acc : tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return %0 : tensor<4x6xf32>
}

// -----

// A maximum is no sum, whatever it starts from.
// CHECK-LABEL: @maximum
// CHECK: linalg.reduce { arith.maximumf } ins(%arg0 : tensor<4x64xf32>) outs(%arg1 : tensor<4xf32>)
// CHECK-NOT: arith.addf
func.func @maximum(%x: tensor<4x64xf32>, %start: tensor<4xf32>) -> tensor<4xf32> {
  %r = linalg.reduce { arith.maximumf } ins(%x : tensor<4x64xf32>) outs(%start : tensor<4xf32>) dimensions = [1]
  func.return %r : tensor<4xf32>
}

// -----

// A fill of another number is added once: the sum starts from zero.
// CHECK-LABEL: @filled
// CHECK: %[[ZERO:.*]] = arith.constant 0.000000e+00
// CHECK: %[[Z:.*]] = linalg.fill ins(%[[ZERO]] : f32)
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}}, %{{.*}} : {{.*}}) outs(%[[Z]] : {{.*}})
// CHECK: linalg.generic
// CHECK: arith.addf
func.func @filled(%x: tensor<4x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>) -> tensor<4x8xf32> {
  %one = arith.constant 1.0 : f32
  %e = tensor.empty() : tensor<4x8xf32>
  %acc = linalg.fill ins(%one : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (n, o, b)>, affine_map<(m, n, o, b) -> (n, o)>, affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %c: f4E2M1FN, %d: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %c, %d : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}
