// RUN: mxc opt %s --split-input-file --passes mxc-lower-to-cpu-kernels | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-to-cpu-kernels{isa=avx512}' | filecheck %s --check-prefix=BASE

// Experts by ids, f32: nothing is gathered, the parameters are panels. 40 columns are three of
// them, taken two and one at a time; the twelve rows of activations are prepared once.
// CHECK: stream.executable private @mxc_prepare_f32_floats0_[[ORDER:[0-9a-f.]+]]12x64 {
// CHECK-NOT: llvm.call_intrinsic
// CHECK: stream.executable private @mxc_mxfp4_f32_3x4x40x64_of_5 attributes
// CHECK: stream.return %c1, %c1_0, %c3 : index, index, index
// CHECK: translation_info = #translation
// CHECK: memref<5x3x2x4x64xi8>
// CHECK: memref.prefetch
// CHECK: "llvm.x86.avx512.permvar.sf.512"
// CHECK: math.fma
// CHECK: vector.maskedstore
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: 5, 40>} = #flow.parameter.named<"model"::"w"> : tensor<5x3x2x4x64xi8>
// CHECK: util.global private @s {mxc.layout = "panel16x1", mxc.matrices = array<i64: 5, 40>} = #flow.parameter.named<"model"::"s"> : tensor<5x3x2x16xi8>
// CHECK-LABEL: func.func @gathered_f32(
// CHECK-NOT: iree_linalg_ext.gather
// CHECK-NOT: linalg
// CHECK: %[[P:.*]] = flow.dispatch @mxc_prepare_f32_floats0_{{.*}} : (tensor<12x2x32xf32>) -> tensor<12x3x32xi32>
// CHECK: %[[Y:.*]] = flow.dispatch @mxc_mxfp4_f32_3x4x40x64_of_5::@mxc_mxfp4_f32_3x4x40x64_of_5(%[[P]], %arg1, %{{.*}}, %{{.*}}) {mxc.contraction = {batch = 3 : i64, chosen, experts = 5 : i64, k = 64 : i64, kind = "multiply-add", lhs = {element = f32}, m = 4 : i64, n = 40 : i64, out = {element = f32}, plan = "tiles of {{.*}}", rhs = {block = 32 : i64, element = f4E2M1FN, scale = f8E8M0FNU}}} : (tensor<12x3x32xi32>, tensor<3xi32>, tensor<5x3x2x4x64xi8>, tensor<5x3x2x16xi8>) -> tensor<12x40xf32>
// CHECK: tensor.expand_shape %{{.*}} : tensor<480xf32> into tensor<3x4x40xf32>
// CHECK-NOT: linalg
// CHECK: return
// BASE-LABEL: func.func @gathered_f32(
// BASE: flow.dispatch @mxc_mxfp4_f32_3x4x40x64_of_5
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<5x40x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<5x40x2xi8>
func.func @gathered_f32(%x: tensor<3x4x2x32xf32>, %ids: tensor<3xi32>) -> tensor<3x4x40xf32> {
  %0 = util.global.load immutable @w : tensor<5x40x2x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<5x40x2x16xi8> -> tensor<5x40x2x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<5x40x2xi8>
  %3 = flow.tensor.bitcast %2 : tensor<5x40x2xi8> -> tensor<5x40x2xf8E8M0FNU>
  %e0 = tensor.empty() : tensor<3x40x2x32xf4E2M1FN>
  %g0 = iree_linalg_ext.gather dimension_map = [0] ins(%1, %ids : tensor<5x40x2x32xf4E2M1FN>, tensor<3xi32>) outs(%e0 : tensor<3x40x2x32xf4E2M1FN>) -> tensor<3x40x2x32xf4E2M1FN>
  %e1 = tensor.empty() : tensor<3x40x2xf8E8M0FNU>
  %g1 = iree_linalg_ext.gather dimension_map = [0] ins(%3, %ids : tensor<5x40x2xf8E8M0FNU>, tensor<3xi32>) outs(%e1 : tensor<3x40x2xf8E8M0FNU>) -> tensor<3x40x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x4x40xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<3x4x40xf32>) -> tensor<3x4x40xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(g, m, n, k, b) -> (g, m, k, b)>, affine_map<(g, m, n, k, b) -> (g, n, k, b)>, affine_map<(g, m, n, k, b) -> (g, n, k)>, affine_map<(g, m, n, k, b) -> (g, m, n)>], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %g0, %g1 : tensor<3x4x2x32xf32>, tensor<3x40x2x32xf4E2M1FN>, tensor<3x40x2xf8E8M0FNU>) outs(%acc : tensor<3x4x40xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x4x40xf32>
  func.return %y : tensor<3x4x40xf32>
}

// -----

// bf16: the activations are put in the order of the steps, in pairs. 32 columns need no mask. An
// instruction set without a dot product of pairs takes them as f32.
// CHECK: stream.executable private @mxc_prepare_bf16_pairs0_
// CHECK: stream.executable private @mxc_mxfp4_bf16_3x4x32x64_of_5 attributes
// CHECK-NOT: vector.maskedstore
// CHECK: "llvm.x86.avx512.permvar.hi.512"
// CHECK: "llvm.x86.avx512bf16.dpbf16ps.512"
// CHECK-NOT: vector.maskedstore
// CHECK-LABEL: func.func @gathered_bf16(
// CHECK: %[[P:.*]] = flow.dispatch @mxc_prepare_bf16_pairs0_{{.*}} : (tensor<12x2x32xbf16>) -> tensor<12x3x16xi32>
// CHECK: flow.dispatch @mxc_mxfp4_bf16_3x4x32x64_of_5::@mxc_mxfp4_bf16_3x4x32x64_of_5(%[[P]], %arg1, {{.*}}) -> tensor<12x32xf32>
// CHECK-NOT: linalg.generic
// CHECK: return
// BASE: stream.executable private @mxc_prepare_bf16_floats0_
// BASE: stream.executable private @mxc_mxfp4_bf16_3x4x32x64_of_5 attributes
// BASE-NOT: dpbf16ps
// BASE: "llvm.x86.avx512.permvar.sf.512"
// BASE-NOT: dpbf16ps
// BASE-LABEL: func.func @gathered_bf16(
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<5x32x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<5x32x2xi8>
func.func @gathered_bf16(%x: tensor<3x4x2x32xbf16>, %ids: tensor<3xi32>) -> tensor<3x4x32xf32> {
  %0 = util.global.load immutable @w : tensor<5x32x2x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<5x32x2x16xi8> -> tensor<5x32x2x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<5x32x2xi8>
  %3 = flow.tensor.bitcast %2 : tensor<5x32x2xi8> -> tensor<5x32x2xf8E8M0FNU>
  %e0 = tensor.empty() : tensor<3x32x2x32xf4E2M1FN>
  %g0 = iree_linalg_ext.gather dimension_map = [0] ins(%1, %ids : tensor<5x32x2x32xf4E2M1FN>, tensor<3xi32>) outs(%e0 : tensor<3x32x2x32xf4E2M1FN>) -> tensor<3x32x2x32xf4E2M1FN>
  %e1 = tensor.empty() : tensor<3x32x2xf8E8M0FNU>
  %g1 = iree_linalg_ext.gather dimension_map = [0] ins(%3, %ids : tensor<5x32x2xf8E8M0FNU>, tensor<3xi32>) outs(%e1 : tensor<3x32x2xf8E8M0FNU>) -> tensor<3x32x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x4x32xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<3x4x32xf32>) -> tensor<3x4x32xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(g, m, n, k, b) -> (g, m, k, b)>, affine_map<(g, m, n, k, b) -> (g, n, k, b)>, affine_map<(g, m, n, k, b) -> (g, n, k)>, affine_map<(g, m, n, k, b) -> (g, m, n)>], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %g0, %g1 : tensor<3x4x2x32xbf16>, tensor<3x32x2x32xf4E2M1FN>, tensor<3x32x2xf8E8M0FNU>) outs(%acc : tensor<3x4x32xf32>) {
  ^bb0(%a: bf16, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %f = arith.extf %a : bf16 to f32
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %f, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x4x32xf32>
  func.return %y : tensor<3x4x32xf32>
}

// -----

// One weight, no experts.
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<2x2x4x64xi8>
// CHECK-LABEL: func.func @one_weight(
// CHECK: %[[P:.*]] = flow.dispatch @mxc_prepare_f32_floats0_{{.*}}(%arg0)
// CHECK: %[[Y:.*]] = flow.dispatch @mxc_mxfp4_f32_1x9x20x64::@mxc_mxfp4_f32_1x9x20x64(%[[P]], {{.*}}) {{.*}} -> tensor<9x20xf32>
// CHECK: return %[[Y]]
// BASE-LABEL: func.func @one_weight(
// BASE: flow.dispatch @mxc_mxfp4_f32_1x9x20x64
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<20x2xi8>
func.func @one_weight(%x: tensor<9x2x32xf32>) -> tensor<9x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x2x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<20x2x16xi8> -> tensor<20x2x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<20x2xi8>
  %3 = flow.tensor.bitcast %2 : tensor<20x2xi8> -> tensor<20x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<9x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<9x20xf32>) -> tensor<9x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<9x2x32xf32>, tensor<20x2x32xf4E2M1FN>, tensor<20x2xf8E8M0FNU>) outs(%acc : tensor<9x20xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<9x20xf32>
  func.return %y : tensor<9x20xf32>
}

// -----

// bf16 weights in pairs: two elements a dword, 64 bytes a unit.
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<2x2x16x64xi8>
// CHECK-LABEL: func.func @dense_pairs(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_prepare_bf16_pairs0_
// CHECK: flow.dispatch @mxc_bf16_bf16_1x2x20x64
// BASE: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<2x2x16x64xi8>
// BASE-LABEL: func.func @dense_pairs(
// BASE: flow.dispatch @mxc_prepare_bf16_floats0_
// BASE: flow.dispatch @mxc_bf16_bf16_1x2x20x64
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @dense_pairs(%x: tensor<2x64xbf16>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// Experts of plain numbers, by ids: read where they lie, as those in blocks are.
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<5x2x2x16x64xi8>
// CHECK-LABEL: func.func @gathered_plain(
// CHECK-NOT: iree_linalg_ext.gather
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_bf16_bf16_3x4x20x64_of_5::@mxc_bf16_bf16_3x4x20x64_of_5(%{{.*}}, %arg1, %{{.*}}) {mxc.contraction = {batch = 3 : i64, chosen, experts = 5 : i64, k = 64 : i64, kind = "dot product", lhs = {element = bf16}, m = 4 : i64, n = 20 : i64, out = {element = f32}, plan = "tiles of {{.*}}", rhs = {element = bf16}}}
// CHECK-NOT: linalg
// CHECK: return
// BASE-LABEL: func.func @gathered_plain(
// BASE: flow.dispatch @mxc_bf16_bf16_3x4x20x64_of_5
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<5x20x64xbf16>
func.func @gathered_plain(%x: tensor<3x4x64xbf16>, %ids: tensor<3xi32>) -> tensor<3x4x20xf32> {
  %0 = util.global.load immutable @w : tensor<5x20x64xbf16>
  %e0 = tensor.empty() : tensor<3x20x64xbf16>
  %g0 = iree_linalg_ext.gather dimension_map = [0] ins(%0, %ids : tensor<5x20x64xbf16>, tensor<3xi32>) outs(%e0 : tensor<3x20x64xbf16>) -> tensor<3x20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x4x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<3x4x20xf32>) -> tensor<3x4x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(g, m, n, k) -> (g, m, k)>, affine_map<(g, m, n, k) -> (g, n, k)>, affine_map<(g, m, n, k) -> (g, m, n)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %g0 : tensor<3x4x64xbf16>, tensor<3x20x64xbf16>) outs(%acc : tensor<3x4x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %v = arith.extf %a : bf16 to f32
    %u = arith.extf %w : bf16 to f32
    %p = arith.mulf %v, %u : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x4x20xf32>
  func.return %y : tensor<3x4x20xf32>
}

// -----

// bf16 weights for f32 activations: the same layout.
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<2x2x16x64xi8>
// CHECK-LABEL: func.func @dense_f32(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_bf16_f32_1x2x20x64
// BASE: mxc.layout = "panel16x4"
// BASE-LABEL: func.func @dense_f32(
// BASE: flow.dispatch @mxc_bf16_f32_1x2x20x64
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @dense_f32(%x: tensor<2x64xf32>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xf32>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: bf16, %o: f32):
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %a, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// One weight, three contractions: one parameter; equal shapes share a kernel, two of a preparation
// and two of a product.
// CHECK-COUNT-4: stream.executable private
// CHECK-NOT: stream.executable private
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// CHECK-LABEL: func.func @shared(
// CHECK: flow.dispatch @mxc_prepare_f32_floats0_[[ORDER:[0-9a-f.]+]]1x64::
// CHECK: flow.dispatch @mxc_bf16_f32_1x1x16x64
// CHECK: flow.dispatch @mxc_prepare_f32_floats0_[[ORDER]]1x64::
// CHECK: flow.dispatch @mxc_bf16_f32_1x1x16x64
// CHECK: flow.dispatch @mxc_prepare_f32_floats0_[[ORDER]]8x64::
// CHECK: flow.dispatch @mxc_bf16_f32_1x8x16x64
// BASE-LABEL: func.func @shared(
// BASE-COUNT-6: flow.dispatch
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<16x64xbf16>
func.func @shared(%x: tensor<1x64xf32>, %x2: tensor<1x64xf32>, %x8: tensor<8x64xf32>) -> (tensor<1x16xf32>, tensor<1x16xf32>, tensor<8x16xf32>) {
  %w0 = util.global.load immutable @w : tensor<16x64xbf16>
  %z0 = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<1x16xf32>
  %acc0 = linalg.fill ins(%z0 : f32) outs(%e0 : tensor<1x16xf32>) -> tensor<1x16xf32>
  %y0 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w0 : tensor<1x64xf32>, tensor<16x64xbf16>) outs(%acc0 : tensor<1x16xf32>) {
  ^bb0(%a: f32, %w: bf16, %o: f32):
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %a, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<1x16xf32>
  %w1 = util.global.load immutable @w : tensor<16x64xbf16>
  %z1 = arith.constant 0.0 : f32
  %e1 = tensor.empty() : tensor<1x16xf32>
  %acc1 = linalg.fill ins(%z1 : f32) outs(%e1 : tensor<1x16xf32>) -> tensor<1x16xf32>
  %y1 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x2, %w1 : tensor<1x64xf32>, tensor<16x64xbf16>) outs(%acc1 : tensor<1x16xf32>) {
  ^bb0(%a: f32, %w: bf16, %o: f32):
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %a, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<1x16xf32>
  %w2 = util.global.load immutable @w : tensor<16x64xbf16>
  %z2 = arith.constant 0.0 : f32
  %e2 = tensor.empty() : tensor<8x16xf32>
  %acc2 = linalg.fill ins(%z2 : f32) outs(%e2 : tensor<8x16xf32>) -> tensor<8x16xf32>
  %y2 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x8, %w2 : tensor<8x64xf32>, tensor<16x64xbf16>) outs(%acc2 : tensor<8x16xf32>) {
  ^bb0(%a: f32, %w: bf16, %o: f32):
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %a, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<8x16xf32>
  func.return %y0, %y1, %y2 : tensor<1x16xf32>, tensor<1x16xf32>, tensor<8x16xf32>
}

// -----

// One weight for bf16 and for f32 activations: two kernels, one layout.
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// CHECK-LABEL: func.func @two_activations(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_bf16_bf16_1x2x20x64
// CHECK: flow.dispatch @mxc_bf16_f32_1x2x20x64
// CHECK-NOT: linalg
// CHECK: return
// BASE-LABEL: func.func @two_activations(
// BASE: flow.dispatch @mxc_bf16_bf16_1x2x20x64
// BASE: flow.dispatch @mxc_bf16_f32_1x2x20x64
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @two_activations(%x: tensor<2x64xbf16>, %x2: tensor<2x64xf32>) -> (tensor<2x20xf32>, tensor<2x20xf32>) {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  %y2 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x2, %0 : tensor<2x64xf32>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: bf16, %o: f32):
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %a, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y, %y2 : tensor<2x20xf32>, tensor<2x20xf32>
}

// -----

// Elements of 8 bits: a lookup of bytes by seven bits, where there is one. The eighth is the sign,
// that of NaN too.
// CHECK: stream.executable private @mxc_mxfp8e4m3_f32_1x2x20x64 attributes
// CHECK: "llvm.x86.avx512.vpermi2var.qi.512"
// CHECK-NOT: arith.cmpi slt{{.*}}vector<64xi8>
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<2x2x8x64xi8>
// CHECK-LABEL: func.func @eight_bits(
// CHECK: flow.dispatch @mxc_mxfp8e4m3_f32_1x2x20x64
// BASE: stream.executable private @mxc_mxfp8e4m3_f32_1x2x20x64 attributes
// BASE-NOT: vpermi2var.qi
// BASE: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<2x2x8x64xi8>
// BASE-LABEL: func.func @eight_bits(
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x2x32xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<20x2xi8>
func.func @eight_bits(%x: tensor<2x2x32xf32>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x2x32xi8>
  %1 = flow.tensor.bitcast %0 : tensor<20x2x32xi8> -> tensor<20x2x32xf8E4M3FN>
  %2 = util.global.load immutable @s : tensor<20x2xi8>
  %3 = flow.tensor.bitcast %2 : tensor<20x2xi8> -> tensor<20x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<2x2x32xf32>, tensor<20x2x32xf8E4M3FN>, tensor<20x2xf8E8M0FNU>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: f8E4M3FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f8E4M3FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// A repetition inside of a row is done before the activations are prepared, it is none of rows.
// CHECK-LABEL: func.func @repeat_in_a_row(
// CHECK: linalg.generic {{.*}} outs({{.*}} : tensor<4x2x32xf32>) {
// CHECK: %[[P:.*]] = flow.dispatch @mxc_prepare_f32_floats0_{{.*}} : (tensor<4x2x32xf32>) -> tensor<4x3x32xi32>
// CHECK: flow.dispatch @mxc_bf16_f32_1x4x20x64::@mxc_bf16_f32_1x4x20x64(%[[P]],
// BASE-LABEL: func.func @repeat_in_a_row(
// BASE: linalg.generic
// BASE: flow.dispatch @mxc_bf16_f32_1x4x20x64::
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @repeat_in_a_row(%x: tensor<4x32xf32>) -> tensor<4x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %er = tensor.empty() : tensor<4x2x32xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, j, k) -> (m, k)>, affine_map<(m, j, k) -> (m, j, k)>], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x : tensor<4x32xf32>) outs(%er : tensor<4x2x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    linalg.yield %a : f32
  } -> tensor<4x2x32xf32>
  %c = tensor.collapse_shape %r [[0], [1, 2]] : tensor<4x2x32xf32> into tensor<4x64xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<4x20xf32>) -> tensor<4x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%c, %0 : tensor<4x64xf32>, tensor<20x64xbf16>) outs(%acc : tensor<4x20xf32>) {
  ^bb0(%a: f32, %w: bf16, %o: f32):
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %a, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x20xf32>
  func.return %y : tensor<4x20xf32>
}

// -----

// Weights in blocks that the caller gives lie in rows, and are gathered: no copy is made of them.
// CHECK: stream.executable private @mxc_mxfp4_f32_1x2x20x64_in_rows attributes
// CHECK: stream.binding.subspan {{.*}} -> memref<160xi32>
// CHECK: stream.binding.subspan {{.*}} -> memref<40xi8>
// CHECK: vector.gather {{.*}} : memref<160xi32>, vector<16xi32>
// CHECK-LABEL: func.func @given(
// CHECK: %[[W:.*]] = flow.tensor.bitcast %{{.*}} : tensor<640xi8> -> tensor<160xi32>
// CHECK: flow.dispatch @mxc_mxfp4_f32_1x2x20x64_in_rows::@mxc_mxfp4_f32_1x2x20x64_in_rows(%{{.*}}, %[[W]], %{{.*}})
// CHECK-NOT: linalg
// CHECK: return
// BASE: stream.executable private @mxc_mxfp4_f32_1x2x20x64_in_rows attributes
// BASE-LABEL: func.func @given(
func.func @given(%x: tensor<2x2x32xf32>, %bytes: tensor<20x2x16xi8>, %scales: tensor<20x2xi8>) -> tensor<2x20xf32> {
  %1 = flow.tensor.bitcast %bytes : tensor<20x2x16xi8> -> tensor<20x2x32xf4E2M1FN>
  %3 = flow.tensor.bitcast %scales : tensor<20x2xi8> -> tensor<20x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<2x2x32xf32>, tensor<20x2x32xf4E2M1FN>, tensor<20x2xf8E8M0FNU>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// Floats that the caller gives as bytes.
// CHECK-LABEL: func.func @activations_in_bytes(
// CHECK: flow.tensor.bitcast
// CHECK: flow.dispatch @mxc_prepare_bf16_pairs0_{{.*}} : (tensor<4x2x32xbf16>) -> tensor<4x3x16xi32>
// BASE-LABEL: func.func @activations_in_bytes(
// BASE: flow.tensor.bitcast
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @activations_in_bytes(%x: tensor<4x128xi8>) -> tensor<4x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %c = flow.tensor.bitcast %x : tensor<4x128xi8> -> tensor<4x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<4x20xf32>) -> tensor<4x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%c, %0 : tensor<4x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<4x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x20xf32>
  func.return %y : tensor<4x20xf32>
}

// -----

// Blocks of 32 on one side and of 16 on the other.
// CHECK-LABEL: func.func @mixed_blocks(
// CHECK: flow.dispatch @mxc_nvfp4_mxfp8e4m3_1x4x32x512_in_rows
// BASE-LABEL: func.func @mixed_blocks(
// BASE: flow.dispatch @mxc_nvfp4_mxfp8e4m3_1x4x32x512_in_rows
func.func @mixed_blocks(%x: tensor<4x16x2x16xf8E4M3FN>, %xs: tensor<4x16xf8E8M0FNU>, %w: tensor<32x16x2x16xf4E2M1FN>, %s: tensor<32x16x2xf8E4M3FN>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, i, b) -> (m, o, i, b)>, affine_map<(m, n, o, i, b) -> (n, o, i, b)>, affine_map<(m, n, o, i, b) -> (m, o)>, affine_map<(m, n, o, i, b) -> (n, o, i)>, affine_map<(m, n, o, i, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x16x2x16xf8E4M3FN>, tensor<32x16x2x16xf4E2M1FN>, tensor<4x16xf8E8M0FNU>, tensor<32x16x2xf8E4M3FN>) outs(%acc : tensor<4x32xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E4M3FN, %o: f32):
    %l = arith.scaling_extf %a, %as : f8E4M3FN, f8E8M0FNU to f32
    %f = arith.extf %b : f4E2M1FN to f32
    %g = arith.extf %c : f8E4M3FN to f32
    %r = arith.mulf %f, %g : f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// -----

// A weight that the caller gives.
// CHECK-LABEL: func.func @argument(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "its weights are plain numbers and no parameter"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @argument(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
func.func @argument(%x: tensor<2x64xbf16>, %0: tensor<20x64xbf16>) -> tensor<2x20xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// A result that has columns before rows is not what a kernel stores.
// CHECK-LABEL: func.func @columns_first(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "its result has its dimensions in another order than batch, row, column"
// CHECK-NOT: mxc.layout
util.global private @columns = #flow.parameter.named<"model"::"columns"> : tensor<20x64xbf16>
func.func @columns_first(%x: tensor<2x64xbf16>) -> tensor<20x2xf32> {
  %0 = util.global.load @columns : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<20x2xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<20x2xf32>) -> tensor<20x2xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, m)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<20x2xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<20x2xf32>
  func.return %y : tensor<20x2xf32>
}

// -----

// A weight that is in the program.
// CHECK-LABEL: func.func @constant(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "its weights @w are no parameter that is read only"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @constant(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = dense<1.0> : tensor<20x64xbf16>
func.func @constant(%x: tensor<2x64xbf16>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// A global that the program may write.
// CHECK-LABEL: func.func @variable(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "its weights @w are no parameter that is read only"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @variable(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private mutable @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @variable(%x: tensor<2x64xbf16>) -> tensor<2x20xf32> {
  %0 = util.global.load @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// A global that nothing has set yet.
// CHECK-LABEL: func.func @unset(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "its weights @w are no parameter that is read only"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @unset(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private mutable @w : tensor<20x64xbf16>
func.func @unset(%x: tensor<2x64xbf16>) -> tensor<2x20xf32> {
  %0 = util.global.load @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// A table that is the embedding too: lookups read the panels, an element and rows.
// CHECK: stream.executable private @mxc_bf16_bf16_1x2x20x64
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<2x2x16x64xi8>
// CHECK-LABEL: func.func @tied(
// CHECK: %[[OWN:.*]] = util.global.load immutable @w : tensor<2x2x16x64xi8>
// CHECK: %[[WIDE:.*]] = flow.tensor.bitcast %[[OWN]] : tensor<2x2x16x64xi8> -> tensor<2x2x16x32xbf16>
// CHECK: %[[PANELS:.*]] = tensor.collapse_shape %[[WIDE]] {{.*}} : tensor<2x2x16x32xbf16> into tensor<2x32x32xbf16>
// CHECK: tensor.extract %[[PANELS]]
// CHECK: %[[ROWS:.*]] = linalg.generic {{.*}} ins(%arg2 : tensor<?xi32>)
// CHECK: %[[N:.*]] = arith.index_cast %{{.*}} : i32 to index
// CHECK: %[[K:.*]] = linalg.index 1
// CHECK: %[[LANE:.*]] = arith.remui %[[N]], %c16
// CHECK: %[[PAIR:.*]] = arith.muli %[[LANE]], %c2
// CHECK: %[[HALF:.*]] = arith.remui %[[K]], %c2
// CHECK: %[[LAST:.*]] = arith.addi %[[PAIR]], %[[HALF]]
// CHECK: %[[PANEL:.*]] = arith.divui %[[N]], %c16
// CHECK: %[[UNIT:.*]] = arith.divui %[[K]], %c2
// CHECK: tensor.extract %[[PANELS]][%[[PANEL]], %[[UNIT]], %[[LAST]]] : tensor<2x32x32xbf16>
// CHECK: flow.dispatch @mxc_bf16_bf16_1x2x20x64
// CHECK-NOT: tensor<20x64xbf16>
// CHECK: return
// BASE: stream.executable private @mxc_bf16_bf16_1x2x20x64
// BASE: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// BASE-LABEL: func.func @tied(
// BASE: flow.dispatch @mxc_bf16_bf16_1x2x20x64
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @tied(%x: tensor<2x64xbf16>, %i: index, %ids: tensor<?xi32>) -> (bf16, tensor<?x64xbf16>, tensor<2x20xf32>) {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %c0 = arith.constant 0 : index
  %row = tensor.extract %0[%i, %c0] : tensor<20x64xbf16>
  %count = tensor.dim %ids, %c0 : tensor<?xi32>
  %re = tensor.empty(%count) : tensor<?x64xbf16>
  %rows = iree_linalg_ext.gather dimension_map = [0] ins(%0, %ids : tensor<20x64xbf16>, tensor<?xi32>) outs(%re : tensor<?x64xbf16>) -> tensor<?x64xbf16>
  %1 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %1 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %row, %rows, %y : bf16, tensor<?x64xbf16>, tensor<2x20xf32>
}

// -----

// A table that is read otherwise too.
// CHECK-LABEL: func.func @returned(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "its weights @w are read by others, unpacked"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @returned(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @returned(%x: tensor<2x64xbf16>) -> (tensor<20x64xbf16>, tensor<2x20xf32>) {
  %1 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %1 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %1, %y : tensor<20x64xbf16>, tensor<2x20xf32>
}

// -----

// Scales that go elsewhere too: the elements stay as they are as well, and are read in rows.
// CHECK: stream.executable private @mxc_mxfp4_f32_1x2x20x64_in_rows
// BASE: stream.executable private @mxc_mxfp4_f32_1x2x20x64_in_rows
// CHECK: util.global private @w = #flow
// CHECK: util.global private @s = #flow
// CHECK-LABEL: func.func @scales_elsewhere(
// CHECK: flow.dispatch @mxc_mxfp4_f32_1x2x20x64_in_rows
// CHECK-NOT: linalg.generic
// CHECK-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<20x2xi8>
func.func @scales_elsewhere(%x: tensor<2x2x32xf32>) -> (tensor<2x20xf32>, tensor<20x2xi8>) {
  %0 = util.global.load immutable @w : tensor<20x2x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<20x2x16xi8> -> tensor<20x2x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<20x2xi8>
  %3 = flow.tensor.bitcast %2 : tensor<20x2xi8> -> tensor<20x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<2x2x32xf32>, tensor<20x2x32xf4E2M1FN>, tensor<20x2xf8E8M0FNU>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y, %2 : tensor<2x20xf32>, tensor<20x2xi8>
}

// -----

// Rows that come with the call, beside static ones of the same weight: their number is the workload,
// and a scalar of the kernels.
// CHECK: stream.executable private @mxc_prepare_f32_floats0_{{.*}}Dx64 {
// CHECK: stream.executable.export public @mxc_prepare_f32_floats0_{{.*}}Dx64 workgroups(%[[M:.*]]: index) -> (index, index, index) {
// CHECK: stream.executable private @mxc_bf16_f32_1xDx20x64 attributes
// CHECK: stream.binding.subspan {{.*}} : !stream.binding -> memref<?x3x32xi32>{%[[M:.*]]}
// CHECK: stream.binding.subspan {{.*}} : !stream.binding -> memref<?x20xf32>{%[[M]]}
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<2x2x16x64xi8>
// CHECK-LABEL: func.func @dynamic_rows(
// CHECK: %[[ROWS:.*]] = tensor.dim %arg1
// CHECK: flow.dispatch @mxc_bf16_f32_1x2x20x64
// CHECK: flow.dispatch @mxc_prepare_f32_floats0_{{.*}}Dx64[%[[ROWS]]]({{.*}}, %[[ROWS]]) : (tensor<?x2x32xf32>{%[[ROWS]]}, index) -> tensor<?x3x32xi32>{%[[ROWS]]}
// CHECK: flow.dispatch @mxc_bf16_f32_1xDx20x64::@mxc_bf16_f32_1xDx20x64[%[[ROWS]]]({{.*}}, %[[ROWS]]) {mxc.contraction = {batch = 1 : i64, k = 64 : i64, kind = "multiply-add", lhs = {element = f32}, m = -1 : i64,
// CHECK-NOT: linalg.generic
// CHECK: return
// BASE: stream.executable private @mxc_bf16_f32_1xDx20x64 attributes
// BASE: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// BASE-LABEL: func.func @dynamic_rows(
// BASE: flow.dispatch @mxc_bf16_f32_1xDx20x64
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @dynamic_rows(%x: tensor<2x64xf32>, %d: tensor<?x64xf32>) -> (tensor<2x20xf32>, tensor<?x20xf32>) {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %c0 = arith.constant 0 : index
  %rows = tensor.dim %d, %c0 : tensor<?x64xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %zd = arith.constant 0.0 : f32
  %ed = tensor.empty(%rows) : tensor<?x20xf32>
  %accd = linalg.fill ins(%zd : f32) outs(%ed : tensor<?x20xf32>) -> tensor<?x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xf32>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: bf16, %o: f32):
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %a, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  %yd = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%d, %0 : tensor<?x64xf32>, tensor<20x64xbf16>) outs(%accd : tensor<?x20xf32>) {
  ^bb0(%a: f32, %w: bf16, %o: f32):
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %a, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x20xf32>
  func.return %y, %yd : tensor<2x20xf32>, tensor<?x20xf32>
}

// -----

// A weight times itself: as activations it has its own layout.
// CHECK-LABEL: func.func @gram(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "its weights @w are read by others, unpacked"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @gram(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<64x64xbf16>
func.func @gram() -> tensor<64x64xf32> {
  %0 = util.global.load immutable @w : tensor<64x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x64xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%0, %0 : tensor<64x64xbf16>, tensor<64x64xbf16>) outs(%acc : tensor<64x64xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<64x64xf32>
  func.return %y : tensor<64x64xf32>
}

// -----

// A parameter and what the caller gives have no common layout: both are read in rows.
// CHECK: util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x2x16xi8>
// CHECK-LABEL: func.func @elements_alone(
// CHECK: %[[W:.*]] = util.global.load immutable @w : tensor<20x2x16xi8>
// CHECK: flow.dispatch @mxc_mxfp4_f32_1x2x20x64_in_rows
// BASE-LABEL: func.func @elements_alone(
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x2x16xi8>
func.func @elements_alone(%x: tensor<2x2x32xf32>, %scales: tensor<20x2xi8>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x2x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<20x2x16xi8> -> tensor<20x2x32xf4E2M1FN>
  %3 = flow.tensor.bitcast %scales : tensor<20x2xi8> -> tensor<20x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<2x2x32xf32>, tensor<20x2x32xf4E2M1FN>, tensor<20x2xf8E8M0FNU>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// Kernels read numbers of experts as i32.
// CHECK-LABEL: func.func @long_ids(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}reason = "weights are gathered along dimensions [0] by tensor<3xi64>; kernels take the first, by a list of i32"
// BASE-LABEL: func.func @long_ids(
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<5x20x64xbf16>
func.func @long_ids(%x: tensor<3x4x64xbf16>, %ids: tensor<3xi64>) -> tensor<3x4x20xf32> {
  %0 = util.global.load immutable @w : tensor<5x20x64xbf16>
  %e0 = tensor.empty() : tensor<3x20x64xbf16>
  %g0 = iree_linalg_ext.gather dimension_map = [0] ins(%0, %ids : tensor<5x20x64xbf16>, tensor<3xi64>) outs(%e0 : tensor<3x20x64xbf16>) -> tensor<3x20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x4x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<3x4x20xf32>) -> tensor<3x4x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(g, m, n, k) -> (g, m, k)>, affine_map<(g, m, n, k) -> (g, n, k)>, affine_map<(g, m, n, k) -> (g, m, n)>], iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %g0 : tensor<3x4x64xbf16>, tensor<3x20x64xbf16>) outs(%acc : tensor<3x4x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x4x20xf32>
  func.return %y : tensor<3x4x20xf32>
}

// -----

// K is no multiple of 16.
// CHECK-LABEL: func.func @ragged_depth(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "K = 40 is no multiple of 16"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @ragged_depth(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x40xbf16>
func.func @ragged_depth(%x: tensor<2x40xbf16>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x40xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x40xbf16>, tensor<20x40xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// f16 weights.
// CHECK-LABEL: func.func @half_weight(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "weights are f16; kernels take f4E2M1FN,
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @half_weight(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xf16>
func.func @half_weight(%x: tensor<2x64xbf16>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x64xf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: f16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : f16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// f16 activations are multiplied as f32.
// CHECK: stream.executable private @mxc_prepare_f16_floats
// BASE: stream.executable private @mxc_prepare_f16_floats
// CHECK-LABEL: func.func @half_activations(
// CHECK: flow.dispatch @mxc_prepare_f16_floats
// CHECK: flow.dispatch @mxc_bf16_f16_1x2x20x64
// CHECK-NOT: linalg.generic
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @half_activations(%x: tensor<2x64xf16>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f16, %w: bf16, %o: f32):
    %fa = arith.extf %a : f16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// A sum that starts from another number than zero.
// CHECK-LABEL: func.func @from_one(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "the accumulator is not zero"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @from_one(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @from_one(%x: tensor<2x64xbf16>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 1.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// A sum in bf16.
// CHECK-LABEL: func.func @of_bf16(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "it sums in bf16; kernels sum in f32"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @of_bf16(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @of_bf16(%x: tensor<2x64xbf16>) -> tensor<2x20xbf16> {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : bf16
  %e = tensor.empty() : tensor<2x20xbf16>
  %acc = linalg.fill ins(%z : bf16) outs(%e : tensor<2x20xbf16>) -> tensor<2x20xbf16>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xbf16>) {
  ^bb0(%a: bf16, %w: bf16, %o: bf16):
    %p = arith.mulf %a, %w : bf16
    %q = arith.addf %o, %p : bf16
    linalg.yield %q : bf16
  } -> tensor<2x20xbf16>
  func.return %y : tensor<2x20xbf16>
}

// -----

// A product that is rounded.
// CHECK-LABEL: func.func @product_in_bf16(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "its body does not add one f32 product to the accumulator"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @product_in_bf16(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @product_in_bf16(%x: tensor<2x64xbf16>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %p = arith.mulf %a, %w : bf16
    %r = arith.extf %p : bf16 to f32
    %q = arith.addf %o, %r : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// A factor that is a function of the weight.
// CHECK-LABEL: func.func @more_than_a_product(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "a side of its product is more than an element under its scale"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @more_than_a_product(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xbf16>
func.func @more_than_a_product(%x: tensor<2x64xf32>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xf32>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: bf16, %o: f32):
    %f = arith.extf %w : bf16 to f32
    %v = arith.negf %f : f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// nvfp4, three blocks of 16: two scales where others have one, a number each instead of an exponent.
// CHECK: stream.executable private @mxc_prepare_bf16_pairs0_by16_
// CHECK: stream.executable private @mxc_nvfp4_bf16_1x2x20x48 attributes
// CHECK-COUNT-16: "llvm.x86.avx512bf16.dpbf16ps.512"
// CHECK: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"w"> : tensor<2x3x2x64xi8>
// CHECK: util.global private @s {mxc.layout = "panel16x1", mxc.matrices = array<i64: {{.*}}>} = #flow.parameter.named<"model"::"s"> : tensor<2x3x16xi8>
// CHECK-LABEL: func.func @nvfp4(
// CHECK-NOT: linalg
// CHECK: flow.dispatch @mxc_prepare_bf16_pairs0_by16_{{.*}} : (tensor<2x3x16xbf16>) -> tensor<2x3x8xi32>
// CHECK: flow.dispatch @mxc_nvfp4_bf16_1x2x20x48::@mxc_nvfp4_bf16_1x2x20x48({{.*}} rhs = {block = 16 : i64, element = f4E2M1FN, scale = f8E4M3FN}
// CHECK-NOT: linalg
// CHECK: return
// BASE: stream.executable private @mxc_nvfp4_bf16_1x2x20x48 attributes
// BASE: util.global private @w {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// BASE: util.global private @s {mxc.layout = "panel16x1", mxc.matrices = array<i64: {{.*}}>}
// BASE-LABEL: func.func @nvfp4(
// BASE: flow.dispatch @mxc_nvfp4_bf16_1x2x20x48
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x3x8xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<20x3xi8>
func.func @nvfp4(%x: tensor<2x3x16xbf16>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x3x8xi8>
  %1 = flow.tensor.bitcast %0 : tensor<20x3x8xi8> -> tensor<20x3x16xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<20x3xi8>
  %3 = flow.tensor.bitcast %2 : tensor<20x3xi8> -> tensor<20x3xf8E4M3FN>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<2x3x16xbf16>, tensor<20x3x16xf4E2M1FN>, tensor<20x3xf8E4M3FN>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: f4E2M1FN, %s: f8E4M3FN, %o: f32):
    %f = arith.extf %a : bf16 to f32
    %v = arith.extf %w : f4E2M1FN to f32
    %t = arith.extf %s : f8E4M3FN to f32
    %u = arith.mulf %v, %t : f32
    %p = arith.mulf %f, %u : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// Blocks of a size that is neither 16 nor a multiple of 32.
// CHECK-LABEL: func.func @blocks_of_8(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "a scale is for 8 elements; kernels take 16 and multiples of 32"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @blocks_of_8(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x4x4xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<20x4xi8>
func.func @blocks_of_8(%x: tensor<2x4x8xf32>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x4x4xi8>
  %1 = flow.tensor.bitcast %0 : tensor<20x4x4xi8> -> tensor<20x4x8xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<20x4xi8>
  %3 = flow.tensor.bitcast %2 : tensor<20x4xi8> -> tensor<20x4xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<2x4x8xf32>, tensor<20x4x8xf4E2M1FN>, tensor<20x4xf8E8M0FNU>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// A batch whose weights are not gathered: each group has its own.
// CHECK: stream.executable private @mxc_mxfp4_f32_3x2x20x64_each
// BASE: stream.executable private @mxc_mxfp4_f32_3x2x20x64_each
// CHECK: util.global private @w {{.*}}mxc.layout = "panel16x4"{{.*}} : tensor<3x2x2x4x64xi8>
// CHECK-LABEL: func.func @batch(
// CHECK: flow.dispatch @mxc_prepare_f32
// CHECK: flow.dispatch @mxc_mxfp4_f32_3x2x20x64_each
// CHECK-NOT: linalg.generic
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<3x20x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<3x20x2xi8>
func.func @batch(%x: tensor<3x2x2x32xf32>) -> tensor<3x2x20xf32> {
  %0 = util.global.load immutable @w : tensor<3x20x2x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<3x20x2x16xi8> -> tensor<3x20x2x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<3x20x2xi8>
  %3 = flow.tensor.bitcast %2 : tensor<3x20x2xi8> -> tensor<3x20x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<3x2x20xf32>) -> tensor<3x2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(g, m, n, k, b) -> (g, m, k, b)>, affine_map<(g, m, n, k, b) -> (g, n, k, b)>, affine_map<(g, m, n, k, b) -> (g, n, k)>, affine_map<(g, m, n, k, b) -> (g, m, n)>], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<3x2x2x32xf32>, tensor<3x20x2x32xf4E2M1FN>, tensor<3x20x2xf8E8M0FNU>) outs(%acc : tensor<3x2x20xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<3x2x20xf32>
  func.return %y : tensor<3x2x20xf32>
}

// -----

// bf16 that the parameter has as bytes.
// CHECK-LABEL: func.func @bytes(
// CHECK-NOT: flow.dispatch
// CHECK: linalg.generic{{.*}}mxc.contraction = {{.*}}reason = "its weights are bf16 in a parameter of i8"
// CHECK-NOT: mxc.layout
// BASE-LABEL: func.func @bytes(
// BASE-NOT: flow.dispatch
// BASE: linalg.generic
// BASE-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x128xi8>
func.func @bytes(%x: tensor<2x64xbf16>) -> tensor<2x20xf32> {
  %1 = util.global.load immutable @w : tensor<20x128xi8>
  %0 = flow.tensor.bitcast %1 : tensor<20x128xi8> -> tensor<20x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %0 : tensor<2x64xbf16>, tensor<20x64xbf16>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %w: bf16, %o: f32):
    %fa = arith.extf %a : bf16 to f32
    %fw = arith.extf %w : bf16 to f32
    %p = arith.mulf %fa, %fw : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// Scales that go elsewhere keep the elements in rows, and these keep other scales so.
// CHECK: stream.executable private @mxc_mxfp4_f32_1x2x20x64_in_rows
// BASE: stream.executable private @mxc_mxfp4_f32_1x2x20x64_in_rows
// CHECK-NOT: mxc.layout
// CHECK-LABEL: func.func @in_a_row(
// CHECK-COUNT-2: flow.dispatch @mxc_mxfp4_f32_1x2x20x64_in_rows
// CHECK-NOT: linalg.generic
// CHECK-NOT: mxc.layout
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<20x2xi8>
util.global private @r = #flow.parameter.named<"model"::"r"> : tensor<20x2xi8>
func.func @in_a_row(%x: tensor<2x2x32xf32>) -> (tensor<2x20xf32>, tensor<2x20xf32>, tensor<20x2xi8>) {
  %0 = util.global.load immutable @w : tensor<20x2x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<20x2x16xi8> -> tensor<20x2x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<20x2xi8>
  %3 = flow.tensor.bitcast %2 : tensor<20x2xi8> -> tensor<20x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<2x2x32xf32>, tensor<20x2x32xf4E2M1FN>, tensor<20x2xf8E8M0FNU>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  %n0 = util.global.load immutable @w : tensor<20x2x16xi8>
  %n1 = flow.tensor.bitcast %n0 : tensor<20x2x16xi8> -> tensor<20x2x32xf4E2M1FN>
  %n2 = util.global.load immutable @r : tensor<20x2xi8>
  %n3 = flow.tensor.bitcast %n2 : tensor<20x2xi8> -> tensor<20x2xf8E8M0FNU>
  %nz = arith.constant 0.0 : f32
  %ne = tensor.empty() : tensor<2x20xf32>
  %nacc = linalg.fill ins(%nz : f32) outs(%ne : tensor<2x20xf32>) -> tensor<2x20xf32>
  %ny = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %n1, %n3 : tensor<2x2x32xf32>, tensor<20x2x32xf4E2M1FN>, tensor<20x2xf8E8M0FNU>) outs(%nacc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y, %ny, %2 : tensor<2x20xf32>, tensor<2x20xf32>, tensor<20x2xi8>
}

// -----

// A batch, of a size that comes with the call, over one weight: its rows are those of one product.
// CHECK: stream.executable private @mxc_mxfp4_f32_1xDx20x64 attributes
// BASE: stream.executable private @mxc_mxfp4_f32_1xDx20x64 attributes
// CHECK-LABEL: func.func @rows_in_a_batch(
// CHECK: %[[D:.*]] = tensor.dim %arg0
// CHECK: %[[R:.*]] = arith.muli %[[D]], %c3
// CHECK: flow.dispatch @mxc_mxfp4_f32_1xDx20x64{{.*}}[%[[R]]]
// CHECK-NOT: linalg.generic
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x2x16xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<20x2xi8>
func.func @rows_in_a_batch(%x: tensor<?x3x2x32xf32>) -> tensor<?x3x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x2x16xi8>
  %1 = flow.tensor.bitcast %0 : tensor<20x2x16xi8> -> tensor<20x2x32xf4E2M1FN>
  %2 = util.global.load immutable @s : tensor<20x2xi8>
  %3 = flow.tensor.bitcast %2 : tensor<20x2xi8> -> tensor<20x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %d = tensor.dim %x, %c0 : tensor<?x3x2x32xf32>
  %e = tensor.empty(%d) : tensor<?x3x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<?x3x20xf32>) -> tensor<?x3x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(g, m, n, k, b) -> (g, m, k, b)>, affine_map<(g, m, n, k, b) -> (n, k, b)>, affine_map<(g, m, n, k, b) -> (n, k)>, affine_map<(g, m, n, k, b) -> (g, m, n)>], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<?x3x2x32xf32>, tensor<20x2x32xf4E2M1FN>, tensor<20x2xf8E8M0FNU>) outs(%acc : tensor<?x3x20xf32>) {
  ^bb0(%a: f32, %w: f4E2M1FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %v : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<?x3x20xf32>
  func.return %y : tensor<?x3x20xf32>
}

// -----

// What is rounded to f16 before it is multiplied is rounded so in registers.
// CHECK: stream.executable private @mxc_mxfp8e4m3_f32_1x2x20x64_to_f16 attributes
// CHECK: arith.truncf %{{.*}} : vector<16xf32> to vector<16xf16>
// BASE: stream.executable private @mxc_mxfp8e4m3_f32_1x2x20x64_to_f16 attributes
// CHECK-LABEL: func.func @rounded(
// CHECK-NOT: linalg.generic
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x2x32xi8>
util.global private @s = #flow.parameter.named<"model"::"s"> : tensor<20x2xi8>
func.func @rounded(%x: tensor<2x2x32xf32>) -> tensor<2x20xf32> {
  %0 = util.global.load immutable @w : tensor<20x2x32xi8>
  %1 = flow.tensor.bitcast %0 : tensor<20x2x32xi8> -> tensor<20x2x32xf8E4M3FN>
  %2 = util.global.load immutable @s : tensor<20x2xi8>
  %3 = flow.tensor.bitcast %2 : tensor<20x2xi8> -> tensor<20x2xf8E8M0FNU>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %1, %3 : tensor<2x2x32xf32>, tensor<20x2x32xf8E4M3FN>, tensor<20x2xf8E8M0FNU>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: f32, %w: f8E4M3FN, %s: f8E8M0FNU, %o: f32):
    %v = arith.scaling_extf %w, %s : f8E4M3FN, f8E8M0FNU to f32
    %h = arith.truncf %v : f32 to f16
    %f = arith.extf %h : f16 to f32
    %p = arith.mulf %a, %f : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x20xf32>
  func.return %y : tensor<2x20xf32>
}

// -----

// A program without operations.
// CHECK: module {
// CHECK-NEXT: }
