// RUN: mxc opt %s --split-input-file --verify-diagnostics --passes mxc-lower-named-operations-to-gpu-kernels

// Heads of 40: no whole tiles.
util.func private @mxc.attention(%queries: tensor<?x1x4x40xf32>, %sinks: tensor<1x4xbf16>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x4x64x1x40xbf16>, %lists: tensor<?x?xi32>, %keys: index, %values: index) -> tensor<?x1x4x40xf32> attributes {mxc.operation = "attention", mxc.options = {scale = 6.250000e-02 : f64}, mxc.sizes = array<i64: 0, 0>} {
  %c0 = arith.constant 0 : index
  %rows = tensor.dim %queries, %c0 : tensor<?x1x4x40xf32>
  %empty = tensor.empty(%rows) : tensor<?x1x4x40xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%empty : tensor<?x1x4x40xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x4x40xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<?x1x4x40xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x4x40xf32>
  util.return %1 : tensor<?x1x4x40xf32>
}
util.func public @odd(%queries: tensor<?x1x4x40xf32>, %sinks: tensor<1x4xbf16>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x4x64x1x40xbf16>, %lists: tensor<?x?xi32>) -> tensor<?x1x4x40xf32> {
  %c1 = arith.constant 1 : index
  // expected-error @+1 {{no kernel computes attention: keys have 40 elements of bf16, values 40; kernels take multiples of 16 up to 576; IREE's code for it reads outside of its buffers: choose --kv-cache bf16, or a CPU}}
  %0 = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %c1, %c1) : (tensor<?x1x4x40xf32>, tensor<1x4xbf16>, tensor<?xi32>, tensor<?x3xi32>, tensor<?x4x64x1x40xbf16>, tensor<?x?xi32>, index, index) -> tensor<?x1x4x40xf32>
  util.return %0 : tensor<?x1x4x40xf32>
}

// -----

// Six elements of a value a lane, some of them of two blocks.
util.func private @mxc.attention(%queries: tensor<?x1x2x96xf32>, %sinks: tensor<1x2xf32>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x2x66x1x96xi8>, %lists: tensor<?x?xi32>, %keys: index, %values: index) -> tensor<?x1x2x96xf32> attributes {mxc.operation = "attention", mxc.options = {format = "mxfp8e4m3", scale = 1.250000e-01 : f64}, mxc.sizes = array<i64: 0, 0>} {
  %0 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%queries : tensor<?x1x2x96xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x2x96xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<?x1x2x96xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x2x96xf32>
  util.return %1 : tensor<?x1x2x96xf32>
}
util.func public @split(%queries: tensor<?x1x2x96xf32>, %sinks: tensor<1x2xf32>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x2x66x1x96xi8>, %lists: tensor<?x?xi32>) -> tensor<?x1x2x96xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  // expected-error @+1 {{no kernel computes attention: values of 96 elements are mxfp8e4m3, 6 a lane; kernels take numbers that divide a block of 32; IREE's code for it reads outside of its buffers: choose --kv-cache bf16, or a CPU}}
  %0 = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %c0, %c1) : (tensor<?x1x2x96xf32>, tensor<1x2xf32>, tensor<?xi32>, tensor<?x3xi32>, tensor<?x2x66x1x96xi8>, tensor<?x?xi32>, index, index) -> tensor<?x1x2x96xf32>
  util.return %0 : tensor<?x1x2x96xf32>
}
