// RUN: mxc opt %s --verify-diagnostics --passes 'mxc-lower-to-gpu-kernels{target=gfx942}'

func.func @floats_in_a_ring_without_conversions(%x: tensor<4x16x32xf32>, %w: tensor<32x16x32xf4E2M1FN>, %s: tensor<32x16xf8E8M0FNU>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  // expected-error @+1 {{without conversions the transport of a ring is decoded; leave the schedule to mxc-choose-gpu-schedule}}
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %s : tensor<4x16x32xf32>, tensor<32x16x32xf4E2M1FN>, tensor<32x16xf8E8M0FNU>) outs(%acc : tensor<4x32xf32>)
      attrs = {mxc.schedule = {instruction = 32 : i64, k_steps = 2 : i64, stages = 3 : i64, tiles = array<i64: 1, 1>, transport = "ring", waves = array<i64: 4, 1, 1>}} {
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}
