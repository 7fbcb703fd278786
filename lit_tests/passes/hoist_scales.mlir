// RUN: mxc opt %s --split-input-file --passes mxc-hoist-scales | filecheck %s

// The scale of a row of weights, that of a row of activations and that of a tensor leave the sum.
// CHECK-LABEL: @all_three
// CHECK: %[[ZERO:.*]] = linalg.fill
// CHECK: %[[R:.*]] = linalg.generic {indexing_maps = [#[[X:.*]], #[[W:.*]], #[[Y:.*]]], iterator_types = ["parallel", "parallel", "reduction"]}
// CHECK-SAME: ins(%arg0, %arg1 : tensor<4x64xf8E4M3FN>, tensor<8x64xf8E4M3FN>) outs(%[[ZERO]]
// CHECK: %[[A:.*]] = arith.extf %in : f8E4M3FN to f32
// CHECK-NEXT: %[[B:.*]] = arith.extf %in_{{.*}} : f8E4M3FN to f32
// CHECK-NEXT: %[[P:.*]] = arith.mulf %[[A]], %[[B]]
// CHECK-NEXT: arith.addf %out, %[[P]]
// CHECK: linalg.generic {indexing_maps = [#{{.*}}, #{{.*}}, #{{.*}}, #{{.*}}, #{{.*}}], iterator_types = ["parallel", "parallel"]}
// CHECK-SAME: ins(%[[R]], %arg2, %arg3, %arg4 : tensor<4x8xf32>, tensor<4xf32>, tensor<8xbf16>, tensor<f32>)
// CHECK: arith.mulf
// CHECK: arith.extf {{.*}} : bf16 to f32
// CHECK-NEXT: arith.mulf
// CHECK-NEXT: arith.mulf
// CHECK-NEXT: linalg.yield
func.func @all_three(%x: tensor<4x64xf8E4M3FN>, %w: tensor<8x64xf8E4M3FN>, %xs: tensor<4xf32>, %ws: tensor<8xbf16>, %s: tensor<f32>) -> tensor<4x8xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (m)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n)>, affine_map<(m, n, k) -> ()>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %xs, %w, %ws, %s : tensor<4x64xf8E4M3FN>, tensor<4xf32>, tensor<8x64xf8E4M3FN>, tensor<8xbf16>, tensor<f32>)
      outs(%f : tensor<4x8xf32>) {
  ^bb0(%a: f8E4M3FN, %as: f32, %b: f8E4M3FN, %bs: bf16, %t: f32, %acc: f32):
    %0 = arith.extf %a : f8E4M3FN to f32
    %1 = arith.mulf %0, %as : f32
    %2 = arith.extf %b : f8E4M3FN to f32
    %3 = arith.extf %bs : bf16 to f32
    %4 = arith.mulf %2, %3 : f32
    %5 = arith.mulf %4, %t : f32
    %6 = arith.mulf %1, %5 : f32
    %7 = arith.addf %acc, %6 : f32
    linalg.yield %7 : f32
  } -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// What the sum is added to is not scaled.
// CHECK-LABEL: @accumulator
// CHECK: %[[ZERO:.*]] = linalg.fill
// CHECK: %[[R:.*]] = linalg.generic {{.*}} ins(%arg0, %arg1 : {{.*}}) outs(%[[ZERO]]
// CHECK: linalg.generic {{.*}} ins(%[[R]], %arg2, %arg3 : tensor<?x8xf32>, tensor<8xf32>, tensor<?x8xf32>)
// CHECK: %[[S:.*]] = arith.mulf %in, %in_{{[0-9]+}}
// CHECK-NEXT: arith.addf %in_{{[0-9]+}}, %[[S]]
func.func @accumulator(%x: tensor<?x64xf32>, %w: tensor<8x64xf8E5M2>, %ws: tensor<8xf32>, %acc: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %ws : tensor<?x64xf32>, tensor<8x64xf8E5M2>, tensor<8xf32>) outs(%acc : tensor<?x8xf32>) {
  ^bb0(%a: f32, %b: f8E5M2, %s: f32, %c: f32):
    %0 = arith.extf %b : f8E5M2 to f32
    %1 = arith.mulf %s, %0 : f32
    %2 = arith.mulf %1, %a : f32
    %3 = arith.addf %2, %c : f32
    linalg.yield %3 : f32
  } -> tensor<?x8xf32>
  return %y : tensor<?x8xf32>
}

// -----

// A scale that differs along K stays, and so does a product that the program rounds to bf16.
// CHECK-LABEL: @left_alone
// CHECK-COUNT-2: outs(%arg4
// CHECK-NOT: iterator_types = ["parallel", "parallel"]}
func.func @left_alone(%x: tensor<4x64xf32>, %w: tensor<8x64xf8E4M3FN>, %blocks: tensor<8x2xf32>, %rows: tensor<8xbf16>, %acc: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %blocks : tensor<4x64xf32>, tensor<8x64xf8E4M3FN>, tensor<8x2xf32>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %s: f32, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to f32
    %1 = arith.mulf %0, %s : f32
    %2 = arith.mulf %a, %1 : f32
    %3 = arith.addf %c, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<4x8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %rows : tensor<4x64xf32>, tensor<8x64xf8E4M3FN>, tensor<8xbf16>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %s: bf16, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to bf16
    %1 = arith.mulf %0, %s : bf16
    %2 = arith.extf %1 : bf16 to f32
    %3 = arith.mulf %a, %2 : f32
    %4 = arith.addf %c, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<4x8xf32>
  return %y, %r : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// Factors that are computed from the number of an iteration, by a table too, and what multiplies the
// sum itself, stay in the sum.
// CHECK-LABEL: @of_iterations
// CHECK-COUNT-3: iterator_types = ["reduction", "parallel", "parallel"]
// CHECK-NOT: iterator_types
func.func @of_iterations(%x: tensor<4x64xf32>, %w: tensor<8x64xf8E4M3FN>, %t: tensor<64xf32>, %s: tensor<f32>, %acc: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %y = linalg.generic {
      indexing_maps = [affine_map<(k, m, n) -> (m, k)>, affine_map<(k, m, n) -> (n, k)>, affine_map<(k, m, n) -> (m, n)>],
      iterator_types = ["reduction", "parallel", "parallel"]}
      ins(%x, %w : tensor<4x64xf32>, tensor<8x64xf8E4M3FN>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to f32
    %1 = arith.mulf %a, %0 : f32
    %k = linalg.index 0 : index
    %i = arith.index_cast %k : index to i32
    %f = arith.sitofp %i : i32 to f32
    %2 = arith.mulf %1, %f : f32
    %3 = arith.addf %c, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<4x8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(k, m, n) -> (m, k)>, affine_map<(k, m, n) -> (n, k)>, affine_map<(k, m, n) -> (m, n)>],
      iterator_types = ["reduction", "parallel", "parallel"]}
      ins(%x, %w : tensor<4x64xf32>, tensor<8x64xf8E4M3FN>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to f32
    %1 = arith.mulf %a, %0 : f32
    %k = linalg.index 0 : index
    %f = tensor.extract %t[%k] : tensor<64xf32>
    %2 = arith.mulf %1, %f : f32
    %3 = arith.addf %c, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<4x8xf32>
  %z = linalg.generic {
      indexing_maps = [affine_map<(k, m, n) -> (m, k)>, affine_map<(k, m, n) -> (n, k)>, affine_map<(k, m, n) -> ()>, affine_map<(k, m, n) -> (m, n)>],
      iterator_types = ["reduction", "parallel", "parallel"]}
      ins(%x, %w, %s : tensor<4x64xf32>, tensor<8x64xf8E4M3FN>, tensor<f32>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %d: f32, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to f32
    %1 = arith.mulf %a, %0 : f32
    %2 = arith.mulf %1, %d : f32
    %3 = arith.mulf %2, %c : f32
    %4 = arith.addf %c, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<4x8xf32>
  return %y, %r, %z : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
