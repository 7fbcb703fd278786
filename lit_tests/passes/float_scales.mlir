// RUN: mxc opt %s --split-input-file --passes mxc-float-scales | filecheck %s

// Rows share a scale for a square: it is widened, and repeated for each of them. A last square may
// be partial. The activations, floats too, are not taken for scales.
// CHECK: #[[SHARED:.*]] = affine_map<(d0, d1) -> (d0 floordiv 128, d1)>
// CHECK: #[[OWN:.*]] = affine_map<(d0, d1, d2) -> (d1, d2 floordiv 128)>
// CHECK-LABEL: @squares
// CHECK: %[[WIDE:.*]] = linalg.generic {{.*}} ins(%arg2 : tensor<2x2xbf16>) outs(%{{.*}} : tensor<2x2xf32>)
// CHECK: arith.extf
// CHECK: %[[S:.*]] = linalg.generic {indexing_maps = [#[[SHARED]], {{.*}}]{{.*}} ins(%[[WIDE]] : tensor<2x2xf32>) outs(%{{.*}} : tensor<192x2xf32>)
// CHECK: linalg.generic {indexing_maps = [{{.*}}, {{.*}}, #[[OWN]], {{.*}}]
// CHECK-SAME: ins(%arg0, %arg1, %[[S]] : tensor<4x256xf32>, tensor<192x256xf8E4M3FN>, tensor<192x2xf32>)
// CHECK: %[[W:.*]] = arith.extf %{{.*}} : f8E4M3FN to f32
// CHECK-NEXT: arith.mulf %[[W]], %in_{{[0-9]+}} : f32
func.func @squares(%x: tensor<4x256xf32>, %w: tensor<192x256xf8E4M3FN>, %s: tensor<2x2xbf16>, %acc: tensor<4x192xf32>) -> tensor<4x192xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n floordiv 128, k floordiv 128)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %s : tensor<4x256xf32>, tensor<192x256xf8E4M3FN>, tensor<2x2xbf16>) outs(%acc : tensor<4x192xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %bs: bf16, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to f32
    %1 = arith.extf %bs : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.mulf %a, %2 : f32
    %4 = arith.addf %c, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<4x192xf32>
  return %y : tensor<4x192xf32>
}

// -----

// The same where the rows have two loops already.
// CHECK: #[[SHARED:.*]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK-LABEL: @split_rows
// CHECK: linalg.generic {indexing_maps = [#[[SHARED]], {{.*}}]{{.*}} ins(%arg2 : tensor<2x2xf32>) outs(%{{.*}} : tensor<2x128x2xf32>)
func.func @split_rows(%x: tensor<?x2x128xf32>, %w: tensor<2x128x2x128xf8E4M3FN>, %s: tensor<2x2xf32>, %acc: tensor<?x2x128xf32>) -> tensor<?x2x128xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, p, q, o, k) -> (m, o, k)>, affine_map<(m, p, q, o, k) -> (p, q, o, k)>, affine_map<(m, p, q, o, k) -> (p, o)>, affine_map<(m, p, q, o, k) -> (m, p, q)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<?x2x128xf32>, tensor<2x128x2x128xf8E4M3FN>, tensor<2x2xf32>) outs(%acc : tensor<?x2x128xf32>) {
  ^bb0(%a: f32, %b: f8E4M3FN, %bs: f32, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to f32
    %2 = arith.mulf %bs, %0 : f32
    %3 = arith.mulf %2, %a : f32
    %4 = arith.addf %c, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<?x2x128xf32>
  return %y : tensor<?x2x128xf32>
}

// -----

// One f32 for a row and a block is what is wanted; a scale of 8 bits is no float scale.
// CHECK-LABEL: @left_alone
// CHECK-NOT: tensor.empty
func.func @left_alone(%x: tensor<4x64xbf16>, %w: tensor<8x64xf8E4M3FN>, %s: tensor<8x2xf32>, %e: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %s : tensor<4x64xbf16>, tensor<8x64xf8E4M3FN>, tensor<8x2xf32>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: bf16, %b: f8E4M3FN, %bs: f32, %c: f32):
    %0 = arith.extf %b : f8E4M3FN to f32
    %1 = arith.extf %a : bf16 to f32
    %2 = arith.mulf %0, %bs : f32
    %3 = arith.mulf %1, %2 : f32
    %4 = arith.addf %c, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<4x8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %e : tensor<4x64xbf16>, tensor<8x64xf8E4M3FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: bf16, %b: f8E4M3FN, %bs: f8E8M0FNU, %c: f32):
    %0 = arith.scaling_extf %b, %bs : f8E4M3FN, f8E8M0FNU to f32
    %1 = arith.extf %a : bf16 to f32
    %3 = arith.mulf %1, %0 : f32
    %4 = arith.addf %c, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<4x8xf32>
  return %y, %r : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// Integers of 4 bits are elements too.
// CHECK-LABEL: @groups_of_integers
// CHECK: linalg.generic {{.*}} ins(%arg2 : tensor<8x2xbf16>)
// CHECK: arith.extf {{.*}} : bf16 to f32
// CHECK: linalg.generic
// CHECK-SAME: ins(%arg0, %arg1, %{{.*}} : tensor<4x64xf32>, tensor<8x64xi4>, tensor<8x2xf32>)
func.func @groups_of_integers(%x: tensor<4x64xf32>, %w: tensor<8x64xi4>, %s: tensor<8x2xbf16>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %s : tensor<4x64xf32>, tensor<8x64xi4>, tensor<8x2xbf16>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: i4, %bs: bf16, %c: f32):
    %0 = arith.sitofp %b : i4 to f32
    %1 = arith.extf %bs : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.mulf %a, %2 : f32
    %4 = arith.addf %c, %3 : f32
    linalg.yield %4 : f32
  } -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}
