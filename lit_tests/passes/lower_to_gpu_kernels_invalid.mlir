// RUN: mxc opt %s --split-input-file --verify-diagnostics --passes mxc-lower-to-gpu-kernels
// RUN: not mxc opt %s --split-input-file --passes 'mxc-lower-to-gpu-kernels{target=gfx942}' 2>&1 | filecheck %s --check-prefix=GFX942

// GFX942: without conversions the transport of a ring is decoded; leave

func.func @floats_in_a_ring(%x: tensor<4x16x32xf32>, %w: tensor<32x16x32xf4E2M1FN>, %s: tensor<32x16xf8E8M0FNU>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  // expected-error @+1 {{a ring has 2 stages or more, here of 1 k-step; leave the schedule to mxc-choose-gpu-schedule}}
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

// -----

func.func @no_kernel(%x: tensor<4x64xf32>, %w: tensor<64x32xf32>, %acc: tensor<4x32xf32>) -> tensor<4x32xf32> {
  // expected-error @+1 {{no kernel computes it: it is a linalg.matmul; kernels take it as a linalg.generic; leave}}
  %y = linalg.matmul {mxc.schedule = {instruction = 32 : i64, k_steps = 2 : i64, stages = 3 : i64, tiles = array<i64: 1, 1>, transport = "ring", waves = array<i64: 4, 1, 1>}} ins(%x, %w : tensor<4x64xf32>, tensor<64x32xf32>) outs(%acc : tensor<4x32xf32>) -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// -----

func.func @more_sums_than_registers(%x: tensor<4x4x128xf8E4M3FN>, %xs: tensor<4x4xf32>, %w: tensor<32x4x128xf8E4M3FN>, %s: tensor<32x4xf32>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  // expected-error @+1 {{a wave has registers for 8 tiles; leave the schedule to mxc-choose-gpu-schedule}}
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x4x128xf8E4M3FN>, tensor<32x4x128xf8E4M3FN>, tensor<4x4xf32>, tensor<32x4xf32>) outs(%acc : tensor<4x32xf32>)
      attrs = {mxc.schedule = {instruction = 32 : i64, k_steps = 2 : i64, stages = 3 : i64, tiles = array<i64: 3, 3>, transport = "ring", waves = array<i64: 1, 1, 1>}} {
  ^bb0(%a: f8E4M3FN, %b: f8E4M3FN, %as: f32, %c: f32, %o: f32):
    %l0 = arith.extf %a : f8E4M3FN to f32
    %l = arith.mulf %l0, %as : f32
    %r0 = arith.extf %b : f8E4M3FN to f32
    %r = arith.mulf %r0, %c : f32
    %p = arith.mulf %l, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}

// -----

func.func @scaled_and_decoded(%x: tensor<4x16x32xf4E2M1FN>, %xs: tensor<4x16xf8E8M0FNU>, %w: tensor<32x16x32xf4E2M1FN>, %s: tensor<32x16xf8E8M0FNU>) -> tensor<4x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x32xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x32xf32>) -> tensor<4x32xf32>
  // expected-error @+1 {{the kernel decodes nothing, so no schedule has the transport decoded; leave the schedule to mxc-choose-gpu-schedule}}
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, k, b) -> (m, k, b)>, affine_map<(m, n, k, b) -> (n, k, b)>, affine_map<(m, n, k, b) -> (m, k)>, affine_map<(m, n, k, b) -> (n, k)>, affine_map<(m, n, k, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %xs, %s : tensor<4x16x32xf4E2M1FN>, tensor<32x16x32xf4E2M1FN>, tensor<4x16xf8E8M0FNU>, tensor<32x16xf8E8M0FNU>) outs(%acc : tensor<4x32xf32>)
      attrs = {mxc.schedule = {instruction = 32 : i64, k_steps = 2 : i64, stages = 3 : i64, tiles = array<i64: 1, 1>, transport = "decoded", waves = array<i64: 4, 1, 1>}} {
  ^bb0(%e: f4E2M1FN, %b: f4E2M1FN, %d: f8E8M0FNU, %c: f8E8M0FNU, %o: f32):
    %a = arith.scaling_extf %e, %d : f4E2M1FN, f8E8M0FNU to f32
    %r = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %r : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<4x32xf32>
  func.return %y : tensor<4x32xf32>
}
