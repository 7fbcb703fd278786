// RUN: mxc opt %s --split-input-file --passes mxc-unit-scales | filecheck %s

// Both sides are elements that are only extended: each has scales for blocks of 32.
// CHECK: #[[XS:.*]] = affine_map<(d0, d1, d2) -> (d0, d2 floordiv 32)>
// CHECK: #[[WS:.*]] = affine_map<(d0, d1, d2) -> (d1, d2 floordiv 32)>
// CHECK-LABEL: @both_sides
// CHECK: %[[X:.*]] = linalg.fill ins(%{{.*}} : f8E8M0FNU) outs(%{{.*}} : tensor<?x2xf8E8M0FNU>)
// CHECK: %[[W:.*]] = linalg.fill ins(%{{.*}} : f8E8M0FNU) outs(%{{.*}} : tensor<8x2xf8E8M0FNU>)
// CHECK: linalg.generic {indexing_maps = [{{.*}}, {{.*}}, #[[XS]], #[[WS]], {{.*}}]{{.*}} ins(%arg0, %arg1, %[[X]], %[[W]]
// CHECK: %[[A:.*]] = arith.scaling_extf %in, %in_{{[0-9]+}} : f8E4M3FN, f8E8M0FNU to f32
// CHECK-NEXT: %[[B:.*]] = arith.scaling_extf %in_{{[0-9]+}}, %in_{{[0-9]+}} : f8E5M2, f8E8M0FNU to f32
// CHECK-NEXT: arith.mulf %[[A]], %[[B]] : f32
func.func @both_sides(%x: tensor<?x64xf8E4M3FN>, %w: tensor<8x64xf8E5M2>, %acc: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<?x64xf8E4M3FN>, tensor<8x64xf8E5M2>) outs(%acc : tensor<?x8xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f8E5M2, %c: f32):
    %0 = arith.extf %a : f8E4M3FN to f32
    %1 = arith.extf %b : f8E5M2 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %c, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<?x8xf32>
  return %y : tensor<?x8xf32>
}

// -----

// Beside scales for 128 elements the blocks are those; integers are under f32.
// CHECK: #[[ONE:.*]] = affine_map<(d0, d1, d2) -> (d0, d2 floordiv 128)>
// CHECK-LABEL: @as_the_other_side
// CHECK: %[[X:.*]] = linalg.fill ins(%{{.*}} : f32) outs(%{{.*}} : tensor<4x2xf32>)
// CHECK: linalg.generic {indexing_maps = [{{.*}}, {{.*}}, {{.*}}, #[[ONE]], {{.*}}]{{.*}} ins(%arg0, %arg1, %arg2, %[[X]]
// CHECK: %[[A:.*]] = arith.sitofp %in : i8 to f32
// CHECK-NEXT: arith.mulf %[[A]], %in_{{[0-9]+}} : f32
func.func @as_the_other_side(%x: tensor<4x256xi8>, %w: tensor<8x256xf8E4M3FN>, %s: tensor<8x2xf32>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 128)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %s : tensor<4x256xi8>, tensor<8x256xf8E4M3FN>, tensor<8x2xf32>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: i8, %b: f8E4M3FN, %bs: f32, %c: f32):
    %0 = arith.sitofp %a : i8 to f32
    %1 = arith.extf %b : f8E4M3FN to f32
    %2 = arith.mulf %1, %bs : f32
    %3 = arith.mulf %0, %2 : f32
    %4 = arith.addf %c, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// 48 elements are no blocks of 32, and products of floats have no elements.
// CHECK-LABEL: @left_alone
// CHECK-NOT: linalg.fill
func.func @left_alone(%x: tensor<4x48xf32>, %w: tensor<8x48xf8E4M3FN>, %v: tensor<8x48xbf16>, %acc: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4x48xf32>, tensor<8x48xf8E4M3FN>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to f32
    %1 = arith.mulf %a, %0 : f32
    %2 = arith.addf %c, %1 : f32
    linalg.yield %2 : f32
  } -> tensor<4x8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %v : tensor<4x48xf32>, tensor<8x48xbf16>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: bf16, %c: f32):
    %0 = arith.extf %b : bf16 to f32
    %1 = arith.mulf %a, %0 : f32
    %2 = arith.addf %c, %1 : f32
    linalg.yield %2 : f32
  } -> tensor<4x8xf32>
  return %y, %r : tensor<4x8xf32>, tensor<4x8xf32>
}
