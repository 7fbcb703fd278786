// RUN: mxc opt %s --split-input-file --passes mxc-lower-to-cpu-kernels | filecheck %s

// A bias and a residual: operands of the kernel, whose result is the sum.
// CHECK: stream.executable private @mxc_bf16_f32_1x2x32x64_then_0
// CHECK-LABEL: func.func @bias_and_residual(
// CHECK-NOT: linalg.generic
// CHECK: %[[Y:.*]] = flow.dispatch @mxc_bf16_f32_1x2x32x64_then_0{{.*}}(%{{.*}}, %w, %arg1, %arg2) {{.*}} : (tensor<2x3x32xi32>, tensor<2x2x16x64xi8>, tensor<32xbf16>, tensor<2x32xf32>) -> tensor<2x32xf32>
// CHECK: return %[[Y]]
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<32x64xbf16>
func.func @bias_and_residual(%x: tensor<2x64xf32>, %bias: tensor<32xbf16>, %residual: tensor<2x32xf32>) -> tensor<2x32xf32> {
  %w = util.global.load immutable @w : tensor<32x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x32xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x32xf32>) -> tensor<2x32xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<2x64xf32>, tensor<32x64xbf16>) outs(%acc : tensor<2x32xf32>) {
  ^bb0(%a: f32, %b: bf16, %o: f32):
    %c = arith.extf %b : bf16 to f32
    %p = arith.mulf %a, %c : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x32xf32>
  %b0 = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y, %bias : tensor<2x32xf32>, tensor<32xbf16>) outs(%e : tensor<2x32xf32>) {
  ^bb0(%a: f32, %b: bf16, %o: f32):
    %c = arith.extf %b : bf16 to f32
    %q = arith.addf %a, %c : f32
    linalg.yield %q : f32
  } -> tensor<2x32xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%residual, %b0 : tensor<2x32xf32>, tensor<2x32xf32>) outs(%e : tensor<2x32xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %q = arith.addf %a, %b : f32
    linalg.yield %q : f32
  } -> tensor<2x32xf32>
  func.return %r : tensor<2x32xf32>
}

// -----

// A gate over the two halves: the kernel stores half of the columns.
// CHECK-LABEL: func.func @gate(
// CHECK-NOT: tensor.extract_slice
// CHECK: flow.dispatch @mxc_bf16_f32_1x2x64x64_then_0{{.*}} -> tensor<2x32xf32>
// CHECK-NOT: linalg.generic
// CHECK: return
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<64x64xbf16>
func.func @gate(%x: tensor<2x64xf32>) -> tensor<2x32xf32> {
  %w = util.global.load immutable @w : tensor<64x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x64xf32>
  %h = tensor.empty() : tensor<2x32xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<2x64xf32>) -> tensor<2x64xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<2x64xf32>, tensor<64x64xbf16>) outs(%acc : tensor<2x64xf32>) {
  ^bb0(%a: f32, %b: bf16, %o: f32):
    %c = arith.extf %b : bf16 to f32
    %p = arith.mulf %a, %c : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<2x64xf32>
  %first = tensor.extract_slice %y[0, 0] [2, 32] [1, 1] : tensor<2x64xf32> to tensor<2x32xf32>
  %second = tensor.extract_slice %y[0, 32] [2, 32] [1, 1] : tensor<2x64xf32> to tensor<2x32xf32>
  %g = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%first, %second : tensor<2x32xf32>, tensor<2x32xf32>) outs(%h : tensor<2x32xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %n = arith.negf %a : f32
    %x0 = math.exp %n : f32
    %q = arith.mulf %x0, %b : f32
    linalg.yield %q : f32
  } -> tensor<2x32xf32>
  func.return %g : tensor<2x32xf32>
}

// -----

// The totals have two readers: neither is an epilogue. Columns that are turned are none either.
// CHECK-LABEL: func.func @not_an_epilogue(
// CHECK: flow.dispatch @mxc_bf16_f32_1x32x32x64::
// CHECK-COUNT-2: linalg.generic
// CHECK: flow.dispatch @mxc_bf16_f32_1x32x32x64::
// CHECK: linalg.generic
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<32x64xbf16>
func.func @not_an_epilogue(%x: tensor<32x64xf32>, %x2: tensor<32x64xf32>) -> (tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>) {
  %w = util.global.load immutable @w : tensor<32x64xbf16>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x32xf32>
  %acc = linalg.fill ins(%z : f32) outs(%e : tensor<32x32xf32>) -> tensor<32x32xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<32x64xf32>, tensor<32x64xbf16>) outs(%acc : tensor<32x32xf32>) {
  ^bb0(%a: f32, %b: bf16, %o: f32):
    %c = arith.extf %b : bf16 to f32
    %p = arith.mulf %a, %c : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<32x32xf32>
  %n = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<32x32xf32>) outs(%e : tensor<32x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = arith.negf %a : f32
    linalg.yield %q : f32
  } -> tensor<32x32xf32>
  %t = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y : tensor<32x32xf32>) outs(%e : tensor<32x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = arith.addf %a, %a : f32
    linalg.yield %q : f32
  } -> tensor<32x32xf32>
  %y2 = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x2, %w : tensor<32x64xf32>, tensor<32x64xbf16>) outs(%acc : tensor<32x32xf32>) {
  ^bb0(%a: f32, %b: bf16, %o: f32):
    %c = arith.extf %b : bf16 to f32
    %p = arith.mulf %a, %c : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<32x32xf32>
  %u = linalg.generic {indexing_maps = [affine_map<(m, n) -> (n, m)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}
      ins(%y2 : tensor<32x32xf32>) outs(%e : tensor<32x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %q = arith.negf %a : f32
    linalg.yield %q : f32
  } -> tensor<32x32xf32>
  func.return %n, %t, %u : tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>
}
