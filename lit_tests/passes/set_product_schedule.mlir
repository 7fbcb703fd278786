// RUN: mxc opt %s --split-input-file --passes 'mxc-set-product-schedule' | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-set-product-schedule{target=gfx1201}' | filecheck %s --check-prefix=WMMA

// CHECK: #[[PIPELINE:.*]] = #iree_codegen.translation_info<pipeline = #iree_gpu.pipeline<TileAndFuse> workgroup_size = [256, 1, 1] subgroup_size = 64
// CHECK: lowering_config = #iree_gpu.lowering_config<{mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x32_BF16>, padding = [64, 96, 64], promote_operands = [0, 1], reduction = [0, 0, 2], subgroup = [2, 3, 0], workgroup = [64, 96, 0]}>
// CHECK: @rows
// CHECK: linalg.generic {{.*}}compilation_info
// WMMA: workgroup_size = [128, 1, 1] subgroup_size = 32
// WMMA: mma_layout<WMMAR4_F32_16x16x16_BF16>, padding = [64, 64, 64], {{.*}} reduction = [0, 0, 4], subgroup = [2, 2, 0], workgroup = [64, 64, 0]
// WMMA: @rows
func.func @rows(%x: tensor<?x75xbf16>, %w: tensor<96x75xbf16>, %acc: tensor<?x96xf32>) -> tensor<?x96xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<?x75xbf16>, tensor<96x75xbf16>) outs(%acc : tensor<?x96xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x96xf32>
  func.return %y : tensor<?x96xf32>
}

// -----

// Two loops of rows become one, and the loop of one iteration goes: else IREE would do both, and
// lose the schedule.
// CHECK: workgroup = [64, 16, 0]
// CHECK-LABEL: @batch_of_rows
// CHECK: %[[X:.*]] = tensor.collapse_shape %{{.*}} {{\[}}[0, 1, 2], [3]] : tensor<?x4x1x64xf16> into tensor<?x64xf16>
// CHECK: linalg.generic {{.*}} ins(%[[X]], %{{.*}} : tensor<?x64xf16>, tensor<8x64xf16>) {{.*}}compilation_info
// CHECK: tensor.expand_shape {{.*}} : tensor<?x8xf32> into tensor<?x4x8xf32>
func.func @batch_of_rows(%x: tensor<?x4x1x64xf16>, %w: tensor<8x64xf16>, %acc: tensor<?x4x8xf32>) -> tensor<?x4x8xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(b, m, n, j, k) -> (b, m, j, k)>, affine_map<(b, m, n, j, k) -> (n, k)>, affine_map<(b, m, n, j, k) -> (b, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w : tensor<?x4x1x64xf16>, tensor<8x64xf16>) outs(%acc : tensor<?x4x8xf32>) {
  ^bb0(%a: f16, %b: f16, %o: f32):
    %l = arith.extf %a : f16 to f32
    %r = arith.extf %b : f16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x4x8xf32>
  func.return %y : tensor<?x4x8xf32>
}

// -----

// Sides of two types become f32; of known sizes IREE then chooses a schedule itself. RDNA has no
// instruction for f32.
// CHECK-NOT: compilation_info
// CHECK-LABEL: @two_types
// CHECK: %[[W:.*]] = linalg.generic
// CHECK: arith.extf %{{.*}} : f16 to f32
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %[[W]] : tensor<16x64xf32>, tensor<32x64xf32>)
// WMMA-LABEL: @two_types
// WMMA: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}} : tensor<16x64xf32>, tensor<32x64xf16>)
func.func @two_types(%x: tensor<16x64xf32>, %w: tensor<32x64xf16>, %acc: tensor<16x32xf32>) -> tensor<16x32xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<16x64xf32>, tensor<32x64xf16>) outs(%acc : tensor<16x32xf32>) {
  ^bb0(%a: f32, %b: f16, %o: f32):
    %r = arith.extf %b : f16 to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<16x32xf32>
  func.return %y : tensor<16x32xf32>
}

// -----

// IREE pads a sum to the largest number of terms that it might have, so one of a number that comes
// with the call is left alone, as are one row and unsigned bytes.
// CHECK-NOT: compilation_info
// CHECK-LABEL: @keys
// CHECK: return
func.func @keys(%x: tensor<16x?xbf16>, %w: tensor<?x32xbf16>, %acc: tensor<16x32xf32>) -> tensor<16x32xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (k, n)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<16x?xbf16>, tensor<?x32xbf16>) outs(%acc : tensor<16x32xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<16x32xf32>
  func.return %y : tensor<16x32xf32>
}

// -----

// CHECK-NOT: compilation_info
// CHECK-LABEL: @one_row
// CHECK: return
func.func @one_row(%x: tensor<1x64xbf16>, %w: tensor<?x64xbf16>, %acc: tensor<1x?xf32>) -> tensor<1x?xf32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x64xbf16>, tensor<?x64xbf16>) outs(%acc : tensor<1x?xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<1x?xf32>
  func.return %y : tensor<1x?xf32>
}

// -----

// CHECK-NOT: compilation_info
// CHECK-LABEL: @unsigned
// CHECK: return
func.func @unsigned(%x: tensor<?x64xi8>, %w: tensor<32x64xi8>, %acc: tensor<?x32xi32>) -> tensor<?x32xi32> {
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<?x64xi8>, tensor<32x64xi8>) outs(%acc : tensor<?x32xi32>) {
  ^bb0(%a: i8, %b: i8, %o: i32):
    %l = arith.extui %a : i8 to i32
    %r = arith.extsi %b : i8 to i32
    %p = arith.muli %l, %r : i32
    %q = arith.addi %o, %p : i32
    linalg.yield %q : i32
  } -> tensor<?x32xi32>
  func.return %y : tensor<?x32xi32>
}
