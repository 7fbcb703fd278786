// RUN: mxc opt %s --split-input-file --passes mxc-lower-named-operations-to-cpu-kernels | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-named-operations-to-cpu-kernels{lanes=8}' | filecheck %s --check-prefix=EIGHT
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-named-operations-to-cpu-kernels{tiles=true}' | filecheck %s --check-prefix=TILES
// RUN: mxc opt %s --split-input-file --passes mxc-lower-named-operations-to-cpu-kernels --print-kernels | filecheck %s --check-prefix=NESTS

// NESTS: // @mxc_attention_2x8x64_bf16: emitted directly, not in the kernel language (docs/kernels.md)
// NESTS-NEXT: // @mxc_attention_2x8x64_bf16_merged: emitted directly, not in the kernel language (docs/kernels.md)

// Two calls of one kernel, which reads pages itself: pieces of keys, and their sum. It is built once
// for calls with a window and without one, and the reference is gone.
// CHECK: stream.executable private @mxc_attention_2x8x64_bf16 {
// CHECK: stream.executable.export public @{{.*}} workgroups(%[[Z:.*]]: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[S:.*]]: index, %[[T:.*]]: index)
// CHECK: %[[ALL:.*]] = arith.cmpi eq, %[[T]], %[[S]] : index
// CHECK: %[[HEADS:.*]] = arith.select %[[ALL]], %c1{{.*}}, %c2{{.*}} : index
// CHECK: stream.return %[[HEADS]], %{{.*}}, %[[Z]] : index, index, index
// CHECK-NOT: llvm.call_intrinsic
// CHECK: memref<?x4x64x2x64xbf16>
// CHECK: math.fma {{.*}} : vector<16xf32>
// CHECK: stream.executable private @mxc_attention_2x8x64_bf16_merged {
// CHECK-NOT: stream.executable private
// CHECK-NOT: util.func private
// CHECK-LABEL: util.func public @step(
// CHECK-NOT: util.call
// CHECK: %[[PIECES:.*]] = arith.select %{{.*}}, %{{.*}}, %c1{{.*}} : index
// CHECK: %[[PARTS:.*]]:2 = flow.dispatch @mxc_attention_2x8x64_bf16::@{{.*}}({{.*}}, %c1000{{.*}}, %[[PIECES]]) {{.*}}: (tensor<?x2x8x64xf32>{{.*}}, tensor<?x4x64x2x64xbf16>{{.*}}, tensor<2x8xbf16>, tensor<?x3xi32>{{.*}}, tensor<?x?xi32>{{.*}}, index, index, index, index, index, index, index, index) -> (tensor<?x2x8x64xf32>{{.*}}, tensor<?x2x8x64xf32>{{.*}})
// CHECK: flow.dispatch @mxc_attention_2x8x64_bf16_merged::@{{.*}}(%[[PARTS]]#0, {{.*}}, %[[PARTS]]#1, {{.*}}) : {{.*}} -> %[[PARTS]]#1
// CHECK: flow.dispatch @mxc_attention_2x8x64_bf16::@{{.*}}({{.*}}, %c2147483647{{.*}}) {{.*}}
// CHECK: flow.dispatch @mxc_attention_2x8x64_bf16_merged::
// CHECK-NOT: util.call
// CHECK: util.return
// EIGHT: math.fma {{.*}} : vector<8xf32>
// EIGHT-LABEL: util.func public @step(
// EIGHT: flow.dispatch @mxc_attention_2x8x64_bf16::
// Without the number of significant bits that queries need, it is not on tiles, and the call says so.
// TILES-LABEL: util.func public @step(
// TILES: flow.dispatch @mxc_attention_2x8x64_bf16::{{.*}} {mxc.choice = "no tiles: queries and weights need 24 significant bits; tiles have 16", mxc.pool
util.func private @mxc.attention(%queries: tensor<?x2x8x64xf32>, %sinks: tensor<2x8xbf16>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x4x64x2x64xbf16>, %lists: tensor<?x?xi32>, %keys: index, %values: index) -> tensor<?x2x8x64xf32> attributes {mxc.operation = "attention", mxc.options = {scale = 1.250000e-01 : f64, window = 1000 : i64}, mxc.sizes = array<i64: 0, 0>} {
  %0 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%queries : tensor<?x2x8x64xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x2x8x64xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<?x2x8x64xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x2x8x64xf32>
  util.return %1 : tensor<?x2x8x64xf32>
}
util.func private @mxc.attention_0(%queries: tensor<?x2x8x64xf32>, %sinks: tensor<2x8xbf16>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x4x64x2x64xbf16>, %lists: tensor<?x?xi32>, %keys: index, %values: index) -> tensor<?x2x8x64xf32> attributes {mxc.operation = "attention", mxc.options = {scale = 1.250000e-01 : f64}, mxc.sizes = array<i64: 0, 0>} {
  %0 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%queries : tensor<?x2x8x64xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x2x8x64xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<?x2x8x64xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x2x8x64xf32>
  util.return %1 : tensor<?x2x8x64xf32>
}
util.func public @step(%queries: tensor<?x2x8x64xf32>, %sinks: tensor<2x8xbf16>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x4x64x2x64xbf16>, %lists: tensor<?x?xi32>) -> tensor<?x2x8x64xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %0 = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %c0, %c1) : (tensor<?x2x8x64xf32>, tensor<2x8xbf16>, tensor<?xi32>, tensor<?x3xi32>, tensor<?x4x64x2x64xbf16>, tensor<?x?xi32>, index, index) -> tensor<?x2x8x64xf32>
  %1 = util.call @mxc.attention_0(%0, %sinks, %positions, %runs, %pool, %lists, %c2, %c3) : (tensor<?x2x8x64xf32>, tensor<2x8xbf16>, tensor<?xi32>, tensor<?x3xi32>, tensor<?x4x64x2x64xbf16>, tensor<?x?xi32>, index, index) -> tensor<?x2x8x64xf32>
  util.return %1 : tensor<?x2x8x64xf32>
}

// -----

// Values are the first elements of keys of 576: eight lanes at most. Scores have a bound.
// CHECK: stream.executable private @mxc_attention_1x12x576to512_bf16_capped {
// CHECK: math.copysign {{.*}} : vector<8xf32>
// CHECK-LABEL: util.func public @latent(
// CHECK: flow.dispatch @mxc_attention_1x12x576to512_bf16_capped::
util.func private @mxc.attention(%queries: tensor<?x1x12x576xf32>, %sinks: tensor<1x12xf32>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x1x64x1x576xbf16>, %lists: tensor<?x?xi32>, %keys: index, %values: index) -> tensor<?x1x12x512xf32> attributes {mxc.operation = "attention", mxc.options = {scale = 1.250000e-01 : f64, cap = 5.000000e+01 : f64}, mxc.sizes = array<i64: 0, 0>} {
  %0 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%queries : tensor<?x1x12x576xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x12x576xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<?x1x12x576xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x12x576xf32>
  %c0 = arith.constant 0 : index
  %tokens = tensor.dim %queries, %c0 : tensor<?x1x12x576xf32>
  %2 = tensor.extract_slice %1[0, 0, 0, 0] [%tokens, 1, 12, 512] [1, 1, 1, 1] : tensor<?x1x12x576xf32> to tensor<?x1x12x512xf32>
  util.return %2 : tensor<?x1x12x512xf32>
}
util.func public @latent(%queries: tensor<?x1x12x576xf32>, %sinks: tensor<1x12xf32>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x1x64x1x576xbf16>, %lists: tensor<?x?xi32>) -> tensor<?x1x12x512xf32> {
  %c0 = arith.constant 0 : index
  %0 = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %c0, %c0) : (tensor<?x1x12x576xf32>, tensor<1x12xf32>, tensor<?xi32>, tensor<?x3xi32>, tensor<?x1x64x1x576xbf16>, tensor<?x?xi32>, index, index) -> tensor<?x1x12x512xf32>
  util.return %0 : tensor<?x1x12x512xf32>
}

// -----

// What no kernel takes stays a call; the products of its reference say why.
// CHECK-NOT: stream.executable private
// CHECK: linalg.generic {{.*}} attrs = {mxc.contraction = {reason = "keys have 24 elements, values 24; kernels take multiples of 16 up to 288"}, mxc.product}
// CHECK: linalg.generic {{.*}} attrs = {mxc.contraction = {reason = "keys have 24 elements, values 24; kernels take multiples of 16 up to 288"}, mxc.product}
// CHECK: util.call @mxc.attention(
util.func private @mxc.attention(%queries: tensor<?x1x2x24xf32>, %sinks: tensor<1x2xf32>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x2x64x1x24xf32>, %lists: tensor<?x?xi32>, %keys: index, %values: index) -> tensor<?x1x2x24xf32> attributes {mxc.operation = "attention", mxc.options = {scale = 1.250000e-01 : f64}, mxc.sizes = array<i64: 0, 0>} {
  %0 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%queries : tensor<?x1x2x24xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x2x24xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<?x1x2x24xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x2x24xf32>
  util.return %1 : tensor<?x1x2x24xf32>
}
util.func public @odd(%queries: tensor<?x1x2x24xf32>, %sinks: tensor<1x2xf32>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x2x64x1x24xf32>, %lists: tensor<?x?xi32>) -> tensor<?x1x2x24xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %0 = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %c0, %c1) : (tensor<?x1x2x24xf32>, tensor<1x2xf32>, tensor<?xi32>, tensor<?x3xi32>, tensor<?x2x64x1x24xf32>, tensor<?x?xi32>, index, index) -> tensor<?x1x2x24xf32>
  util.return %0 : tensor<?x1x2x24xf32>
}

// -----

// Pages of fewer positions than a block has keys; a call whose number of rows is known.
// CHECK: reason = "pages have 16 positions; kernels take 32 at once"
// EIGHT: stream.executable private @mxc_attention_1x2x32_f32 {
// EIGHT-LABEL: util.func public @small(
// EIGHT: tensor.cast %{{.*}} : tensor<3x1x2x32xf32> to tensor<?x1x2x32xf32>
// EIGHT: tensor.cast %{{.*}} : tensor<?x1x2x32xf32> to tensor<3x1x2x32xf32>
util.func private @mxc.attention(%queries: tensor<3x1x2x32xf32>, %sinks: tensor<1x2xf32>, %positions: tensor<3xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x2x16x1x32xf32>, %lists: tensor<?x?xi32>, %keys: index, %values: index) -> tensor<3x1x2x32xf32> attributes {mxc.operation = "attention", mxc.options = {scale = 1.250000e-01 : f64}, mxc.sizes = array<i64>} {
  %0 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%queries : tensor<3x1x2x32xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<3x1x2x32xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<3x1x2x32xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<3x1x2x32xf32>
  util.return %1 : tensor<3x1x2x32xf32>
}
util.func public @small(%queries: tensor<3x1x2x32xf32>, %sinks: tensor<1x2xf32>, %positions: tensor<3xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x2x16x1x32xf32>, %lists: tensor<?x?xi32>) -> tensor<3x1x2x32xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %0 = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %c0, %c1) : (tensor<3x1x2x32xf32>, tensor<1x2xf32>, tensor<3xi32>, tensor<?x3xi32>, tensor<?x2x16x1x32xf32>, tensor<?x?xi32>, index, index) -> tensor<3x1x2x32xf32>
  util.return %0 : tensor<3x1x2x32xf32>
}

// -----

// Bytes of an MX format: behind the 64 positions of an entry are their scales.
// CHECK: stream.executable private @mxc_attention_1x2x32_mxfp8e4m3 {
// CHECK: memref.collapse_shape %{{.*}} {{\[\[}}0, 1], [2, 3, 4]] : memref<?x2x66x1x32xi8> into memref<?x2112xi8>
// CHECK: arith.extf %{{.*}} : vector<16xf16> to vector<16xf32>
// CHECK-LABEL: util.func public @packed(
// CHECK: flow.dispatch @mxc_attention_1x2x32_mxfp8e4m3::
util.func private @mxc.attention(%queries: tensor<?x1x2x32xf32>, %sinks: tensor<1x2xf32>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x2x66x1x32xi8>, %lists: tensor<?x?xi32>, %keys: index, %values: index) -> tensor<?x1x2x32xf32> attributes {mxc.operation = "attention", mxc.options = {format = "mxfp8e4m3", scale = 1.250000e-01 : f64}, mxc.sizes = array<i64: 0, 0>} {
  %0 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%queries : tensor<?x1x2x32xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x2x32xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<?x1x2x32xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x2x32xf32>
  util.return %1 : tensor<?x1x2x32xf32>
}
util.func public @packed(%queries: tensor<?x1x2x32xf32>, %sinks: tensor<1x2xf32>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x2x66x1x32xi8>, %lists: tensor<?x?xi32>) -> tensor<?x1x2x32xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %0 = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %c0, %c1) : (tensor<?x1x2x32xf32>, tensor<1x2xf32>, tensor<?xi32>, tensor<?x3xi32>, tensor<?x2x66x1x32xi8>, tensor<?x?xi32>, index, index) -> tensor<?x1x2x32xf32>
  util.return %0 : tensor<?x1x2x32xf32>
}
