// RUN: mxc opt %s --verify-diagnostics --passes mxc-expand-blocks

func.func @not_whole_blocks(%x: tensor<4x80xf32>, %w: tensor<8x80xf4E2M1FN>, %s: tensor<8x3xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{K=80 is not a multiple of the block size 32; pad the elements with zeros to K=96}}
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %s : tensor<4x80xf32>, tensor<8x80xf4E2M1FN>, tensor<8x3xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

func.func @dynamic(%x: tensor<4x?xf32>, %w: tensor<8x?xf4E2M1FN>, %s: tensor<8x?xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{a dynamic dimension is divided into blocks of 32}}
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %s : tensor<4x?xf32>, tensor<8x?xf4E2M1FN>, tensor<8x?xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}

// -----

func.func @two_block_sizes(%x: tensor<4x64xf8E4M3FN>, %xs: tensor<4x4xf8E8M0FNU>, %w: tensor<8x64xf4E2M1FN>, %s: tensor<8x3xf8E8M0FNU>, %acc: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{one loop is divided into blocks of 16 and of 24}}
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, k floordiv 16)>, affine_map<(m, n, k) -> (n, k floordiv 24)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x64xf8E4M3FN>, tensor<8x64xf4E2M1FN>, tensor<4x4xf8E8M0FNU>, tensor<8x3xf8E8M0FNU>) outs(%acc : tensor<4x8xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f4E2M1FN, %as: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %a, %as : f8E4M3FN, f8E8M0FNU to f32
    %y = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %l, %y : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x8xf32>
  func.return %r : tensor<4x8xf32>
}
