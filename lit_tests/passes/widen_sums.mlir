// RUN: mxc opt %s --split-input-file --passes mxc-widen-sums | filecheck %s

// CHECK-LABEL: func.func @sum(
// CHECK: %[[ZERO:.*]] = linalg.fill ins(%{{.*}} : f32)
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} ins(%arg0 : tensor<8x64xbf16>) outs(%[[ZERO]] : tensor<8xf32>)
// CHECK: %[[X:.*]] = arith.extf %in : bf16 to f32
// CHECK: arith.addf %out, %[[X]] : f32
// CHECK: linalg.generic {{.*}} ins(%[[SUM]] : tensor<8xf32>) outs(%{{.*}} : tensor<8xbf16>)
// CHECK: arith.truncf %{{.*}} : f32 to bf16
func.func @sum(%x: tensor<8x64xbf16>) -> tensor<8xbf16> {
  %zero = arith.constant 0.0 : bf16
  %e = tensor.empty() : tensor<8xbf16>
  %start = linalg.fill ins(%zero : bf16) outs(%e : tensor<8xbf16>) -> tensor<8xbf16>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m)>], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<8x64xbf16>) outs(%start : tensor<8xbf16>) {
  ^bb0(%a: bf16, %sum: bf16):
    %s = arith.addf %sum, %a : bf16
    linalg.yield %s : bf16
  } -> tensor<8xbf16>
  return %y : tensor<8xbf16>
}

// -----

// A product of a named operation, which starts from other numbers, of a dynamic number of rows.
// CHECK-LABEL: func.func @matmul(
// CHECK: %[[START:.*]] = linalg.generic {{.*}} ins(%arg2 : tensor<?x16xf16>) outs(%{{.*}} : tensor<?x16xf32>)
// CHECK: arith.extf
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1 : tensor<?x64xf16>, tensor<64x16xf16>) outs(%[[START]] : tensor<?x16xf32>)
// CHECK-DAG: %[[A:.*]] = arith.extf %in : f16 to f32
// CHECK-DAG: %[[B:.*]] = arith.extf %in_{{.*}} : f16 to f32
// CHECK: %[[P:.*]] = arith.mulf %[[A]], %[[B]] : f32
// CHECK: arith.addf %out, %[[P]] : f32
// CHECK: arith.truncf %{{.*}} : f32 to f16
func.func @matmul(%x: tensor<?x64xf16>, %w: tensor<64x16xf16>, %b: tensor<?x16xf16>) -> tensor<?x16xf16> {
  %y = linalg.matmul ins(%x, %w : tensor<?x64xf16>, tensor<64x16xf16>) outs(%b : tensor<?x16xf16>) -> tensor<?x16xf16>
  return %y : tensor<?x16xf16>
}

// -----

// CHECK-LABEL: func.func @others(
// CHECK: arith.maximumf %{{.*}} : bf16
// CHECK: arith.addf %{{.*}} : f32
// CHECK-NOT: arith.truncf
// CHECK: return
func.func @others(%x: tensor<8x64xbf16>, %y: tensor<8x64xf32>, %s: tensor<8xbf16>, %t: tensor<8xf32>) -> (tensor<8xbf16>, tensor<8xf32>) {
  %a = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m)>], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<8x64xbf16>) outs(%s : tensor<8xbf16>) {
  ^bb0(%p: bf16, %q: bf16):
    %r = arith.maximumf %p, %q : bf16
    linalg.yield %r : bf16
  } -> tensor<8xbf16>
  %b = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m)>], iterator_types = ["parallel", "reduction"]} ins(%y : tensor<8x64xf32>) outs(%t : tensor<8xf32>) {
  ^bb0(%p: f32, %q: f32):
    %r = arith.addf %p, %q : f32
    linalg.yield %r : f32
  } -> tensor<8xf32>
  return %a, %b : tensor<8xbf16>, tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @scalar(
// CHECK: arith.addf %{{.*}} : bf16
// CHECK-NOT: arith.truncf
// CHECK: return
func.func @scalar(%x: tensor<8x64xbf16>, %c: bf16, %s: tensor<8xbf16>) -> tensor<8xbf16> {
  %a = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> ()>, affine_map<(m, n) -> (m)>], iterator_types = ["parallel", "reduction"]} ins(%x, %c : tensor<8x64xbf16>, bf16) outs(%s : tensor<8xbf16>) {
  ^bb0(%p: bf16, %q: bf16, %t: bf16):
    %m = arith.mulf %p, %q : bf16
    %r = arith.addf %t, %m : bf16
    linalg.yield %r : bf16
  } -> tensor<8xbf16>
  return %a : tensor<8xbf16>
}
