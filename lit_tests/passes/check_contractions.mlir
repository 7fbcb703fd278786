// RUN: mxc opt %s --split-input-file --passes mxc-check-contractions | filecheck %s

// CHECK-LABEL: @accumulates_in_bf16
// CHECK: attrs = {mxc.contraction = {reason = "it sums in bf16; kernels sum in f32"}}
func.func @accumulates_in_bf16(%x: tensor<4x2x32xbf16>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xbf16>) -> tensor<4x8xbf16> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xbf16>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xbf16>) {
  ^bb0(%a: bf16, %b: f4E2M1FN, %c: f8E8M0FNU, %o: bf16):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to bf16
    %p = arith.mulf %a, %y : bf16
    %q = arith.addf %o, %p : bf16
    linalg.yield %q : bf16
  } -> tensor<4x8xbf16>
  func.return %r : tensor<4x8xbf16>
}

// -----

// CHECK-LABEL: @canonical
// CHECK: attrs = {mxc.contraction = {batch = 1 : i64, k = 64 : i64, lhs = {element = f32}, m = 4 : i64, n = 8 : i64, out = {element = f32}, rhs = {block = 32 : i64, element = f4E2M1FN, scale = f8E8M0FNU}}}
func.func @canonical(%x: tensor<4x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>) -> tensor<4x8xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x8xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x8xf32>) -> tensor<4x8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%fill : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// CHECK-LABEL: @adds_to_what_is_there
// CHECK: attrs = {mxc.contraction = {reason = "the accumulator is not zero"}}
func.func @adds_to_what_is_there(%x: tensor<4x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// CHECK-LABEL: @rounds_in_f16
// CHECK: mxc.contraction = {reason = "a side is dequantized to a type that does not hold every value of the format"
func.func @rounds_in_f16(%x: tensor<4x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>) -> tensor<4x8xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x8xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x8xf32>) -> tensor<4x8xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%fill : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f16
    %z = arith.extf %y : f16 to f32
    %p = arith.mulf %a, %z : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Plain numbers with a parameter: a kernel may pack it.
// CHECK-LABEL: func.func @plain(
// CHECK: mxc.contraction = {batch = 1 : i64, k = 64 : i64, lhs = {element = bf16}, m = 2 : i64, n = 20 : i64, out = {element = f32}, rhs = {element = f32}}
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<20x64xf32>
func.func @plain(%x: tensor<2x64xbf16>) -> tensor<2x20xf32> {
  %zero = arith.constant 0.0 : f32
  %w = util.global.load @w : tensor<20x64xf32>
  %empty = tensor.empty() : tensor<2x20xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x20xf32>) -> tensor<2x20xf32>
  %y = linalg.generic {
    indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
    iterator_types = ["parallel", "parallel", "reduction"]
  } ins(%x, %w : tensor<2x64xbf16>, tensor<20x64xf32>) outs(%acc : tensor<2x20xf32>) {
  ^bb0(%a: bf16, %b: f32, %c: f32):
    %wide = arith.extf %a : bf16 to f32
    %p = arith.mulf %wide, %b : f32
    %s = arith.addf %c, %p : f32
    linalg.yield %s : f32
  } -> tensor<2x20xf32>
  return %y : tensor<2x20xf32>
}

// -----

// IREE makes a product of a convolution of single elements, which then has the reason.
// CHECK-LABEL: @convolution
// CHECK: linalg.conv_2d_nchw_fchw {{.*}}mxc.contraction = {reason = "it is a linalg.conv_2d_nchw_fchw that is no product of two tensors, summed"}
func.func @convolution(%x: tensor<?x16x8x8xf32>, %w: tensor<32x16x1x1xf32>, %acc: tensor<?x32x8x8xf32>) -> tensor<?x32x8x8xf32> {
  %y = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<?x16x8x8xf32>, tensor<32x16x1x1xf32>) outs(%acc : tensor<?x32x8x8xf32>) -> tensor<?x32x8x8xf32>
  return %y : tensor<?x32x8x8xf32>
}
