// RUN: mxc opt %s --split-input-file --passes 'mxc-set-gpu-schedule{matrix-rows=16}' | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-set-gpu-schedule{subgroup=32}' | filecheck %s --check-prefix=NO-MATRIX

// CHECK: #[[PIPELINE:.*]] = #iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<TileAndFuse> workgroup_size = [64, 1, 1] subgroup_size = 64>
// CHECK: #[[INFO:.*]] = #iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{reduction = [0, 0, 1, 32], thread = [8, 1, 0, 0], workgroup = [8, 64, 0, 0]}>, translation_info = #[[PIPELINE]]>
// CHECK: @weight_only
// CHECK: linalg.generic {{.*}} attrs = {compilation_info = #[[INFO]]}
func.func @weight_only(%x: tensor<16x2x32xbf16>, %w: tensor<96x2x32xf4E2M1FN>, %s: tensor<96x2xf8E8M0FNU>, %acc: tensor<16x96xf32>) -> tensor<16x96xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<16x2x32xbf16>, tensor<96x2x32xf4E2M1FN>, tensor<96x2xf8E8M0FNU>) outs(%acc : tensor<16x96xf32>) {
  ^bb0(%a: bf16, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<16x96xf32>
  func.return %y : tensor<16x96xf32>
}

// -----

// IREE has a scaled matrix instruction for one format on both sides and 16 rows; on a target
// without one, the lanes do it.
// CHECK-NOT: compilation_info
// CHECK: @both_scaled(
// CHECK-NOT: compilation_info
// CHECK: // -----
// NO-MATRIX: // -----
// NO-MATRIX: workgroup_size = [32, 1, 1] subgroup_size = 32
// NO-MATRIX: thread = [8, 1, 0, 0], workgroup = [8, 32, 0, 0]
// NO-MATRIX: @both_scaled(
func.func @both_scaled(%x: tensor<16x2x32xf4E2M1FN>, %xs: tensor<16x2xf8E8M0FNU>, %w: tensor<96x2x32xf4E2M1FN>, %s: tensor<96x2xf8E8M0FNU>, %acc: tensor<16x96xf32>) -> tensor<16x96xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<16x2x32xf4E2M1FN>, tensor<96x2x32xf4E2M1FN>, tensor<16x2xf8E8M0FNU>, tensor<96x2xf8E8M0FNU>) outs(%acc : tensor<16x96xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<16x96xf32>
  func.return %y : tensor<16x96xf32>
}

// -----

// One row does not fill the matrix instruction.
// CHECK: thread = [1, 1, 0, 0], workgroup = [1, 64, 0, 0]
// CHECK: @both_scaled_one_row
func.func @both_scaled_one_row(%x: tensor<1x2x32xf4E2M1FN>, %xs: tensor<1x2xf8E8M0FNU>, %w: tensor<96x2x32xf4E2M1FN>, %s: tensor<96x2xf8E8M0FNU>, %acc: tensor<1x96xf32>) -> tensor<1x96xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<1x2x32xf4E2M1FN>, tensor<96x2x32xf4E2M1FN>, tensor<1x2xf8E8M0FNU>, tensor<96x2xf8E8M0FNU>) outs(%acc : tensor<1x96xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<1x96xf32>
  func.return %y : tensor<1x96xf32>
}

// -----

// IREE's own schedule for one row of f32 and narrower weights gives wrong numbers. The loop of one
// iteration goes, or the schedule would be lost with it.
// CHECK: thread = [0, 1], workgroup = [8, 0]
// CHECK-LABEL: @one_row_of_f32
// CHECK: %[[X:.*]] = tensor.collapse_shape %{{.*}} {{\[}}[0, 1]] : tensor<1x128xf32> into tensor<128xf32>
// CHECK: %[[Y:.*]] = linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]} ins(%[[X]], %{{.*}} : tensor<128xf32>, tensor<64x128xbf16>) {{.*}}compilation_info
// CHECK: tensor.expand_shape %[[Y]] {{.*}} into tensor<1x64xf32>
func.func @one_row_of_f32(%x: tensor<1x128xf32>, %w: tensor<64x128xbf16>, %acc: tensor<1x64xf32>) -> tensor<1x64xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x128xf32>, tensor<64x128xbf16>) outs(%acc : tensor<1x64xf32>) {
  ^bb0(%a: f32, %b: bf16, %o: f32):
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}

// -----

// Of equal widths too where IREE's own schedule spills: few rows of weights, whose depth is ten times
// what the lanes take at once.
// CHECK: partial_reduction = [0, 512], {{.*}}thread = [0, 8], workgroup = [8, 0]
// CHECK-LABEL: @one_row_of_bf16_that_spills
// CHECK: linalg.generic {{.*}}ins(%{{.*}} : tensor<5120xbf16>, tensor<1024x5120xbf16>) {{.*}}compilation_info
func.func @one_row_of_bf16_that_spills(%x: tensor<1x5120xbf16>, %w: tensor<1024x5120xbf16>, %acc: tensor<1x1024xf32>) -> tensor<1x1024xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x5120xbf16>, tensor<1024x5120xbf16>) outs(%acc : tensor<1x1024xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<1x1024xf32>
  func.return %y : tensor<1x1024xf32>
}

// -----

// Of equal widths IREE's schedule is right elsewhere.
// CHECK-LABEL: @one_row_of_bf16
// CHECK-NOT: collapse_shape
// CHECK: linalg.generic
// CHECK-NOT: compilation_info
func.func @one_row_of_bf16(%x: tensor<1x128xbf16>, %w: tensor<64x128xbf16>, %acc: tensor<1x64xf32>) -> tensor<1x64xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x128xbf16>, tensor<64x128xbf16>) outs(%acc : tensor<1x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<1x64xf32>
  func.return %y : tensor<1x64xf32>
}

// -----

// 8-bit elements on both sides: the instruction would take the scales of other rows. They are
// decoded, and say so.
// CHECK: // -----
// CHECK: @both_f8(
// CHECK: linalg.generic {{.*}}compilation_info = {{.*}}mxc.contraction = {reason = "IREE 3.13 gives the scaled matrix instruction the scales of other rows
// NO-MATRIX: @both_f8(
// NO-MATRIX-NOT: mxc.contraction
// NO-MATRIX: return
func.func @both_f8(%x: tensor<16x2x32xf8E4M3FN>, %xs: tensor<16x2xf8E8M0FNU>, %w: tensor<96x2x32xf8E4M3FN>, %s: tensor<96x2xf8E8M0FNU>, %acc: tensor<16x96xf32>) -> tensor<16x96xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<16x2x32xf8E4M3FN>, tensor<96x2x32xf8E4M3FN>, tensor<16x2xf8E8M0FNU>, tensor<96x2xf8E8M0FNU>) outs(%acc : tensor<16x96xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f8E4M3FN, %c: f8E8M0FNU, %d: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %c : f8E4M3FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %d : f8E4M3FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<16x96xf32>
  func.return %y : tensor<16x96xf32>
}

// -----

// The instruction has a scale for 32 elements: IREE refuses to compile it for blocks of 16.
// CHECK: #iree_gpu.lowering_config<{reduction = [0, 0, 1, 16]
// CHECK: @blocks_of_16
// NO-MATRIX: @blocks_of_16
// CHECK: linalg.generic {{.*}} attrs = {compilation_info
func.func @blocks_of_16(%x: tensor<16x8x16xf4E2M1FN>, %w: tensor<96x8x16xf4E2M1FN>, %s: tensor<16x8xf8E8M0FNU>, %t: tensor<96x8xf8E8M0FNU>, %acc: tensor<16x96xf32>) -> tensor<16x96xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s, %t : tensor<16x8x16xf4E2M1FN>, tensor<96x8x16xf4E2M1FN>, tensor<16x8xf8E8M0FNU>, tensor<96x8xf8E8M0FNU>) outs(%acc : tensor<16x96xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %c: f8E8M0FNU, %d: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %c : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %d : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<16x96xf32>
  func.return %y : tensor<16x96xf32>
}

// -----

// IREE dies of choosing a schedule for this; one more row, or another depth, and it does not.
// CHECK: partial_reduction = [0, 0, 512]
// CHECK-SAME: thread = [0, 0, 8], workgroup = [8, 1, 0]
// CHECK: @few_rows
// CHECK: linalg.generic {{.*}} attrs = {compilation_info
// NO-MATRIX: @few_rows
// NO-MATRIX-NOT: compilation_info
func.func @few_rows(%x: tensor<8x1024xbf16>, %w: tensor<64x1024xbf16>, %acc: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<8x1024xbf16>, tensor<64x1024xbf16>) outs(%acc : tensor<8x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<8x64xf32>
  func.return %y : tensor<8x64xf32>
}

// -----

// CHECK-NOT: compilation_info
// CHECK: @nine_rows
// CHECK-NOT: compilation_info
// NO-MATRIX: @nine_rows
func.func @nine_rows(%x: tensor<9x1024xbf16>, %w: tensor<64x1024xbf16>, %acc: tensor<9x64xf32>) -> tensor<9x64xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<9x1024xbf16>, tensor<64x1024xbf16>) outs(%acc : tensor<9x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<9x64xf32>
  func.return %y : tensor<9x64xf32>
}
