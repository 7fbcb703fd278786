// RUN: mxc opt %s --split-input-file --passes mxc-lower-plain-products | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-plain-products{target=gfx1201}' | filecheck %s --check-prefix=WMMA

// A step is 32 terms of a sum, one instruction for each of two tiles of columns, loaded while the step before
// is multiplied. What is left at the end is loaded number by number, and zero past the end.
// CHECK: workgroup_size = [256, 1, 1] subgroup_size = 64
// CHECK: stream.executable private @mxc_product_Dx16x32xD_bf16_g0mk_bf16_g0kn_f32_g0mn {
// CHECK: memref.subview
// CHECK: amdgpu.fat_raw_buffer_cast {{.*}} resetOffset
// CHECK: vector.load {{.*}} vector<2xbf16>
// CHECK: vector.load {{.*}} vector<8xbf16>
// CHECK: scf.for
// CHECK-COUNT-2: amdgpu.mfma 16x16x32 {{.*}} : vector<8xbf16>, vector<8xbf16>, vector<4xf32>
// CHECK: scf.yield
// CHECK: arith.select %{{.*}}, %{{.*}}, %c1073741696{{.*}} : index
// CHECK: memref.load {{.*}} : memref<?xbf16, #amdgpu.address_space<fat_raw_buffer>>
// CHECK: vector.store {{.*}} vector<2xf32>
// CHECK-LABEL: func.func @keys(
// CHECK: flow.dispatch @mxc_product_Dx16x32xD_bf16_g0mk_bf16_g0kn_f32_g0mn::{{.*}} {mxc.contraction = {any_sizes, batch = -1 : i64, k = -1 : i64, kind = "matrix", lhs = {element = bf16}, m = 16 : i64, n = 32 : i64, out = {element = f32}, rhs = {element = bf16}}}
// CHECK-NOT: linalg.generic
// WMMA: workgroup_size = [128, 1, 1] subgroup_size = 32
// WMMA: amdgpu.wmma 16x16x16
func.func @keys(%p: tensor<?x16x?xbf16>, %v: tensor<?x?x32xbf16>, %n: index) -> tensor<?x16x32xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty(%n) : tensor<?x16x32xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x16x32xf32>) -> tensor<?x16x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(b, m, n, k) -> (b, m, k)>, affine_map<(b, m, n, k) -> (b, k, n)>, affine_map<(b, m, n, k) -> (b, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%p, %v : tensor<?x16x?xbf16>, tensor<?x?x32xbf16>) outs(%f : tensor<?x16x32xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %s = arith.mulf %l, %r : f32
    %q = arith.addf %o, %s : f32
    linalg.yield %q : f32
  } -> tensor<?x16x32xf32>
  func.return %y : tensor<?x16x32xf32>
}

// -----

// Heads between the dimensions of rows are products of their own. Different floats are extended in
// registers, and a result that is rounded is stored so. RDNA has no instruction for f32.
// CHECK: stream.executable private @mxc_product_4xDx48x64_f32_mg0k_bf16_g0nk_bf16_g0mn_then_0 {
// CHECK: arith.extf {{.*}} : vector<4xbf16> to vector<4xf32>
// CHECK: amdgpu.mfma 16x16x4
// CHECK: arith.truncf
// CHECK-LABEL: func.func @heads(
// CHECK-NOT: linalg.generic
// WMMA-LABEL: func.func @heads(
// WMMA: linalg.generic
// WMMA: linalg.generic
func.func @heads(%x: tensor<?x4x64xf32>, %w: tensor<4x48x64xbf16>, %n: index) -> tensor<4x?x48xbf16> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty(%n) : tensor<4x?x48xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x?x48xf32>) -> tensor<4x?x48xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(h, m, n, k) -> (m, h, k)>, affine_map<(h, m, n, k) -> (h, n, k)>, affine_map<(h, m, n, k) -> (h, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<?x4x64xf32>, tensor<4x48x64xbf16>) outs(%f : tensor<4x?x48xf32>) {
  ^bb0(%a: f32, %b: bf16, %o: f32):
    %r = arith.extf %b : bf16 to f32
    %s = arith.mulf %a, %r : f32
    %q = arith.addf %o, %s : f32
    linalg.yield %q : f32
  } -> tensor<4x?x48xf32>
  %g = tensor.empty(%n) : tensor<4x?x48xbf16>
  %t = linalg.generic {
      indexing_maps = [affine_map<(h, m, n) -> (h, m, n)>, affine_map<(h, m, n) -> (h, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%y : tensor<4x?x48xf32>) outs(%g : tensor<4x?x48xbf16>) {
  ^bb0(%a: f32, %o: bf16):
    %b = arith.truncf %a : f32 to bf16
    linalg.yield %b : bf16
  } -> tensor<4x?x48xbf16>
  func.return %t : tensor<4x?x48xbf16>
}

// -----

// Two loops of rows become one, and the loop of one iteration goes. What follows is computed before
// the totals are stored, its operands read at the row and the column of the result.
// CHECK: stream.executable private @mxc_product_Dx8x64_f16_mk_f16_nk_f32_mn_then_0 {
// CHECK: vector.load {{.*}} : memref<8xf32{{.*}}, vector<4xf32>
// CHECK: arith.addf
// CHECK: vector.store
// CHECK-LABEL: func.func @rows(
// CHECK: %[[X:.*]] = tensor.collapse_shape %{{.*}} {{\[}}[0, 1, 2], [3]] : tensor<?x4x1x64xf16> into tensor<?x64xf16>
// CHECK: flow.dispatch @mxc_product_Dx8x64_f16_mk_f16_nk_f32_mn_then_0::{{.*}}(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}})
// CHECK-NOT: linalg.generic
func.func @rows(%x: tensor<?x4x1x64xf16>, %w: tensor<8x64xf16>, %c: tensor<8xf32>, %n: index) -> tensor<?x4x8xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty(%n) : tensor<?x4x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x4x8xf32>) -> tensor<?x4x8xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(b, m, n, j, k) -> (b, m, j, k)>, affine_map<(b, m, n, j, k) -> (n, k)>, affine_map<(b, m, n, j, k) -> (b, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w : tensor<?x4x1x64xf16>, tensor<8x64xf16>) outs(%f : tensor<?x4x8xf32>) {
  ^bb0(%a: f16, %b: f16, %o: f32):
    %l = arith.extf %a : f16 to f32
    %r = arith.extf %b : f16 to f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x4x8xf32>
  %t = linalg.generic {
      indexing_maps = [affine_map<(b, m, n) -> (b, m, n)>, affine_map<(b, m, n) -> (n)>, affine_map<(b, m, n) -> (b, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%y, %c : tensor<?x4x8xf32>, tensor<8xf32>) outs(%e : tensor<?x4x8xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?x4x8xf32>
  func.return %t : tensor<?x4x8xf32>
}

// -----

// IREE chooses an instruction for known sizes of one type. One row, and bytes without a sign, are
// left alone.
// CHECK-NOT: stream.executable
// CHECK-LABEL: func.func @known(
// CHECK: linalg.generic
func.func @known(%x: tensor<16x64xbf16>, %w: tensor<32x64xbf16>) -> tensor<16x32xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16x32xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<16x32xf32>) -> tensor<16x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<16x64xbf16>, tensor<32x64xbf16>) outs(%f : tensor<16x32xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %s = arith.mulf %l, %r : f32
    %q = arith.addf %o, %s : f32
    linalg.yield %q : f32
  } -> tensor<16x32xf32>
  func.return %y : tensor<16x32xf32>
}

// -----

// CHECK-NOT: stream.executable
// CHECK-LABEL: func.func @one_row(
// CHECK: linalg.generic
func.func @one_row(%x: tensor<1x?xbf16>, %w: tensor<32x?xbf16>) -> tensor<1x32xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x32xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x32xf32>) -> tensor<1x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x?xbf16>, tensor<32x?xbf16>) outs(%f : tensor<1x32xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %s = arith.mulf %l, %r : f32
    %q = arith.addf %o, %s : f32
    linalg.yield %q : f32
  } -> tensor<1x32xf32>
  func.return %y : tensor<1x32xf32>
}

// -----

// CHECK-NOT: stream.executable
// CHECK-LABEL: func.func @unsigned(
// CHECK: linalg.generic
func.func @unsigned(%x: tensor<?x64xi8>, %w: tensor<32x64xi8>, %n: index) -> tensor<?x32xi32> {
  %z = arith.constant 0 : i32
  %e = tensor.empty(%n) : tensor<?x32xi32>
  %f = linalg.fill ins(%z : i32) outs(%e : tensor<?x32xi32>) -> tensor<?x32xi32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<?x64xi8>, tensor<32x64xi8>) outs(%f : tensor<?x32xi32>) {
  ^bb0(%a: i8, %b: i8, %o: i32):
    %l = arith.extui %a : i8 to i32
    %r = arith.extsi %b : i8 to i32
    %p = arith.muli %l, %r : i32
    %q = arith.addi %o, %p : i32
    linalg.yield %q : i32
  } -> tensor<?x32xi32>
  func.return %y : tensor<?x32xi32>
}

// -----

// A convolution has loops of the window around that of the channels. Weights lie with the channels
// of the sum side by side, and sums start from the bias.
// CHECK: stream.executable private @mxc_product_3x3xDx10x20x64x32_bf16_g0k_g1s0of12__ms1of22_bf16_ns0s1k_f32_g0ng1m_from_n {
// CHECK: memref.load %{{.*}} : memref<64xf32
// CHECK: arith.muli %c3{{.*}}, %c3{{.*}} : index
// CHECK: scf.for
// CHECK: scf.for
// CHECK: amdgpu.mfma 16x16x32
// CHECK-LABEL: func.func @convolution(
// CHECK: %[[W:.*]] = linalg.generic {{.*}} ins(%{{.*}} : tensor<64x32x3x3xbf16>) outs(%{{.*}} : tensor<64x3x3x32xbf16>)
// CHECK: flow.dispatch @mxc_product_3x3xDx10x20x64x32_{{.*}} {mxc.contraction = {any_sizes, batch = -1 : i64, k = 288 : i64
// CHECK-NOT: arith.addf
// CHECK: return
func.func @convolution(%x: tensor<?x32x12x22xbf16>, %w: tensor<64x32x3x3xbf16>, %bias: tensor<64xf32>, %n: index) -> tensor<?x64x10x20xf32> {
  %e = tensor.empty(%n) : tensor<?x64x10x20xf32>
  %b = linalg.broadcast ins(%bias : tensor<64xf32>) outs(%e : tensor<?x64x10x20xf32>) dimensions = [0, 2, 3]
  %y = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<?x32x12x22xbf16>, tensor<64x32x3x3xbf16>) outs(%b : tensor<?x64x10x20xf32>) -> tensor<?x64x10x20xf32>
  func.return %y : tensor<?x64x10x20xf32>
}

// -----

// Each channel alone is no product.
// CHECK-NOT: stream.executable
// CHECK-LABEL: func.func @each_channel(
// CHECK: linalg.depthwise_conv_2d_nchw_chw
func.func @each_channel(%x: tensor<?x32x12x22xf32>, %w: tensor<32x3x3xf32>, %acc: tensor<?x32x10x20xf32>) -> tensor<?x32x10x20xf32> {
  %y = linalg.depthwise_conv_2d_nchw_chw ins(%x, %w : tensor<?x32x12x22xf32>, tensor<32x3x3xf32>) outs(%acc : tensor<?x32x10x20xf32>) -> tensor<?x32x10x20xf32>
  func.return %y : tensor<?x32x10x20xf32>
}

// -----

// Of 64 rows of so many elements no buffer reaches the last one.
// CHECK-NOT: stream.executable
// CHECK-LABEL: func.func @far(
// CHECK: linalg.generic {{.*}}reason = "rows lie further apart than buffers reach, which is less than 2147483392 bytes"
func.func @far(%x: tensor<?x16777216xbf16>, %w: tensor<64x16777216xbf16>, %n: index) -> tensor<?x64xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty(%n) : tensor<?x64xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x64xf32>) -> tensor<?x64xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<?x16777216xbf16>, tensor<64x16777216xbf16>) outs(%f : tensor<?x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %r = arith.extf %b : bf16 to f32
    %s = arith.mulf %l, %r : f32
    %q = arith.addf %o, %s : f32
    linalg.yield %q : f32
  } -> tensor<?x64xf32>
  func.return %y : tensor<?x64xf32>
}
