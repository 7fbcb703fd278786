// RUN: mxc opt %s --target cpu:znver5 --to normalize | filecheck %s --check-prefix=NORMALIZE
// RUN: mxc opt %s --target cpu:znver5 --to kernels | filecheck %s --check-prefix=KERNELS
// RUN: mxc opt %s --target cpu:x86-64-v4 --to kernels | filecheck %s --check-prefix=V4
// RUN: mxc opt %s --target cpu:sapphirerapids --to kernels | filecheck %s --check-prefix=AMX
// RUN: mxc opt %s --target cpu:znver5 --to form-dispatches | filecheck %s --check-prefix=FORM
// RUN: mxc opt %s --target cpu:znver5 --to lower | filecheck %s --check-prefix=LOWER
// RUN: mxc opt %s --target cpu:x86-64-v3 --to lower | filecheck %s --check-prefix=LOWER
// RUN: mxc opt %s --target cpu:x86-64-v2 --to kernels | filecheck %s --check-prefix=V2

// Weights that are parameters, for bf16 and for f32 activations. Zen 5 has dot products of pairs for
// the first; a CPU without vdpbf16ps takes both as f32, from the same panels; one without AVX2 by
// operations that every CPU has. One with tiles takes both as bf16, an f32 as three of them.
// KERNELS: "llvm.x86.avx512bf16.dpbf16ps.512"
// KERNELS: util.global private @head.bf16 {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// KERNELS: util.global private @head.f32 {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// KERNELS: flow.dispatch @mxc_prepare_bf16_pairs0_
// KERNELS: flow.dispatch @mxc_bf16_bf16_1x4x8x64
// KERNELS: flow.dispatch @mxc_prepare_f32_floats0_
// KERNELS: flow.dispatch @mxc_bf16_f32_1x4x8x64
// KERNELS-LABEL: @experts
// KERNELS-NOT: flow.dispatch
// V4-NOT: dpbf16ps
// V4: util.global private @head.bf16 {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// V4: util.global private @head.f32 {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// V4: flow.dispatch @mxc_prepare_bf16_floats0_
// V4: flow.dispatch @mxc_bf16_bf16_1x4x8x64
// V4: flow.dispatch @mxc_prepare_f32_floats0_
// V4: flow.dispatch @mxc_bf16_f32_1x4x8x64
// AMX-NOT: avx512bf16
// AMX: "llvm.x86.tdpbf16ps.internal"
// AMX: util.global private @head.bf16 {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// AMX: util.global private @head.f32 {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// AMX: flow.dispatch @mxc_prepare_bf16_pairs0_and31_
// AMX: flow.dispatch @mxc_bf16_bf16_1x4x8x64_tiles
// AMX: flow.dispatch @mxc_prepare_f32_pairs0_3planes_and31_
// AMX: flow.dispatch @mxc_bf16_f32_1x4x8x64_tiles
// V2-NOT: llvm.x86
// V2: util.global private @head.bf16 {mxc.layout = "panel16x4", mxc.matrices = array<i64: {{.*}}>}
// V2: flow.dispatch @mxc_prepare_bf16_floats0_
// V2: flow.dispatch @mxc_bf16_bf16_1x4x8x64
util.global private @"head.bf16" = #flow.parameter.named<"model"::"head.bf16"> : tensor<8x64xbf16>
util.global private @"head.f32" = #flow.parameter.named<"model"::"head.f32"> : tensor<8x64xbf16>
func.func @parameters(%x: tensor<4x64xbf16>, %x32: tensor<4x64xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %w = util.global.load immutable @"head.bf16" : tensor<8x64xbf16>
  %v = util.global.load immutable @"head.f32" : tensor<8x64xbf16>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x8xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<4x8xf32>) -> tensor<4x8xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4x64xbf16>, tensor<8x64xbf16>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %c = arith.extf %a : bf16 to f32
    %d = arith.extf %b : bf16 to f32
    %p = arith.mulf %c, %d : f32
    %t = arith.addf %o, %p : f32
    linalg.yield %t : f32
  } -> tensor<4x8xf32>
  %z = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x32, %v : tensor<4x64xf32>, tensor<8x64xbf16>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: bf16, %o: f32):
    %d = arith.extf %b : bf16 to f32
    %p = arith.mulf %a, %d : f32
    %t = arith.addf %o, %p : f32
    linalg.yield %t : f32
  } -> tensor<4x8xf32>
  func.return %y, %z : tensor<4x8xf32>, tensor<4x8xf32>
}

// A frontend's way: gather the packed experts, broadcast the scales, dequantize, flatten, multiply.
// A scale is for 8 elements, which no kernel of ours takes.

// Every contraction is canonical, no tensor holds a broadcast scale or a dequantized weight.
// NORMALIZE-LABEL: @experts
// NORMALIZE-NOT: linalg.broadcast
// NORMALIZE-NOT: tensor<3x8x8x8xf32>
// NORMALIZE: linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]} ins({{.*}} : tensor<3x4x8x8xf32>, tensor<3x8x8x8xf4E2M1FN>, tensor<3x8x8xf8E8M0FNU>)
// NORMALIZE: arith.scaling_extf
// NORMALIZE-NOT: linalg.batch_matmul

// The gathers of the packed weights are inside the one dispatch of the contraction and its bias.
// FORM-LABEL: @experts
// FORM-NOT: iree_linalg_ext.gather
// FORM: flow.dispatch.region -> (tensor<3x4x8xf32>) {
// FORM: iree_linalg_ext.gather {{.*}} tensor<5x8x8x8xf4E2M1FN>
// FORM: arith.scaling_extf
// FORM: arith.addf
// FORM: flow.return
// FORM-NOT: linalg.generic

// The contraction carries its schedule.
// LOWER: #iree_cpu.lowering_config<distribution = [1, 4, 8, 0, 0]
// LOWER: @experts
// LOWER: flow.dispatch.region
// LOWER: compilation_info
func.func @experts(%x: tensor<3x4x64xf32>, %w8: tensor<5x8x8x4xi8>, %s8: tensor<5x8x8xi8>, %ids: tensor<3xi32>, %bias: tensor<8xf32>) -> tensor<3x4x8xf32> {
  %ew = tensor.empty() : tensor<3x8x8x4xi8>
  %gw = iree_linalg_ext.gather dimension_map = [0] ins(%w8, %ids : tensor<5x8x8x4xi8>, tensor<3xi32>) outs(%ew : tensor<3x8x8x4xi8>) -> tensor<3x8x8x4xi8>
  %es = tensor.empty() : tensor<3x8x8xi8>
  %gs = iree_linalg_ext.gather dimension_map = [0] ins(%s8, %ids : tensor<5x8x8xi8>, tensor<3xi32>) outs(%es : tensor<3x8x8xi8>) -> tensor<3x8x8xi8>
  %w = flow.tensor.bitcast %gw : tensor<3x8x8x4xi8> -> tensor<3x8x8x8xf4E2M1FN>
  %s = flow.tensor.bitcast %gs : tensor<3x8x8xi8> -> tensor<3x8x8xf8E8M0FNU>
  %eb = tensor.empty() : tensor<3x8x8x8xf8E8M0FNU>
  %b = linalg.broadcast ins(%s : tensor<3x8x8xf8E8M0FNU>) outs(%eb : tensor<3x8x8x8xf8E8M0FNU>) dimensions = [3]
  %ed = tensor.empty() : tensor<3x8x8x8xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(g, n, k, b) -> (g, n, k, b)>, affine_map<(g, n, k, b) -> (g, n, k, b)>, affine_map<(g, n, k, b) -> (g, n, k, b)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%w, %b : tensor<3x8x8x8xf4E2M1FN>, tensor<3x8x8x8xf8E8M0FNU>) outs(%ed : tensor<3x8x8x8xf32>) {
  ^bb0(%e: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %e, %c : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<3x8x8x8xf32>
  %flat = tensor.collapse_shape %d [[0], [1], [2, 3]] : tensor<3x8x8x8xf32> into tensor<3x8x64xf32>
  %zero = arith.constant 1.0 : f32
  %ey = tensor.empty() : tensor<3x4x8xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%ey : tensor<3x4x8xf32>) -> tensor<3x4x8xf32>
  %y = linalg.batch_matmul indexing_maps = [affine_map<(g, m, n, k) -> (g, m, k)>, affine_map<(g, m, n, k) -> (g, n, k)>, affine_map<(g, m, n, k) -> (g, m, n)>]
      ins(%x, %flat : tensor<3x4x64xf32>, tensor<3x8x64xf32>) outs(%acc : tensor<3x4x8xf32>) -> tensor<3x4x8xf32>
  %z = linalg.generic {
      indexing_maps = [affine_map<(g, m, n) -> (g, m, n)>, affine_map<(g, m, n) -> (n)>, affine_map<(g, m, n) -> (g, m, n)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%y, %bias : tensor<3x4x8xf32>, tensor<8xf32>) outs(%ey : tensor<3x4x8xf32>) {
  ^bb0(%a: f32, %c: f32, %o: f32):
    %t = arith.addf %a, %c : f32
    linalg.yield %t : f32
  } -> tensor<3x4x8xf32>
  func.return %z : tensor<3x4x8xf32>
}
