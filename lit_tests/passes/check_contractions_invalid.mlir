// RUN: mxc opt %s --verify-diagnostics --passes mxc-check-contractions

func.func @behind_a_barrier(%x: tensor<4x64xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %e: tensor<8x2x32xf32>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, ko, kb) -> (n, ko, kb)>, affine_map<(n, ko, kb) -> (n, ko)>, affine_map<(n, ko, kb) -> (n, ko, kb)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<8x2x32xf4E2M1FN>, tensor<8x2xf8E8M0FNU>) outs(%e : tensor<8x2x32xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x2x32xf32>
  %b = util.optimization_barrier %d : tensor<8x2x32xf32>
  %c = tensor.collapse_shape %b [[0], [1, 2]] : tensor<8x2x32xf32> into tensor<8x64xf32>
  // expected-error @+1 {{wanted the packed tensor<8x2x32xf4E2M1FN> read here}}
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %c : tensor<4x64xf32>, tensor<8x64xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

func.func @broadcast_scale(%x: tensor<4x2x32xf32>, %w: tensor<8x2x32xf4E2M1FN>, %s: tensor<8x2xf8E8M0FNU>, %e: tensor<8x2x32xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %big = linalg.broadcast ins(%s : tensor<8x2xf8E8M0FNU>) outs(%e : tensor<8x2x32xf8E8M0FNU>) dimensions = [2]
  // expected-error @+1 {{reads tensor<8x2x32xf8E8M0FNU>, a copy of the scales}}
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, ko, kb) -> (m, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko, kb)>, affine_map<(m, n, ko, kb) -> (n, ko, kb)>, affine_map<(m, n, ko, kb) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %big : tensor<4x2x32xf32>, tensor<8x2x32xf4E2M1FN>, tensor<8x2x32xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// Extended in two operations, behind a slice.
func.func @behind_a_slice(%x: tensor<4x64xf32>, %w: tensor<8x64xf8E4M3FN>, %s: tensor<8x2xf8E8M0FNU>, %se: tensor<8x2xf32>, %e: tensor<8x64xf32>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %sf = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%s : tensor<8x2xf8E8M0FNU>) outs(%se : tensor<8x2xf32>) {
  ^bb0(%a: f8E8M0FNU, %c: f32):
    %y = arith.extf %a : f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<8x2xf32>
  %d = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k floordiv 32)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%w, %sf : tensor<8x64xf8E4M3FN>, tensor<8x2xf32>) outs(%e : tensor<8x64xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f32, %c: f32):
    %x1 = arith.extf %a : f8E4M3FN to f32
    %y = arith.mulf %x1, %b : f32
    linalg.yield %y : f32
  } -> tensor<8x64xf32>
  %slice = tensor.extract_slice %d[0, 0] [8, 64] [1, 1] : tensor<8x64xf32> to tensor<8x64xf32>
  // expected-error @+1 {{wanted the packed tensor<8x64xf8E4M3FN> read here}}
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %slice : tensor<4x64xf32>, tensor<8x64xf32>) outs(%acc : tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

// An operation that cannot decode inside: by its name.
func.func @convolution(%x: tensor<1x8x8x32xf32>, %w: tensor<3x3x32x16xf4E2M1FN>, %s: tensor<3x3x32x16xf8E8M0FNU>, %e: tensor<3x3x32x16xf32>, %acc: tensor<1x6x6x16xf32>) -> tensor<1x6x6x16xf32> {
  %d = linalg.generic {
      indexing_maps = [affine_map<(a, b, c, d) -> (a, b, c, d)>, affine_map<(a, b, c, d) -> (a, b, c, d)>, affine_map<(a, b, c, d) -> (a, b, c, d)>],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%w, %s : tensor<3x3x32x16xf4E2M1FN>, tensor<3x3x32x16xf8E8M0FNU>) outs(%e : tensor<3x3x32x16xf32>) {
  ^bb0(%a: f4E2M1FN, %b: f8E8M0FNU, %c: f32):
    %y = arith.scaling_extf %a, %b : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %y : f32
  } -> tensor<3x3x32x16xf32>
  // expected-error @+1 {{linalg.conv_2d_nhwc_hwcf reads a weight dequantized to tensor<3x3x32x16xf32>}}
  %r = linalg.conv_2d_nhwc_hwcf ins(%x, %d : tensor<1x8x8x32xf32>, tensor<3x3x32x16xf32>) outs(%acc : tensor<1x6x6x16xf32>) -> tensor<1x6x6x16xf32>
  func.return %r : tensor<1x6x6x16xf32>
}
