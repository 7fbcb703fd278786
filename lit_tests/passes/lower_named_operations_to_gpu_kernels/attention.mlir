// RUN: mxc opt %s --split-input-file --passes mxc-lower-named-operations-to-gpu-kernels | filecheck %s
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-named-operations-to-gpu-kernels{target=gfx942}' | filecheck %s --check-prefix GFX942
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-named-operations-to-gpu-kernels{target=gfx1201}' | filecheck %s --check-prefix GFX1201
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-named-operations-to-gpu-kernels{target=gfx1250}' | filecheck %s --check-prefix GFX1250
// RUN: mxc opt %s --split-input-file --passes 'mxc-lower-named-operations-to-gpu-kernels{target=gfx1151}' | filecheck %s --check-prefix GFX1151

// A window of few keys: no piece of them is computed apart. Calls of one run of several tokens have
// two tiles of rows a wave, all others one. The result is stored as bf16.
// CHECK: #[[TWO:.*]] = #iree_codegen.translation_info<{{.*}} {llvm_func_attrs = {"amdgpu-waves-per-eu" = "2"}}>
// CHECK: #[[ONE:.*]] = #iree_codegen.translation_info<{{.*}} {llvm_func_attrs = {"amdgpu-waves-per-eu" = "4"}}>
// CHECK: stream.executable private @mxc_attention_2x8x64_bf16_near_8_as_bf16 {
// Of T * 8 rows 16 or 32 are a block; a run may begin one.
// CHECK: stream.return %c2{{.*}}, %{{.*}}, %c1{{.*}} : index, index, index
// CHECK: mxc.cases = {bounds = array<i64: 1>, translations = [#[[TWO]], #[[ONE]]]}
// The run of a block of rows, found by all lanes.
// CHECK: rocdl.ballot
// The page of a block of keys, and what offsets reach of it.
// CHECK: memref.load %{{.*}} : memref<?x?xi32
// CHECK: memref.subview %{{.*}} [1, 1, 32, 1, 64] [1, 1, 1, 1, 1]
// CHECK: amdgpu.fat_raw_buffer_cast
// Pieces, then blocks of each. Three bf16 of a query by the keys, along 64 elements of D.
// CHECK: scf.for
// CHECK: scf.for
// CHECK: amdgpu.mfma 16x16x32 {{.*}} : vector<8xbf16>, vector<8xbf16>, vector<4xf32>
// CHECK: rocdl.permlane16.swap
// CHECK: rocdl.exp2
// CHECK: amdgpu.mfma 16x16x32
// With care, where something was infinite or NaN.
// CHECK: rocdl.ballot
// CHECK: amdgpu.mfma 16x16x32
// CHECK: math.fma
// CHECK: rocdl.ds_bpermute
// CHECK: stream.executable private @mxc_attention_2x8x64_bf16_near_8_as_bf16_merged {
// Fragments of four bf16; lanes exchange through LDS.
// GFX942: stream.executable private @mxc_attention_2x8x64_bf16_near_8_as_bf16 {
// GFX942: amdgpu.mfma 16x16x16 {{.*}} : vector<4xbf16>, vector<4xbf16>, vector<4xf32>
// GFX942: rocdl.ds_bpermute
// GFX942-NOT: permlane
// Waves of 32 lanes, of eight scores a tile each. All keys of a tile are in each lane of gfx1151, so
// that its halves exchange their weights: words of three bf16 of 16 keys.
// GFX1201: #iree_codegen.translation_info<{{.*}} workgroup_size = [32, 1, 1] subgroup_size = 32
// GFX1201: amdgpu.wmma 16x16x16 {{.*}} : vector<8xbf16>, vector<8xbf16>, vector<8xf32>
// GFX1201: rocdl.permlanex16
// GFX1250: amdgpu.wmma 16x16x32 {{.*}} : vector<16xbf16>, vector<16xbf16>, vector<8xf32>
// GFX1250: rocdl.permlanex16
// GFX1151: amdgpu.wmma 16x16x16 {{.*}} : vector<16xbf16>, vector<16xbf16>, vector<8xf32>
// GFX1151-COUNT-24: rocdl.permlanex16
// GFX1151: amdgpu.wmma 16x16x16
// The reference is gone.
// CHECK-NOT: util.func private
// CHECK-LABEL: util.func public @near(
// CHECK-NOT: linalg
// CHECK-NOT: util.call
// CHECK: %[[MADE:.*]]:2 = flow.dispatch @mxc_attention_2x8x64_bf16_near_8_as_bf16::@mxc_attention_2x8x64_bf16_near_8_as_bf16[%{{.*}}]({{.*}}) {{.*}}: (tensor<?x2x8x64xf32>{{.*}}) -> (tensor<?x2x8x68xf32>{{.*}}, tensor<?x2x8x64xbf16>
// CHECK: flow.dispatch @mxc_attention_2x8x64_bf16_near_8_as_bf16_merged::@mxc_attention_2x8x64_bf16_near_8_as_bf16_merged[%{{.*}}](%[[MADE]]#0, {{.*}}, %[[MADE]]#1, {{.*}}) {{.*}} -> %[[MADE]]#1
// CHECK-NOT: linalg
// CHECK: util.return
util.func private @mxc.attention(%queries: tensor<?x2x8x64xf32>, %sinks: tensor<2x8xbf16>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x4x64x2x64xbf16>, %lists: tensor<?x?xi32>, %keys: index, %values: index) -> tensor<?x2x8x64xf32> attributes {mxc.operation = "attention", mxc.options = {scale = 1.250000e-01 : f64, window = 8 : i64}, mxc.sizes = array<i64: 0, 0>} {
  %c0 = arith.constant 0 : index
  %rows = tensor.dim %queries, %c0 : tensor<?x2x8x64xf32>
  %empty = tensor.empty(%rows) : tensor<?x2x8x64xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%empty : tensor<?x2x8x64xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x2x8x64xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<?x2x8x64xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x2x8x64xf32>
  util.return %1 : tensor<?x2x8x64xf32>
}
util.func public @near(%queries: tensor<?x2x8x64xf32>, %sinks: tensor<2x8xbf16>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x4x64x2x64xbf16>, %lists: tensor<?x?xi32>) -> tensor<?x1024xbf16> {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %0 = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %c2, %c3) : (tensor<?x2x8x64xf32>, tensor<2x8xbf16>, tensor<?xi32>, tensor<?x3xi32>, tensor<?x4x64x2x64xbf16>, tensor<?x?xi32>, index, index) -> tensor<?x2x8x64xf32>
  %1 = tensor.collapse_shape %0 [[0], [1, 2, 3]] : tensor<?x2x8x64xf32> into tensor<?x1024xf32>
  %rows = tensor.dim %queries, %c0 : tensor<?x2x8x64xf32>
  %2 = tensor.empty(%rows) : tensor<?x1024xbf16>
  %3 = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]} ins(%1 : tensor<?x1024xf32>) outs(%2 : tensor<?x1024xbf16>) {
  ^bb0(%in: f32, %out: bf16):
    %4 = arith.truncf %in : f32 to bf16
    linalg.yield %4 : bf16
  } -> tensor<?x1024xbf16>
  util.return %3 : tensor<?x1024xbf16>
}

// -----

// Values are the first elements of keys: two waves a head, each of one tile of rows whatever the
// call, one at a time on a SIMD. All keys are seen: as many pieces as lists have pages for.
// CHECK: {llvm_func_attrs = {"amdgpu-waves-per-eu" = "1"}}
// CHECK: stream.executable private @mxc_attention_1x20x576to512_bf16_capped {
// CHECK: stream.return %c2{{.*}}, %{{.*}}, %c1{{.*}} : index, index, index
// CHECK-NOT: mxc.cases
// CHECK: math.copysign
// CHECK-LABEL: util.func public @latent(
// CHECK: %[[KEYS:.*]] = arith.muli %{{.*}}, %c64{{.*}} : index
// CHECK: arith.ceildivui %[[KEYS]], %c256{{.*}} : index
// CHECK: flow.dispatch @mxc_attention_1x20x576to512_bf16_capped::
util.func private @mxc.attention(%queries: tensor<?x1x20x576xf32>, %sinks: tensor<1x20xbf16>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x4x64x1x576xbf16>, %lists: tensor<?x?xi32>, %keys: index, %values: index) -> tensor<?x1x20x512xf32> attributes {mxc.operation = "attention", mxc.options = {cap = 5.000000e+01 : f64, scale = 5.000000e-02 : f64}, mxc.sizes = array<i64: 0, 0>} {
  %c0 = arith.constant 0 : index
  %rows = tensor.dim %queries, %c0 : tensor<?x1x20x576xf32>
  %empty = tensor.empty(%rows) : tensor<?x1x20x512xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%empty : tensor<?x1x20x512xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x20x512xf32>
  %1 = linalg.generic {indexing_maps = [affine_map<(m, h, g, d) -> (m, h, g, d)>], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<?x1x20x512xf32>) attrs = {mxc.product} {
  ^bb0(%out: f32):
    linalg.yield %out : f32
  } -> tensor<?x1x20x512xf32>
  util.return %1 : tensor<?x1x20x512xf32>
}
util.func public @latent(%queries: tensor<?x1x20x576xf32>, %sinks: tensor<1x20xbf16>, %positions: tensor<?xi32>, %runs: tensor<?x3xi32>, %pool: tensor<?x4x64x1x576xbf16>, %lists: tensor<?x?xi32>) -> tensor<?x1x20x512xf32> {
  %c1 = arith.constant 1 : index
  %0 = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %c1, %c1) : (tensor<?x1x20x576xf32>, tensor<1x20xbf16>, tensor<?xi32>, tensor<?x3xi32>, tensor<?x4x64x1x576xbf16>, tensor<?x?xi32>, index, index) -> tensor<?x1x20x512xf32>
  util.return %0 : tensor<?x1x20x512xf32>
}

// -----

// Bytes of an MX format: behind the 64 positions of an entry are their scales.
// CHECK: stream.executable private @mxc_attention_1x2x32_mxfp8e4m3 {
// CHECK: memref.collapse_shape %{{.*}} {{\[\[}}0, 1], [2, 3, 4]] : memref<?x2x66x1x32xi8{{.*}} into memref<?x2112xi8
// CHECK: rocdl.cvt.scalef32.pk.bf16.fp8
// GFX942: stream.executable private @mxc_attention_1x2x32_mxfp8e4m3 {
// GFX942-NOT: rocdl.cvt
// GFX942: llvm.amdgcn.perm
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

